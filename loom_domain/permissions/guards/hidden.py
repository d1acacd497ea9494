"""Guard lines that can't be analyzed by the names and paths in their text.

A line is hidden if the parser can't show what it runs, such as `eval "$x"`, or which file it writes, such as `> $f`.
Names that no text contains, such as `${x}m`, are found only if the rest of the command looks like a removal.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Final

from loom.domain.permissions.command_words import Words, arguments_of, program_of
from loom.domain.permissions.guards import git, removal
from loom.domain.permissions.guards.files import protected_here
from loom.domain.permissions.guards.guard import Guard, Line
from loom.domain.permissions.subjects import WRITING_REDIRECTS, Subject

_BETWEEN: Final = re.compile(r"[\s;&|()<>`'\"{},=$\\]+|:[-=+?]")
"""Matches what separates the words of a text that may be a command."""
_PROGRAMS: Final = frozenset({"git", "find", "fd", "fdfind", "mv", *removal.REMOVING_OPTIONS})
"""Programs that are dangerous with some arguments."""
_LONGEST: Final = 64
"""Maximum number of words of one command that are looked at."""
_MOST: Final = 2_000
"""Maximum number of words of a line that are looked at. A longer line counts as one that removes files."""


def guard_of(subjects: Sequence[Subject], line: Line) -> Guard | None:
    """Return the guard that may apply to the hidden parts of a line."""
    if not any(subject.opaque or _writes_unknown_file(subject) for subject in subjects):
        return None
    words = [word for word in _BETWEEN.split(" ".join(subject.text for subject in subjects)) if word]
    if name := next((found for word in words if (found := protected_here(word, line.place))), ""):
        return Guard(what=f"write to {name}")
    if not any(subject.opaque and not _is_redirect(subject) for subject in subjects):
        return None
    if len(words) > _MOST or any(map(_may_be_remover, words)):
        return Guard(what="removal of files in a line that can't be analyzed")
    named = [words[at : at + _LONGEST] for at, word in enumerate(words) if program_of((word,)) in _PROGRAMS]
    computed = [each.words[:_LONGEST] for each in subjects if each.opaque and each.words[:1] == (None,)]
    tried = ((program, *rest[1:]) for program in sorted({each[0] for each in named}) for rest in computed)
    if what := next((found for each in chain(named, tried) if (found := _danger_of(each, line))), ""):
        return Guard(what=what)
    if any(_removes(each, line) for each in computed):
        return Guard(what="removal by a command with a computed name")
    return None


def _writes_unknown_file(subject: Subject) -> bool:
    return any(file.tool == "write_file" and file.opaque for file in subject.files)


def _is_redirect(subject: Subject) -> bool:
    return subject.words[:1] != () and subject.words[0] in WRITING_REDIRECTS


def _may_be_remover(word: str) -> bool:
    name = word.rpartition("/")[2]
    return removal.ALWAYS.fullmatch(name) is not None or (
        bool(name.strip("*?")) and any(fnmatchcase(remover, name) for remover in removal.REMOVERS)
    )


def _danger_of(words: Words, line: Line) -> str:
    subject = Subject(text=" ".join(word or "" for word in words), words=tuple(words))
    if program_of(words) == "git":
        return git.danger_of(subject, line)
    guard = removal.guard_of(subject, line)
    return guard.what if guard else ""


def _removes(words: Words, line: Line) -> bool:
    """Whether a command with a computed name would remove a critical folder if it were `rm`."""
    is_likely = arguments_of(words).has("-r", "-R", "-f", "--recursive") != ""
    return is_likely and _danger_of(("rm", *words[1:]), line) != ""
