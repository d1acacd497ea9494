"""The events in a run's stream. Each type of event is built by one function.

Activities publish the events when they occur. `history.task_rebuilding` rebuilds them from the recorded history with
the same keys and contents.

An event belongs to a turn (`turn_scope`) or to one attempt at an activity (`scope_of` its segment). The run, the scope,
the event's key, and its action together identify the resulting task.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from loom.domain.agents.hook_steps import HookPoint
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.frozen import replace
from loom.domain.core.messages import JsonObject, Message, ToolCall, Usage, ask_digest, left_out, short_digest
from loom.domain.core.requests import RunRequest, fork_view
from loom.domain.core.tasks import Action, Notice, Origin, Segment, Task, task_of
from loom.domain.core.tool_calls import PreparedCall, ToolResult, Verdict, made_tool
from loom.domain.core.tool_names import CREATE_TOOL
from loom.domain.permissions.risk import risk_of
from loom.domain.run.activity_payloads import (
    CompressRequest,
    Evaluated,
    EvaluateRequest,
    ModelRequest,
    Sampled,
    SampleRequest,
    ToolRequest,
)
from loom.domain.run.state import turn_id
from loom.domain.tree.lineage import Lineage

PREVIEW: Final = 2000
"""The maximum length of a tool's result in a task. History contains the full result."""

NOT_RUN: Final = 0
"""The `attempt` of a call that never ran."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEvent:
    """One stream entry, before a run and a time are assigned."""

    action: Action
    key: str = ""
    """A key that is unique within its scope and action. It is empty for events that only the live stream shows."""
    parameters: JsonObject = field(default_factory=dict)
    status: str = "completed"
    result: JsonObject | None = None
    parent_task_id: str | None = None

    def task(self, origin: Origin, scope: str, at: datetime, *, key: str = "") -> Task:
        """Return the task for the stream. `key` replaces the event's own key."""
        return task_of(
            origin,
            self.action,
            f"{scope}/{key or self.key}",
            at=at,
            status=self.status,
            parameters=self.parameters,
            result=self.result,
            parent_task_id=self.parent_task_id,
        )


def model_segment(turn: int, attempt: int) -> Segment:
    """Return the segment that one attempt at a model call writes."""
    return Segment(name=f"t{turn}-model", attempt=attempt)


def compression_segment(turn: int, attempt: int) -> Segment:
    """Return the segment that one attempt at compression writes."""
    return Segment(name=f"t{turn}-compress", attempt=attempt)


def evaluation_segment(turn: int, attempt: int) -> Segment:
    """Return the segment that one attempt at evaluation writes."""
    return Segment(name=f"t{turn}-evaluate", attempt=attempt)


def tool_segment(turn: int, call_id: str, attempt: int) -> Segment:
    """Return the segment that one attempt at a tool call writes."""
    return Segment(name=f"t{turn}-call-{call_id}", attempt=attempt)


def scope_of(segment: Segment) -> str:
    """Return the id prefix for a segment's tasks."""
    return f"{segment.name}.{segment.attempt}"


def turn_scope(turn: int) -> str:
    """Return the id prefix for a turn's tasks, regardless of the attempt."""
    return f"t{turn}"


def run_started(
    request: RunRequest, spec: AgentSpec, lineage: Lineage | None, *, skipped_skills: Sequence[str] = ()
) -> StreamEvent:
    """Return the event for a prepared run."""
    forked = fork_view(request.forked_from)
    return StreamEvent(
        action=Action.START,
        key="start",
        status="running",
        parent_task_id=lineage.task_id if lineage else None,
        parameters={
            "task": request.task,
            "agent": spec.name,
            "model": spec.model,
            **({} if spec.pattern == "react" else {"pattern": spec.pattern}),
            "workspace": spec.workspace,
            "tools": [tool.name for tool in spec.tools],
            "skills": [skill.name for skill in spec.skills],
            "max_turns": request.max_turns or spec.max_turns,
            "metadata": dict(request.metadata),
            **({"forked_from": forked} if forked else {}),
            **(_parent(lineage) if lineage else {}),
            **({"skipped_skills": list(skipped_skills)} if skipped_skills else {}),
        },
    )


