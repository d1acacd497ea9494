"""Wrap an MCP server's tool as a Loom tool, with its schema, an effect based on trust, and a connection to
the server.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

from loom.activities.json_schemas import BrokenSchema
from loom.activities.ports import Tool, ToolContext, ToolOutput
from loom.activities.toolbox.argument_schema import ArgumentSchema
from loom.activities.toolbox.untrusted_text import defused, defused_json
from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec, Verdict
from loom.domain.core.tool_input import InputAnswer
from loom.domain.permissions.subjects import Subject
from loom.domain.tools.mcp_servers import (
    FeatureKind,
    ListedTool,
    McpServer,
    description,
    server_instructions,
    tool_name,
    traits_of,
)

TOOLS_LIMIT: Final = 500
"""Maximum number of tools per server. Every tool is included in each model call."""

_SUBJECTS: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class McpCall:
    """A call to an MCP server."""

    tool: str
    """The server's name for the tool."""
    arguments: JsonObject
    effect: Effect
    timeout: float
    key: str | None = None
    """Idempotency key, for tools that declare that they are safe to repeat."""
    progress: Callable[[str], None] = lambda _text: None
    feature: FeatureKind | None = None
    """Set if the call is about the server's resources or prompts, and not a tool of the server."""
    id: str = ""
    """Tells this call apart from all other calls. It stays the same when the call goes on with answers."""
    sampling: Verdict = Verdict.DENY
    """Whether the server may call the run's model during the call."""
    round: int = 0
    """How often the call has asked for input."""
    answers: tuple[InputAnswer, ...] = ()
    """The answers to the latest requests for input."""
    earlier_answers: tuple[InputAnswer, ...] = ()
    state: str = ""
    """The server's own state of the call."""
    as_task: bool = False
    """Whether the server may run the call as a task."""
    task: str = ""
    """The ID of the call's task. If it is set, the call only asks for the task's result."""

    @property
    def known_answers(self) -> tuple[InputAnswer, ...]:
        """All answers so far, for a call that is made again from its beginning."""
        return (*self.earlier_answers, *self.answers)


class McpLink(Protocol):
    """The connection to an MCP server."""

    def trouble(self) -> str | None:
        """Return None if the server can be called. Otherwise, explain the problem and what Loom does about it."""
        ...

    def call(self, call: McpCall) -> Awaitable[ToolOutput]:
        """Send the call once and return its result, or the input that it needs. Raises the tool errors in
        `loom.domain.core.errors`.
        """
        ...

    def abandon(self, call_id: str, task: str = "") -> None:
        """Stop a call that waits for input, and its task, because its run has ended."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class McpTool:
    """A tool on an MCP server. The tool exists while the server lists it, even if the server is currently
    unavailable.
    """

    spec: ToolSpec
    name: str
    """The server's name for the tool."""
    schema: ArgumentSchema
    link: McpLink
    limit: float
    """Maximum number of seconds for the call itself. The spec's timeout also includes the time to restore an idle
    connection.
    """
    task_limit: float | None = None
    """Maximum number of seconds for a task. None if the server never runs the call as a task."""
    feature: FeatureKind | None = None
    """Set if Loom has added the tool for the server's resources or prompts."""
    sampling_server: str = ""
    """The server's name if it may ask for model calls. Each call's rules then decide."""
    instructions: str = ""
    """The server's instructions, as part of the prompt of runs with the tool."""

    @property
    def longest(self) -> float:
        """The server's own limit in seconds, which an agent's timeout can't exceed."""
        return self.limit if self.task_limit is None else self.task_limit

    def is_available(self) -> str | None:
        """Return None if the server is responding. Otherwise, explain the problem and what Loom does about it."""
        return self.link.trouble()

    def parse(self, arguments: JsonObject) -> JsonObject:
        """Validate the arguments, and return them under the server's own names. Raises a ToolValidationError that names
        the field and explains how to fix it.
        """
        return self.schema.check(self.spec.name, arguments)

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """Return every text in the arguments, because only the server knows which of them are paths or addresses."""
        del workspace
        found = list(dict.fromkeys(_texts(arguments)))
        kept = [Subject(text=text) for text in found[:_SUBJECTS]]
        return kept if len(found) <= _SUBJECTS else [*kept, Subject(text="…", opaque=True)]

    def grants(self, arguments: object) -> Sequence[str]:
        """Return a rule for the whole tool."""
        del arguments
        return (self.spec.name,)

    def run(self, arguments: object, context: ToolContext) -> Awaitable[ToolOutput]:
        """Send the call to the server."""
        effect = self.spec.effect
        key = context.idempotency_key if effect is Effect.IDEMPOTENT else None
        return self.link.call(
            McpCall(
                tool=self.name,
                arguments=cast("JsonObject", arguments),
                effect=effect,
                timeout=min(self.longest if context.server_task else self.limit, context.timeout),
                key=key,
                progress=context.progress,
                feature=self.feature,
                id=_id_of(context),
                sampling=context.sampling,
                round=context.round,
                answers=context.answers,
                earlier_answers=context.earlier_answers,
                state=context.server_state,
                as_task=self.task_limit is not None,
                task=context.server_task,
            )
        )

    def abandon(self, context: ToolContext) -> None:
        """Stop a call that waits for input, because its run has ended."""
        self.link.abandon(_id_of(context), context.server_task)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """The result of processing a server's tool list."""

    tools: Mapping[str, Tool]
    """The tools, sorted by name."""
    refused: tuple[str, ...] = ()
    """One sentence for each listed tool that can't be used."""


def offer(server: McpServer, listed: Sequence[ListedTool], link: McpLink, instructions: str = "") -> Offer:
    """Return the usable tools of a server. Tools that the configuration excludes are skipped silently."""
    told = defused(server_instructions(server.name, instructions))
    tools: dict[str, Tool] = {}
    refused: list[str] = []
    for each in listed:
        if not server.offers(each.name):
            continue
        name = tool_name(server.name, each.name)
        if name in tools:
            refused.append(f"{each.name!r}: the server lists it twice, and the first one is used")
        elif len(tools) == TOOLS_LIMIT:
            refused.append(f"{each.name!r}: the server lists more than {TOOLS_LIMIT} tools")
        else:
            try:
                tools[name] = _tool(server, each, name, link, told)
            except BrokenSchema as error:
                refused.append(f"{each.name!r}: {error}")
    return Offer(tools=dict(sorted(tools.items())), refused=tuple(refused))


def _tool(server: McpServer, listed: ListedTool, name: str, link: McpLink, instructions: str) -> McpTool:
    stands = traits_of(listed, trust=server.trust)
    schema = ArgumentSchema(listed.schema)
    spec = ToolSpec(
        name=name,
        description=defused(description(server, listed)),
        parameters=defused_json(schema.shown),
        effect=stands.effect,
        parallel=stands.parallel,
        timeout=(server.task_timeout if listed.as_task else server.timeout) + server.connect_timeout,
        scope=Scope.MCP,
        declared=stands.declared,
    )
    return McpTool(
        spec=spec,
        name=listed.name,
        schema=schema,
        link=link,
        limit=server.timeout,
        task_limit=server.task_timeout if listed.as_task else None,
        feature=listed.feature,
        sampling_server=server.name if server.sampling else "",
        instructions=instructions,
    )


def _id_of(context: ToolContext) -> str:
    return f"{context.run_id}/{context.execution}/{context.artifact or context.call_id}"


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
