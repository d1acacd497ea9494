"""The words of a simple command in a Bash syntax tree, both as written and as Bash interprets them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

_SPREAD: Final = re.compile(r"[*?\[]|\{(?!\})")
"""Matches globs and braces, which Bash replaces with several words. Bash leaves `{}` unchanged."""
_ANSI_C: Final = re.compile(
    r"([^\\]+)|(\\(?:x[0-9a-fA-F]{0,2}|u[0-9a-fA-F]{0,4}|U[0-9a-fA-F]{0,8}|[0-7]{1,3}|.))", re.DOTALL
)
"""Matches plain text, or one escape, in `$'…'`. See "ANSI-C Quoting" in Bash's manual."""
_ANSI_C_LETTERS: Final = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
_TEST_INNER: Final = frozenset({"test_command", "unary_expression", "binary_expression"})
_REDIRECTS: Final = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
_INSIDES: Final = frozenset({"command_substitution", "process_substitution", "heredoc_redirect"})
_NO_WORDS: Final = frozenset(
    """
    file_descriptor heredoc_start heredoc_body heredoc_end file_redirect herestring_redirect heredoc_redirect comment
    command pipeline list redirected_statement compound_statement subshell negated_command if_statement for_statement
    c_style_for_statement while_statement case_statement function_definition test_command declaration_command
    unset_command variable_assignment variable_assignments
    """.split()  # noqa: SIM905 - as a list it would take a screen
)


@dataclass(frozen=True, slots=True)
class Word:
    """One word."""

    text: str
    """The word as written, including quotes."""
    value: str | None
    """The word without quotes and backslashes, or None if its value is known only when the command runs."""
    bare: str
    """The unquoted part of the word. Bash replaces globs and braces only in this part."""

    def __add__(self, other: "Word") -> "Word":
        """Join two adjacent parts of a word."""
        value = None if self.value is None or other.value is None else self.value + other.value
        return Word(self.text + other.text, value, self.bare + other.bare)

    @property
    def fixed(self) -> str | None:
        """The one word that the command receives, or None if it may receive a different word or several words."""
        return None if _SPREAD.search(self.bare) else self.value

    @property
    def is_one(self) -> bool:
        """Whether the command receives exactly one word, even if its value isn't known."""
        is_quoted = self.text[:1] == self.text[-1:] == '"' and "@" not in self.text and self.text.count('"') == 2
        return self.fixed is not None or is_quoted


def word_of(node: Node) -> Word:
    """Return the word, or the part of a word, that a node represents."""
    return Word(text_of(node), value_of(node), _bare(node))


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node with its position in the tree. The parent is stored because the library would have to search for it."""

    node: Node
    children: tuple[Node, ...]
    parent: str
    """The type of the parent."""
    is_inside: bool
    """Whether the node is in a substitution or a heredoc."""
    strays: tuple[Node, ...]
    """Words that follow this node's statement but are attached to redirects in the tree."""


@dataclass(frozen=True, slots=True)
class Words:
    """A command's words: the assignments before it, and the command with its arguments."""

    assignments: tuple[str, ...]
    rest: tuple[Word, ...]


def placed_nodes(root: Node) -> Iterator[PlacedNode]:
    """Yield every node in the order of the text. This function isn't recursive, because a command may contain thousands
    of nested brackets.
    """
    waiting = [PlacedNode(root, tuple(root.children), "", False, ())]  # noqa: FBT003 - the root has no parent
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(reversed(list(_below(here))))


def _below(here: PlacedNode) -> Iterator[PlacedNode]:
    kind = here.node.type
    strays, heir = here.strays, -1
    if kind == "redirected_statement":
        redirects = [child for child in here.children if child.type in _REDIRECTS]
        strays, heir = (*(stray for each in _with_nested(redirects) for stray in strays_of(each)), *strays), 0
    elif kind in ("pipeline", "list", "negated_command"):
        heir = len(here.children) - 1
    inside = here.is_inside or kind in _INSIDES
    for place, child in enumerate(here.children):
        yield PlacedNode(child, tuple(child.children), kind, inside, strays if place == heir else ())


