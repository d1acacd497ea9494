"""The part of Bash's grammar that the permission rules see through.

A command line is transparent if every node of its syntax tree is in `_CHILDREN`, below a parent that lists it, and
passes the node's own check in `_CHECKS`. Bash then runs exactly the commands that the tree contains. All other lines
are opaque, and no allow pattern covers them. Therefore, a construct that isn't listed here, or that the parser doesn't
know, costs an approval, but never runs a command that neither a rule nor a person has allowed.

An expansion is transparent if Bash only replaces it with a value: `$x`, `${x%.c}`, `$(…)`. It is opaque if Bash
evaluates text in it again (`${x@P}`, `${!x}`, names in arithmetic, subscripts) or assigns in it (`${x:=…}`).

Some lines have a transparent tree, but Bash interprets them differently. `_LINE_CHECKS` and the checks of commands,
redirects and heredocs detect these lines. Comparing Bash with the parser on random lines revealed
these types of lines.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from loom.activities.adapters.shell.words import PlacedNode, strays_of, target_of, test_parts, text_of

_HARMLESS: Final = re.compile(r"(?!auto_resume$|histchars$|npm_|\w*_proxy$)[a-z]\w*")
"""Variables that neither Bash nor the programs that it starts obey. Bash's own variables are in upper case."""
_COSMETIC: Final = re.compile(
    r"NODE_ENV|LANG|LANGUAGE|LC_[A-Z]+|TZ|CI|PYTHONUNBUFFERED|FORCE_COLOR|NO_COLOR|TERM|COLUMNS|LINES|RUST_BACKTRACE"
)
"""Variables that affect only the appearance of a command's output."""


_EVALUATED: Final = re.compile(
    r"PS[0-4]|PROMPT_COMMAND|BASH\w*|ENV|SHELLOPTS|OPTIND|RANDOM|SRANDOM|SECONDS|EPOCH\w+|HISTCMD|LINENO|DIRSTACK|FUNCNAME"
)
"""Variables whose value Bash evaluates, or that change how it reads the rest of the line."""
_OF_PROGRAMS: Final = re.compile(r"\w*(?:PAGER|EDITOR|VISUAL|BROWSER|COMMAND|SHELL|_DIFF|ASKPASS)|LESSOPEN|LD_\w+")
"""Variables whose value is run by programs."""


def is_harmless(name: str) -> bool:
    """Whether assigning to this variable affects only the words in which the command line uses it."""
    return _HARMLESS.fullmatch(name) is not None


def is_evaluated(name: str) -> bool:
    """Whether Bash evaluates this variable's value."""
    return _EVALUATED.fullmatch(name) is not None


def may_be_run(name: str) -> bool:
    """Whether Bash or a program that it starts may run this variable's value."""
    return is_evaluated(name) or _OF_PROGRAMS.fullmatch(name) is not None


def is_cosmetic(name: str) -> bool:
    """Whether this variable affects only the appearance of a command's output."""
    return _COSMETIC.fullmatch(name) is not None


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


_VALUES: Final = _types("simple_expansion expansion arithmetic_expansion command_substitution process_substitution")
_WORDS: Final = _VALUES | _types("word number raw_string string ansi_c_string concatenation brace_expression $")
_REDIRECTS: Final = _types("file_redirect herestring_redirect heredoc_redirect")
_STATEMENTS: Final = _types(
    """
    command pipeline list redirected_statement subshell compound_statement negated_command if_statement for_statement
    while_statement case_statement test_command declaration_command variable_assignment variable_assignments comment
    ; & ;;
    """
)

