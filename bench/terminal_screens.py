"""Make the pictures of docs/terminal.md: `python -m bench.terminal_screens`. Every picture is of the real command.

`loom` runs in a terminal of 80 or 120 columns on a stack of its own, whose worker asks a scripted model. An emulator
turns the command's bytes into cells, and the cells become SVG files in docs/images, for light and for dark pages. To
make only some scenes, name them: `python -m bench.terminal_screens three_asks inbox`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from pyte.screens import Char

from loom.testing.model_server import Reply, ThreadedModelServer, ToolUse, calls, text
from tests.terminal import Terminal, terminal
from tests.trees import by_task, delegate

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
LOOM: Final = str(Path(sys.executable).parent / "loom")

CELL: Final = (8.4, 18.0)
"""Width and height of a cell in pixels."""
EDGE: Final = 12.0
FONT: Final = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"

NAMES: Final = ("black", "red", "green", "brown", "blue", "magenta", "cyan", "white")
"""The emulator's names of the eight colors. Bright ones have `bright` before them."""


@dataclass(frozen=True, kw_only=True)
class Palette:
    """The colors of a terminal."""

    text: str
    page: str
    dim: str
    colors: tuple[str, ...]

    def color(self, name: str) -> str:
        """Return a color for CSS."""
        plain = name.removeprefix("bright")
        return self.colors[NAMES.index(plain)] if plain in NAMES else f"#{plain}"


PALETTES: Final = {
    "dark": Palette(
        text="#d8dee9",
        page="#1b1f27",
        dim="#8791a3",
        colors=("#3b4252", "#f27b86", "#9fcf83", "#eacb7f", "#7fa9f0", "#d49ae0", "#70c7d4", "#e5e9f0"),
    ),
    "light": Palette(
        text="#24292f",
        page="#ffffff",
        dim="#6b7480",
        colors=("#24292f", "#b3202c", "#1a7534", "#875b00", "#0a53c1", "#8433a8", "#0b6b7a", "#57606a"),
    ),
}

PRICES: Final = {"openai:gpt-5.2": {"input": 1.75, "output": 14.0, "cached": 0.175}}
NOTES: Final = "# Notes\n\n## 0.4.0\n\n- Faster start.\n- A new inbox.\n\n## 0.3.0\n\n- Knowledge bases.\n- Crews.\n"
NEW_NOTES: Final = NOTES.replace(
    "- Faster start.\n- A new inbox.\n",
    "- `loom up` starts in 1.9 s instead of 4.2 s.\n- `loom inbox` answers all runs.\n- Fixed: a lost page.\n",
)
ANSWER: Final = (
    "The notes of **0.4.0** are ready.\n\n"
    "- `NOTES.md` names three changes, with figures.\n- `version.toml` says `0.4.0`.\n"
    "- `dist/` has a copy of both.\n"
)
THREE_CALLS: Final = calls(
    ToolUse("write_file", {"path": "NOTES.md", "content": NEW_NOTES}, "notes"),
    ToolUse("edit_file", {"path": "version.toml", "old_string": '"0.3.0"', "new_string": '"0.4.0"'}, "version"),
    ToolUse("bash", {"command": "mkdir -p dist && cp NOTES.md version.toml dist/"}, "dist"),
    text="I have read the log. Three things remain to be done.",
)


def _used(reply: Reply, tokens: tuple[int, int, int], delay: float = 0.3) -> Reply:
    return Reply(text=reply.text, calls=reply.calls, usage=tokens, delay=delay)


TOOLS: Final = ["read_file", "delegate_task"]
"""The tools of the sub-agent that has a sub-agent itself."""

REPLIES: Final[Mapping[str, Sequence[Reply]]] = {
    "Prepare the release": [
        _used(calls(ToolUse("read_file", {"path": "NOTES.md"}, "r1"), text="First I read the notes."), (2140, 48, 0)),
        _used(THREE_CALLS, (2960, 410, 2048)),
        _used(text(ANSWER), (3520, 96, 2944)),
    ],
    "Audit the project": [
        _used(
            calls(
                delegate("check the parser", "Look at parser.py for mistakes.", "c1", tools=TOOLS),
                delegate("check the tests", "Look at tests/ for gaps.", "c2"),
            ),
            (1800, 120, 0),
        ),
        _used(text("Two findings: the parser accepts `--`, and nobody tests an empty file."), (2600, 80, 1792)),
    ],
    "Look at parser.py": [
        _used(calls(ToolUse("read_file", {"path": "parser.py"}, "p1")), (900, 30, 0)),
        _used(calls(delegate("try an empty option", "Try the parser with an empty option.", "p2")), (1200, 60, 896)),
        _used(text("It accepts `--` as an option."), (1500, 40, 1152)),
    ],
    "Try the parser": [_used(text("`parse('--')` returns an option without a name."), (700, 35, 0))],
    "Look at tests/": [
        _used(calls(ToolUse("glob", {"pattern": "**/test_*.py"}, "t1")), (900, 25, 0)),
        _used(text("No test has an empty file."), (1100, 30, 896)),
    ],
    "Fix the login": [
        _used(
            calls(
                ToolUse(
                    "edit_file",
                    {"path": "parser.py", "old_string": "return None", "new_string": "raise ValueError(text)"},
                    "fix",
                )
            ),
            (1500, 70, 0),
        )
    ],
    "Clean the build": [_used(calls(ToolUse("bash", {"command": "rm -rf build dist"}, "clean")), (800, 30, 0))],
    "Choose a color": [
        _used(calls(ToolUse("ask_user", {"question": "Red or blue for warnings?"}, "ask")), (600, 20, 0))
    ],
    "Publish the page": [_used(calls(ToolUse("bash", {"command": "git push origin gh-pages"}, "push")), (950, 33, 0))],
    "Write the summary": [
        _used(calls(ToolUse("write_file", {"path": "SUMMARY.md", "content": "# Summary\n"}, "sum")), (1300, 55, 0))
    ],
}  # fmt: skip


