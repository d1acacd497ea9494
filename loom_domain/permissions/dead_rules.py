"""Find rules that can never match, and tools that the model doesn't need to see.

A rule that silently has no effect is worse than no rule, so every dead rule is an error. An allow rule that is
overridden by a wider deny rule is not dead, because it still matches. Such rules result, for example, when a request
tightens an agent's rules.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from loom.domain.core.argument_names import argument_name
from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import ToolSpec, Verdict
from loom.domain.core.tool_names import ASK_USER, CREATE_TOOL, DONE, HANDED_ON, MADE, MCP, SAMPLING
from loom.domain.permissions import patterns
from loom.domain.permissions.judge import BUILT_IN
from loom.domain.permissions.rules import (
    DEFAULT,
    DOMAIN,
    MAIN_FIELDS,
    Kind,
    Rule,
    kind_of,
    names,
    parameter,
    parse_rule,
    parse_rules,
)
from loom.domain.permissions.subjects import Place, normal
from loom.domain.skills.catalog import COMPILED, SKILL_TOOLS

_ALWAYS_OFFERED: Final = (DONE, ASK_USER)
_NOWHERE: Final = Place()


@dataclass(frozen=True, kw_only=True, slots=True)
class _World:
    """The names that rules can refer to."""

    known: Mapping[str, ToolSpec | None]
    servers: Collection[str] | None
    place: Place


def dead_rules(
    rules: Mapping[str, str],
    tools: Sequence[ToolSpec],
    *,
    servers: Collection[str] | None = None,
    place: Place = _NOWHERE,
) -> tuple[str, ...]:
    """Return one message for each rule that never matches. The message suggests a replacement.

    `servers` contains the names of the configured MCP servers. If `servers` is None, the servers are unknown and the
    rules for their tools are not checked.
    """
    found: list[str] = []
    read: list[Rule] = []
    for text, verdict in rules.items():
        try:
            read.append(parse_rule(text, verdict))
        except BadRequest as error:
            found.append(error.message)
    known = {**dict.fromkeys(BUILT_IN), **{tool.name: tool for tool in tools}}
    world = _World(known=known, servers=servers, place=place)
    found.extend(f"permission rule {rule.text!r} {complaint}" for rule in read for complaint in _of_rule(rule, world))
    return tuple(found)


def offered(tools: Sequence[ToolSpec], rules: Mapping[str, str]) -> tuple[ToolSpec, ...]:
    """Return the tools to show to the model. Tools that a rule denies by name or by name pattern are left out."""
    denied = [rule for rule in parse_rules(rules) if rule.pattern is None and rule.verdict is Verdict.DENY]
    return tuple(
        tool for tool in tools if tool.name in _ALWAYS_OFFERED or not any(names(rule, tool.name) for rule in denied)
    )


def dead_by_name(
    rules: Mapping[str, str],
    tools: Collection[str] | None = None,
    servers: Collection[str] | None = None,
    *,
    workspace: str = "",
) -> tuple[str, ...]:
    """Return those messages of `dead_rules` that need only the names of tools, and not their arguments.

    `tools` are those that don't come from MCP servers, whose names aren't checked. If `tools` is None, only the rules
    for built-in tools are checked.
    """
    world = _World(
        known=dict.fromkeys((*BUILT_IN, *(tools or ()))), servers=servers, place=replace(_NOWHERE, workspace=workspace)
    )
    read = [rule for rule in parse_rules(rules) if tools is not None or rule.tool in (DEFAULT, *BUILT_IN)]
    return tuple(f"permission rule {rule.text!r} {complaint}" for rule in read for complaint in _of_rule(rule, world))


def _of_rule(rule: Rule, world: _World) -> Iterator[str]:
    if rule.tool == DEFAULT:
        if rule.pattern is not None:
            yield "gives `default` a pattern: remove it, because `default` cannot have one"
        return
    unnamed = tuple(_of_name(rule, world))
    yield from unnamed
    if rule.pattern is not None and not rule.tool.startswith((MADE, COMPILED)) and not unnamed:
        yield from _of_pattern(rule, world)


def _of_name(rule: Rule, world: _World) -> Iterator[str]:
    if rule.tool.startswith((MADE, COMPILED)):
        yield from _of_made(rule, world)
    elif rule.tool.startswith(MCP):
        yield from _of_server(rule, world)
    elif rule.tool != DEFAULT and not any(names(rule, tool) for tool in world.known):
        yield f"names no tool{_instead(rule.tool, world.known)}"


def _of_made(rule: Rule, world: _World) -> Iterator[str]:
    """Check a rule for agent-created tools. Rules for script tools aren't checked, because the available skills depend
    on the workspace.
    """
    if rule.tool.startswith(MADE) and CREATE_TOOL not in world.known:
        yield "is about tools that agents create, which is not allowed here: to allow it, set LOOM_DYNAMIC_TOOLS=on"


def _of_server(rule: Rule, world: _World) -> Iterator[str]:
    """Check a rule for a server's tools. The server can be unavailable, so tool names are checked only if the server
    lists any tools.
    """
    server = rule.tool.removeprefix(MCP).partition("__")[0]
    if world.servers is None or "*" in server:
        return
    if server not in world.servers:
        yield f"names no MCP server{_instead(server, world.servers)}"
        return
    theirs = [tool for tool in world.known if tool.startswith(f"{MCP}{server}__")]
    if theirs and not any(names(rule, tool) for tool in theirs):
        yield f"names no tool of the server {server}{_instead(rule.tool, theirs)}"


def _instead(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, sorted(known), n=1)
    return f": did you mean {near[0]}?" if near else f": known are {', '.join(sorted(known)) or 'none'}"


def _of_pattern(rule: Rule, world: _World) -> Iterator[str]:
    spec = world.known.get(rule.tool)
    pattern = rule.pattern or ""
    found = parameter(rule)
    if not pattern.strip():
        yield "has an empty pattern: leave out the parentheses to match every call of the tool"
    elif found and found[0] == MAIN_FIELDS.get(rule.tool):
        yield f"names `{found[0]}`, which {rule.tool}'s own patterns match: write {_own(rule.tool, found[1])}"
    elif found and _is_argument(found[0], spec) and rule.verdict is Verdict.ALLOW:
        yield f"allows calls by their argument `{found[0]}`: such rules can only ask or deny"
    elif not (found and _is_argument(found[0], spec)):
        yield from _of_kind(rule, pattern, spec, world)


def _is_argument(name: str, spec: ToolSpec | None) -> bool:
    """Whether this is the name of one of the tool's arguments, or the tool's own name for it. The arguments of an
    unknown tool are unknown, so the result is False.
    """
    properties = {} if spec is None else spec.parameters.get("properties", {})
    return name in properties or argument_name(name) in properties


def _own(tool: str, value: str) -> str:
    return f"{tool}({DOMAIN}HOST)" if kind_of(tool) is Kind.HOST else f"{tool}({value.strip(' *') or '…'} *)"


def _of_kind(rule: Rule, pattern: str, spec: ToolSpec | None, world: _World) -> Iterator[str]:
    if "*" in rule.tool or (spec is None and _may_name_an_argument(rule, pattern)):
        return
    match kind_of(rule.tool):
        case Kind.NAME:
            yield from _of_nameless(rule, spec)
        case Kind.HOST:
            yield from _of_host(pattern)
        case Kind.PATH:
            yield from _of_path(rule, pattern, world.place)
        case _:
            return


def _may_name_an_argument(rule: Rule, pattern: str) -> bool:
    """Whether the pattern of an ask or deny rule may be `param:value`, if the tool's arguments are unknown."""
    is_domain = pattern.startswith(DOMAIN) and kind_of(rule.tool) is not Kind.NAME
    return parameter(rule) is not None and rule.verdict is not Verdict.ALLOW and not is_domain


