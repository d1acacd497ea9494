"""A tool of an MCP server as a tool of Loom's: its schema, its standing by the trust rule, the link to its server."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

from loom.activities.json_schemas import BrokenSchema
from loom.activities.ports import Tool, ToolContext, ToolOutput
from loom.activities.toolbox.argument_schema import ArgumentSchema
from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec
from loom.domain.permissions.subjects import Subject
from loom.domain.tools.mcp_servers import ListedTool, McpServer, description, tool_name, traits_of

TOOLS_LIMIT: Final = 500
"""Tools that are taken from one server: each is part of every model call."""

_SUBJECTS: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class McpCall:
    """One call on its way to a server."""

    tool: str
    """The server's own name of it."""
    arguments: JsonObject
    effect: Effect
    timeout: float
    key: str | None = None
    """Idempotency key, for tools that say that they may be repeated."""
    progress: Callable[[str], None] = lambda _text: None


class McpLink(Protocol):
    """The way to one server."""

    def trouble(self) -> str | None:
        """None when it can be called; else why not, and what is being done about it."""
        ...

    def call(self, call: McpCall) -> Awaitable[ToolOutput]:
        """Send it once and return what came of it; raises the tool errors of `loom.domain.core.errors`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class McpTool:
    """One tool of one server; lives as long as the server lists it, whether the server answers or not."""

    spec: ToolSpec
    name: str
    """The server's own name of it."""
    schema: ArgumentSchema
    link: McpLink
    limit: float
    """Seconds for the call itself; the spec's timeout has room for dialling a sleeping server, too."""

    def is_available(self) -> str | None:
        """None when its server answers; else what is wrong and what is being done."""
        return self.link.trouble()

    def parse(self, arguments: JsonObject) -> JsonObject:
        """Validated arguments; raises ToolValidationError that names the field and the way out."""
        return self.schema.check(self.spec.name, arguments)

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """Every text among the arguments: which of them is a path or an address only the server knows."""
        del workspace
        found = list(dict.fromkeys(_texts(arguments)))
        kept = [Subject(text=text) for text in found[:_SUBJECTS]]
        return kept if len(found) <= _SUBJECTS else [*kept, Subject(text="…", opaque=True)]

    def grants(self, arguments: object) -> Sequence[str]:
        """The tool as a whole."""
        del arguments
        return (self.spec.name,)

    def run(self, arguments: object, context: ToolContext) -> Awaitable[ToolOutput]:
        """Send the call to the server."""
        effect = self.spec.effect
        return self.link.call(
            McpCall(
                tool=self.name,
                arguments=cast("JsonObject", arguments),
                effect=effect,
                timeout=min(self.limit, context.timeout),
                key=context.idempotency_key if effect is Effect.IDEMPOTENT else None,
                progress=context.progress,
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a server's list of tools came to."""

    tools: Mapping[str, Tool]
    """By name, sorted."""
    refused: tuple[str, ...] = ()
    """One sentence for each listed tool that cannot be used."""


def offer(server: McpServer, listed: Sequence[ListedTool], link: McpLink) -> Offer:
    """The tools of a server that can be used; the configuration's choice is kept to silently."""
    tools: dict[str, Tool] = {}
    refused: list[str] = []
    for each in listed:
        if not server.offers(each.name):
            continue
        name = tool_name(server.name, each.name)
        if name in tools:
            refused.append(f"{each.name!r}: the server lists it twice, the first one stands")
        elif len(tools) == TOOLS_LIMIT:
            refused.append(f"{each.name!r}: the server lists more than {TOOLS_LIMIT} tools")
        else:
            try:
                tools[name] = _tool(server, each, name, link)
            except BrokenSchema as error:
                refused.append(f"{each.name!r}: {error}")
    return Offer(tools=dict(sorted(tools.items())), refused=tuple(refused))


def _tool(server: McpServer, listed: ListedTool, name: str, link: McpLink) -> McpTool:
    stands = traits_of(listed, trust=server.trust)
    spec = ToolSpec(
        name=name,
        description=description(server, listed),
        parameters=listed.schema,
        effect=stands.effect,
        parallel=stands.parallel,
        timeout=server.timeout + server.connect_timeout,
        scope=Scope.MCP,
        declared=stands.declared,
    )
    return McpTool(spec=spec, name=listed.name, schema=ArgumentSchema(listed.schema), link=link, limit=server.timeout)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)