_CHILDREN: Final[Mapping[str, frozenset[str]]] = {
    # Statements run only the statements that they contain.
    "program": _STATEMENTS,
    "list": _STATEMENTS | _types("&& ||"),
    "pipeline": _STATEMENTS | _types("| |&"),
    "negated_command": _STATEMENTS | {"!"},
    "subshell": _STATEMENTS | _types("( )"),
    "compound_statement": _STATEMENTS | _types("{ }"),
    "if_statement": _STATEMENTS | _types("if then elif_clause else_clause fi"),
    "elif_clause": _STATEMENTS | _types("elif then"),
    "else_clause": _STATEMENTS | {"else"},
    "for_statement": _STATEMENTS | _WORDS | _types("for variable_name in do_group"),
    "while_statement": _STATEMENTS | _types("while until do_group"),
    "do_group": _STATEMENTS | _types("do done"),
    "case_statement": _STATEMENTS | _WORDS | _types("case in case_item esac"),
    "case_item": _STATEMENTS | _types("word number raw_string string extglob_pattern concatenation ( | ) ;& ;;&"),
    "redirected_statement": _STATEMENTS | _REDIRECTS,
    # A command's words are in its subject. An assignment is either a harmless one or part of a subject.
    "command": _WORDS | _REDIRECTS | _types("command_name variable_assignment"),
    "command_name": _WORDS,
    "declaration_command": _types("export variable_assignment variable_name"),
    "variable_assignments": _types("variable_assignment"),
    "variable_assignment": _WORDS | _types("variable_name = += array"),
    "array": _WORDS | _types("( )"),
    "test_command": _types("[ ] [[ ]] unary_expression binary_expression") | _WORDS,
    "unary_expression": _WORDS | _types("! test_operator unary_expression binary_expression"),
    "binary_expression": _WORDS
    | _types("= == != =~ && || -a -o test_operator regex extglob_pattern unary_expression binary_expression"),
    # Words
    "concatenation": _WORDS,
    "string": _VALUES | _types('" string_content $'),
    "brace_expression": _types("{ .. number }"),
    "simple_expansion": _types("$ variable_name special_variable_name"),
    "command_substitution": _STATEMENTS | _REDIRECTS | _types("$( ` )"),
    "process_substitution": _STATEMENTS | _types("<( >( )"),
    # Redirects have subjects of their own. The content of a literal heredoc is only text.
    "file_redirect": _WORDS | _types("file_descriptor < > >> >& <& &> &>> >| <> >&- <&-"),
    "herestring_redirect": _WORDS | _types("file_descriptor <<<"),
    "heredoc_redirect": _STATEMENTS
    | _WORDS
    | _REDIRECTS
    | _types("file_descriptor << <<- heredoc_start heredoc_body heredoc_end && || | |&"),
    "heredoc_body": _types("heredoc_content simple_expansion"),
    **dict.fromkeys(
        """
        word number raw_string ansi_c_string comment variable_name special_variable_name test_operator regex
        extglob_pattern string_content file_descriptor heredoc_start heredoc_content heredoc_end
        """.split(),  # noqa: SIM905 - as a list it would take half a screen
        frozenset(),
    ),
}
"""For each transparent type of node, the types of nodes that it may contain. `_CHECKS` checks the text of `expansion`
and `arithmetic_expansion`, because the parser treats code in them as text.
"""

_LITERAL: Final = r"[\w./:,@%+ *?-]*"
_EXPANSION: Final = re.compile(
    r"\$\{(?:#?[A-Za-z_]\w*(?:\[(?:[@*]|\d+)\])?|#?\d+|[?#@*])"
    rf"(?:(?::?[-+?]|##?|%%?){_LITERAL}|//?[#%]?[\w.:,@+ *-]+(?:/{_LITERAL})?|:\s?-?\d+(?::-?\d+)?|\^\^?|,,?)?\}}"
)
"""Expansions that only replace text with text. The operand is literal."""
_NUMBERS: Final = re.compile(r"\$\(\([\d\s()<>*/%+,&|^~!?:-]*\)\)|\$\[[\d\s()<>*/%+,&|^~!?:-]*\]")
"""Arithmetic without names. Bash would evaluate the value of a name as arithmetic again."""
_PATTERN: Final = re.compile(r"[\w./:,@%+*?^$=-]*")
_EVALUATING_TESTS: Final = frozenset(("-v", "-R", "-eq", "-ne", "-lt", "-le", "-gt", "-ge"))
_DESCRIPTOR_AT_END: Final = re.compile(rb"[\w\]]\}\Z|(?<![^\s;|&()])\d+\Z")
_EXPANSION_AT_END: Final = re.compile(rb"\$\{[^{}]*\}\Z")

_ENDED: Final = re.compile(rb"[\s;|&()<>`]|\\\n|\Z")
_PLAIN_TARGET: Final = re.compile(r"[\w./-]+")

_ODD_TEXT: Final = re.compile(rb"\S\\\n\S|[\x00-\x08\x0b-\x1f\x7f]|\xc2\xa0|\xe2\x80[\x80-\xaf]|\xe3\x80\x80")
"""Matches words that span two lines, control characters, and white space that Bash treats as letters."""
_BLANK: Final = re.compile(rb"(?:\s|\\\n)*")
_BLANK_IN_LINE: Final = re.compile(rb"(?:[ \t]|\\\n)*")
_BARE_SPACE: Final = re.compile(r"(?<!\\)\s")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_DELIMITER: Final = re.compile(rb"(['\"]?)\w+\1")
_EXPANDED: Final = re.compile(rb"\$\(|`|\$\{|\$\[|\\\n")


