"""The code blocks of all pages, and the `loom` commands in the blocks and in the texts.

A block that isn't run with the others has a line above it that says why, which readers of the page don't see:

    <!-- not run: it needs a Kubernetes cluster -->
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
GENERATED: Final = ROOT / "docs/reference"
PAGES: Final = (
    *sorted(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if GENERATED not in page.parents),
    *sorted(page for folder in ("deploy", "examples") for page in (ROOT / folder).rglob("README.md")),
)
_FENCE: Final = re.compile(
    r"^(?: *<!-- not run: (?P<why>.+?) -->\n)?^(?P<margin> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
SHELLS: Final = ("console", "sh", "bash")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One code block."""

    page: str
    line: int
    kind: str
    """The first word after the fence."""
    text: str
    why_not: str = ""
    """Why it isn't run, if the page says so."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*kinds: str) -> Iterator[Block]:
    """All blocks of these kinds, or of any kind."""
    return (block for block in _all_blocks() if not kinds or block.kind in kinds)


@cache
def _all_blocks() -> tuple[Block, ...]:
    return tuple(block for page in PAGES for block in _blocks_in(page))


def _blocks_in(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        margin = found["margin"]
        lines = found["text"].splitlines()
        yield Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start("kind")) + 1,
            kind=found["kind"].partition(" ")[0],
            text="".join(f"{line.removeprefix(margin)}\n" for line in lines),
            why_not=found["why"] or "",
        )


def blocks_of(page: str, *kinds: str) -> list[Block]:
    """The blocks of one page."""
    return [block for block in blocks(*kinds) if block.page == page]


def lines_of(block: Block) -> list[str]:
    """The command lines of a block, without prompts and what the commands have printed."""
    lines = block.text.replace("\\\n", " ").splitlines()
    is_session = any(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ") or not is_session]


def shell(script: str, folder: Path, env: Mapping[str, str], *, says: str = "") -> str:
    """Run command lines as a reader does, with the programs of this environment. Returns what they print."""
    programs = f"{Path(sys.executable).parent}:{env.get('PATH', os.environ['PATH'])}"
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**env, "PATH": programs},
        check=False,
        capture_output=True,
        text=True,
        input=says,
        timeout=240,
    )
    assert ran.returncode == 0, f"{script}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@dataclass(frozen=True, kw_only=True)
class Command:
    """A `loom` command of a page, without the name of the program."""

    block: Block
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.block} {' '.join(self.words)[:60]}"


def commands() -> Iterator[Command]:
    """All `loom` commands in console blocks, those that another command runs in a container included. Several commands
    may share a line, two spaces apart.
    """
    for block in blocks(*SHELLS):
        for line in lines_of(block):
            for part in re.split(r" {2,}(?=loom )| -- (?=loom )|`(?=loom )|`", _in_container(line)):
                if words := _loom_words(part):
                    yield Command(block=block, words=words)


def named_commands() -> Iterator[Command]:
    """All `loom` commands that the texts between the blocks name, which may leave out arguments."""
    for page in PAGES:
        text = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))
        for found in re.finditer(r"`(?:[A-Z_]+=\S+ )*loom ([^`]+)`", text):
            line = text.count("\n", 0, found.start()) + 1
            where = Block(page=str(page.relative_to(ROOT)), line=line, kind="", text=found[0])
            yield Command(block=where, words=tuple(found[1].split()))


def _in_container(line: str) -> str:
    """Write a command of the image, whose program is Loom, with the name of the program."""
    return re.sub(r"^docker compose run --rm \w+ ", "loom ", re.sub(r"^\w+=\$\((.*)\)$", r"\1", line))


def _loom_words(line: str) -> tuple[str, ...]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return ()  # the command isn't Loom's, and goes on in the next line
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words or words[0] not in ("loom", ".venv/bin/loom"):
        return ()
    ends = [place for place, word in enumerate(words) if word in ("|", ">", "&&", ";", "&")]
    return tuple(words[1 : min(ends, default=None)])
