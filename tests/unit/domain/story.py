"""A run told as a transcript: short words for what happens to it, shared by the tests of the domain."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import Message, ToolCall, Usage
from loom.domain.core.requests import RunRequest
from loom.domain.core.tool_calls import Effect, PreparedCall, ToolResult, Verdict
from loom.domain.machine.transitions import evolve, next_action, start
from loom.domain.run.actions import AskPerson, PrepareCalls, RunTools
from loom.domain.run.activity_payloads import ModelReply, Prepared, PreparedCalls
from loom.domain.run.events import (
    Approved,
    CallsPrepared,
    Denied,
    Event,
    ModelFailed,
    ModelReplied,
    RunPrepared,
    ToolsReturned,
    TurnBegan,
)
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import RunState

AT: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WEEK: Final = 7 * 24 * 3600.0


def at(seconds: float) -> datetime:
    """So long after the run began."""
    return AT + timedelta(seconds=seconds)


SPEC: Final = AgentSpec(name="default", model="demo", system_prompt="Be brief.")
PREPARED: Final = RunPrepared(prepared=Prepared(spec=SPEC))
BEGAN: Final = TurnBegan(at=AT)

READS: Final = PreparedCall(verdict=Verdict.ALLOW, effect=Effect.READ, parallel=True)
WRITES: Final = PreparedCall(verdict=Verdict.ALLOW, effect=Effect.ONCE)
FORBIDDEN: Final = PreparedCall(verdict=Verdict.DENY, rule="bash", reason="denied by the rule bash")
UNKNOWN_TOOL: Final = PreparedCall(error="there is no tool `bsh`; did you mean `bash`?", error_type="not_found")


def asks(digest: str = "d1", *grants: str) -> PreparedCall:
    """A plan that waits for a person."""
    return PreparedCall(verdict=Verdict.ASK, rule="bash", reason="the rule bash says ask", digest=digest, grants=grants)


def call(call_id: str, name: str = "bash", /, **arguments: Any) -> ToolCall:
    """A call of a tool, of `bash` unless it says so."""
    return ToolCall(id=call_id, name=name, arguments=arguments)


def says(text: str, **reply: Any) -> ModelReplied:
    """The model answers without a tool call."""
    message = Message(role="assistant", content=text)
    usage = Usage(input_tokens=10, output_tokens=5, model_calls=1)
    return ModelReplied(reply=ModelReply(**{"message": message, "usage": usage, "cost_micros": 100, **reply}), at=AT)


def cut(text: str) -> ModelReplied:
    """The model's answer is cut off."""
    return says(text, stop="length")


def wants(*planned: tuple[ToolCall, PreparedCall], text: str = "") -> ModelReplied:
    """The model calls tools, each with the plan made for it."""
    message = Message(role="assistant", content=text, tool_calls=tuple(c for c, _ in planned))
    return says("", message=message, plans=tuple(plan for _, plan in planned), stop="tools")


def forgot() -> ModelReplied:
    """The worker does not know the conversation."""
    return ModelReplied(reply=ModelReply(), at=AT)


def returned(**outcomes: str | ToolResult | Failure) -> ToolsReturned:
    """Tool calls come back, by call id; a text is a success."""
    results = {name: ToolResult(content=o) if isinstance(o, str) else o for name, o in outcomes.items()}
    return ToolsReturned(outcomes=results, at=AT)


def judged(**plans: PreparedCall) -> CallsPrepared:
    """Calls are judged again, by call id."""
    return CallsPrepared(call_ids=tuple(plans), plans=PreparedCalls(plans=tuple(plans.values())), at=AT)


def yes(call_id: str | None = None, **how: Any) -> Approved:
    """A person approves."""
    return Approved(**{"call_id": call_id, "by": "ann", "at": AT, **how})


def no(call_id: str | None = None, reason: str = "") -> Denied:
    """A person denies."""
    return Denied(call_id=call_id, reason=reason, by="ann", at=AT)


def fails(kind: str, **context: Any) -> ModelFailed:
    """An attempt at the model call fails with this error of the provider."""
    return ModelFailed(failure=Failure(kind="provider", type=kind, message="no", context=context), at=AT)


LOST: Final = Failure(kind="lost", type="HeartbeatTimeout", message="the worker gave no sign of life", context={})
AWAY: Final = Failure(kind="infrastructure", type="StorageUnavailable", message="no answer", context={})


def told(*events: Event, spec: AgentSpec = SPEC, **request: Any) -> RunState:
    """A prepared run after these events."""
    return after(
        start("run-1", RunRequest(task="Do it.", **request), AT), RunPrepared(prepared=Prepared(spec=spec)), *events
    )


def after(state: RunState, *events: Event) -> RunState:
    """The run after these events."""
    for event in events:
        state = evolve(state, event)
    return state


def conversation(state: RunState) -> list[tuple[str, str]]:
    """Who said what, calls by their ids."""
    return [(m.role, m.text or " ".join(c.id for c in m.tool_calls)) for m in state.transcript.messages]


def notices(state: RunState) -> list[tuple[str, Mapping[str, Any]]]:
    """What the stream is told."""
    return [(notice.action.value, notice.parameters) for notice in state.notices.pending]


def running(state: RunState) -> list[str]:
    """The calls that run now."""
    action = next_action(state)
    assert isinstance(action, RunTools), action
    return [c.call.id for c in action.calls]


def asked(state: RunState) -> list[str]:
    """The calls that a person is asked about now."""
    action = next_action(state)
    assert isinstance(action, AskPerson), action
    return [c.call.id for c in action.calls]


def judging(state: RunState) -> list[str]:
    """The calls that are judged again now."""
    action = next_action(state)
    assert isinstance(action, PrepareCalls), action
    return [c.call.id for c in action.calls]


def results(state: RunState) -> list[tuple[str | None, str, bool]]:
    """What came of each call, in the words of the conversation: id, text, is it an error."""
    return [(m.tool_call_id, m.text, m.is_error) for m in state.transcript.messages if m.role == "tool"]
