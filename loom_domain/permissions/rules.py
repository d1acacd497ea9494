"""Entries of a permission mapping: the tools that an entry names, and the subjects that its pattern is matched
against.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions import patterns
from loom.domain.permissions.subjects import Place

DEFAULT: Final = "default"
"""The key that sets the verdict for calls that no rule names. It is not a tool."""

DOMAIN: Final = "domain:"

_RULE: Final = re.compile(r"(?P<tool>[A-Za-z_*][\w.*-]*)(?:\((?P<pattern>.+)\))?", re.DOTALL)
_SERVER: Final = re.compile(r"mcp__(?:(?!__)[\w.-])+")
_ALLOWED_GLOB: Final = re.compile(_SERVER.pattern + r"__[\w.*-]*")
_SPREAD: Final = frozenset("*?[{")
"""Characters that make Bash replace a word with other words."""
_ASSIGNS: Final = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_PARAMETER: Final = re.compile(r"(?P<name>[A-Za-z_][\w-]*):(?P<value>.*)", re.DOTALL)


class Kind(StrEnum):
    """The kind of subject that a tool's patterns are matched against."""

    COMMAND = "command"
    PATH = "path"
    HOST = "host"
    NAME = "name"
    """The name that a call refers to, for tools with such an argument."""


_ONE_PATH: Final = ("read_file", "write_file", "edit_file", "delete_file", "list_dir", "glob", "grep")
_KINDS: Final[Mapping[str, Kind]] = {
    "bash": Kind.COMMAND,
    "http_fetch": Kind.HOST,
    **dict.fromkeys((*_ONE_PATH, "git_commit"), Kind.PATH),
}
COMMANDS: Final = frozenset(tool for tool, kind in _KINDS.items() if kind is Kind.COMMAND)
"""The tools that run shell commands."""

MAIN_FIELDS: Final[Mapping[str, str]] = {
    "bash": "command",
    "http_fetch": "url",
    "python": "code",
    **dict.fromkeys(_ONE_PATH, "path"),
    "git_commit": "paths",
}
"""For each tool, the argument that the tool's own patterns match. A `param:value` rule for this argument would
duplicate such a pattern with less protection.
"""

_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "list_dir": ("read_file",),
    "glob": ("read_file",),
    "grep": ("read_file",),
    "write_file": ("edit_file",),
    "edit_file": ("write_file",),
    "delete_file": ("write_file", "edit_file"),
    "git_commit": ("read_file",),
    "create_plan": ("delegate_task",),
}
"""For each tool, other tools whose scoped ask and deny rules also apply to it. A rule that protects a file or an agent
therefore applies to every tool that can access this file or agent.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One entry in a permission mapping."""

    tool: str
    pattern: str | None
    verdict: Verdict
    text: str


def parse_rule(text: str, verdict: str) -> Rule:
    """Parse one entry of a mapping. Raises BadRequest if the entry is invalid. The message names the entry."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise BadRequest(f"permission rule {text!r} is not `tool` or `tool(pattern)`", field="permissions")
    if verdict not in tuple(Verdict):
        raise BadRequest(
            f"permission rule {text!r} says {verdict!r}; it must be allow, ask or deny", field="permissions"
        )
    if verdict == Verdict.ALLOW and "*" in match["tool"] and not _ALLOWED_GLOB.fullmatch(match["tool"]):
        raise BadRequest(
            f"permission rule {text!r} allows by a glob of tool names: name each tool, or begin with `mcp__SERVER__`",
            field="permissions",
        )
    return Rule(tool=match["tool"], pattern=match["pattern"], verdict=Verdict(verdict), text=text)


_parsed: Final = lru_cache(maxsize=4096)(parse_rule)


def parse_rules(rules: Mapping[str, str]) -> tuple[Rule, ...]:
    """Parse a whole mapping. Raises BadRequest for the first invalid entry."""
    return tuple(_parsed(text, verdict) for text, verdict in rules.items())


def kind_of(tool: str) -> Kind:
    """Return the kind of subject that this tool's patterns are matched against."""
    return _KINDS.get(tool, Kind.NAME)


def is_server(name: str) -> bool:
    """Whether the name has the form `mcp__server`, which stands for all of that server's tools."""
    return _SERVER.fullmatch(name) is not None


def names(rule: Rule, tool: str) -> bool:
    """Whether the rule names this tool."""
    if rule.tool == tool:
        return rule.text != DEFAULT
    if is_server(rule.tool):
        return tool.startswith(rule.tool + "__")
    return "*" in rule.tool and patterns.name(rule.tool).fullmatch(tool) is not None


