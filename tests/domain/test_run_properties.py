"""Whatever happens to a run, in whatever order: what always holds."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from loom_domain.asking import model_request, tool_request
from loom_domain.messages import Message, Usage
from loom_domain.requests import Budget, RunError, RunRequest, RunStatus
from loom_domain.retries import Failure
from loom_domain.run import closed, evolve, next_action, start
from loom_domain.run_state import Phase, RunState, result_of, status_of, status_view
from loom_domain.run_steps import (
    AbortRequested,
    AskPerson,
    AsksExpired,
    AwaitResume,
    Backoff,
    BackoffEnded,
    BeginTurn,
    CallModel,
    CallsPlanned,
    Event,
    Finish,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    NoticesPublished,
    PauseRequested,
    PermissionsSet,
    PlanCalls,
    Prepare,
    ResumeRequested,
    RunPrepared,
    RunRefused,
    RunTools,
    SignalIgnored,
    ToolsReturned,
    TurnBegan,
    WaitEnded,
)
from loom_domain.tool_calls import CallPlan, Effect, ToolResult, Verdict
from loom_domain.transcript import transcript_of
from loom_domain.work import CallPlans, ModelReply, Prepared
from tests.domain.story import AT, AWAY, LOST, SPEC, WEEK, at, call, no, says, yes
from workflows.converter import data_converter
from workflows.details import markdown

CONVERTER: Final = data_converter().payload_converter
MAX_TURNS: Final = 6

TIMES: Final = st.floats(0, 2 * WEEK).map(at)
PLANS: Final = st.builds(
    CallPlan,
    verdict=st.sampled_from(Verdict),
    error=st.sampled_from(["", "", "", "no such tool"]),
    effect=st.sampled_from(Effect),
    parallel=st.booleans(),
    digest=st.just("d"),
    grants=st.sampled_from([(), ("bash(ls)",), ("bash(make)", "bash(ls)")]),
)
PROVIDER: Final = st.sampled_from(
    ["LLMRateLimitError", "LLMUnavailableError", "LLMContextLengthError", "LLMRefusedError", "Timeout", "ValueError"]
)
FAILURES: Final = st.sampled_from([LOST, LOST, AWAY]) | st.builds(
    Failure, kind=st.just("provider"), type=PROVIDER, message=st.just("no"), context=st.just({})
)
OUTCOMES: Final = (
    st.builds(ToolResult, content=st.text(max_size=3), status=st.sampled_from(["success", "error"]))
    | st.just(ToolResult(content="", resend=True))
    | FAILURES
)


def replies(state: RunState) -> st.SearchStrategy[Event]:
    """Any answer of the model; ids of calls are new in every turn, as the activity makes them."""
    calls = st.lists(st.tuples(st.sampled_from(["bash", "grep", "bash", "done"]), PLANS), min_size=1, max_size=4)
    plain = st.tuples(st.sampled_from(["", "so", " "]), st.sampled_from(["end", "length"]))
    return (
        plain.map(lambda said: says(said[0], stop=said[1]))
        | st.just(ModelReplied(reply=ModelReply(), at=AT))
        | calls.map(lambda drawn: _calling(state, drawn))
        | calls.map(lambda drawn: _calling(state, drawn))
    )


def _calling(state: RunState, drawn: list[tuple[str, CallPlan]]) -> ModelReplied:
    calls = tuple(call(f"t{state.turn}c{n}", name, command="ls") for n, (name, _) in enumerate(drawn))
    message = Message(role="assistant", content="", tool_calls=calls)
    plans = tuple(plan for _, plan in drawn)
    return ModelReplied(reply=ModelReply(message=message, plans=plans, usage=Usage(output_tokens=7)), at=AT)


def what_fits(state: RunState) -> st.SearchStrategy[Event]:  # noqa: C901 - one case an action
    """What performing the run's next action brings."""
    action = next_action(state)
    match action:
        case Prepare():
            return st.just(RunPrepared(prepared=Prepared(spec=SPEC)))
        case BeginTurn():
            return TIMES.map(lambda now: TurnBegan(at=now))
        case CallModel():
            return replies(state) | FAILURES.map(lambda failure: ModelFailed(failure=failure, at=AT))
        case PlanCalls(calls=calls):
            ids = tuple(c.call.id for c in calls)
            plans = st.tuples(*[PLANS] * len(ids))
            return plans.map(lambda made: CallsPlanned(call_ids=ids, plans=CallPlans(plans=made), at=AT))
        case RunTools(calls=calls):
            some = st.lists(st.sampled_from([c.call.id for c in calls]), unique=True)
            outcomes = some.flatmap(lambda ids: st.fixed_dictionaries(dict.fromkeys(ids, OUTCOMES)))
            return outcomes.map(lambda came: ToolsReturned(outcomes=came, at=AT))
        case AskPerson():
            return answers(state) | TIMES.map(lambda now: AsksExpired(at=now))
        case Backoff():
            return st.just(BackoffEnded())
        case AwaitResume():
            return st.just(ResumeRequested(at=AT))
        case Finish():
            return st.just(WaitEnded())


def answers(state: RunState) -> st.SearchStrategy[Event]:
    """Answers to asks, to other calls and to none."""
    ids = st.sampled_from([None, "nonsense", *(c.call.id for c in state.calls)])
    arguments = st.sampled_from([None, {"command": "ls"}, {"command": "make"}])
    approvals = st.builds(yes, ids, scope=st.sampled_from(["once", "run"]), arguments=arguments)
    return approvals | approvals | st.builds(no, ids)


