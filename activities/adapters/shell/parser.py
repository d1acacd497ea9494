"""Analyze a shell command without running it, and find every simple command that the permission rules must check.

The analysis walks a Bash syntax tree to find all commands, at any depth. A subject is opaque if the tree can't show
what runs: the line isn't transparent (see `transparent`), a name is computed, or a program runs text (`eval`). No allow
pattern covers an opaque subject.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Final, TypeAlias

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from loom.activities.adapters.shell import builtins, wrappers
from loom.activities.adapters.shell.transparent import is_cosmetic, is_evaluated, is_harmless, may_be_run, opaque_part
from loom.activities.adapters.shell.words import (
    PlacedNode,
    Word,
    placed_nodes,
    target_of,
    test_parts,
    text_of,
    value_of,
    word_of,
    words_of,
)
from loom.domain.permissions.command_words import program_of
from loom.domain.permissions.subjects import WRITING_REDIRECTS, Subject

LONGEST: Final = 10_000
"""Maximum number of characters in a command. Longer commands aren't analyzed."""

_DEEPEST: Final = 4
"""Maximum nesting depth of commands that run other commands."""

_QUIET_TARGETS: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
_CONNECTIONS: Final = ("/dev/tcp/", "/dev/udp/")
_RESERVED: Final = frozenset(
    [
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
    ]
)
_ASSIGNMENT: Final = re.compile(r"\w+(?:\[.*\])?\+?=.*", re.DOTALL)

_ASSIGNING: Final = frozenset({"command", "declaration_command", "c_style_for_statement"})
"""Types of nodes whose assignments are part of a larger subject."""

_MOST_WRAPPERS: Final = 10
_MOST_FORWARDED: Final = 12
"""Maximum number of arguments that may be the start of a forwarded command."""