def hook_asked(
    step: HookPoint, ms: float, *, verdict: str = "", reason: str = "", failure: str | None = None
) -> StreamEvent:
    """Return the event for a hook that was called, with its answer. If the hook didn't answer, `failure` gives the
    reason.
    """
    said = {"verdict": verdict, "reason": reason} if failure is None else {"message": failure}
    return StreamEvent(
        action=Action.HOOK,
        key=f"{step.moment}-{step.name}",
        status="completed" if failure is None else "failed",
        parameters={
            "hook": step.name,
            "moment": step.moment,
            "ms": ms,
            **{name: text for name, text in said.items() if text},
        },
    )


def turn_began(origin: Origin, turn: int, stage: str = "") -> StreamEvent:
    """Return the event for the beginning of a turn."""
    parameters: dict[str, Any] = {
        "from": turn - 1,
        "to": turn,
        "depth": origin.depth,
        "turn_id": turn_id(origin.run_id, turn),
        "parent_turn_id": turn_id(origin.run_id, turn - 1),
    }
    if stage:
        parameters["phase"] = stage
    return StreamEvent(action=Action.TURN, key="turn", parameters=parameters)


def crew_planned(plan: JsonObject) -> StreamEvent:
    """Return the event for a crew's next step. `plan` is the view from `crews.log.plan_view`."""
    return StreamEvent(action=Action.PLANNING, key="plan", parameters=plan)


def model_said(request: ModelRequest, text: str) -> StreamEvent:
    """Return the event for a fragment of the model's text. Only the live stream shows this event."""
    parameters = {"content": text, "turn": request.turn, "attempt": request.attempt}
    return StreamEvent(action=Action.THINKING, parameters=parameters)


def model_thought(request: ModelRequest, text: str) -> StreamEvent:
    """Return the event for a fragment of the model's thinking. Only the live stream shows this event."""
    parameters = {"content": text, "turn": request.turn, "attempt": request.attempt}
    return StreamEvent(action=Action.REASONING, parameters=parameters)


def segment_reset(request: ModelRequest, *, key: str = "reset") -> StreamEvent:
    """Return the event for a new attempt at a model call, or for an answer that was thinking. Only the live stream
    shows this event.

    Clients discard the turn's text and thinking so far.
    """
    parameters = {"turn": request.turn, "attempt": request.attempt}
    return StreamEvent(action=Action.SEGMENT_RESET, key=key, parameters=parameters)


def manifest_changed(*, parts: Sequence[str], tools: Sequence[str], new: Sequence[str]) -> StreamEvent:
    """Return the event for differences between this worker's settings and those that the run was pinned to. Only the
    live stream shows this event.

    The run keeps its pinned values for these `parts` of the agent and its pinned schemas for these `tools`. The `new`
    items exist only on the worker.
    """
    parameters = {"kept": "pinned", "parts": list(parts), "tools": list(tools), **({"new": list(new)} if new else {})}
    return StreamEvent(action=Action.MANIFEST, key="manifest", parameters=parameters)


def model_replied(
    model: str, request: ModelRequest, usage: Usage, cost_micros: int | None, *, ms: float, message: Message
) -> StreamEvent:
    """Return the event for an answered model call. The message is the whole answer, without secrets."""
    note = left_out(message)
    refused = {} if note is None else {"left_out": list(note["kinds"]), "because": note["because"]}
    replied = _model_call({**_called(model, request), **_spent(usage, cost_micros), "ms": ms, **refused})
    return replace(replied, result={"content": message.text}) if message.text.strip() else replied


def model_failed(
    model: str,
    request: ModelRequest | CompressRequest,
    *,
    error: str,
    message: str | None = None,
    purpose: Literal["", "compression"] = "",
) -> StreamEvent:
    """Return the event for a model call that failed with this error type.

    `message` contains no secrets and is None if the error's message is unknown.
    """
    parameters = {
        **_called(model, request),
        **({"purpose": purpose} if purpose else {}),
        "error": error,
        **({} if message is None else {"message": message}),
    }
    return _model_call(parameters, status="failed")


def answer_evaluated(model: str, request: EvaluateRequest, evaluated: Evaluated, *, ms: float) -> StreamEvent:
    """Return the event for an answer that a model has rated."""
    return _model_call(
        {
            "model": model,
            "turn": request.turn,
            "attempt": request.attempt,
            "purpose": "evaluation",
            "quality_metrics": evaluated.metrics,
            **({"why": evaluated.why} if evaluated.why else {}),
            **_spent(evaluated.usage, evaluated.cost_micros),
            "ms": ms,
        }
    )


