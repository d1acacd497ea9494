"""The events of a run's stream, each built in one place.

Activities send them as things happen. `history.task_rebuilding` builds them again from the recorded history, with the
same keys and the same contents.

An event belongs to a turn (`turn_scope`), or to one attempt at an activity (`scope_of` its segment). The run, this
scope, the event's key and its action name the task that it becomes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from loom.domain.agents.hook_steps import HookPoint
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject, ToolCall, Usage
from loom.domain.core.requests import RunRequest, fork_view
from loom.domain.core.tasks import Action, Origin, Segment, Task, task_of
from loom.domain.core.tool_calls import PreparedCall, ToolResult, Verdict, made_tool
from loom.domain.core.tool_names import CREATE_TOOL
from loom.domain.permissions.risk import risk_of
from loom.domain.run.activity_payloads import CompressRequest, Evaluated, EvaluateRequest, ModelRequest, ToolRequest
from loom.domain.run.state import turn_id
from loom.domain.tree.lineage import Lineage

PREVIEW: Final = 2000
"""Characters of a tool's result that a task shows; the whole of it is in history."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEvent:
    """One entry of the stream, before it has a run and a time."""

    action: Action
    key: str = ""
    """Unique within its scope and action. Empty: it is for the live stream only, which numbers it."""
    parameters: JsonObject = field(default_factory=dict)
    status: str = "completed"
    result: JsonObject | None = None
    parent_task_id: str | None = None

    def task(self, origin: Origin, scope: str, at: datetime, *, key: str = "") -> Task:
        """The task that the stream holds; `key` takes the place of the event's own."""
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
    """The stretch of the stream that one attempt at a model call writes."""
    return Segment(name=f"t{turn}-model", attempt=attempt)


def compression_segment(turn: int, attempt: int) -> Segment:
    """The stretch of the stream that one attempt at compressing writes."""
    return Segment(name=f"t{turn}-compress", attempt=attempt)


def evaluation_segment(turn: int, attempt: int) -> Segment:
    """The stretch of the stream that one attempt at evaluating writes."""
    return Segment(name=f"t{turn}-evaluate", attempt=attempt)


def tool_segment(turn: int, call_id: str, attempt: int) -> Segment:
    """The stretch of the stream that one attempt at a tool call writes."""
    return Segment(name=f"t{turn}-call-{call_id}", attempt=attempt)


def scope_of(segment: Segment) -> str:
    """How the ids of a segment's tasks begin."""
    return f"{segment.name}.{segment.attempt}"


def turn_scope(turn: int) -> str:
    """How the ids of tasks begin that belong to a turn, whatever the attempt."""
    return f"t{turn}"


def run_started(
    request: RunRequest, spec: AgentSpec, lineage: Lineage | None, *, skipped_skills: Sequence[str] = ()
) -> StreamEvent:
    """A run that has been prepared."""
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
    """A hook around the run that was asked, and what it answered; `failure` says why it gave no answer."""
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
    """A turn that begins."""
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
    """A crew's next step; `plan` is what `crews.log.plan_view` shows of it."""
    return StreamEvent(action=Action.PLANNING, key="plan", parameters=plan)


def model_said(request: ModelRequest, text: str) -> StreamEvent:
    """A piece of the model's text; for the live stream only."""
    parameters = {"content": text, "turn": request.turn, "attempt": request.attempt}
    return StreamEvent(action=Action.THINKING, parameters=parameters)


def segment_reset(request: ModelRequest) -> StreamEvent:
    """A new attempt at a model call: clients forget the text of the turn's earlier ones; for the live stream only."""
    parameters = {"turn": request.turn, "attempt": request.attempt}
    return StreamEvent(action=Action.SEGMENT_RESET, key="reset", parameters=parameters)


def manifest_changed(*, parts: Sequence[str], tools: Sequence[str], new: Sequence[str]) -> StreamEvent:
    """What this worker has that differs from what the run was prepared with; for the live stream only.

    `parts` of the agent and schemas of `tools` stay as pinned; what is `new` the run meets as the worker has it.
    """
    parameters = {"kept": "pinned", "parts": list(parts), "tools": list(tools), **({"new": list(new)} if new else {})}
    return StreamEvent(action=Action.MANIFEST, key="manifest", parameters=parameters)


