"""Tools that search the workspace: `glob` searches names, and `grep` searches content."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Final

from pydantic import Field

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.activities.toolbox.workspace import paths as workspace
from loom.activities.toolbox.workspace.file_walk import walk
from loom.activities.toolbox.workspace.text_bytes import readable
from loom.domain.core.errors import ToolValidationError
from loom.domain.core.tool_calls import Effect
from loom.domain.permissions.subjects import Subject

_FOUND: Final = 300
"""Maximum number of paths or lines that one search returns."""

_SECONDS: Final = 20.0
"""Maximum duration of one search in seconds. After this time, the search stops and returns the matches found so far."""

_PACKAGES: Final = Path(__file__).parents[4]
_START: Final = (
    "import sys; sys.path.append(sys.argv[1]); from loom.activities.toolbox.built_in.search_process import main; main()"
)


class Glob(Arguments):
    """Arguments of glob."""

    pattern: str = Field(min_length=1, description="`*.py` in every folder, `src/**/*.{ts,tsx}` below src")
    path: workspace.PathText = "."


class Grep(Arguments):
    """Arguments of grep."""

    pattern: str = Field(min_length=1)
    path: workspace.PathText = "."
    glob: str | None = Field(default=None)
    ignore_case: bool = False


class _Stop:
    """Tells a thread to stop when the search times out or its call is cancelled."""

    def __init__(self, seconds: float) -> None:
        self._until = monotonic() + seconds
        self._told = threading.Event()
        self.was_early = False

    def tell(self) -> None:
        self._told.set()

    def __call__(self) -> bool:
        self.was_early = self.was_early or self._told.is_set() or monotonic() > self._until
        return self.was_early


async def _in_thread(work: Callable[[_Stop], list[str]], stop: _Stop) -> list[str]:
    try:
        return await asyncio.to_thread(work, stop)
    finally:
        stop.tell()


async def _glob(home: Path | None, arguments: Glob, context: ToolContext) -> str:
    start = workspace.resolve(context.workspace, arguments.path, home=home)
    stop = _Stop(_SECONDS)

    def look(stop: _Stop) -> list[str]:
        paths = walk(context.workspace, start, stop, home)
        return list(islice(_matching(paths, context.workspace, start, arguments.pattern), _FOUND + 1))

    found = await _in_thread(look, stop)
    return _answer([readable(path) for path in found], "no file matches", is_early=stop.was_early)


async def _grep(home: Path | None, arguments: Grep, context: ToolContext) -> str:
    try:
        re.compile(arguments.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolValidationError(
            f"`pattern` is not a regular expression: {error}; put a backslash before literal special characters"
        ) from None
    start = workspace.resolve(context.workspace, arguments.path, home=home)
    stop = _Stop(_SECONDS)

    def look(stop: _Stop) -> list[str]:
        return list(_matching(walk(context.workspace, start, stop, home), context.workspace, start, arguments.glob))

    paths = await _in_thread(look, stop)
    found, is_early = await _search(arguments, paths, context.workspace) if paths else ([], False)
    return _answer(found, "no line matches", is_early=is_early or stop.was_early)


def _matching(paths: Iterator[str], root: Path, start: Path, pattern: str | None) -> Iterator[str]:
    """Yield the files below `start` whose path relative to `start` matches."""
    if pattern is None:
        yield from paths
        return
    wanted = _glob_regex(pattern)
    base = start if start.is_dir() else start.parent
    skip = 0 if base == root else len(workspace.relative(root, base)) + 1
    yield from (path for path in paths if wanted.fullmatch(path, skip))


def _glob_regex(pattern: str) -> re.Pattern[str]:
    return re.compile("|".join(_glob_source(each) for each in _braces(pattern.removeprefix("./"))), re.DOTALL)


def _glob_source(pattern: str) -> str:
    """Convert a glob to a regular expression. `**` matches across folders, but `*` and `?` don't. A pattern without a
    slash matches in every folder.
    """
    spelled = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]/]+\])", pattern if "/" in pattern else "**/" + pattern)
    return "".join(spelled.get(piece) or _character_class(piece) or re.escape(piece) for piece in pieces)


def _character_class(piece: str) -> str:
    inner = re.fullmatch(r"\[(!?)(.+)\]", piece)
    return f"[{'^' if inner[1] else ''}{re.escape(inner[2]).replace(chr(92) + '-', '-')}]" if inner else ""


def _braces(pattern: str) -> list[str]:
    """Expand `*.{a,b}` to `*.a` and `*.b`."""
    match = re.search(r"\{([^{}]*,[^{}]*)\}", pattern)
    if match is None or pattern.count("{") > 8:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [whole for part in match[1].split(",") for whole in _braces(before + part + after)]


async def _search(arguments: Grep, paths: list[str], root: Path) -> tuple[list[str], bool]:
    """Return the matching lines, and whether the search timed out."""
    request = {
        "pattern": arguments.pattern,
        "ignore_case": arguments.ignore_case,
        "paths": paths,
        "limit": _FOUND + 1,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _START, str(_PACKAGES), str(root), str(_SECONDS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        output, _ = await process.communicate(json.dumps(request).encode())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    lines = output.decode("utf-8", "replace").split("\n")[:-1]
    return lines, process.returncode != 0


def _answer(found: list[str], nothing: str, *, is_early: bool) -> str:
    notes = []
    if len(found) > _FOUND:
        notes.append(f"(only the first {_FOUND} are shown: narrow path, glob or pattern)")
    if is_early:
        notes.append(f"(stopped after {_SECONDS:g} s, so the result is incomplete: narrow path, glob or pattern)")
    return "\n".join([*(found[:_FOUND] or [f"({nothing})"]), *notes])


def _named(home: Path | None, arguments: Glob, root: Path) -> tuple[Subject, ...]:
    return workspace.subjects(root, arguments.path, home=home)


def _searched(home: Path | None, arguments: Grep, root: Path) -> tuple[Subject, ...]:
    """Return the searched path as a subject. If the path is a folder, every file in it is searched."""
    found = workspace.subjects(root, arguments.path, home=home)
    return tuple(replace(each, reaches=Path(each.loose).is_dir()) for each in found)


def search_tools(timeout: float, home: Path | None = None) -> tuple[Tool, ...]:
    """Return the tools in this module. `home` contains Loom's own state, which they can't access."""
    return (
        FunctionTool(
            spec=tool_spec(
                "glob",
                "Find files by name. Skips what .gitignore excludes, virtual environments and node_modules.",
                Glob,
                effect=Effect.READ,
                timeout=timeout,
            ),
            arguments=Glob,
            function=partial(_glob, home),
            touches=partial(_named, home),
        ),
        FunctionTool(
            spec=tool_spec(
                "grep",
                "Find lines by a Python regular expression, as path:line:text. Skips the same files as glob.",
                Grep,
                effect=Effect.READ,
                timeout=timeout,
            ),
            arguments=Grep,
            function=partial(_grep, home),
            touches=partial(_searched, home),
        ),
    )
