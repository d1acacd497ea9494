"""Draw how histories grow, as a picture in SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 52, 48
LIMIT: Final = 50
"""Megabytes that a history may have."""
INK: Final = {True: "#e6edf3", False: "#24292f"}
FAINT: Final = {True: "#8b949e", False: "#6b7480"}
PAPER: Final = {True: "#0d1117", False: "#ffffff"}
COLORS: Final = {True: ("#56d364", "#ff7b72", "#d2a8ff"), False: ("#1a7f37", "#cf222e", "#8250df")}
"""The colors of the curves, on a dark page and on a light one."""


@dataclass(frozen=True)
class Curve:
    """The history of one loop."""

    name: str
    megabytes: Sequence[float]
    """Its size after each tool call."""
    is_done: bool


def picture(curves: Sequence[Curve], *, is_dark: bool) -> str:
    """Return the picture for a dark page or a light one."""
    most = max(len(curve.megabytes) - 1 for curve in curves)

    def x(calls: float) -> str:
        return f"{LEFT + calls / most * (WIDTH - LEFT - RIGHT):.1f}"

    def y(megabytes: float) -> str:
        return f"{HEIGHT - BOTTOM - megabytes / (1.08 * LIMIT) * (HEIGHT - TOP - BOTTOM):.1f}"

    def line(points: str, color: str, rest: str = "") -> str:
        return f'<polyline points="{points}" fill="none" stroke="{color}"{rest}/>'

    def text(at: str, height: str, told: str, rest: str = "") -> str:
        return f'<text x="{at}" y="{height}"{rest}>{told}</text>'

    faint, middle = f' fill="{FAINT[is_dark]}"', ' text-anchor="middle"'
    end = ' text-anchor="end"'
    drawn = [
        text(str(LEFT), "28", "Size of the history after each tool call", ' font-weight="600" font-size="15"'),
        *(text(str(LEFT - 8), y(each - 0.6), f"{each} MB", end + faint) for each in range(0, LIMIT + 1, 10)),
        *(
            line(f"{x(0)},{y(each)} {x(most)},{y(each)}", FAINT[is_dark], ' stroke-opacity=".25"')
            for each in range(0, LIMIT, 10)
        ),
        line(f"{x(0)},{y(LIMIT)} {x(most)},{y(LIMIT)}", FAINT[is_dark], ' stroke-dasharray="5 4"'),
        text(x(0), y(LIMIT + 1), "The server ends the run", faint),
        *(text(x(each), str(HEIGHT - BOTTOM + 20), str(each), middle + faint) for each in range(0, most + 1, 20)),
        text(x(most / 2), str(HEIGHT - 10), "tool calls with results of 5 KB", middle + faint),
    ]
    for curve, color in zip(curves, COLORS[is_dark], strict=False):
        sizes, calls = curve.megabytes, len(curve.megabytes) - 1
        drawn.append(
            line(" ".join(f"{x(at)},{y(size)}" for at, size in enumerate(sizes)), color, ' stroke-width="2.5"')
        )
        told = f"{curve.name}: {sizes[-1]:.1f} MB" if curve.is_done else f"{curve.name}, ended at {calls} calls"
        where = (x(calls), y(sizes[-1] + 1.5)) if curve.is_done else (x(calls - 10), y(sizes[-10]))
        drawn.append(text(*where, told, f' fill="{color}" font-weight="600" text-anchor="end"'))
        if not curve.is_done:
            drawn.append(f'<circle cx="{x(calls)}" cy="{y(sizes[-1])}" r="4.5" fill="{color}"/>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            f' font-family="system-ui, sans-serif" font-size="13" fill="{INK[is_dark]}">',
            f'<rect width="100%" height="100%" rx="6" fill="{PAPER[is_dark]}"/>',
            *drawn,
            "</svg>\n",
        ]
    )
