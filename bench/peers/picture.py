"""Draw how histories grow, as a picture in SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 52, 48
LIMIT: Final = 50
"""Megabytes that a history may have."""


@dataclass(frozen=True)
class Curve:
    """The history of one loop."""

    name: str
    megabytes: Sequence[float]
    """Its size before each model call."""
    is_done: bool

    @property
    def calls(self) -> int:
        """Return the number of tool calls before the last model call."""
        return len(self.megabytes) - 1


@dataclass(frozen=True)
class Colors:
    """The colors of a picture."""

    paper: str
    ink: str
    faint: str
    curves: Sequence[str]


LIGHT: Final = Colors("#ffffff", "#24292f", "#6b7480", ("#1a7f37", "#cf222e", "#8250df"))
DARK: Final = Colors("#0d1117", "#e6edf3", "#8b949e", ("#56d364", "#ff7b72", "#d2a8ff"))


def picture(curves: Sequence[Curve], colors: Colors) -> str:
    """Return the picture in these colors."""
    most = max(curve.calls for curve in curves)
    begin = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="{colors.ink}">'
    )
    paper = f'<rect width="100%" height="100%" rx="6" fill="{colors.paper}"/>'
    drawn = [each for curve, color in zip(curves, colors.curves, strict=False) for each in _curve(curve, curves, color)]
    return "\n".join([begin, paper, *_axes(most, colors.faint), *drawn, "</svg>\n"])


def _axes(most: int, faint: str) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="28" font-weight="600" font-size="15">Size of the history after each tool call</text>'
    yield _text(LEFT, _y(LIMIT) - 6, "The server ends the run", faint)
    for megabytes in range(0, LIMIT + 1, 10):
        dashes = ' stroke-dasharray="5 4"' if megabytes == LIMIT else ' stroke-opacity=".25"'
        yield f'<path d="M{LEFT},{_y(megabytes):.1f}H{WIDTH - RIGHT}" stroke="{faint}"{dashes}/>'
        yield _text(LEFT - 8, _y(megabytes) + 4, f"{megabytes} MB", faint, "end")
    for calls in range(0, most + 1, 20):
        yield _text(_x(calls, most), HEIGHT - BOTTOM + 20, str(calls), faint, "middle")
    yield _text(_x(most / 2, most), HEIGHT - 10, "tool calls with results of 5 KB", faint, "middle")


def _curve(curve: Curve, curves: Sequence[Curve], color: str) -> Iterator[str]:
    """Draw a curve with its name. The steepest one has its name on the left, where there is room."""
    most = max(each.calls for each in curves)
    sizes, calls = curve.megabytes, curve.calls
    points = " ".join(f"{_x(at, most):.1f},{_y(size):.1f}" for at, size in enumerate(sizes))
    yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5"/>'
    if curve.is_done:
        yield _text(_x(calls, most), _y(sizes[-1]) - 8, f"{curve.name}: {sizes[-1]:.1f} MB", color, "end")
        return
    yield f'<circle cx="{_x(calls, most):.1f}" cy="{_y(sizes[-1]):.1f}" r="4.5" fill="{color}"/>'
    told = f"{curve.name}, ended after {calls} calls"
    if calls == min(each.calls for each in curves):
        at = calls * 4 // 5
        yield _text(_x(at, most) - 10, _y(sizes[at]), told, color, "end")
    else:
        at = calls * 3 // 5
        yield _text(_x(at, most) + 14, _y(sizes[at]) + 8, told, color)


def _text(x: float, y: float, told: str, color: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{told}</text>'


def _x(calls: float, most: int) -> float:
    return LEFT + calls / most * (WIDTH - LEFT - RIGHT)


def _y(megabytes: float) -> float:
    return HEIGHT - BOTTOM - megabytes / (1.08 * LIMIT) * (HEIGHT - TOP - BOTTOM)
