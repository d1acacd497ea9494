"""Tools on demand: tools that the model isn't shown from the start, but finds with `search_tools`.

    prepare_run ──on_demand──▶ names, pinned in the spec ──▶ call_model: search_tools lists their groups
                                                                  │ the model calls search_tools
                              found ◀── recorded in the call ◀── found_for(query)
                                │ the result: one line of JSON for each tool
                                ▼
                     the conversation, which is the record of the tools that are loaded

The tools that a model is shown are the beginning of each prompt, so a change in them would make the provider's cache
useless for the whole conversation. They therefore never change. The schemas of found tools are in the search's
result, and a compression keeps such results as it keeps the instructions of skills.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from loom.domain.core.messages import Group, JsonObject, Message, canonical, groups_that_fit
from loom.domain.core.tokens import tokens_of
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import CALL_TOOL, MCP, SEARCH_TOOLS
from loom.domain.core.word_ranking import scores_of

RARELY_USED: Final = frozenset({
    *("query_l1_memory", "query_l2_memory", "query_l3_memory", "query_recent_events"),
    *("query_events_by_action", "query_events_by_node", "query_collective_memory", "query_sibling_insights"),
    "publish_memory",
})  # fmt: skip
"""Built-in tools that are found on demand, unless an agent names them. `search_memory` does most of what the memory
tools among them do.
"""

MOST_FOUND: Final = 20
"""The maximum number of tools in the result of one search."""
MOST_CHARACTERS: Final = 24_000
"""The maximum length of the descriptions in the result of one search. The first tool is always included."""
STAYING_SHARE: Final = 0.2
"""The maximum share of a compressed conversation that found tools may use."""
_LISTED: Final = 30
"""The maximum number of servers and other tools that `search_tools` lists."""


def on_demand(
    tools: Sequence[ToolSpec], named: Collection[str], *, built_in: Collection[str], most: int, most_tokens: int
) -> tuple[str, ...]:
    """Return the names of the tools that the model must search for, sorted.

    `named` contains the names that the agent's definition lists, which are always shown. If there are more tools than
    `most`, or if they need more than `most_tokens`, the tools of MCP servers are not shown. If that isn't enough, the
    tools of apps and packages, which are those outside `built_in`, are not shown either.
    """
    free = [tool for tool in tools if tool.name not in named]
    away = {tool.name for tool in free if tool.name in RARELY_USED}
    of_servers = {tool.name for tool in free if tool.name.startswith(MCP)}
    of_apps = {tool.name for tool in free if not tool.source and tool.name not in built_in} - of_servers
    for more in (of_servers, of_apps):
        shown = [tool for tool in tools if tool.name not in away]
        if len(shown) > most or tokens_of(shown) > most_tokens:
            away |= more
    return tuple(sorted(away))


def found_for(query: str, tools: Sequence[ToolSpec], limit: int) -> tuple[str, ...]:
    """Return the names of the tools that fit a query best, best first. Tools that the query names come first."""
    words = set(query.replace(",", " ").split())
    scores = scores_of([_text_of(tool) for tool in tools], query)
    places = [place for place, tool in enumerate(tools) if scores[place] > 0 or tool.name in words]
    ranked = sorted(places, key=lambda place: (tools[place].name not in words, -scores[place], place))
    return tuple(tools[place].name for place in ranked[:limit])


def found_text(tools: Sequence[ToolSpec]) -> str:
    """Return the result of a search: one line of JSON for each tool, up to the maximum length."""
    lines: list[str] = []
    for tool in tools:
        line = canonical({"name": tool.name, "description": tool.description, "parameters": tool.parameters})
        if lines and sum(map(len, lines)) + len(line) > MOST_CHARACTERS:
            left = ", ".join(each.name for each in tools[len(lines) :])
            return "\n".join((*lines, f"Also found, but too long to show here: {left}. Search for one of these names."))
        lines.append(line)
    return "\n".join(lines)


def nothing_found(query: str, away: Iterable[str]) -> str:
    """Return the result of a search that finds nothing. It suggests what to try."""
    groups = sorted(set(map(_group_of, away)))
    return (
        f"No tool fits {query!r}. Use other words for what the tool does, fewer words, or one of these names, which"
        f" finds the tools of that server or the tool itself: {', '.join(groups[:_LISTED])}."
    )


def loaded_by(message: Message) -> tuple[str, ...]:
    """Return the names of the tools that this message describes, if it is the result of a search."""
    if message.role != "tool" or message.name != SEARCH_TOOLS or message.is_error:
        return ()
    return tuple(str(line["name"]) for line in map(_read, message.text.splitlines()) if "parameters" in line)


def staying_tools(messages: Sequence[Message], groups: Sequence[Group], room: int) -> set[Group]:
    """Return the groups of the searches whose tools stay described after a compression, newest first."""
    places = (place for place in reversed(range(len(messages))) if loaded_by(messages[place]))
    return groups_that_fit(messages, groups, places, int(STAYING_SHARE * room))


def divided(tools: Iterable[ToolSpec], away: Collection[str]) -> tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]]:
    """Return the tools that the model is shown and the tools on demand. `search_tools` lists the latter."""
    every, names = tuple(tools), frozenset(away)
    deferred = tuple(tool for tool in every if tool.name in names)
    shown = (tool for tool in every if tool.name not in names)
    if not deferred:
        return tuple(shown), ()
    return tuple(_listing(tool, deferred) if tool.name == SEARCH_TOOLS else tool for tool in shown), deferred


def described(tools: Iterable[ToolSpec], away: Collection[str]) -> tuple[ToolSpec, ...]:
    """Return the tools whose descriptions are part of each prompt."""
    shown, deferred = divided(tools, away)
    return (*shown, CALL_TOOL_SPEC) if deferred else shown


def _listing(search: ToolSpec, deferred: Sequence[ToolSpec]) -> ToolSpec:
    """Return `search_tools` with a description that lists the tools on demand: servers with the number of their tools,
    and other tools by name.
    """
    groups = Counter(_group_of(tool.name) for tool in deferred)
    told = [f"{group} ({number} tools)" if group.startswith(MCP) else group for group, number in groups.items()]
    more = [f"{len(told) - _LISTED} more"] if len(told) > _LISTED else []
    return replace(search, description=f"{search.description} There are: {', '.join((*told[:_LISTED], *more))}.")


def _group_of(name: str) -> str:
    """Return the `mcp__server` name of a server's tool, or the name of another tool."""
    return name[: name.index("__", len(MCP))] if name.startswith(MCP) else name


def _text_of(tool: ToolSpec) -> str:
    properties = tool.parameters.get("properties", {})
    about = " ".join(str(value.get("description", "")) for value in properties.values() if isinstance(value, dict))
    # The name counts three times, because it says most.
    return " ".join((*[tool.name] * 3, tool.description, *properties, about))


def _read(line: str) -> JsonObject:
    try:
        read = json.loads(line)
    except ValueError:
        return {}
    return read if isinstance(read, dict) and "name" in read else {}


CALL_TOOL_SPEC: Final = ToolSpec(
    name=CALL_TOOL,
    description=f"Call a tool that {SEARCH_TOOLS} has found.",
    parameters={
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "arguments": {"type": "object"},
        },
        "required": ["name", "arguments"],
    },
)
"""The stable form of calls of found tools, for providers that have no form of their own."""