_INPUT: Final = "standard input"
"""The cause of a subject if a shell reads its commands from standard input."""
_FED: Final = Word("{}", None, "x")
"""The words that `xargs` appends."""
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
            yield _opaque(command, f"more than {LONGEST} characters" if len(command) > LONGEST else "deep nesting")
            return
        source = command.encode("utf-8", "replace")
        root = self._parser.parse(source).root_node
        nodes = list(placed_nodes(root))
        if part := "a syntax error" if root.has_error else opaque_part(nodes, source):
            yield _opaque(command, part)
        is_fed = False
        fed = list(_fed(nodes))
        for each in nodes:
            if each.node.type == "command":
                words = words_of(each)
                found = list(self._simple(words.rest, words.assignments, depth))
                if any(each.node.start_byte in span for span in fed):
                    found = [_with_input(subject) for subject in found]
                is_fed = is_fed or any(subject.cause == _INPUT for subject in found)
                yield from found
            else:
                yield from self._other(each, depth)
        if is_fed:
            yield from self._only_denied(chain.from_iterable(_inputs(each) for each in nodes), depth)

    def _simple(self, words: _Words, assigned: tuple[str, ...], depth: int) -> Iterator[Subject]:
        """Yield a command and the commands that it runs."""
        if depth > _DEEPEST:
            yield _opaque(_joined(words), "deep nesting")
            return
        inner, name = words, ""
        try:
            inner = _unwrapped(words)
            name = _known_name(inner)
            if _swallows_other_program(words, inner[1:] if name in wrappers.SHELLS else inner):
                yield from _spellings(words, words, _lasting(name, assigned), "")
            if name in wrappers.SHELLS:
                yield from self._shell(words, inner, _lasting(name, assigned), depth)
                return
            runs = _runs(name, inner)
            cause = _unclear_part(name, inner)
        except wrappers.Unclear as unclear:
            runs, cause = [], str(unclear).strip() or _computed(inner) or "no command"
        before = _lasting(name, assigned)
        yield from _spellings(words, inner, before, cause)
        yield from _forwarded(name, inner)
        yield from self._possible(_forwarded_scripts(name, inner), name, depth)
        yield from self._possible(_run_by_option(name, inner), name, depth)
        for set_first, command in runs:
            yield from self._simple(command, set_first, depth + 1)
            yield from self._possible((text.partition("=")[2] for text in set_first), name, depth)
        yield from self._only_denied(wrappers.scripts_in(name, _values(inner)), depth)

    def _shell(self, words: _Words, inner: _Words, before: tuple[str, ...], depth: int) -> Iterator[Subject]:
        """Yield the commands that `bash -c` runs. If the script can't be analyzed, yield an opaque subject as well."""
        script = wrappers.script_of(_name(inner), _values(inner))
        word = None if script.at is None else inner[script.at]
        if word is None or (not script.is_inline and builtins.reads_elsewhere(word.fixed)):
            yield from _spellings(words, inner, before, _INPUT if word is None or word.fixed else word.text)
            return
        if not script.is_inline:
            yield from _spellings(words, inner, before, script.odd)
            return
        if word.fixed is None:
            yield from _spellings(words, inner, before, word.text)
            return
        inside = list(self._subjects(word.fixed, depth + 1))
        odd = script.odd or (word.text if wrappers.is_only_bash(_name(inner), word.fixed) else "")
        if before or odd or not script.is_plain or not inside:
            yield from _spellings(words, inner, before, odd)
        yield from inside
        # Yield the subject again under the shell's name, so that a deny or ask rule for the shell applies.
        yield from (replace(subject, loose=_joined(words)) for subject in inside[:1])

    def _assignment(self, each: PlacedNode, depth: int) -> Iterator[Subject]:
        """Yield an assignment, and the commands in its value if a program may run this value (`EDITOR='rm x'`)."""
        name, _, value = text_of(each.node).partition("=")
        if each.parent not in _ASSIGNING and not is_cosmetic(name):
            yield Subject(text=_line(each.node), passive=is_harmless(name))
        known = value_of(each.children[-1])
        if may_be_run(name) and (known is None or any(inner.opaque for inner in self._subjects(known, depth + 1))):
            yield Subject(text=_line(each.node), opaque=True, passive=True, cause=name)
        if not is_harmless(name):
            yield from self._possible((known or value,), name, depth)

    def _possible(self, scripts: Iterable[str], cause: str, depth: int) -> Iterator[Subject]:
        """Yield the commands in texts that a program may run as commands, such as the value of `EDITOR`."""
        for each in self._only_denied(scripts, depth):
            yield Subject(text=each.loose or each.text, passive=True, is_possible=True, cause=cause)

    def _only_denied(self, scripts: Iterable[str], depth: int) -> Iterator[Subject]:
        """Yield the commands in texts that a program runs. Only deny and ask rules apply to them, because
        no allow rule covers the program.
        """
        for script in scripts:
            yield from (replace(each, passive=True) for each in self._subjects(script, depth + 1) if not each.opaque)

    def _other(self, each: PlacedNode, depth: int) -> Iterator[Subject]:
        """Yield subjects for constructs that have an effect but aren't simple commands."""
        match each.node.type:
            case "file_redirect":
                yield from _redirect(each.node)
            case "test_command":
                words = [word_of(part) for part in test_parts(each.node)]
                cause = builtins.unclear_argument("[", words[:-1]) if words[0].text == "[" else ""
                yield Subject(text=_line(each.node), opaque=cause != "", cause=cause)
            case "declaration_command" | "unset_command":
                yield Subject(text=_line(each.node))
            case "compound_statement" if each.children[0].type == "((":
                yield Subject(text=_line(each.node))
            case "variable_assignment":
                yield from self._assignment(each, depth)
            case "command_substitution" if "\\" in (text := text_of(each.node).strip()) and text.startswith("`"):
                script = re.sub(r"\\([\\`$\"])", r"\1", text[1:-1])
                yield from self._only_denied((script,), depth)


def _with_input(subject: Subject) -> Subject:
    """Return a command that is fed, with the note that it may run its input."""
    return subject if program_of(subject.words) in wrappers.TAKES_DATA else replace(subject, reads_input=True)