def model_replied(
    model: str, request: ModelRequest, usage: Usage, cost_micros: int | None, *, ms: float
) -> StreamEvent:
    """A model call that was answered."""
    return _model_call({**_called(model, request), **_spent(usage, cost_micros, ms)})


def model_failed(
    model: str,
    request: ModelRequest | CompressRequest,
    *,
    error: str,
    message: str | None = None,
    purpose: Literal["", "compression"] = "",
) -> StreamEvent:
    """A model call that failed with an error of this type; `message` without secrets, None where it is not known."""
    parameters = {
        **_called(model, request),
        **({"purpose": purpose} if purpose else {}),
        "error": error,
        **({} if message is None else {"message": message}),
    }
    return _model_call(parameters, status="failed")


def answer_evaluated(model: str, request: EvaluateRequest, evaluated: Evaluated, *, ms: float) -> StreamEvent:
    """An answer that a model has rated."""
    return _model_call(
        {
            "model": model,
            "turn": request.turn,
            "attempt": request.attempt,
            "purpose": "evaluation",
            "quality_metrics": evaluated.metrics,
            **({"why": evaluated.why} if evaluated.why else {}),
            **_spent(evaluated.usage, evaluated.cost_micros, ms),
        }
    )


def context_compressed(
    request: CompressRequest, *, tokens: int, ms: float, success: bool, error: str = ""
) -> StreamEvent:
    """A conversation that was compressed to `tokens`; `error` says why the model's summary is missing."""
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
            **({"error": error} if error else {}),
        },
    )


def waits_for_person(plan: PreparedCall) -> bool:
    """Whether a call with this plan waits for a person's approval."""
    return plan.verdict is Verdict.ASK and not plan.error and not plan.stopped


def asked_arguments(call: ToolCall, plan: PreparedCall) -> JsonObject:
    """The arguments that a person is asked about: as an interceptor left them."""
    return dict(call.arguments if plan.arguments is None else plan.arguments)


def approval_requested(
    call: ToolCall, plan: PreparedCall, *, turn: int, arguments: JsonObject, expires_in: float | None
) -> StreamEvent:
    """A call that waits for a person; `arguments` without secrets."""
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


def tool_called(request: ToolRequest, *, arguments: JsonObject, summary: str) -> StreamEvent:
    """One attempt at a tool call that begins; `arguments` and `summary` without secrets."""
    return StreamEvent(
        action=Action.TOOL_CALL,
        key="call",
        status="running",
        parameters={"arguments": arguments, "summary": summary, "effect": request.effect, **_of_call(request)},
    )


def tool_progressed(request: ToolRequest, text: str) -> StreamEvent:
    """Partial output of a tool, without secrets; for the live stream only."""
    return StreamEvent(action=Action.TOOL_PROGRESS, parameters={"content": text, **_of_call(request)})


def tool_returned(request: ToolRequest, result: ToolResult) -> StreamEvent:
    """What came of a tool call."""
    return StreamEvent(
        action=Action.TOOL_RESULT,
        key="result",
        status=result.status,
        parameters=_of_call(request),
        result={"content": result.content[:PREVIEW], "length": len(result.content), "metadata": result.metadata},
    )


def tool_registered(request: ToolRequest, arguments: JsonObject) -> StreamEvent:
    """A tool that an agent has made with `create_tool`; `arguments` without secrets."""
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
    """Whether the run has one tool more after this call."""
    return tool == CREATE_TOOL and result.status == "success"


def milliseconds(seconds: float) -> float:
    """How long something took, as the stream says it."""
    return round(seconds * 1000, 1)


def _parent(lineage: Lineage) -> dict[str, Any]:
    return {"description": lineage.description, "depth": lineage.depth, "parent_run_id": lineage.parent_run_id}


def _called(model: str, request: ModelRequest | CompressRequest) -> dict[str, Any]:
    return {"model": model, "turn": request.turn, "attempt": request.attempt}


def _model_call(parameters: JsonObject, status: str = "completed") -> StreamEvent:
    return StreamEvent(action=Action.MODEL_CALL, key="call", status=status, parameters=parameters)


def _spent(usage: Usage, cost_micros: int | None, ms: float) -> dict[str, Any]:
    return {
        "tokens": usage.total_tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost": None if cost_micros is None else cost_micros / 1_000_000,
        "ms": ms,
    }


def _of_call(request: ToolRequest) -> dict[str, Any]:
    return {"turn": request.turn, "attempt": request.attempt, "call_id": request.call_id, "tool": request.tool}
