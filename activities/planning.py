"""Planning tool calls: what registry, hooks and rules say of them; activity `plan_calls` does it again."""

from collections.abc import Sequence

from temporalio import activity

from activities.ports import EventStream, ToolBox
from activities.stream_writer import StreamWriter, stream_writer
from activities.toolbox.hooks import objection_to
from activities.toolbox.made_tools import MadeTools
from activities.toolbox.pipeline import plan
from loom_domain.agents import AgentSpec
from loom_domain.hooks import ToolCallHook
from loom_domain.messages import ToolCall
from loom_domain.tasks import Action
from loom_domain.tool_calls import CallPlan, Verdict
from loom_domain.work import CallPlans, PlanRequest


class Planner:
    """Says of calls whether and how they may run; a user's hooks are asked before the rules."""

    def __init__(self, *, tools: ToolBox, made: MadeTools, hooks: Sequence[ToolCallHook] = ()) -> None:
        self._tools = tools
        self._made = made
        self._hooks = hooks

    async def plans(
        self, calls: Sequence[ToolCall], spec: AgentSpec, *, grants: Sequence[str], run_id: str
    ) -> tuple[CallPlan, ...]:
        """One plan per call, in their order."""
        box = self._made.added_to(self._tools, spec.tools)
        objections = [await objection_to(call, run_id, self._hooks) for call in calls]
        return tuple(
            plan(call, box=box, spec=spec, grants=grants, run_id=run_id, objection=objection)
            for call, objection in zip(calls, objections, strict=True)
        )


class CallPlanner:
    """Plans tool calls outside a model call."""

    def __init__(self, *, planner: Planner, stream: EventStream) -> None:
        self._planner = planner
        self._stream = stream

    @activity.defn(name="plan_calls")
    async def plan_calls(self, request: PlanRequest) -> CallPlans:
        """One plan per call of the request, in its order."""
        async with stream_writer(self._stream, request.origin, request.turn) as writer:
            writer.notices(request.notices)
            plans = await self._planner.plans(
                request.calls, request.spec, grants=request.grants, run_id=request.origin.run_id
            )
            for call, made in zip(request.calls, plans, strict=True):
                if made.verdict is Verdict.ASK and not made.error:
                    tell_ask(writer, call, made, turn=request.turn, timeout=request.spec.approval_timeout)
        return CallPlans(plans=plans)


def tell_ask(writer: StreamWriter, call: ToolCall, made: CallPlan, *, turn: int, timeout: float) -> None:
    """Show on the stream that a call waits for a person."""
    writer.emit(
        Action.APPROVAL_REQUESTED,
        key=f"ask-{call.id}-{made.digest}",
        status="pending",
        turn=turn,
        call_id=call.id,
        tool=call.name,
        arguments=dict(call.arguments),
        reason=made.reason,
        rule=made.rule,
        digest=made.digest,
        for_run=list(made.grants),
        expires_in=timeout,
    )