def _of_nameless(rule: Rule, spec: ToolSpec | None) -> Iterator[str]:
    if rule.tool in (*SKILL_TOOLS, *HANDED_ON, SAMPLING):
        return
    arguments = ", ".join(spec.parameters.get("properties", {})) if spec else ""
    yield (
        f"has a pattern, but {rule.tool} has nothing to match it against: only `param:value` can ask or deny"
        + (f" ({arguments})" if arguments else "")
    )


def _of_host(pattern: str) -> Iterator[str]:
    host = pattern.removeprefix(DOMAIN)
    if not pattern.startswith(DOMAIN):
        yield f"is not about a host: write {DOMAIN}example.com, or {DOMAIN}*.example.com for all hosts below it"
    elif not host.strip(".") or any(char in host for char in "/?#@\\ ") or "://" in host:
        yield f"has no host after `{DOMAIN}`: write the bare host, without scheme and path"
    elif host == "*":
        yield "matches only hosts without a dot: leave out the parentheses to match every host"


def _of_path(rule: Rule, pattern: str, place: Place) -> Iterator[str]:
    if pattern.startswith(DOMAIN):
        yield f"names a domain, but {rule.tool} is about files: write a path"
    elif pattern.startswith("!"):
        yield "begins with `!`, but a rule cannot have exceptions"
    elif ".." in pattern.split("/"):
        yield "contains `..`, but rules are matched against resolved paths: write the resolved path"
    elif rule.verdict is Verdict.ALLOW and (root := _root(pattern, place)) and not _may_be_inside(root, place):
        yield f"allows a place outside the workspace {place.workspace}, which {rule.tool} cannot access"


def _root(pattern: str, place: Place) -> str:
    """Return the folder at the start of an absolute pattern, up to the first wildcard."""
    if pattern.startswith("~/") and place.home:
        pattern = f"/{place.home}/{pattern[2:]}"
    if not pattern.startswith("//"):
        return ""
    parts = pattern[2:].split("/")
    plain = next((at for at, part in enumerate(parts) if patterns.is_glob(part)), len(parts))
    return normal("/" + "/".join(parts[:plain])) if plain else ""


def _may_be_inside(root: str, place: Place) -> bool:
    here = place.workspace
    return not here or root in ("/", here) or here.startswith(root + "/") or root.startswith(here + "/")