def _fed(nodes: Iterable[PlacedNode]) -> Iterator[range]:
    """Yield the parts of the command line whose standard input is a pipe, a heredoc, a here-string or a file."""
    for each in nodes:
        types = {child.type for child in each.children}
        if each.node.type in ("pipeline", "heredoc_redirect"):
            pipe = next((child for child in each.children if child.type in ("|", "|&")), None)
            if pipe is not None:
                yield range(pipe.end_byte, each.node.end_byte)
        elif {"heredoc_redirect", "herestring_redirect"} & types or any(
            child.type == "file_redirect" and target_of(child)[0] in ("<", "<>", "<&") for child in each.children
        ):
            yield range(each.node.start_byte, each.node.end_byte)


def _inputs(each: PlacedNode) -> Iterator[str]:
    """Yield the literal text that a shell in the same line may read from its standard input."""
    match each.node.type:
        case "herestring_redirect":
            yield from (value for child in each.children if (value := value_of(child)) is not None and child.is_named)
        case "heredoc_body":
            yield text_of(each.node)
        case "command":
            values = [word.value for word in words_of(each).rest]
            if values and values[0] in ("echo", "printf"):
                yield " ".join(value.replace("\\n", "\n") for value in values[1:] if value and value[0] != "-")


def _redirect(node: Node) -> Iterator[Subject]:
    """Yield a separate subject for the redirect's file. If a command writes to a file, a rule that allows `echo` is
    therefore not enough.

    A file that is read needs no allow rule of its own, because it is treated as an argument of the command.
    """
    operator, target = target_of(node)
    if target is None or (operator == ">&" and target.type == "number"):
        return
    value, text = value_of(target), f"{operator} {text_of(target)}"
    if (value or "").startswith(_CONNECTIONS):
        yield _opaque(text, text_of(target))
    elif operator == "<":
        yield Subject(text=text, words=(operator, value), passive=True)
    elif operator in WRITING_REDIRECTS and value not in _QUIET_TARGETS:
        yield Subject(text=text, words=(operator, value), opaque=value is None, cause=text_of(target))


def _unwrapped(words: _Words) -> _Words:
    """Return the command without wrappers that don't change its effect."""
    for _ in range(_MOST_WRAPPERS):
        values, name = _values(words), _name(words)
        wrapper = wrappers.TRANSPARENT.get(name)
        if name == "xargs" and len(words) > 1 and not (values[1] or "-").startswith("-"):
            words = (*words[1:], _FED)
            continue
        if wrapper is None or (name == "command" and _only_looks_up(values)):
            return words
        at = wrappers.after(wrapper, values)
        if at >= len(words):
            return words
        words = words[at:]
    raise wrappers.Unclear(_joined(words[:1]))


def _swallows_other_program(words: _Words, kept: _Words) -> bool:
    """Whether a word that the analysis removes names a program of the same name as a wrapper, such as `./timeout`."""
    removed = (word.fixed or "" for word in words if not any(word is other for other in kept))
    return any("/" in word and word.rpartition("/")[0] not in wrappers.SYSTEM_FOLDERS for word in removed)


def _only_looks_up(values: wrappers.Values) -> bool:
    option = values[1] if len(values) > 1 else None
    return option is not None and option.startswith("-") and ("v" in option or "V" in option)


def _runs(name: str, words: _Words) -> list[tuple[tuple[str, ...], _Words]]:
    """Return the commands that this command runs, each with the variables that it sets for them."""
    values = _values(words)
    if name == "find":
        found = wrappers.found_commands(values, [word.text for word in words])
        return [((), _filled(words[begin:end], "{}")) for begin, end in found]
    if name not in wrappers.RUNNERS:
        return []
    at = wrappers.command_at(name, values)
    if name == "xargs":
        mark = wrappers.placeholder(values)
        own = words[at:] or (Word("echo", "echo", "echo"),)
        return [((), _filled(own, mark) if mark else (*own, _FED))]
    if at >= len(words):
        return []
    set_first = tuple(value for value in values[1:at] if value and "=" in value)
    if obeyed := next((value for value in set_first if is_evaluated(value.partition("=")[0])), ""):
        raise wrappers.Unclear(obeyed)
    return [(set_first, words[at:])]