ANY_TIME: Final[tuple[Event, ...]] = (
    PauseRequested(at=AT),
    PauseRequested(at=AT),
    ResumeRequested(at=AT),
    MessageReceived(text="use blue", at=AT),
    PermissionsSet(rules={"bash": "deny"}, at=AT),
    PermissionsSet(rules={"bash": "perhaps"}, at=AT),
    SignalIgnored(signal="stop", why="unknown", at=AT),
    NoticesPublished(count=2),
    WaitEnded(),
    BackoffEnded(),
    TurnBegan(at=AT),
    RunPrepared(prepared=Prepared(spec=SPEC)),
    says("late"),
    AsksExpired(at=at(3 * WEEK)),
    ToolsReturned(outcomes={"t1c0": ToolResult(content="late"), "t2c1": LOST}),
    CallsPlanned(call_ids=("t1c0",), plans=CallPlans(plans=(CallPlan(),)), at=AT),
)
RARE: Final[tuple[Event, ...]] = (
    AbortRequested(reason="enough", at=AT),
    RunRefused(error=RunError(type="BadRequest", message="no")),
)


def events(state: RunState) -> st.SearchStrategy[Event]:
    """Mostly what fits, often a person, sometimes something out of place."""
    common = st.one_of(what_fits(state), what_fits(state), what_fits(state), answers(state), st.sampled_from(ANY_TIME))
    return st.integers(0, 40).flatmap(lambda dice: st.sampled_from(RARE) if dice == 0 else common)


def pairs(messages: tuple[Message, ...]) -> Iterator[tuple[list[str], list[str]]]:
    """For each answer of the model: the calls in it, and the results right after it."""
    for place, message in enumerate(messages):
        if message.role == "assistant":
            results: list[str] = []
            for later in messages[place + 1 :]:
                if later.role != "tool":
                    break
                results.append(later.tool_call_id or "")
            yield [c.id for c in message.tool_calls], results


def check_state(state: RunState) -> None:
    """What holds of every state."""
    *settled, (last, results) = list(pairs(state.transcript.messages)) or [([], [])]
    assert all(calls == answered for calls, answered in settled)
    assert results == ([] if state.calls else last)
    assert [c.call.id for c in state.calls] == (last if state.calls else [])
    assert all(calls == answered for calls, answered in pairs(closed(state).transcript.messages))
    assert sum(m.role == "tool" for m in state.transcript.messages) == sum(
        len(r) for _, r in pairs(state.transcript.messages)
    )
    assert state.turn <= MAX_TURNS
    known = state.transcript.messages[: state.known.count]
    assert transcript_of(known).ref == state.known
    assert transcript_of(state.transcript.messages) == state.transcript
    check_action(state)
    assert status_view(state)["status"] == status_of(state)
    assert markdown(state)
    assert CONVERTER.from_payloads(CONVERTER.to_payloads([state]), [RunState])[0] == state


def check_action(state: RunState) -> None:
    """What holds of what is done next."""
    match next_action(state):
        case RunTools(calls=calls):
            assert calls
            for c in calls:
                assert c.result is None
                assert not c.stale
                assert not c.plan.error
                assert c.plan.verdict is not Verdict.DENY
                assert c.plan.verdict is Verdict.ALLOW or (c.decision is not None and c.decision.approved)
                assert tool_request(state, c, "x", with_notices=True).call_id == c.call.id
        case AskPerson(calls=calls, until=until):
            assert calls
            assert until is not None
        case PlanCalls(calls=calls):
            assert calls
        case CallModel():
            assert model_request(state).turn == state.turn
        case Finish(outcome=outcome):
            assert outcome == state.outcome
            assert result_of(closed(state), outcome).status is outcome.status
        case _:
            pass
    if state.hold is not None:
        assert isinstance(next_action(state), AwaitResume | Finish)


def check_step(before: RunState, event: Event, after: RunState) -> None:
    """What holds of every step from one state to the next."""
    assert evolve(before, event) == after
    assert before.turn <= after.turn <= before.turn + 1
    assert before.tool_calls <= after.tool_calls
    assert before.usage.total_tokens <= after.usage.total_tokens
    assert set(before.grants) <= set(after.grants)
    if before.outcome is not None:
        assert after.outcome == before.outcome
    kept = replace(after.transcript, messages=after.transcript.messages[: len(before.transcript.messages)])
    trimmed = after.tries.trimmed > before.tries.trimmed or before.phase is Phase.STARTING
    assert trimmed or kept.messages == before.transcript.messages


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_any_sequence_of_events_keeps_a_run_whole(data: Any) -> None:
    budget = data.draw(st.sampled_from([Budget(), Budget(tokens=60), Budget(seconds=WEEK)]))
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS, budget=budget), AT)
    check_state(state)
    for _ in range(data.draw(st.integers(1, 30))):
        event = data.draw(events(state))
        after = evolve(state, event)
        check_step(state, event, after)
        check_state(after)
        state = after


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_run_that_nobody_steers_comes_to_an_end(data: Any) -> None:
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS), AT)
    for _ in range(400):
        if isinstance(next_action(state), Finish):
            break
        event = data.draw(what_fits(state))
        # Patience: what may fail for ever without being anybody's fault is left out.
        if isinstance(event, ModelFailed | ToolsReturned | AsksExpired):
            event = _patient(state, event)
        state = evolve(state, event)
    assert status_of(state) in set(RunStatus) - {RunStatus.RUNNING, RunStatus.PAUSED, RunStatus.WAITING_FOR_APPROVAL}


def _patient(state: RunState, event: Event) -> Event:
    match event:
        case ModelFailed(failure=failure) if failure.kind != "provider":
            return says("so")
        case ToolsReturned():
            action = next_action(state)
            assert isinstance(action, RunTools)
            return ToolsReturned(outcomes={c.call.id: ToolResult(content="ok") for c in action.calls}, at=AT)
        case AsksExpired():
            return AsksExpired(at=at(5 * WEEK))
        case _:
            return event
