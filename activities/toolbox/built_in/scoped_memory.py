"""Tools that let the agents in a tree keep versioned notes for themselves and for each other."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, Field

from loom.activities.memory.ports import ScopedMemory
from loom.activities.ports import StoreUnavailable, Tool, ToolContext
from loom.activities.toolbox.built_in.memory import NO_STORE
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.core.errors import ToolExecutionError, ToolUnavailableError
from loom.domain.core.tool_calls import Effect, Scope, Verdict
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.scopes import ReadOnlyScopeError, ScopedEntry, ScopedWrite, path_of

_LONGEST: Final = 20_000
_LISTED: Final = 200
"""Maximum number of characters per entry in a list."""

A = TypeVar("A", bound=BaseModel)


class Publish(Arguments):
    """Arguments of publish_memory."""

    id: str = Field(min_length=1, max_length=200)
    content: str = Field(max_length=_LONGEST)
    read_version: int | None = Field(default=None, ge=1)


class Write(Publish):
    """Arguments of write_memory."""

    scope: Literal["local", "shared"] = Field(
        default="local", description="shared: also for agents above and below you"
    )


class Read(Arguments):
    """Arguments of read_memory."""

    id: str | None = Field(default=None, max_length=200, description="Default: list all")


def scoped_memory_tools(store: ScopedMemory | None) -> tuple[Tool, ...]:
    """Return `write_memory`, `publish_memory` and `read_memory`. Publishing to all sessions of a tenant needs approval.

    Without a store, the tools are listed but unavailable.
    """
    tools = _Tools(store)
    return (
        tools.tool("write_memory", "Keep a note for later, under a name.", Write, tools.write, Verdict.ALLOW),
        tools.tool(
            "publish_memory", "Keep a note for all agents in all sessions.", Publish, tools.publish, Verdict.ASK
        ),
        tools.tool(
            "read_memory",
            "Read a note of yours or of an agent above or below you, or a published one.",
            Read,
            tools.read,
            Verdict.ALLOW,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Tools:
    store: ScopedMemory | None

    def tool(
        self,
        name: str,
        description: str,
        arguments: type[A],
        use: Callable[[ScopedMemory, A, ToolContext], Awaitable[str]],
        declared: Verdict,
    ) -> Tool:
        """Return a tool that uses the store."""

        async def run(given: A, context: ToolContext) -> str:
            if self.store is None:
                raise ToolUnavailableError(NO_STORE)
            try:
                return await use(self.store, given, context)
            except StoreUnavailable as error:
                raise ToolUnavailableError(f"memory is unavailable ({error}): go on without it, or try later") from None
            except ReadOnlyScopeError as error:
                raise ToolExecutionError(error.message) from None

        effect = Effect.READ if arguments is Read else Effect.IDEMPOTENT
        spec = tool_spec(name, description, arguments, effect=effect, scope=Scope.CONTEXT, declared=declared)
        missing = None if self.store is not None else NO_STORE
        return FunctionTool(spec=spec, arguments=arguments, function=run, missing=missing)

    async def write(self, store: ScopedMemory, given: Write, context: ToolContext) -> str:
        """Write a note of this run."""
        return await _written(store, given, MemoryScope(given.scope), context)

    async def publish(self, store: ScopedMemory, given: Publish, context: ToolContext) -> str:
        """Write a note for all sessions of the run's tenant."""
        return await _written(store, given, MemoryScope.GLOBAL, context)

    async def read(self, store: ScopedMemory, given: Read, context: ToolContext) -> str:
        """Return one note in full, or the start of every note."""
        path = path_of(context.run_id, context.root_run_id)
        if given.id is not None:
            entry = await store.read(given.id, path, context.owner)
            return (
                f"There is no {given.id!r}: read_memory without an id lists all notes."
                if entry is None
                else _whole(entry)
            )
        entries = await store.entries(path, context.owner)
        return "\n".join(map(_line, entries)) or "There are no notes yet."


async def _written(store: ScopedMemory, given: Publish, scope: MemoryScope, context: ToolContext) -> str:
    path = path_of(context.run_id, context.root_run_id)
    there = await store.read(given.id, path, context.owner)
    # If the call is repeated after a worker has crashed, no second version is created.
    same = there is not None and (there.content, there.scope, there.updated_by) == (given.content, scope, path[-1])
    if there is None or not same:
        there = await store.write(
            ScopedWrite(
                id=given.id,
                content=given.content,
                scope=scope,
                by=path,
                written_for=context.owner,
                session_id=context.session_id or path[0],
                read_version=given.read_version,
            )
        )
    told = f"Kept as version {there.version} of {there.id!r} ({there.scope})."
    if there.conflicts_with is not None:
        told += f" It replaces version {there.conflicts_with}, which you had not read: call read_memory, then merge."
    return told


def _whole(entry: ScopedEntry) -> str:
    return f"[{entry.id}, {entry.scope}, version {entry.version}, by {entry.updated_by}]\n{entry.content}"


def _line(entry: ScopedEntry) -> str:
    text = " ".join(entry.content.split())
    shown = text if len(text) <= _LISTED else text[: _LISTED - 1] + "…"
    return f"- {entry.id} ({entry.scope}, version {entry.version}): {shown}"
