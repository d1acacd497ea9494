"""Guard commands that remove a critical folder, everything in one, or files that only another program names.

The critical folders are the root folder, the folders in it, the home directory, the workspace, and the folders above
the workspace.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise, takewhile
from typing import Final

from loom.domain.permissions.command_words import FIND_RUNS, Words, alternatives, arguments_of, program_of
from loom.domain.permissions.guards.guard import Guard, Line
from loom.domain.permissions.subjects import Place, Subject, expanded, normal

DELETERS: Final = frozenset({"rm", "rmdir", "unlink", "shred", "srm"})
"""Programs that delete their operands."""
REMOVERS: Final = DELETERS | {"truncate"}
"""Programs that remove their operands or the content of their operands."""

_VALUES: Final[Mapping[str, str]] = {
    "truncate": "-s --size -r --reference",
    "shred": "-n -s --iterations --size --random-source",
    "mv": "-t --target-directory -S --suffix",
}
ALWAYS: Final = re.compile(r"shred|srm|wipefs|blkdiscard|mkfs(?:\..*)?")
"""Matches programs that need approval with any arguments."""
REMOVING_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "rsync": (
        *("--del", "--delete", "--delete-before", "--delete-during", "--delete-delay", "--delete-after"),
        *("--delete-excluded", "--delete-missing-args", "--remove-source-files"),
    ),
    "tar": ("--remove-files",),
    "zip": ("-m", "--move"),
    "7z": ("-sdel",),
}
"""Programs that remove files only with these options."""
_RUNNERS: Final = frozenset(
    {"env", "sudo", "doas", "nice", "ionice", "nohup", "timeout", "command", "busybox", "xargs", "time"}
)

_FOLDER_VALUE: Final = (
    r"\$(?:HOME|PWD|OLDPWD)\b|\$\{(?:HOME|PWD|OLDPWD)(?:[^\w}][^}]*)?\}|~[\w+-]+"
    r"|\$\((?:pwd|git rev-parse --show-toplevel)[^()|;&]*\)|`(?:pwd|git rev-parse --show-toplevel)[^`|;&]*`"
)
_END: Final = r"[\"']?(?:/+[\"']?[*?./{},\[\]!^]*[\"']?)?(?=\s|$)"
_NAMED_FOLDER: Final = re.compile(rf"(?:^|\s)[\"']?(?:{_FOLDER_VALUE}){_END}")
"""Matches a critical folder whose name Bash computes: `~root`, `"$HOME"/*`, `$(pwd)`."""
_EMPTY_PREFIX: Final = re.compile(r"(?:^|\s)[\"']?\$\{?\w+\}?[\"']?/+[\"']?[*?./{},\[\]!^]*[\"']?(?=\s|$)")
"""Matches `"$VAR"/*`, which expands to the contents of the root folder if the variable is empty."""

_FOUND: Final = re.compile(r"(?:^|\s)[\"']?\{\}[\"']?(?=\s|$)")
_GLOB: Final = re.compile(r"\[[^\]]+\]|[*?.]")

_OF_PROCESSES: Final = re.compile(r"/(?:proc|dev/fd)(?:/|$)")
"""Matches folders below which processes name their own folders: `/proc/self/cwd` is the workspace."""

_FIND_FLAGS: Final = frozenset({"-H", "-L", "-P", "-O0", "-O1", "-O2", "-O3"})
_FIND_NAMES: Final = frozenset(
    {"-name", "-iname", "-path", "-ipath", "-wholename", "-iwholename", "-regex", "-iregex", "-lname", "-ilname"}
)
_FIND_ALL: Final = frozenset(
    {
        *("-delete", "-print", "-print0", "-depth", "-d", "-mount", "-xdev", *FIND_RUNS),
        *("-type", "-xtype", "-mindepth", "-maxdepth"),
    }
)
"""Options of `find` that don't select files, or that select many."""


def guard_of(subject: Subject, line: Line) -> Guard | None:
    """Return the guard that applies to a command, if the command may remove many files."""
    words, program = subject.words, program_of(subject.words)
    if program in REMOVERS:
        return _of_remover(program, subject, line)
    if program == "find":
        return _of_find(words, line)
    if program in ("fd", "fdfind"):
        runs = _executed(words, ("-x", "-X", "--exec", "--exec-batch"))
        return Guard(what=f"{program} that removes what it finds") if any(map(_is_remover, runs)) else None
    if program == "mv" and (path := _critical(_moved(words), line)):
        return Guard(what=f"mv of {path}")
    if option := arguments_of(words).has(*REMOVING_OPTIONS.get(program, ())):
        return Guard(what=f"{program} {option}")
    return Guard(what=program) if ALWAYS.fullmatch(program) else None


