"""Analyze a shell command without running it, and find every simple command that the permission rules must check.

The analysis walks a Bash syntax tree to find all commands, at any depth. If the tree can't show which command runs (a
name from a variable, `eval` or a syntax error), the parser returns an opaque subject. No allow pattern covers such a
subject. The parser also returns one whenever it is in doubt.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final, TypeAlias

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from loom.activities.adapters.shell import wrappers
from loom.activities.adapters.shell.doubts import is_doubtful
from loom.activities.adapters.shell.words import PlacedNode, Word, placed_nodes, target_of, text_of, value_of, words_of
from loom.domain.permissions.subjects import Subject

LONGEST: Final = 10_000
"""Maximum number of characters in a command. Longer commands aren't analyzed."""

_DEEPEST: Final = 4
"""Maximum nesting depth of commands that run other commands."""

_SAFE: Final = re.compile(
    r"(?:NODE_ENV|LANG|LANGUAGE|LC_[A-Z]+|TZ|CI|PYTHONUNBUFFERED|FORCE_COLOR|NO_COLOR|TERM|COLUMNS|LINES|RUST_BACKTRACE)="
)
"""Variables that affect only the appearance of a command's output."""

_QUIET_TARGETS: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
_WRITES: Final = frozenset({">", ">>", "&>", "&>>", ">|", ">&", "<>"})
_RESERVED: Final = frozenset(
    (
        "!",
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "select",
        "function",
    )
)
_ASSIGNMENT: Final = re.compile(r"\w+(?:\[.*\])?\+?=.*", re.DOTALL)

_ASSIGNING: Final = frozenset({"command", "declaration_command", "c_style_for_statement"})
"""Types of nodes whose assignments are part of a larger subject."""

_MOST_WRAPPERS: Final = 10
_Words: TypeAlias = tuple[Word, ...]


class BashParser:
    """Parses Bash commands and caches the last few hundred results."""

    def __init__(self) -> None:
        self._parser = Parser(Language(tree_sitter_bash.language()))
        self._cached = lru_cache(maxsize=512)(self._parse)

    def parse(self, command: str) -> tuple[Subject, ...]:
        """Return every command in the line, in order and without duplicates."""
        return self._cached(command)

    def _parse(self, command: str) -> tuple[Subject, ...]:
        return tuple(dict.fromkeys(self._subjects(command, 0)))

    def _subjects(self, command: str, depth: int) -> Iterator[Subject]:
        if len(command) > LONGEST or depth > _DEEPEST:
            yield _opaque(command)
            return
        source = command.encode("utf-8", "replace")
        root = self._parser.parse(source).root_node
        nodes = list(placed_nodes(root))
        if root.has_error or is_doubtful(nodes, source):
            yield _opaque(command)
        for each in nodes:
            if each.node.type == "command":
                words = words_of(each)
                before = tuple(assigned for assigned in words.assignments if not _SAFE.match(assigned))
                yield from self._simple(words.rest, before, depth)
            else:
                yield from _other(each)

    def _simple(self, words: _Words, before: tuple[str, ...], depth: int) -> Iterator[Subject]:
        """Yield a command and the commands that it runs."""
        if depth > _DEEPEST:
            yield _opaque(_joined(words))
            return
        try:
            inner = _unwrapped(words)
            runs = _runs(inner)
        except wrappers.Unclear:
            yield _opaque(_joined(words))
            return
        if not inner or _is_no_name(inner[0].value):
            yield _opaque(_joined(words))
            return
        if _name(inner) in wrappers.SHELLS:
            yield from self._shell(words, inner, before, depth)
            return
        yield from _spellings(words, inner, before)
        for begin, end in runs:
            yield from self._simple(inner[begin:end], (), depth + 1)

    def _shell(self, words: _Words, inner: _Words, before: tuple[str, ...], depth: int) -> Iterator[Subject]:
        """Yield the commands that `bash -c` runs. If the script can't be analyzed, yield an opaque subject instead."""
        try:
            found = wrappers.inline_script(_values(inner))
        except wrappers.Unclear:
            yield _opaque(_joined(words))
            return
        if found is None:
            yield from _spellings(words, inner, before)
            return
        at, is_plain = found
        script = inner[at].value if at < len(inner) else None
        if script is None:
            yield _opaque(_joined(words))
            return
        inside = list(self._subjects(script, depth + 1))
        if before or not is_plain or not inside:
            yield from _spellings(words, inner, before)
        yield from inside
        # Yield the subject again under the shell's name, so that a deny or ask rule for the shell applies.
        yield from (replace(subject, loose=_joined(words)) for subject in inside[:1])