def sampling_segment(turn: int, call_id: str, attempt: int) -> Segment:
    """Return the segment that a model call for an MCP server writes."""
    return Segment(name=f"t{turn}-sample-{call_id}", attempt=attempt)


def model_sampled(request: SampleRequest, sampled: Sampled, *, ms: float) -> StreamEvent:
    """Return the event for a model call that an MCP server asked for."""
    return _model_call(
        {
            "model": request.model,
            "turn": request.turn,
            "attempt": request.attempt,
            "purpose": "sampling",
            "call_id": request.call_id,
            "tool": request.tool,
            **_spent(sampled.usage, sampled.cost_micros),
            "ms": ms,
        }
    )


def context_compressed(
    model: str,
    request: CompressRequest,
    *,
    tokens: int,
    usage: Usage,
    cost_micros: int | None,
    ms: float,
    success: bool,
    error: str = "",
) -> StreamEvent:
    """Return the event for a conversation that was compressed to `tokens`. If the model couldn't write a summary,
    `error` gives the reason.
    """
    spent = {"model": model, "model_calls": usage.model_calls, **_spent(usage, cost_micros)}
    return StreamEvent(
        action=Action.COMPRESSION,
        key="compressed",
        parameters={
            "turn": request.turn,
            "trigger": request.trigger,
            "pre_tokens": request.tokens,
            "post_tokens": tokens,
            "duration_ms": ms,
            "success": success,
            **(spent if usage.model_calls else {}),
            **({"error": error} if error else {}),
        },
    )


def waits_for_person(plan: PreparedCall) -> bool:
    """Whether this prepared call needs a person's approval."""
    return plan.verdict is Verdict.ASK and not plan.error and not plan.stopped


def asked_arguments(call: ToolCall, plan: PreparedCall) -> JsonObject:
    """Return the arguments to show to a person, including an interceptor's changes."""
    return dict(call.arguments if plan.arguments is None else plan.arguments)


def approval_requested(
    call: ToolCall, plan: PreparedCall, *, turn: int, arguments: JsonObject, expires_in: float | None
) -> StreamEvent:
    """Return the event for a call that is waiting for a person. `arguments` contains no secrets."""
    return StreamEvent(
        action=Action.APPROVAL_REQUESTED,
        key=f"ask-{call.id}-{plan.digest}",
        status="pending",
        parameters={
            "turn": turn,
            "call_id": call.id,
            "tool": call.name,
            "arguments": arguments,
            "reason": plan.reason,
            "rule": plan.rule,
            "risk": risk_of(call.name, plan),
            "digest": plan.digest,
            "for_run": list(plan.grants),
            "expires_in": expires_in,
        },
    )


def asked_for_proof(request: ToolRequest, call: ToolCall, *, why: str, arguments: JsonObject) -> StreamEvent:
    """Return the event for a call that waits for a person, because its worker has found no valid proof. `arguments`
    contains no secrets.
    """
    origin = request.origin
    digest = ask_digest(origin.run_id, origin.execution, request.turn, call, reset_at=origin.reset_at)
    made = PreparedCall(verdict=Verdict.ASK, reason=why, digest=digest, effect=request.effect)
    return approval_requested(call, made, turn=request.turn, arguments=arguments, expires_in=None)


def tool_called(request: ToolRequest, *, arguments: JsonObject, summary: str) -> StreamEvent:
    """Return the event for the start of one attempt at a tool call. `arguments` and `summary` must not contain any
    secrets.
    """
    return StreamEvent(
        action=Action.TOOL_CALL,
        key="call",
        status="running",
        parameters={"arguments": arguments, "summary": summary, "effect": request.effect, **_of_call(request)},
    )


def tool_progressed(request: ToolRequest, text: str) -> StreamEvent:
    """Return the event for a tool's partial output, without secrets. Only the live stream shows this event."""
    return StreamEvent(action=Action.TOOL_PROGRESS, parameters={"content": text, **_of_call(request)})


def tool_returned(request: ToolRequest, result: ToolResult) -> StreamEvent:
    """Return the event for the result of a tool call.

    If a worker dies during a quick attempt, another one may make the same attempt again. A different result then has an
    event of its own, so that the stream ends with the result that the model reads.
    """
    return StreamEvent(
        action=Action.TOOL_RESULT,
        key=f"result-{short_digest(result.content)}" if request.quick else "result",
        status=result.status,
        parameters=_of_call(request),
        result=_result_view(result),
    )


