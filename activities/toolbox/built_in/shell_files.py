"""Determine which files a shell command obviously reads and writes, so that path rules apply to `cat` in the same way
as to read_file.

A command obviously accesses a file if the command's words name the file. A file is opaque if the words show only that
the command accesses some file. The sandbox covers scripts that open files themselves.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Final, Literal

from loom.activities.toolbox.built_in.possible_files import possible_files
from loom.activities.toolbox.built_in.program_files import Use, uses_of
from loom.domain.permissions.command_words import Words, alternatives, folders_of, is_fed, program_of
from loom.domain.permissions.guards.removal import DELETERS
from loom.domain.permissions.subjects import Subject, Touched, expanded, normal

_BOTH: Final[tuple[Literal["read_file"], Literal["delete_file"]]] = ("read_file", "delete_file")
"""Together, all tools whose rules protect a path from a program that may read or write it."""
_MOST_MENTIONED: Final = 2_000
"""Maximum number of files that the words of a line may be. Each of them is looked up."""
_MOST_TOUCHED: Final = 2_000
"""Maximum number of files that the commands of a line access, counted once for each folder that they may be in."""
_GLOB: Final = frozenset("*?[{")


def with_files(commands: Sequence[Subject], workspace: Path, home: str) -> tuple[Subject, ...]:
    """Return each command with the files that it accesses."""
    folders = folders_of(commands, str(workspace), home)
    # The words that `xargs` appends are known only when the command runs.
    appended = (None,) if is_fed(commands) else ()
    touched: dict[tuple[str | None, ...], tuple[Touched, ...]] = {}
    left = _MOST_TOUCHED
    for words in dict.fromkeys(each.words for each in commands if each.words):
        touched[words] = _certain((*words, *appended), folders, workspace, home, most=left)
        left = max(0, left - len(touched[words]))
    possible: dict[Words, tuple[Touched, ...]] = {}
    left = _MOST_MENTIONED
    for words in touched:
        possible[words] = _possible(words, folders, workspace, home, most=left)
        left = max(0, left - len(possible[words]))
    return tuple(
        replace(each, files=touched[each.words], mentions=possible[each.words])
        if touched.get(each.words) or possible.get(each.words)
        else each
        for each in commands
    )


def _certain(
    words: Words, folders: Sequence[str | None], workspace: Path, home: str, *, most: int
) -> tuple[Touched, ...]:
    """Return the files that the command accesses. If there are more than `most`, they may be any file."""
    found = tuple(islice(_touched(words, folders, workspace, home), most + 1))
    if len(found) > most:
        tools = dict.fromkeys(use.tool for use in _with_deletions(uses_of(words), words))
        return tuple(Touched(tool=tool, opaque=True) for tool in tools)
    return found


def _possible(
    words: Words, folders: Sequence[str | None], workspace: Path, home: str, *, most: int
) -> tuple[Touched, ...]:
    """Return the files that a word of the command may be. If there are more than `most`, they may be any file."""
    found = tuple(islice(_mentioned(words, folders, workspace, home), most + 1))
    if len(found) > most:
        return tuple(Touched(tool=tool, opaque=True) for tool in _BOTH)
    return tuple(dict.fromkeys(found))


def _mentioned(words: Words, folders: Sequence[str | None], workspace: Path, home: str) -> Iterator[Touched]:
    for word, may_write in islice(possible_files(words), _MOST_MENTIONED + 1):
        for tool, folder in product(_BOTH if may_write else _BOTH[:1], folders):
            if word is None or folder is None or _GLOB & set(word):
                yield Touched(tool=tool, text=word or "", opaque=True)
            elif word:
                yield from _paths(Use(tool, word), normal(expanded(word, home), folder), workspace)


def _touched(words: Words, folders: Sequence[str | None], workspace: Path, home: str) -> Iterator[Touched]:
    for use in dict.fromkeys(_with_deletions(uses_of(words), words)):
        for word in alternatives(use.path) if use.path else [use.path]:
            for folder in folders:
                if word is None or folder is None or _GLOB & set(word):
                    yield Touched(tool=use.tool, text=word or "", opaque=True)
                else:
                    yield from _paths(use, normal(expanded(word, home), folder), workspace)


def _with_deletions(uses: Iterable[Use], words: Words) -> Iterator[Use]:
    """Add that a program such as `rm` deletes what it writes to."""
    deletes = program_of(words) in DELETERS
    for use in uses:
        yield use
        if deletes and use.tool == "write_file":
            yield replace(use, tool="delete_file")


def _paths(use: Use, path: str, workspace: Path) -> Iterator[Touched]:
    """Yield the path as written and, if a link changes it, the link's target."""
    for each in dict.fromkeys((path, _real(path))):
        if use.only_existing and not os.path.lexists(each):
            continue
        yield Touched(tool=use.tool, text=_inside(each, str(workspace)), loose=each)


def _inside(path: str, workspace: str) -> str:
    """Return the path within the workspace, or unchanged if it is elsewhere. Both are normal; `Path` would be slow."""
    if path == workspace:
        return "."
    return path.removeprefix(workspace.rstrip("/") + "/")


def _real(path: str) -> str:
    """Return the path without links, or unchanged if a link can't be read, such as `/proc/1/cwd`."""
    try:
        return os.path.realpath(path)
    except OSError:
        return path
