"""Determine which files a shell command obviously reads and writes, so that path rules apply to `cat` in the same way
as to read_file.

A command obviously accesses a file if the command's words name the file. The sandbox covers scripts that open files
themselves.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, TypeAlias

from loom.domain.permissions.subjects import Subject, Touched, expanded, normal

_Use: TypeAlias = Literal["read_file", "write_file"]
_Words: TypeAlias = Sequence[str | None]

_READ: Final = frozenset(
    """
    cat tac head tail less more most nl od xxd hexdump strings base64 base32 wc sort uniq cut paste rev fold expand
    column diff cmp comm join split md5sum sha1sum sha256sum sha512sum cksum source . bat batcat zcat zless zgrep view
    vim vi nvim nano emacs ed tar zip gzip bzip2 xz 7z openssl file perl python python3 ruby node php lua bash sh zsh
    dash iconv fmt pr shuf envsubst
    """.split()  # noqa: SIM905 - as a list it would take a screen
)
_SCRIPTED: Final = frozenset(
    {"grep", "egrep", "fgrep", "rg", "ag", "ack", "sed", "awk", "gawk", "mawk", "nawk", "jq", "yq"}
)
"""Programs whose first operand is a pattern or a script."""
_RECURSIVE: Final = frozenset({"rg", "ag", "ack"})

_WRITE: Final = frozenset({"tee", "touch", "truncate", "rm", "rmdir", "unlink", "shred", "mkdir", "chmod", "chown"})
_COPY: Final = frozenset({"cp", "install", "ln", "rsync", "scp", "mv"})
_NAMES_OUTPUT: Final = frozenset({"sort", "curl", "wget"})
_SCRIPT_OPTIONS: Final = ("-e", "-f", "--regexp", "--file", "--expression")
_GLOB: Final = frozenset("*?[{")
_INPUTS: Final = frozenset({"<"})
_OUTPUTS: Final = frozenset({">", ">>", "&>", "&>>", ">|", ">&", "<>"})


def with_files(commands: Sequence[Subject], workspace: Path, home: str) -> tuple[Subject, ...]:
    """Return each command with the files that it accesses."""
    bases = _bases(commands, workspace, home)
    is_fed = any("xargs" in f"{each.text} {each.loose}".split() for each in commands)
    touched = {
        words: tuple(_touched(_fed(words, is_fed=is_fed), bases, workspace, home))
        for words in dict.fromkeys(each.words for each in commands if each.words)
    }
    return tuple(replace(each, files=touched[each.words]) if touched.get(each.words) else each for each in commands)


def _fed(words: _Words, *, is_fed: bool) -> _Words:
    """Add None for the words that `xargs` appends, because they are known only when the command runs."""
    return (*words, None) if is_fed else words


def _bases(commands: Sequence[Subject], workspace: Path, home: str) -> list[str | None]:
    """Return the folders that relative paths may be relative to. There can be several, because a `cd` command may run
    earlier or later. None stands for an unknown folder.
    """
    bases: list[str | None] = [str(workspace)]
    for words in dict.fromkeys(each.words for each in commands):
        if not words or words[0] not in ("cd", "pushd"):
            continue
        target = next((word for word in words[1:] if word is None or word == "-" or not word.startswith("-")), None)
        known = [] if target in (None, "-") else [normal(expanded(target or "", home), base) for base in bases if base]
        bases.extend(known or [None])
    return list(dict.fromkeys(bases))


def _touched(words: _Words, bases: Sequence[str | None], workspace: Path, home: str) -> Iterator[Touched]:
    for use, word in dict.fromkeys(_uses(words)):
        for base in bases:
            if word is None or base is None or _GLOB & set(word):
                yield Touched(tool=use, opaque=True)
            else:
                yield from _paths(use, normal(expanded(word, home), base), workspace)


def _paths(use: _Use, path: str, workspace: Path) -> Iterator[Touched]:
    """Yield the path as written and, if a link changes it, the link's target."""
    for each in dict.fromkeys((path, os.path.realpath(path))):
        inside = Path(each).is_relative_to(workspace)
        yield Touched(tool=use, text=Path(each).relative_to(workspace).as_posix() if inside else each, loose=each)


def _uses(words: _Words) -> Iterator[tuple[_Use, str | None]]:
    first = words[0]
    if first is None or len(words) < 2:
        return
    if first in _INPUTS or first in _OUTPUTS:
        yield ("read_file" if first in _INPUTS else "write_file"), words[1]
        return
    name, operands = first.rpartition("/")[2], _operands(words)
    if name in _READ or name in _WRITE:
        yield from (("read_file" if name in _READ else "write_file", word) for word in operands)
    elif name in _SCRIPTED:
        yield from _of_script(name, words, operands)
    elif name in _COPY:
        yield from _of_copy(name, operands)
    elif name == "dd":
        yield from _of_dd(words)
    yield from _of_options(name, words)


def _of_options(name: str, words: _Words) -> Iterator[tuple[_Use, str | None]]:
    if name == "curl":
        yield from (("read_file", word.partition("@")[2]) for word in words if word and "@" in word)
    if name in _NAMES_OUTPUT:
        yield from (("write_file", word) for word in _after(words, "-o", "--output", "-O"))


def _of_script(name: str, words: _Words, operands: Sequence[str | None]) -> Iterator[tuple[_Use, str | None]]:
    given = any(word is not None and word.startswith(_SCRIPT_OPTIONS) for word in words[1:])
    files: list[str | None] = list(operands if given else operands[1:])
    if name in _RECURSIVE or any(word is not None and _is_recursive(word) for word in words[1:]):
        files.append(None)
    yield from (("read_file", word) for word in files)
    if name == "sed" and any(word is not None and _edits_in_place(word) for word in words[1:]):
        yield from (("write_file", word) for word in files)


def _is_recursive(word: str) -> bool:
    letters = word.startswith("-") and not word.startswith("--") and ("r" in word or "R" in word)
    return letters or word in ("--recursive", "--dereference-recursive")


def _edits_in_place(word: str) -> bool:
    return word.startswith("--in-place") or (word.startswith("-") and not word.startswith("--") and "i" in word)


def _of_copy(name: str, operands: Sequence[str | None]) -> Iterator[tuple[_Use, str | None]]:
    """Yield the files that a copy or move reads and writes. A file that is copied into a folder keeps its name in that
    folder.
    """
    *sources, target = operands or (None,)
    yield from (("read_file", word) for word in sources)
    if name == "mv":
        yield from (("write_file", word) for word in sources)
    yield "write_file", target
    for word in sources:
        yield "write_file", None if word is None or target is None else f"{target}/{word.rpartition('/')[2]}"


def _of_dd(words: _Words) -> Iterator[tuple[_Use, str | None]]:
    for word in words[1:]:
        name, _, value = (word or "").partition("=")
        if word is None or name == "of":
            yield "write_file", value if word else None
        elif name == "if":
            yield "read_file", value


def _after(words: _Words, *options: str) -> Iterator[str | None]:
    for word, following in pairwise(words):
        if word in options:
            yield following


def _operands(words: _Words) -> list[str | None]:
    """Return all words that aren't options. For an option such as `--file=x`, return its value."""
    found: list[str | None] = []
    only_operands = False
    for word in words[1:]:
        if word is None or only_operands or not word.startswith("-") or word == "-":
            found.append(word)
        elif word == "--":
            only_operands = True
        elif "=" in word:
            found.append(word.partition("=")[2])
    return [word for word in found if word != "-"]