def text_of(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode("utf-8", "replace")


def words_of(command: PlacedNode) -> Words:
    """Return the words of a command, including words that the tree attaches to a redirect after the command."""
    assignments: list[str] = []
    rest: list[Word] = []
    end = -1
    for node in (*command.children, *command.strays):
        if node.type in _REDIRECTS:
            continue
        if node.type == "variable_assignment" and not rest:
            assignments.append(text_of(node))
            continue
        word = word_of(node)
        if rest and node.start_byte == end:
            rest[-1] += word
        else:
            rest.append(word)
        end = node.end_byte
    return Words(tuple(assignments), tuple(rest))


def strays_of(redirect: Node) -> list[Node]:
    """Return the words after a redirect's target. Bash treats them as arguments of the command."""
    named = [node for node in redirect.children if node.is_named and node.type not in _NO_WORDS]
    has_target = redirect.type == "file_redirect" and not any(node.type in (">&-", "<&-") for node in redirect.children)
    return named[1:] if has_target else named


def target_of(redirect: Node) -> tuple[str, Node | None]:
    """Return the operator of a file redirect and its target."""
    operator = next((text_of(node) for node in redirect.children if not node.is_named), "")
    named = [node for node in redirect.children if node.is_named and node.type != "file_descriptor"]
    return operator, named[0] if named and not operator.endswith("-") else None


def test_parts(test: Node) -> list[Node]:
    """Return the brackets, operators and words of a test."""
    waiting, found = [test], []
    while waiting:
        node = waiting.pop()
        if node.type in _TEST_INNER:
            waiting.extend(reversed(node.children))
        else:
            found.append(node)
    return found


def _bare(node: Node) -> str:
    match node.type:
        case "command_name" | "concatenation":
            return "".join(_bare(child) for child in node.children)
        case "word" | "brace_expression" | "extglob_pattern" | "regex":
            return re.sub(r"\\.", "x", text_of(node), flags=re.DOTALL)
        case _:
            return "x"


def _with_nested(redirects: list[Node]) -> Iterator[Node]:
    for redirect in redirects:
        if redirect.type != "herestring_redirect":
            yield redirect
        yield from (child for child in redirect.children if child.type == "file_redirect")


def _ansi_c_value(text: str) -> str | None:
    """Return the value of the text in `$'…'`, or None if it contains an escape that isn't in this table or a NUL, where
    Bash ends the word.
    """
    parts: list[str] = []
    for plain, escape in _ANSI_C.findall(text):
        kind, digits = escape[1:2], escape[2:]
        if plain:
            parts.append(plain)
        elif kind in _ANSI_C_LETTERS:
            parts.append(_ANSI_C_LETTERS[kind])
        elif kind in "xuU01234567" and (digits or kind.isdigit()):
            code = int(digits, 16) if kind in "xuU" else int(kind + digits, 8)
            if not 0 < code < (0x80 if kind not in "uU" else 0x11_0000):  # a byte may be a part of a character
                return None
            parts.append(chr(code))
        else:
            return None
    return "".join(parts)


def value_of(node: Node) -> str | None:
    """Return the value of a word, or None if the value is known only when the command runs."""
    text = text_of(node)
    match node.type:
        case "command_name" | "concatenation":
            values = [value_of(child) for child in node.children]
            return None if None in values else "".join(value for value in values if value is not None)
        case "word" | "number" | "test_operator" | "extglob_pattern" | "regex":
            return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
        case "raw_string":
            return text[1:-1]
        case "ansi_c_string":
            return _ansi_c_value(text[2:-1])
        case "string" if all(child.type in ('"', "string_content") for child in node.children):
            return re.sub(r'\\([$`"\\])', r"\1", text[1:-1]).replace("\\\n", "")
        case _:
            return None if node.is_named else text