@dataclass
class Stage:
    """A stack whose worker asks the scripted model, and a project to work in."""

    env: Mapping[str, str]
    project: Path
    made: list[Path] = field(default_factory=list)

    def loom(self, *words: str) -> str:
        """Run a command in a pipe and return its output."""
        command = [LOOM, *words]
        done = subprocess.run(command, env=self.env, cwd=self.project, check=True, capture_output=True, text=True)
        return done.stdout

    @contextmanager
    def at(self, look: "Look", *words: str, rows: int = 60) -> Iterator[Terminal]:
        """Run a command in a terminal."""
        given = {**self.env, **look.env}
        with terminal([LOOM, *words], given, columns=look.columns, rows=rows, folder=str(self.project)) as shown:
            yield shown

    def keep(self, shown: Terminal, name: str, look: "Look") -> None:
        """Write the pictures of what is on the screen."""
        rows = _without_empty_end(shown.rows)
        for palette in ("dark", "light") if not look.name else ("dark",):
            path = IMAGES / f"terminal-{name}-{look.columns}-{look.name or palette}.svg"
            path.write_text(svg(rows, PALETTES[palette]), encoding="utf-8")
            self.made.append(path)

    def keep_end(self, name: str, look: "Look", *words: str) -> None:
        """Run a command to its end and write the pictures of what it has printed."""
        with self.at(look, *words) as shown:
            shown.ended()
            self.keep(shown, name, look)

    def fresh_project(self) -> None:
        """Put the files back."""
        files = {
            "NOTES.md": NOTES,
            "version.toml": '[project]\nversion = "0.3.0"\n',
            "parser.py": "def parse(text):\n    if not text:\n        return None\n    return text.split('=')\n",
        }
        for name, content in files.items():
            (self.project / name).write_text(content, encoding="utf-8")
        subprocess.run(["git", "init", "-q"], cwd=self.project, check=True)