def _other(each: PlacedNode) -> Iterator[Subject]:
    """Yield subjects for constructs that have an effect but aren't simple commands."""
    match each.node.type:
        case "file_redirect":
            yield from _redirect(each.node)
        case "declaration_command" | "unset_command" | "test_command":
            yield Subject(text=_line(each.node))
        case "compound_statement" if each.children[0].type == "((":
            yield Subject(text=_line(each.node))
        case "variable_assignment" if each.parent not in _ASSIGNING and not _SAFE.match(_line(each.node)):
            yield Subject(text=_line(each.node))


def _redirect(node: Node) -> Iterator[Subject]:
    """Yield a separate subject for the redirect's file. If a command writes to a file, a rule that allows `echo` is
    therefore not enough.

    A file that is read needs no allow rule of its own, because it is treated as an argument of the command.
    """
    operator, target = target_of(node)
    if target is None or (operator == ">&" and target.type == "number"):
        return
    value, text = value_of(target), f"{operator} {text_of(target)}"
    if operator == "<":
        yield Subject(text=text, words=(operator, value), passive=True)
    elif operator in _WRITES and value not in _QUIET_TARGETS:
        yield Subject(text=text, words=(operator, value), opaque=value is None)


def _unwrapped(words: _Words) -> _Words:
    """Return the command without wrappers that don't change its effect."""
    for _ in range(_MOST_WRAPPERS):
        wrapper = wrappers.TRANSPARENT.get(_name(words))
        values = _values(words)
        if _name(words) == "xargs" and len(words) > 1 and not (values[1] or "-").startswith("-"):
            wrapper = wrappers.Wrapper()
        if wrapper is None or (_name(words) == "command" and _only_looks_up(values)):
            return words
        at = wrappers.after(wrapper, values)
        if at >= len(words):
            return words
        words = words[at:]
    raise wrappers.Unclear


def _only_looks_up(values: wrappers.Values) -> bool:
    option = values[1] if len(values) > 1 else None
    return option is not None and option.startswith("-") and ("v" in option or "V" in option)


def _runs(words: _Words) -> list[tuple[int, int]]:
    """Return the start and end of each command that this command runs. They are indexes into this command's words."""
    name, values = _name(words), _values(words)
    if name in wrappers.HIDDEN and len(words) > 1:
        raise wrappers.Unclear
    if name == "find":
        return wrappers.found_commands(values)
    if name not in wrappers.RUNNERS:
        return []
    at = wrappers.after(wrappers.RUNNERS[name], values)
    return [(at, len(words))] if at < len(words) else []


def _spellings(words: _Words, inner: _Words, before: tuple[str, ...]) -> Iterator[Subject]:
    """Yield one subject for every spelling of the command that a deny or ask rule may refer to."""
    text = " ".join((*before, _joined(inner)))
    plain = [word.text if word.value is None else word.value for word in inner]
    others = (_joined(inner), _joined(words), " ".join(plain), " ".join((_name(inner), *plain[1:])))
    loose = [each for each in dict.fromkeys(others) if each != text]
    yield from (Subject(text=text, loose=each, words=tuple(_values(inner))) for each in loose or [""])


def _joined(words: _Words) -> str:
    return " ".join(word.text for word in words)


def _values(words: _Words) -> wrappers.Values:
    return [word.value for word in words]


def _name(words: _Words) -> str:
    """Return the program's name without its folder."""
    return (words[0].value or "").rpartition("/")[2] if words else ""


def _is_no_name(value: str | None) -> bool:
    """Whether the first word isn't a program's name. It may be a reserved word of Bash, for example."""
    if not value or value in _RESERVED or value[0] in "(#":
        return True
    return bool(set(value) & set("*?{}[]")) or _ASSIGNMENT.fullmatch(value) is not None


def _line(node: Node) -> str:
    return " ".join(text_of(node).split())


def _opaque(text: str) -> Subject:
    return Subject(text=" ".join(text.split()), opaque=True)
