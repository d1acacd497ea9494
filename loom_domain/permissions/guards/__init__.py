"""Require approval for allowed calls that would destroy work or write files that control other programs.

A guard turns an allow verdict into an ask. A guard is overridden by a rule that spells out the guarded call, by a
person's grant, or by the bypass mode. Removing a critical folder always needs approval.

`removal` guards commands that remove many files. `git` guards Git commands that destroy work or run programs. `files`
guards the files that other programs run or obey. `hidden` guards lines that can't be analyzed. Guards see the words of
a command. They don't see what a script does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from loom.domain.permissions.command_words import Words, alternatives, folders_of, is_fed, program_of
from loom.domain.permissions.guards import git, hidden, removal
from loom.domain.permissions.guards.files import protected, protected_here, written_by
from loom.domain.permissions.guards.guard import Guard, Line
from loom.domain.permissions.patterns import literal_start
from loom.domain.permissions.rules import COMMANDS, Kind, Rule, is_exact, kind_of
from loom.domain.permissions.subjects import Place, Subject

__all__ = ["EDITS", "GUARDED", "Guard", "Line", "guard_of", "hidden_guard", "line_of", "protected", "spells_out"]

EDITS: Final = frozenset({"write_file", "edit_file"})
"""Tools that write files."""
_DELETES: Final = "delete_file"
_SPREAD_WORDS: Final = frozenset({"find", "fd", "fdfind", "git", "rsync", "tar", "zip", "7z"})
"""Programs in which a word from braces may be an option or a subcommand that a guard looks for."""
GUARDED: Final = EDITS | COMMANDS | {_DELETES}
"""Guards can apply only to calls of these tools."""


def line_of(subjects: Sequence[Subject], place: Place) -> Line:
    """Return the information about a line that applies to all its commands."""
    folders = folders_of(subjects, place.workspace, place.home)
    return Line(
        place=place,
        folders=folders,
        is_fed=is_fed(subjects),
        is_git_elsewhere=len(folders) > 1 or any(git.sets_repository(each.text) for each in subjects),
    )


def guard_of(tool: str, subject: Subject, line: Line) -> Guard | None:
    """Return the guard that applies to this subject, which is part of this line."""
    if kind_of(tool) is Kind.COMMAND:
        return _of_command(subject, line)
    if tool in EDITS and (name := protected_here(subject.text, line.place)):
        return Guard(what=f"write to {name}")
    if tool == _DELETES and (name := protected_here(subject.text, line.place, is_removed=True)):
        return Guard(what=f"write to {name}")
    return None


def hidden_guard(tool: str, subjects: Sequence[Subject], line: Line) -> Guard | None:
    """Return the guard that may apply to parts of the call that can't be analyzed."""
    return hidden.guard_of(subjects, line) if kind_of(tool) is Kind.COMMAND else None


def spells_out(rule: Rule, tool: str, place: Place) -> bool:
    """Whether a guard would apply to the text before the first star of an allow rule."""
    if kind_of(tool) is Kind.PATH:
        return protected_here(_spelled(rule.pattern or ""), place) != ""
    words = tuple(literal_start(rule.pattern or "").split())
    spelled = (words, words if is_exact(rule) else (*words, "x"))
    line = line_of((), place)
    return any(protected_here(word, place) for word in words) or any(
        guard_of(tool, Subject(text="", words=each), line) is not None for each in spelled
    )


def _spelled(pattern: str) -> str:
    """Return the path that a path pattern names. One slash at its start stands for the workspace, two for the root."""
    return pattern.removeprefix("/").removesuffix("/**")


def _spread(words: Words) -> Iterator[str | None]:
    """Yield the words after Bash has replaced the braces in them."""
    for word in words:
        yield from alternatives(word) if word is not None else (None,)


def _of_command(subject: Subject, line: Line) -> Guard | None:
    if not subject.words:
        return None
    if program_of(subject.words) in _SPREAD_WORDS:
        subject = replace(subject, words=tuple(_spread(subject.words)))
    if guard := removal.guard_of(subject, line):
        return guard
    if program_of(subject.words) == "git" and (what := git.danger_of(subject, line)):
        return Guard(what=what)
    name = written_by(subject, line.place)
    return Guard(what=f"write to {name}") if name else None