@dataclass(frozen=True, kw_only=True)
class Look:
    """A kind of terminal in which each scene is shown."""

    columns: int
    name: str = ""
    """Empty for a terminal with colors, of which there is a picture for light and one for dark pages."""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether nobody can answer in place, because the terminal only prints lines."""
        return self.name == "dumb"


LOOKS: Final = (
    Look(columns=80),
    Look(columns=120),
    *(Look(columns=columns, name="no-color", env={"NO_COLOR": "1"}) for columns in (80, 120)),
    *(Look(columns=columns, name="dumb", env={"TERM": "dumb"}) for columns in (80, 120)),
)


def three_asks(stage: Stage) -> None:
    """A run that asks three times, before the last answer."""
    for look in LOOKS:
        stage.fresh_project()
        name = f"release-{look.columns}-{look.name}".removesuffix("-")
        words = ("run", "Prepare the release 0.4.0", "--id", name, "--workspace", str(stage.project))
        with stage.at(look, *words, rows=70) as shown:
            if look.is_plain:
                shown.until(f"answer with `loom approve {name} dist`")
                stage.keep(shown, "asks", look)
                for call in ("notes", "version", "dist"):
                    stage.loom("approve", name, call)
            else:
                for tool in ("write_file", "edit_file"):
                    shown.until(f"approve {tool}?  [y]")
                    shown.press("y")
                shown.until("approve bash?  [y]")
                stage.keep(shown, "asks", look)
                shown.press("y")
            shown.ended()


def answer(stage: Stage) -> None:
    """The end of a run with its answer."""
    for look in LOOKS[:2]:
        stage.keep_end("answer", look, "watch", "release-80", "--from", "14")


def tree(stage: Stage) -> None:
    """A run and its sub-agents, as it was told and as a tree."""
    stage.fresh_project()
    stage.loom("run", "Audit the project", "--id", "audit", "--workspace", str(stage.project))
    for look in LOOKS:
        stage.keep_end("sub-agents", look, "watch", "audit")
        stage.keep_end("tree", look, "list", "--tree", "audit")


def report(stage: Stage) -> None:
    """Where the time and the money of the tree went."""
    for look in LOOKS:
        stage.keep_end("report", look, "report", "audit", "--no-pager")


def inbox(stage: Stage) -> None:
    """Five runs that wait, and the first of them to be answered."""
    stage.fresh_project()
    tasks = ("Fix the login", "Clean the build", "Choose a color", "Publish the page", "Write the summary")
    for number, task in enumerate(tasks):
        stage.loom("run", task, "--id", task.split()[-1], "--workspace", str(stage.project), "--detach")
        while len(json.loads(stage.loom("inbox", "--json"))) <= number:
            pass
    for look in LOOKS:
        with stage.at(look, "inbox") as shown:
            if look.is_plain:
                shown.ended()
                stage.keep(shown, "inbox", look)
            else:
                shown.until("[q] quit")
                stage.keep(shown, "inbox", look)
                shown.press("q")
                shown.ended()
        stage.keep_end("list", look, "list")
    with stage.at(LOOKS[0], "watch", rows=16) as shown:
        shown.until("approval: bash")
        stage.keep(shown, "watch", LOOKS[0])


def svg(rows: Sequence[Sequence[Char]], palette: Palette) -> str:
    """Draw cells."""
    width, height = CELL
    columns = len(rows[0])
    size = (columns * width + 2 * EDGE, len(rows) * height + 2 * EDGE)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:g} {size[1]:g}" width="{size[0]:g}" '
        f'height="{size[1]:g}" font-family="{FONT}" font-size="14" fill="{palette.text}">',
        f'<rect width="100%" height="100%" rx="6" fill="{palette.page}" stroke="{palette.dim}" stroke-opacity=".4"/>',
    ]
    for y, row in enumerate(rows):
        cells = [(x, cell) for x, cell in enumerate(row) if cell.data]
        for look, group in groupby(cells, key=lambda each: _look(each[1], palette)):
            run = list(group)
            x, words = run[0][0], "".join(cell.data for _, cell in run)
            out += _drawn(EDGE + x * width, EDGE + y * height, words, look)
    return "\n".join([*out, "</svg>\n"])


def _look(cell: Char, palette: Palette) -> tuple[str, str, str]:
    """Return a cell's color, background and other attributes."""
    fore = palette.text if cell.fg == "default" else palette.color(cell.fg)
    back = "" if cell.bg == "default" else palette.color(cell.bg)
    if cell.blink and cell.fg == "default":  # dim: see `tests.terminal`
        fore = palette.dim
    if cell.reverse:
        fore, back = back or palette.page, fore
    named = {"font-weight": "bold" if cell.bold else "", "font-style": "italic" if cell.italics else ""}
    named["text-decoration"] = "underline" if cell.underscore else ""
    more = "".join(f' {key}="{value}"' for key, value in named.items() if value)
    return "" if fore == palette.text else fore, back, more


def _drawn(x: float, y: float, words: str, look: tuple[str, str, str]) -> Iterator[str]:
    fore, back, more = look
    length = len(words) * CELL[0]
    if back:
        yield f'<rect x="{x:g}" y="{y:g}" width="{length:g}" height="{CELL[1]:g}" fill="{back}"/>'
    fill = f' fill="{fore}"' if fore else ""
    for part in re.finditer(r"\S+(?: \S+)*", words):  # SVG would collapse several spaces
        at = f'x="{x + part.start() * CELL[0]:g}" y="{y + 13.5:g}" textLength="{len(part[0]) * CELL[0]:g}"'
        yield f"<text {at}{fill}{more}>{escape(part[0])}</text>"


def _without_empty_end(rows: list[list[Char]]) -> list[list[Char]]:
    while len(rows) > 1 and not "".join(cell.data for cell in rows[-1]).strip():
        rows = rows[:-1]
    return rows


@contextmanager
def stage() -> Iterator[Stage]:
    """Start a stack with a scripted model, until the `with` block ends."""
    with tempfile.TemporaryDirectory(prefix="loom-") as folder, ThreadedModelServer(by_task(REPLIES)) as model:
        project = Path(folder) / "project"
        project.mkdir()
        foreign = ("LOOM_", "TEMPORAL_", "OPENAI_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "PAGER", "LESS")
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
            "LOOM_HOME": f"{folder}/.loom",
            "XDG_STATE_HOME": f"{folder}/state",
            "LOOM_MODEL": "openai:gpt-5.2",
            "LOOM_MEMORY": "off",
            "LOOM_PRICES": json.dumps(PRICES),
            "OPENAI_API_KEY": "scripted",
            "OPENAI_BASE_URL": model.openai_url,
        }
        opened = Stage(env=env, project=project)
        opened.loom("up", "--detach", "--workspace-root", str(project))
        try:
            yield opened
        finally:
            opened.loom("down")


SCENES: Final = {scene.__name__: scene for scene in (three_asks, answer, tree, report, inbox)}

if __name__ == "__main__":
    with stage() as opened:
        for name in sys.argv[1:] or SCENES:
            SCENES[name](opened)
        print(f"{len(opened.made)} pictures, {sum(path.stat().st_size for path in opened.made):,} bytes")