def guards_too(rule: Rule, tool: str) -> bool:
    """Whether an ask or deny rule applies to this tool, even if the rule does not name the tool."""
    return names(rule, tool) or any(names(rule, other) for other in _ALSO.get(tool, ()))


def is_exact(rule: Rule) -> bool:
    """Whether the rule's pattern matches exactly one text."""
    if rule.pattern is None:
        return False
    return not patterns.is_glob(rule.pattern, only_stars=kind_of(rule.tool) is not Kind.PATH)


def parameter(rule: Rule) -> tuple[str, str] | None:
    """Return the argument and the value of a rule in the form `tool(param:value)`."""
    match = _PARAMETER.fullmatch(rule.pattern or "")
    return (match["name"], match["value"]) if match else None


def has_value(rule: Rule, tool: str, arguments: JsonObject) -> bool:
    """Whether the call has the argument and the value that an ask or deny rule names."""
    found = parameter(rule)
    if found is None or rule.verdict is Verdict.ALLOW or not names(rule, tool) or found[0] == MAIN_FIELDS.get(tool):
        return False
    return patterns.is_value(found[1], arguments.get(found[0]))


def covers(rule: Rule, tool: str, text: str, loose: str, place: Place, *, exact: bool = False) -> bool:
    """Whether an allow rule for `tool` covers this subject. If `exact` is set, a path pattern matches only that path
    and not a folder's contents.
    """
    if rule.pattern is None or not names(rule, tool):
        return False
    if kind_of(tool) is Kind.PATH:
        return patterns.covers_path(rule.pattern, text, loose, home=place.home, exact=exact)
    if kind_of(tool) is Kind.COMMAND and _names_only_an_assignment(rule.pattern, text):
        return False
    return _is_like(tool, rule.pattern, text)


def _names_only_an_assignment(pattern: str, text: str) -> bool:
    """Whether the pattern matches only because the line begins with an assignment, as `ls*` matches `ls= rm`."""
    named = patterns.literal_start(pattern)
    begin = named.rfind(" ") + 1
    is_before_command = begin == 0 or _ASSIGNS.match(text) is not None
    return named != "" and is_before_command and "=" not in named[begin:] and _ASSIGNS.match(text, begin) is not None


def touches(rule: Rule, tool: str, text: str, loose: str, place: Place) -> bool:
    """Whether a scoped ask or deny rule matches this subject of `tool`."""
    if rule.pattern is None or not guards_too(rule, tool):
        return False
    if kind_of(tool) is Kind.PATH:
        return patterns.touches_path(rule.pattern, text, loose, home=place.home)
    return _is_like(tool, rule.pattern, text) or (loose != "" and _is_like(tool, rule.pattern, loose))


def may_reach(rule: Rule, tool: str, text: str, loose: str, place: Place) -> bool:
    """Whether a scoped ask or deny rule can match a path in this folder."""
    if rule.pattern is None or not guards_too(rule, tool):
        return False
    return patterns.may_reach(rule.pattern, text, loose, home=place.home)


def may_match(rule: Rule, tool: str, word: str) -> bool:
    """Whether a scoped ask or deny rule can match a path to which Bash expands this glob. Any path matches an empty
    word, which stands for a computed one.
    """
    if rule.pattern is None or not guards_too(rule, tool) or kind_of(tool) is not Kind.PATH:
        return False
    return word == "" or patterns.may_meet(rule.pattern, word)


def may_become(rule: Rule, tool: str, words: Sequence[str | None]) -> bool:
    """Whether a computed word, a glob or braces might become text that an ask or deny rule names."""
    if rule.pattern is None or kind_of(tool) is not Kind.COMMAND or not names(rule, tool):
        return False
    named = patterns.literal_start(rule.pattern).split()
    for wanted, word in zip(named, words, strict=False):
        if word is None or set(word) & _SPREAD:
            return True
        if word != wanted and word.rpartition("/")[2] != wanted:
            return False
    has_more = patterns.has_text_after_star(rule.pattern)
    return has_more and any(word is None or "{" in word for word in words[len(named) :])


def _is_like(tool: str, pattern: str, text: str) -> bool:
    match kind_of(tool):
        case Kind.COMMAND:
            return patterns.command(pattern).fullmatch(text) is not None
        case Kind.HOST:
            return pattern.startswith(DOMAIN) and patterns.covers_host(
                pattern.removeprefix(DOMAIN), text.removeprefix(DOMAIN)
            )
        case _:
            return patterns.name(pattern).fullmatch(text) is not None
