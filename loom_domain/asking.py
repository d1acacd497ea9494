"""What the workflow sends to its activities, derived from the state alone."""

from loom_domain.run_state import RunState
from loom_domain.tasks import Origin
from loom_domain.tool_calls import OpenCall, arguments_digest, canonical
from loom_domain.transcript import tail_of
from loom_domain.work import ModelRequest, PlanRequest, ToolRequest

INLINE_ARGUMENTS = 512
"""Characters of arguments that go to a tool by value; longer ones are in history already, in the model's answer."""


def origin_of(state: RunState) -> Origin:
    """Whose events these are."""
    return Origin(
        run_id=state.run_id,
        root_run_id="",
        session_id=state.request.session_id or "",
        agent=state.request.agent,
    )


def model_request(state: RunState) -> ModelRequest:
    """The call of the model that is due."""
    return ModelRequest(
        origin=origin_of(state),
        turn=state.turn,
        attempt=state.tries.attempt,
        spec_digest=state.spec_digest,
        spec=state.agent if state.send_spec else None,
        tail=tail_of(state.known, state.transcript.messages, state.produced),
        grants=state.grants,
        notices=state.notices,
    )


def plan_request(state: RunState, calls: tuple[OpenCall, ...]) -> PlanRequest:
    """The judgement of `calls` by the rules as they are now."""
    return PlanRequest(
        origin=origin_of(state),
        turn=state.turn,
        spec=state.agent,
        calls=tuple(call.call for call in calls),
        grants=state.grants,
        notices=state.notices,
    )


def tool_request(state: RunState, open_call: OpenCall, execution: str, *, with_notices: bool) -> ToolRequest:
    """One attempt at one tool call; `execution` names the run's chain of executions."""
    call, plan = open_call.call, open_call.plan
    edited = open_call.decision is not None and open_call.decision.edited
    by_value = edited or open_call.inline or len(canonical(call.arguments)) <= INLINE_ARGUMENTS
    return ToolRequest(
        origin=origin_of(state),
        turn=state.turn,
        attempt=open_call.attempt,
        call_id=call.id,
        tool=call.name,
        arguments=call.arguments if by_value else None,
        arguments_digest="" if by_value else arguments_digest(call.arguments),
        made=next((tool for tool in state.agent.tools if tool.name == call.name and tool.source), None),
        effect=plan.effect,
        begun=open_call.begun,
        timeout=plan.timeout,
        workspace=state.agent.workspace,
        note=f"A person changed the arguments to {canonical(call.arguments)}." if edited else "",
        execution=execution,
        notices=state.notices if with_notices else (),
    )
