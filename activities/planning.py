"""Activity `plan_calls`: judging tool calls again after rules or arguments changed."""

from temporalio import activity

from activities.ports import EventStream, ToolBox
from activities.stream_writer import StreamWriter, stream_writer
from activities.toolbox.pipeline import plan
from loom_domain.messages import ToolCall
from loom_domain.tasks import Action
from loom_domain.tool_calls import CallPlan, Verdict
from loom_domain.work import CallPlans, PlanRequest


class CallPlanner:
    """Plans tool calls outside a model call."""

    def __init__(self, *, tools: ToolBox, stream: EventStream) -> None:
        self._tools = tools
        self._stream = stream

    @activity.defn(name="plan_calls")
    async def plan_calls(self, request: PlanRequest) -> CallPlans:
        """One plan per call of the request, in its order."""
        async with stream_writer(self._stream, request.origin, request.turn) as writer:
            writer.notices(request.notices)
            plans = tuple(
                plan(call, box=self._tools, spec=request.spec, grants=request.grants, run_id=request.origin.run_id)
                for call in request.calls
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
