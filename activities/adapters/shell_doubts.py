"""Where the syntax tree and Bash may disagree, so that nothing hides between the two.

Each check stands for a line that the tree read otherwise than Bash without reporting an error; they were found by
running random lines in both. A false alarm costs a question to a person, a missed one a command that nobody allowed.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from tree_sitter import Node

_ODD_TEXT: Final = re.compile(rb"\S\\\n\S|[\x00-\x08\x0b-\x1f\x7f]|\xc2\xa0|\xe2\x80[\x80-\xaf]|\xe3\x80\x80")
"""A word across two lines, control characters, white space that Bash takes for letters."""

_BLANK: Final = re.compile(rb"(?:\s|\\\n)*")
_BLANK_IN_LINE: Final = re.compile(rb"(?:[ \t]|\\\n)*")
_BARE_SPACE: Final = re.compile(rb"(?<!\\)\s")
_DESCRIPTOR: Final = re.compile(rb"\d+|\{\w+\}")
_NAME: Final = re.compile(rb"[A-Za-z_]\w*")
_DELIMITER: Final = re.compile(rb"(['\"]?)\w+\1")
_EXPANDED: Final = re.compile(rb"\$\(|`|\$\{|\$\[")

_SUBSTITUTIONS: Final = frozenset({"command_substitution", "process_substitution"})
_IN_COMMAND: Final = frozenset(
    """
    command_name word number string raw_string ansi_c_string translated_string concatenation simple_expansion expansion
    arithmetic_expansion command_substitution process_substitution brace_expression $ variable_assignment
    file_redirect herestring_redirect heredoc_redirect subshell
    """.split()  # noqa: SIM905 - as a list it would take half a screen
)


def is_doubtful(nodes: Sequence[Node], source: bytes) -> bool:
    """Something in this tree may mean another thing to Bash."""
    if _ODD_TEXT.search(source):
        return True
    seen = 0
    for node in nodes:
        if node.child_count == 0:
            # White space apart, every character belongs to a leaf: what the tree skipped it did not understand.
            if not _BLANK.fullmatch(source, seen, max(seen, node.start_byte)):
                return True
            seen = max(seen, node.end_byte)
        if _is_odd(node, source):
            return True
    return not _BLANK.fullmatch(source, seen) or _share_a_line(nodes)


def _share_a_line(nodes: Sequence[Node]) -> bool:
    """The tree gives the texts of two heredocs on one line to the wrong ones."""
    rows = [node.start_point.row for node in nodes if node.type == "heredoc_redirect"]
    return len(rows) != len(set(rows))


def _is_odd(node: Node, source: bytes) -> bool:
    match node.type:
        case "command":
            return any(child.type not in _IN_COMMAND for child in node.children) or _spans_lines(node, source)
        case "file_redirect":
            return _spans_lines(node, source)
        case "file_descriptor":
            return not _DESCRIPTOR.fullmatch(node.text or b"")
        case "word":
            return bool(_BARE_SPACE.search(node.text or b""))
        case "variable_assignment":
            return any(one.end_byte != other.start_byte for one, other in _pairs(node))
        case "variable_name" if node.parent is not None and node.parent.type == "variable_assignment":
            return not _NAME.fullmatch(node.text or b"")
        case "heredoc_redirect":
            return _is_odd_heredoc(node, source)
        case _:
            return False


def _spans_lines(node: Node, source: bytes) -> bool:
    """The tree joins words across a plain line end when a continued line follows."""
    return not all(_BLANK_IN_LINE.fullmatch(source, one.end_byte, other.start_byte) for one, other in _pairs(node))


def _pairs(node: Node) -> Iterable[tuple[Node, Node]]:
    return zip(node.children, node.children[1:], strict=False)


def _is_odd_heredoc(node: Node, source: bytes) -> bool:
    """Where the text ends and what is run inside it must be beyond doubt."""
    parts = {child.type: child for child in node.children}
    start, end = parts.get("heredoc_start"), parts.get("heredoc_end")
    if start is None or end is None or not _DELIMITER.fullmatch(start.text or b"") or _is_nested(node):
        return True
    body = parts.get("heredoc_body")
    text = source[source.find(b"\n", start.end_byte) + 1 : end.start_byte] if body is None else (body.text or b"")
    word = (start.text or b"").strip(b"'\"")
    lines = [line.strip(b"\t") for line in text.split(b"\n")]
    is_literal = (start.text or b"")[:1] in (b"'", b'"')
    return word in lines or (end.text or b"").strip() != word or (not is_literal and bool(_EXPANDED.search(text)))


def _is_nested(node: Node) -> bool:
    above = node.parent
    while above is not None:
        if above.type in _SUBSTITUTIONS:
            return True
        above = above.parent
    return False
