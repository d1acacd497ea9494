"""Activity `run_tool`: one attempt at one tool call, through the six stages, with its effect accounted for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from temporalio import activity

from activities.effects import Effects
from activities.heartbeat import heartbeating
from activities.ports import EventStream, StreamRedactor, ToolBox, ToolContext, TranscriptStore
from activities.stream_writer import StreamWriter, stream_writer
from activities.toolbox.hygiene import Hygiene
from activities.toolbox.made_tools import MadeTools
from activities.toolbox.pipeline import execute
from loom_domain.messages import JsonObject, ToolCall
from loom_domain.tasks import Action
from loom_domain.tool_calls import Scope, ToolResult, arguments_digest, artifact_id, describe, tool_message
from loom_domain.work import ToolRequest, tool_segment

_log = structlog.get_logger("loom.tool")

RESEND = ToolResult(content="", resend=True)
"""The worker does not have the call's arguments."""

PREVIEW = 2000
"""Characters of a result that go to the live stream; the whole of it is in history."""


class ToolRunner:
    """Runs tools on behalf of runs."""

    def __init__(
        self,
        *,
        tools: ToolBox,
        made: MadeTools,
        transcripts: TranscriptStore,
        stream: EventStream,
        hygiene: Hygiene,
        effects: Effects,
        masked: Callable[[], StreamRedactor],
    ) -> None:
        self._tools = tools
        self._made = made
        self._transcripts = transcripts
        self._stream = stream
        self._hygiene = hygiene
        self._effects = effects
        self._masked = masked

    @activity.defn(name="run_tool")
    async def run_tool(self, request: ToolRequest) -> ToolResult:
        """Run the call; a tool's failure is a result that the model can read, never an exception."""
        run_id = request.origin.run_id
        segment = tool_segment(request.turn, request.call_id, request.attempt)
        ids = {"run_id": run_id, "turn": request.turn, "call_id": request.call_id, "tool": request.tool}
        with structlog.contextvars.bound_contextvars(**ids):
            async with heartbeating(), stream_writer(self._stream, request.origin, request.turn, segment) as writer:
                writer.notices(request.notices)
                arguments = request.arguments if request.arguments is not None else await self._found(request)
                if arguments is None:
                    return RESEND
                return await self._run(request, arguments, writer)

    async def _found(self, request: ToolRequest) -> JsonObject | None:
        """The arguments that this worker has for the call, if they are the ones that are meant."""
        found = await self._transcripts.find_arguments(request.origin.run_id, request.call_id)
        return found if found is not None and arguments_digest(found) == request.arguments_digest else None

    async def _run(self, request: ToolRequest, arguments: JsonObject, writer: StreamWriter) -> ToolResult:
        call = ToolCall(id=request.call_id, name=request.tool, arguments=arguments)
        named: dict[str, Any] = {"turn": request.turn, "attempt": request.attempt}
        named |= {"call_id": call.id, "tool": call.name}

        masked = self._masked()

        def show(text: str) -> None:
            if text:
                writer.emit(Action.TOOL_PROGRESS, content=text, **named)

        writer.emit(
            Action.TOOL_CALL,
            key="call",
            status="running",
            arguments=self._hygiene.clean_arguments(arguments),
            summary=self._hygiene.clean(describe(call)),
            effect=request.effect,
            **named,
        )
        box = self._made.added_to(self._tools, [request.made] if request.made else [])
        context = ToolContext(
            workspace=Path(request.workspace),
            run_id=request.origin.run_id,
            call_id=call.id,
            idempotency_key=request.key,
            timeout=request.timeout,
            artifact=artifact_id(request.turn, call.id),
            progress=lambda text: show(masked.feed(text)),
        )
        result = await self._effects.carried_out(
            request,
            box[call.name].spec.scope if call.name in box else Scope.MCP,
            lambda: execute(
                call,
                box=box,
                context=context,
                hygiene=self._hygiene,
                is_cancelled=activity.is_cancelled,
                note=request.note,
            ),
            warn=show,
        )
        show(masked.flush())
        metadata = result.metadata
        writer.emit(
            Action.TOOL_RESULT,
            key="result",
            status=result.status,
            result={"content": result.content[:PREVIEW], "length": len(result.content), "metadata": metadata},
            **named,
        )
        _log.info("tool_finished", status=result.status, error_type=result.error_type, **metadata["stage_breakdown"])
        await self._transcripts.save_result(request.origin.run_id, tool_message(call, result))
        return result