def opaque_part(nodes: Sequence[PlacedNode], source: bytes) -> str:
    """Return the first part of the command line that isn't transparent, or an empty string."""
    part = next(_opaque_parts(nodes, source), "")
    return part.strip() or repr(part) if part else ""


def _opaque_parts(nodes: Sequence[PlacedNode], source: bytes) -> Iterator[str]:
    inside = 0
    for each in nodes:
        if each.node.start_byte < inside:
            continue
        if each.node.type in ("expansion", "arithmetic_expansion"):
            inside = each.node.end_byte
        if not _is_listed(each) or (each.node.type in _CHECKS and not _CHECKS[each.node.type](each, source)):
            yield text_of(each.node) or each.node.type
    if match := _ODD_TEXT.search(source):
        yield repr(match[0].decode("utf-8", "replace"))
    yield from (text for check in _LINE_CHECKS for text in check(nodes, source))


def _is_listed(each: PlacedNode) -> bool:
    if not each.node.is_named:
        # The parser takes `-l<<` for an operator.
        return text_of(each.node).strip() == each.node.type.strip()
    if each.node.type in ("expansion", "arithmetic_expansion"):
        return True
    allowed = _CHILDREN.get(each.node.type)
    return allowed is not None and all(child.type in allowed for child in each.children)


def _gaps(nodes: Sequence[PlacedNode], source: bytes) -> Iterator[str]:
    """Yield text other than white space that the parser skipped. No leaf of the tree contains it."""
    seen = 0
    for each in nodes:
        if not each.children:
            begin = max(seen, each.node.start_byte)
            if not _BLANK.fullmatch(source, seen, begin):
                yield source[seen:begin].decode("utf-8", "replace")
            seen = max(seen, each.node.end_byte)
    if not _BLANK.fullmatch(source, seen):
        yield source[seen:].decode("utf-8", "replace")


def _lost_words(nodes: Sequence[PlacedNode], _: bytes) -> Iterator[str]:
    """Yield words after a redirect that can't be assigned to a command."""
    redirects = [each.node for each in nodes if each.node.type in ("file_redirect", "heredoc_redirect")]
    taken = {stray.id for each in nodes if each.node.type == "command" for stray in each.strays}
    yield from (text_of(stray) for redirect in redirects for stray in strays_of(redirect) if stray.id not in taken)


_LINE_CHECKS: Final = (_gaps, _lost_words)


def _is_on_one_line(each: PlacedNode, source: bytes) -> bool:
    """Whether all words of a node are on one line. The tree may join two lines whose line end isn't escaped."""
    gaps = ((one.end_byte, other.start_byte) for one, other in pairwise(each.children))
    return all(_BLANK_IN_LINE.fullmatch(source, begin, end) for begin, end in gaps)


def _has_own_descriptor(each: PlacedNode, source: bytes) -> bool:
    """Whether a redirect's descriptor is part of its node. Bash assigns a variable in `{fd}> file` and `{a[1]}> file`,
    but the parser takes the braces for a word.
    """
    before = source[max(0, each.node.start_byte - 256) : each.node.start_byte]
    return not _DESCRIPTOR_AT_END.search(before) or _EXPANSION_AT_END.search(before) is not None


def _is_redirect(each: PlacedNode, source: bytes) -> bool:
    """Whether the tree has read a redirect as Bash does.

    Bash expands the target of `>&` even if it is quoted, and joins a target with the text that touches it.
    """
    operator, target = target_of(each.node)
    return (
        _is_on_one_line(each, source)
        and _has_own_descriptor(each, source)
        and _is_ended(each, source)
        and (operator not in (">&", "<&") or target is None or _PLAIN_TARGET.fullmatch(text_of(target)) is not None)
    )


def _is_dollar(each: PlacedNode, source: bytes) -> bool:
    """Whether a `$` that doesn't begin an expansion stands for itself. In `$"…"`, it doesn't."""
    following = source[each.node.end_byte : each.node.end_byte + 1]
    return each.parent == "simple_expansion" or following in (
        b" \t\n.,:;|&)/\\%'\"" if each.parent == "string" else b" \t\n;|&)"
    )