def _filled(words: _Words, mark: str) -> _Words:
    """Return the words after a runner has replaced the mark in them with its input."""
    return tuple(replace(word, value=None) if mark in (word.value or "") else word for word in words)


def _unclear_part(name: str, words: _Words) -> str:
    """Return the part of a command that may run code its words don't show, or an empty string."""
    if name in wrappers.OF_TEXT and len(words) > 1:
        return words[1].text
    at = wrappers.word_that_runs(name, _values(words), [word.text for word in words])
    return words[at].text if at else builtins.unclear_argument(name, words)


def _forwarded(name: str, words: _Words) -> Iterator[Subject]:
    """Yield the commands that a program may run if one of its arguments is a command."""
    begin = wrappers.forwarded_from(name, len(words))
    for at in range(begin, min(len(words), begin + _MOST_FORWARDED)):
        first = words[at].fixed
        if first is not None and first[:1] not in ("-", ""):
            plain = (wrappers.program_of(first), *(_plain(word) for word in words[at + 1 :]))
            yield Subject(text=" ".join(plain), passive=True, is_possible=True, cause=_joined(words[:1]))


def _forwarded_scripts(name: str, words: _Words) -> Iterator[str]:
    """Yield the arguments of a program that are scripts if a shell is among the commands that it may run."""
    begin = wrappers.forwarded_from(name, len(words))
    fixed = [word.fixed or "" for word in words[begin : begin + _MOST_FORWARDED]]
    if any(wrappers.program_of(word) in wrappers.SHELLS for word in fixed):
        yield from (word for word in fixed if re.search(r"\s", word))


def _run_by_option(name: str, words: _Words) -> Iterator[str]:
    return wrappers.run_by_option(name, _values(words), [word.text for word in words])


def _lasting(name: str, assigned: Sequence[str]) -> tuple[str, ...]:
    """Return those assignments before a command that may change the command's effect."""
    names = {text: text.partition("=")[0] for text in assigned}
    return tuple(
        text for text in assigned if not is_cosmetic(names[text]) and not (name == "read" and names[text] == "IFS")
    )


def _spellings(words: _Words, inner: _Words, before: tuple[str, ...], cause: str) -> Iterator[Subject]:
    """Yield one subject for every spelling of the command that a deny or ask rule may refer to."""
    text = " ".join((*before, _joined(inner)))
    plain = [_plain(word) for word in inner]
    own = inner[:-1] if inner[-1:] == (_FED,) else inner
    others = (_joined(own), _joined(words), " ".join(plain), " ".join((_name(inner), *plain[1:])))
    loose = [each for each in dict.fromkeys(others) if each != text]
    yield from (
        Subject(text=text, loose=each, words=_read(inner), opaque=cause != "", cause=cause) for each in loose or [""]
    )


def _read(words: _Words) -> tuple[str | None, ...]:
    return tuple(word.value for word in words)


def _plain(word: Word) -> str:
    return word.text if word.value is None else word.value


def _computed(words: _Words) -> str:
    return next((word.text for word in words if word.fixed is None), _joined(words))


def _joined(words: _Words) -> str:
    return " ".join(word.text for word in words)


def _values(words: _Words) -> wrappers.Values:
    return [word.fixed for word in words]


def _name(words: _Words) -> str:
    """Return the program's name without its folder."""
    return wrappers.program_of(words[0].fixed or "") if words else ""


def _known_name(words: _Words) -> str:
    """Return the program's name without its folder. Raises Unclear if the first word isn't the name of a program."""
    if not words or _is_no_name(words[0].fixed):
        raise wrappers.Unclear(_joined(words[:1]))
    return _name(words)


def _is_no_name(value: str | None) -> bool:
    """Whether the first word isn't a program's name, or is a name that only Bash knows."""
    if not value or value in _RESERVED or value[0] in "(#-":
        return True
    return bool(set(value) & set("*?{}[]")) or _ASSIGNMENT.fullmatch(value) is not None


def _line(node: Node) -> str:
    return " ".join(text_of(node).split())


def _opaque(text: str, cause: str) -> Subject:
    return Subject(text=" ".join(text.split()), opaque=True, cause=" ".join(cause.split()))
