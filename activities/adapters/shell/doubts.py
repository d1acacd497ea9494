"""Detect command lines whose syntax tree may differ from Bash's interpretation, so that no command can bypass the
permission rules.

Each check covers a type of line that the parser interprets differently from Bash without reporting an error. These
types were found by giving random lines to both the parser and Bash. A false positive causes an unnecessary approval
request. After a false negative, a command can run that neither a rule nor a person has allowed.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from loom.activities.adapters.shell.words import PlacedNode, strays_of

_ODD_TEXT: Final = re.compile(rb"\S\\\n\S|[\x00-\x08\x0b-\x1f\x7f]|\xc2\xa0|\xe2\x80[\x80-\xaf]|\xe3\x80\x80")
"""Matches words that span two lines, control characters, and white space that Bash treats as letters."""

_BLANK: Final = re.compile(rb"(?:\s|\\\n)*")
_BLANK_IN_LINE: Final = re.compile(rb"(?:[ \t]|\\\n)*")
_BARE_SPACE: Final = re.compile(rb"(?<!\\)\s")
_DESCRIPTOR: Final = re.compile(rb"\d+|\{\w+\}")
_NAME: Final = re.compile(rb"[A-Za-z_]\w*")
_DELIMITER: Final = re.compile(rb"(['\"]?)\w+\1")
_EXPANDED: Final = re.compile(rb"\$\(|`|\$\{|\$\[")

_IN_COMMAND: Final = frozenset(
    """
    command_name word number string raw_string ansi_c_string translated_string concatenation simple_expansion expansion
    arithmetic_expansion command_substitution process_substitution brace_expression $ variable_assignment
    file_redirect herestring_redirect heredoc_redirect subshell
    """.split()  # noqa: SIM905 - as a list it would take half a screen
)


def is_doubtful(nodes: Sequence[PlacedNode], source: bytes) -> bool:
    """Whether Bash may interpret any part of the command line differently from this tree."""
    return (
        bool(_ODD_TEXT.search(source))
        or _leaves_gaps(nodes, source)
        or _loses_words(nodes)
        or any(_is_odd(each, source) for each in nodes)
    )


def _leaves_gaps(nodes: Sequence[PlacedNode], source: bytes) -> bool:
    """Whether the parser skipped any text other than white space. No leaf of the tree contains such text."""
    seen = 0
    for each in nodes:
        if not each.children:
            if not _BLANK.fullmatch(source, seen, max(seen, each.node.start_byte)):
                return True
            seen = max(seen, each.node.end_byte)
    return not _BLANK.fullmatch(source, seen)


def _loses_words(nodes: Sequence[PlacedNode]) -> bool:
    """Whether a word after a redirect can't be assigned to a command."""
    redirects = [each.node for each in nodes if each.node.type in ("file_redirect", "heredoc_redirect")]
    strays = {stray.id for redirect in redirects for stray in strays_of(redirect)}
    return bool(strays - {stray.id for each in nodes if each.node.type == "command" for stray in each.strays})


def _is_odd(each: PlacedNode, source: bytes) -> bool:
    match each.node.type:
        case "command":
            return any(child.type not in _IN_COMMAND for child in each.children) or _spans_lines(each, source)
        case "file_redirect":
            return _spans_lines(each, source)
        case "file_descriptor":
            return not _DESCRIPTOR.fullmatch(each.node.text or b"")
        case "word":
            return bool(_BARE_SPACE.search(each.node.text or b""))
        case "variable_assignment":
            return any(one.end_byte != other.start_byte for one, other in pairwise(each.children))
        case "variable_name" if each.parent == "variable_assignment":
            return not _NAME.fullmatch(each.node.text or b"")
        case "heredoc_redirect":
            return each.is_inside or _is_odd_heredoc(each.node, source)
        case _:
            return False


def _spans_lines(each: PlacedNode, source: bytes) -> bool:
    """Whether the tree treats words on two lines as one command even though the line end between them isn't escaped."""
    gaps = ((one.end_byte, other.start_byte) for one, other in pairwise(each.children))
    return not all(_BLANK_IN_LINE.fullmatch(source, begin, end) for begin, end in gaps)


def _is_odd_heredoc(node: Node, source: bytes) -> bool:
    """Whether the end of a heredoc or the commands that run inside it are uncertain. A second heredoc on the same line
    is always uncertain.
    """
    parts = {child.type: child for child in node.children}
    start, end = parts.get("heredoc_start"), parts.get("heredoc_end")
    if start is None or end is None or not _DELIMITER.fullmatch(start.text or b""):
        return True
    line_end = source.find(b"\n", start.end_byte)
    text = source[line_end + 1 : end.start_byte]
    word = (start.text or b"").strip(b"'\"")
    is_literal = (start.text or b"")[:1] in (b"'", b'"')
    return (
        b"<<" in source[start.end_byte : line_end].replace(b"<<<", b"")
        or (end.text or b"").strip() != word
        or word in (line.strip(b"\t") for line in text.split(b"\n"))
        or (not is_literal and bool(_EXPANDED.search(text)))
    )