def _of_remover(program: str, subject: Subject, line: Line) -> Guard | None:
    operands = _operands(subject.words)
    real = (file.loose for file in subject.files if file.loose)
    if path := _critical_text(subject.text) or _critical((*operands, *real), line):
        return Guard(what=f"{program} of {path}", firm=True)
    if ALWAYS.fullmatch(program):
        return Guard(what=program)
    is_recursive = program == "rm" and arguments_of(subject.words).has("-r", "-R", "--recursive")
    if line.is_fed and (None in operands or not operands or "{}" in operands):
        return Guard(what=f"{program} of what xargs passes")
    # The subject of `find` shows what its `{}` stands for.
    is_computed = not operands or operands.count(None) > len(_FOUND.findall(subject.text))
    return Guard(what="rm -r of a computed path") if is_recursive and is_computed else None


def _operands(words: Words) -> tuple[str | None, ...]:
    return arguments_of(words, _VALUES.get(program_of(words), "")).operands


def _moved(words: Words) -> tuple[str | None, ...]:
    operands = _operands(words)
    return operands if arguments_of(words).has("-t", "--target-directory") else operands[:-1]


def _critical_text(text: str) -> str:
    match = _EMPTY_PREFIX.search(text) or _NAMED_FOLDER.search(text)
    return match[0].strip() if match else ""


def _critical(operands: Sequence[str | None], line: Line) -> str:
    """Return the first operand that names a critical folder or everything in one, or an empty string."""
    for operand in operands:
        for word in alternatives(operand or ""):
            bare = expanded(_without_globs(word), line.place.home)
            if word and any(_is_critical(normal(bare, folder), line.place) for folder in line.folders if folder):
                return operand or ""
    return ""


def _without_globs(word: str) -> str:
    """Return the folder if the word names everything in it: `a` for `a/*`, `a/{*,.*}` or `a/*/`. Return any other word
    unchanged.
    """
    parts = word.rstrip("/").split("/")
    while parts and _is_everything(parts[-1]):
        parts.pop()
    return "/".join(parts) or ("/" if word.startswith("/") else ".")


def _is_everything(name: str) -> bool:
    """Whether a file name is a glob without a single literal character, such as `*`, `?*`, `.[!.]*` or `*.*`."""
    return "!(" in name or ("*" in name and _GLOB.sub("", name) == "")


def _is_critical(path: str, place: Place) -> bool:
    if path.count("/") == 1 or _OF_PROCESSES.match(path):
        return True
    parts = place.workspace.split("/")
    above = ("/".join(parts[:length]) for length in range(2, len(parts) + 1))
    return any(_may_be(path, each) for each in (place.home, *above) if each)


def _may_be(pattern: str, path: str) -> bool:
    names, globs = path.split("/"), pattern.split("/")
    return len(names) == len(globs) and all(map(fnmatchcase, names, globs))


def _is_remover(command: Words) -> bool:
    runs_another = program_of(command) in _RUNNERS
    return any(program_of((word,)) in REMOVERS for word in (command if runs_another else command[:1]))


def _executed(words: Words, options: Sequence[str]) -> Iterator[Words]:
    for at, word in enumerate(words):
        if word in options:
            yield tuple(takewhile(lambda each: each != ";", words[at + 1 :]))


def _of_find(words: Words, line: Line) -> Guard | None:
    if "-delete" not in words and not any(map(_is_remover, _executed(words, FIND_RUNS))):
        return None
    rest = [word for word in words[1:] if word not in _FIND_FLAGS]
    roots = list(takewhile(lambda word: word is None or word[:1] not in ("-", "(", "!"), rest))
    tests = list(_without_commands(rest[len(roots) :]))
    if _narrows(tests):
        return None
    if path := _critical(roots or ["."], line):
        return Guard(what=f"find that removes {path}", firm=not any(map(_chooses, _before_action(tests))))
    return Guard(what="find that removes a computed path") if None in roots else None


def _chooses(word: str | None) -> bool:
    return (word or "").startswith("-") and word not in _FIND_ALL


def _without_commands(tests: Words) -> Iterator[str | None]:
    """Yield the words of `find` except for the commands after `-exec`."""
    is_inside = False
    for word in tests:
        is_inside = word not in (";", "+") if is_inside else word in FIND_RUNS
        if not is_inside or word in FIND_RUNS:
            yield word


def _before_action(tests: Words) -> Iterator[str | None]:
    """Yield the tests before the first action. The tests after it don't restrict it."""
    return takewhile(lambda word: word != "-delete" and word not in FIND_RUNS, tests)


def _narrows(tests: Words) -> bool:
    """Whether `find` selects files by name in every alternative that `-o` separates."""
    parts: list[list[str | None]] = [[]]
    for word in tests:
        if word in ("-o", "-or"):
            parts.append([])
        else:
            parts[-1].append(word)
    return "," not in tests and all(map(_is_narrow, parts))


def _is_narrow(tests: Words) -> bool:
    before: str | None = None
    for word, following in pairwise((*_before_action(tests), None)):
        is_negated = before in ("!", "-not")
        if is_negated and word == "(":
            return False
        if not is_negated and (word == "-empty" or (word in _FIND_NAMES and _is_name(following))):
            return True
        before = word
    return False


def _is_name(pattern: str | None) -> bool:
    return pattern is not None and any(
        part not in ("", ".") and not _is_everything(part) for part in pattern.split("/")
    )
