"""Read the words of a simple command as programs do: options, operands, braces, and starting folders."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from loom.domain.permissions.subjects import Subject, expanded, normal

Words = Sequence[str | None]

_MOST: Final = 64
"""Maximum number of alternatives for a word, and of folders in which a line may run."""
_GIT_VALUES: Final = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix", "--attr-source"}
)
"""Git's own options with a value."""
FIND_RUNS: Final = ("-exec", "-execdir", "-ok", "-okdir")
"""The words with which `find` runs a command."""
FIND_WRITES: Final = ("-fprint", "-fprint0", "-fprintf", "-fls")
"""The words with which `find` writes a file."""
_INNERMOST_BRACES: Final = re.compile(r"(?<!\$)\{([^{}]*,[^{}]*)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """A command's arguments."""

    options: tuple[tuple[str, str | None], ...]
    """The options and their values. The value is empty if the option has none. It is None if it is known only when
    the command runs.
    """
    operands: tuple[str | None, ...]

    def has(self, *names: str) -> str:
        """Return the first of these options that the command has, in full or abbreviated, or an empty string."""
        return next((name for name in names for given, _ in self.options if is_option(given, name)), "")

    def values(self, *names: str) -> Iterator[str | None]:
        """Yield the values of these options. All of them must be options that take a value."""
        yield from (value for given, value in self.options if given in names)


def is_option(given: str, name: str) -> bool:
    """Whether a given option is this one. Long options may be abbreviated."""
    return given == name or (given.startswith("--") and len(given) > 2 and name.startswith(given))


def program_of(words: Words) -> str:
    """Return the name of a command's program without its folder, or an empty string if it is computed."""
    return ((words[0] if words else "") or "").rpartition("/")[2]


def arguments_of(words: Words, valued: str = "") -> Arguments:
    """Return the arguments of a command. `valued` lists the options that take a value, separated by spaces."""
    names = tuple(valued.split())
    options: list[tuple[str, str | None]] = []
    operands: list[str | None] = []
    rest = iter(words[1:])
    for word in rest:
        if word == "--":
            operands.extend(rest)
        elif word is None or word == "-" or not word.startswith("-"):
            operands.append(word)
        elif word.startswith("--") or word.partition("=")[0] in names:
            options.append(_long(word, names, rest))
        else:
            options.extend(_short(word, names, rest))
    return Arguments(options=tuple(options), operands=tuple(operands))


def _long(word: str, names: Sequence[str], rest: Iterator[str | None]) -> tuple[str, str | None]:
    given, equals, value = word.partition("=")
    name = given if given in names else next((name for name in names if is_option(given, name)), given)
    if equals or name not in names:
        return name, value
    return name, next(rest, "")


def _short(word: str, names: Sequence[str], rest: Iterator[str | None]) -> Iterator[tuple[str, str | None]]:
    for place, letter in enumerate(word[1:], start=2):
        if f"-{letter}" in names:
            yield f"-{letter}", word[place:] or next(rest, "")
            return
        yield f"-{letter}", ""


def git_subcommand_at(words: Words) -> int:
    """Return the position of Git's subcommand, which is the number of words if there is none."""
    at = 1
    while at < len(words) and (word := words[at]) is not None and word.startswith("-"):
        at += 2 if word in _GIT_VALUES else 1
    return min(at, len(words))


def is_fed(commands: Sequence[Subject]) -> bool:
    """Whether `xargs` may append words to the commands of this line."""
    return any("xargs" in f"{each.text} {each.loose}".split() for each in commands)


def alternatives(word: str) -> list[str]:
    """Return the words to which Bash expands a word with braces. Beyond 64 words, the rest stays unexpanded."""
    found: list[str] = []
    waiting = [word]
    while waiting:
        each = waiting.pop()
        match = _INNERMOST_BRACES.search(each)
        if match is None or len(waiting) + len(found) >= _MOST:
            found.append(each)
        else:
            waiting.extend(each[: match.start()] + part + each[match.end() :] for part in reversed(match[1].split(",")))
    return found


def folders_of(commands: Sequence[Subject], workspace: str, home: str) -> tuple[str | None, ...]:
    """Return the folders to which a relative path may refer, starting with the workspace. There can be several folders,
    because a `cd` may run earlier, later or not at all. None stands for an unknown folder.
    """
    folders: list[str | None] = [workspace]
    for target in dict.fromkeys(target for each in commands for target in _entered(each.words)):
        if target is None or len(folders) > _MOST:
            folders.append(None)
        else:
            folders.extend(normal(expanded(target, home), folder) for folder in list(folders) if folder)
    return tuple(dict.fromkeys(folders))


def _entered(words: Words) -> Iterator[str | None]:
    """Yield the folder that a command changes to, or None if it is unknown."""
    program = program_of(words)
    if program in ("cd", "pushd"):
        target = next((word for word in words[1:] if word is None or word == "-" or not word.startswith("-")), None)
        yield None if target == "-" else target
    elif program in ("env", "sudo"):
        yield from islice(arguments_of(words, "-C -D --chdir -u -g --unset").values("-C", "-D", "--chdir"), 1)