def _is_backquoted(each: PlacedNode, _: bytes) -> bool:
    """Whether Bash reads a substitution unchanged. Between backquotes, it first removes backslashes."""
    return "`" not in text_of(each.children[0]) or "\\" not in text_of(each.node)


def _is_heredoc(each: PlacedNode, source: bytes) -> bool:
    """Whether the end of a heredoc is certain, and no command runs inside the heredoc. A second heredoc on the same
    line is always uncertain.
    """
    parts = {child.type: child for child in each.children}
    start, end = parts.get("heredoc_start"), parts.get("heredoc_end")
    if each.is_inside or start is None or end is None or not _DELIMITER.fullmatch(start.text or b""):
        return False
    line_end = source.find(b"\n", start.end_byte)
    text = source[line_end + 1 : end.start_byte]
    last_line = source[source.rfind(b"\n", 0, end.end_byte) + 1 :].split(b"\n", 1)[0]
    word = (start.text or b"").strip(b"'\"")
    is_literal = (start.text or b"")[:1] in (b"'", b'"')
    return _has_own_descriptor(each, source) and not (
        b"<<" in source[start.end_byte : line_end].replace(b"<<<", b"")
        or last_line.strip(b"\t") != word
        or word in (line.strip(b"\t") for line in text.split(b"\n"))
        or (not is_literal and bool(_EXPANDED.search(text)))
    )


def _is_joined(each: PlacedNode, _: bytes) -> bool:
    """Whether the parts of a node touch each other. The tree reads `x=$ ls` as one assignment of `$ls`."""
    return all(one.end_byte == other.start_byte for one, other in pairwise(each.children))


def _is_ended(each: PlacedNode, source: bytes) -> bool:
    """Whether Bash ends a word where the tree does. The tree reads `a=()x ls` as an assignment and the command `x`."""
    return _ENDED.match(source, each.node.end_byte) is not None


def _is_name(each: PlacedNode, _: bytes) -> bool:
    """Whether an assigned name is plain. If no rule covers the assignment, the name must also be harmless."""
    name = text_of(each.node)
    match each.parent:
        case "variable_assignment":
            return _NAME.fullmatch(name) is not None and not _EVALUATED.fullmatch(name)
        case "for_statement" | "declaration_command":
            return is_harmless(name)
        case _:
            return True


def _is_export(each: PlacedNode, _: bytes) -> bool:
    names = [text_of(child).partition("=")[0] for child in each.children[1:]]
    return all(is_harmless(name) or is_cosmetic(name) for name in names)


def _is_test(each: PlacedNode, _: bytes) -> bool:
    """Whether a test only compares texts and files. Bash evaluates numbers in `[[`. It ends `[` at an operator or at
    the end of the line.
    """
    parts = test_parts(each.node)
    if text_of(parts[0]) == "[[":
        return not any(text_of(part) in _EVALUATING_TESTS for part in parts)
    is_on_one_line = "\n" not in text_of(each.node).replace("\\\n", "")
    return is_on_one_line and not any(part.type in ("&&", "||", "=~") for part in parts)


def _texts(pattern: re.Pattern[str]) -> Callable[[PlacedNode, bytes], bool]:
    return lambda each, _: pattern.fullmatch(text_of(each.node)) is not None


_CHECKS: Final[Mapping[str, Callable[[PlacedNode, bytes], bool]]] = {
    "command": _is_on_one_line,
    "file_redirect": _is_redirect,
    "herestring_redirect": _is_redirect,
    "heredoc_redirect": _is_heredoc,
    "file_descriptor": _texts(re.compile(r"\d+")),
    "command_substitution": _is_backquoted,
    "expansion": _texts(_EXPANSION),
    "arithmetic_expansion": _texts(_NUMBERS),
    "variable_assignment": lambda each, source: _is_joined(each, source) and _is_ended(each, source),
    "simple_expansion": _is_joined,
    "concatenation": _is_joined,
    "brace_expression": _is_joined,
    "variable_name": _is_name,
    "array": lambda each, _: "[" not in text_of(each.node),
    "declaration_command": _is_export,
    "test_command": _is_test,
    "regex": _texts(_PATTERN),
    "extglob_pattern": _texts(_PATTERN),
    "word": lambda each, _: not _BARE_SPACE.search(text_of(each.node)),
    "$": _is_dollar,
}