def call_not_run(
    call: ToolCall, plan: PreparedCall, result: ToolResult, *, turn: int, arguments: JsonObject, summary: str
) -> tuple[StreamEvent, StreamEvent]:
    """Return the events for a call that got its result when it was prepared, and never ran. `arguments`, `summary` and
    the result must not contain any secrets.
    """
    of_call = {"turn": turn, "attempt": NOT_RUN, "call_id": call.id, "tool": call.name}
    called = StreamEvent(
        action=Action.TOOL_CALL,
        key=f"call-{call.id}",
        status=result.status,
        parameters={"arguments": arguments, "summary": summary, "effect": plan.effect_of_tool, **of_call},
    )
    returned = StreamEvent(
        action=Action.TOOL_RESULT,
        key=f"call-{call.id}",
        status=result.status,
        parameters=of_call,
        result=_result_view(result),
    )
    return called, returned


def not_run_notice(
    call: ToolCall, result: ToolResult, *, turn: int, at: datetime, attempt: int = NOT_RUN, key: str = ""
) -> Notice:
    """Return the notice for a call that the run itself has ended, mostly before it could begin."""
    return Notice(
        action=Action.TOOL_RESULT,
        key=key,
        at=at,
        status=result.status,
        parameters={"turn": turn, "attempt": attempt, "call_id": call.id, "tool": call.name},
        result=_result_view(result),
    )


def node_called(request: ModelRequest, node: str) -> StreamEvent:
    """Return the event for the start of one attempt at a node's function."""
    return StreamEvent(
        action=Action.TOOL_CALL,
        key="node",
        status="running",
        parameters={"arguments": {}, "summary": f"node {node}", **_of_node(request, node)},
    )


def node_returned(request: ModelRequest, node: str, content: str, *, ms: float, failed: bool = False) -> StreamEvent:
    """Return the event for the end of this attempt. `content` is the answer or the error, without secrets."""
    return StreamEvent(
        action=Action.TOOL_RESULT,
        key="node",
        status="error" if failed else "success",
        parameters=_of_node(request, node),
        result={"content": content[:PREVIEW], "length": len(content), "metadata": {"execution_time": ms / 1000}},
    )


def _of_node(request: ModelRequest, node: str) -> JsonObject:
    return {"turn": request.turn, "call_id": f"t{request.turn}-node", "tool": node, "attempt": request.attempt}


def tool_registered(request: ToolRequest, arguments: JsonObject) -> StreamEvent:
    """Return the event for a tool that an agent created with `create_tool`. `arguments` contains no secrets."""
    made = made_tool(arguments)
    return StreamEvent(
        action=Action.REGISTERED,
        key="registered",
        parameters={
            "turn": request.turn,
            "name": made.name,
            "description": made.description,
            "from": request.origin.agent,
        },
    )


def has_made_a_tool(tool: str, result: ToolResult) -> bool:
    """Whether this call added a tool to the run."""
    return tool == CREATE_TOOL and result.status == "success"


def milliseconds(seconds: float) -> float:
    """Convert a duration to the milliseconds used in the stream."""
    return round(seconds * 1000, 1)


def _result_view(result: ToolResult) -> JsonObject:
    return {"content": result.content[:PREVIEW], "length": len(result.content), "metadata": result.metadata}


def _parent(lineage: Lineage) -> dict[str, Any]:
    return {"description": lineage.description, "depth": lineage.depth, "parent_run_id": lineage.parent_run_id}


def _called(model: str, request: ModelRequest | CompressRequest) -> dict[str, Any]:
    return {"model": model, "turn": request.turn, "attempt": request.attempt}


def _model_call(parameters: JsonObject, status: str = "completed") -> StreamEvent:
    return StreamEvent(action=Action.MODEL_CALL, key="call", status=status, parameters=parameters)


def _spent(usage: Usage, cost_micros: int | None) -> dict[str, Any]:
    return {
        "tokens": usage.total_tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        **({"cache_write_tokens": usage.cache_write_tokens} if usage.cache_write_tokens else {}),
        "cost": None if cost_micros is None else cost_micros / 1_000_000,
    }


def _of_call(request: ToolRequest) -> dict[str, Any]:
    return {"turn": request.turn, "attempt": request.attempt, "call_id": request.call_id, "tool": request.tool}
