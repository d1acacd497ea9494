"""Stream events of each step of a run. Activities publish them as the step happens; `history` rebuilds the same events
from Temporal's history.
"""

from typing import Any, Final

from loom.domain.agents.hook_steps import HookStep
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject, ToolCall, Usage
from loom.domain.core.requests import RunRequest, fork_view
from loom.domain.core.tasks import Origin, Segment
from loom.domain.core.tool_calls import CallPlan, ToolResult, Verdict, made_tool
from loom.domain.core.tool_names import CREATE_TOOL
from loom.domain.permissions.risk import risk_of
from loom.domain.run.activity_payloads import CompressRequest, Evaluated, EvaluateRequest, ModelRequest, ToolRequest
from loom.domain.run.state import turn_id
from loom.domain.tree.lineage import Lineage

PREVIEW: Final = 2000
"""Characters of a tool's result that a task shows; the whole of it is in history."""


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


def where_of(segment: Segment) -> str:
    """How the ids of a segment's tasks begin."""
    return f"{segment.name}.{segment.attempt}"


def run_facts(request: RunRequest, spec: AgentSpec, lineage: Lineage | None) -> dict[str, Any]:
    """What a run begins with."""
    forked = fork_view(request.forked_from)
    return {
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
        **(_parent_facts(lineage) if lineage else {}),
    }


def _parent_facts(lineage: Lineage) -> dict[str, Any]:
    return {"description": lineage.description, "depth": lineage.depth, "parent_run_id": lineage.parent_run_id}


def hook_key(step: HookStep) -> str:
    """What tells a hook's answer from others of its turn."""
    return f"{step.moment}-{step.name}"


def hook_facts(step: HookStep, ms: float, **said: str) -> JsonObject:
    """A hook that ran, and its answer."""
    return {"hook": step.name, "moment": step.moment, "ms": ms, **{name: text for name, text in said.items() if text}}


def turn_facts(origin: Origin, turn: int, stage: str = "") -> JsonObject:
    """A turn that begins."""
    facts: JsonObject = {
        "from": turn - 1,
        "to": turn,
        "depth": origin.depth,
        "turn_id": turn_id(origin.run_id, turn),
        "parent_turn_id": turn_id(origin.run_id, turn - 1),
    }
    return {**facts, "phase": stage} if stage else facts


def model_facts(model: str, request: ModelRequest | CompressRequest) -> JsonObject:
    """A call of a model, whatever came of it."""
    return {"model": model, "turn": request.turn, "attempt": request.attempt}


def spent(usage: Usage, cost_micros: int | None, ms: float) -> JsonObject:
    """What a model call took."""
    return {
        "tokens": usage.total_tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost": None if cost_micros is None else cost_micros / 1_000_000,
        "ms": ms,
    }


def evaluation_facts(request: EvaluateRequest, evaluated: Evaluated) -> JsonObject:
    """An evaluation, beside what it took."""
    facts = {"turn": request.turn, "attempt": request.attempt, "purpose": "evaluation"}
    return {**facts, "quality_metrics": evaluated.metrics, **({"why": evaluated.why} if evaluated.why else {})}


def asks(plan: CallPlan) -> bool:
    """Whether the call waits for a person."""
    return plan.verdict is Verdict.ASK and not plan.error and not plan.stopped


def ask_key(call: ToolCall, plan: CallPlan) -> str:
    """What tells an ask from others of its segment."""
    return f"ask-{call.id}-{plan.digest}"


def asked_arguments(call: ToolCall, plan: CallPlan) -> JsonObject:
    """The arguments that a person is asked about: as an interceptor left them."""
    return dict(call.arguments if plan.arguments is None else plan.arguments)


def ask_facts(
    call: ToolCall, plan: CallPlan, *, turn: int, arguments: JsonObject, expires_in: float | None
) -> dict[str, Any]:
    """A call that waits for a person; `arguments` without secrets."""
    return {
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
    }


def call_facts(request: ToolRequest) -> JsonObject:
    """One attempt at a tool call."""
    return {"turn": request.turn, "attempt": request.attempt, "call_id": request.call_id, "tool": request.tool}


def result_facts(result: ToolResult) -> JsonObject:
    """What came of a tool call."""
    return {"content": result.content[:PREVIEW], "length": len(result.content), "metadata": result.metadata}


def registered_facts(arguments: JsonObject, agent: str, turn: int) -> JsonObject:
    """A tool that an agent has made with `create_tool`; `arguments` without secrets."""
    made = made_tool(arguments)
    return {"turn": turn, "name": made.name, "description": made.description, "from": agent}


def has_made_a_tool(tool: str, result: ToolResult) -> bool:
    """Whether the run has one tool more after this call."""
    return tool == CREATE_TOOL and result.status == "success"


def milliseconds(seconds: float) -> float:
    """How long something took, as the stream shows it."""
    return round(seconds * 1000, 1)
