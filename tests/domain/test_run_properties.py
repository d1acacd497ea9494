"""Whatever happens to a run, in whatever order: what always holds."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from loom_domain.asking import model_request, tool_request
from loom_domain.compression import staying
from loom_domain.messages import Message, Usage
from loom_domain.requests import Budget, RunError, RunRequest
from loom_domain.retries import Failure
from loom_domain.run import closed, evolve, next_action, start
from loom_domain.run_state import Phase, RunState, result_of, status_of, status_view
from loom_domain.run_steps import (
    AbortRequested,
    AskPerson,
    AsksExpired,
    AwaitAnswer,
    AwaitResume,
    Backoff,
    BackoffEnded,
    BeginTurn,
    CallModel,
    CallsPlanned,
    CompressContext,
    CompressionFailed,
    ContextCompressed,
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
from loom_domain.window import TooLong
from loom_domain.work import CallPlans, Compressed, ModelReply, Prepared
from tests.domain.story import AT, AWAY, LOST, SPEC, WEEK, at, call, no, says, yes
from workflows.converter import data_converter
from workflows.details import markdown

CONVERTER: Final = data_converter().payload_converter
MAX_TURNS: Final = 6

GRANTS: Final = ((), ("bash(ls)",), ("bash(make)", "bash(ls)"))
PROVIDER: Final = (
    "LLMRateLimitError",
    "LLMUnavailableError",
    "LLMContextLengthError",
    "LLMRefusedError",
    "Timeout",
    "ValueError",
)


def a_plan(dice: Random) -> CallPlan:
    """Any plan."""
    return CallPlan(
        verdict=dice.choice(tuple(Verdict)),
        error=dice.choice(("", "", "", "no such tool")),
        effect=dice.choice(tuple(Effect)),
        parallel=dice.random() < 0.5,
        digest="d",
        grants=dice.choice(GRANTS),
    )


def a_failure(dice: Random) -> Failure:
    """Any failure of an activity."""
    broke = Failure(kind="provider", type=dice.choice(PROVIDER), message="no", context={})
    return dice.choice((LOST, AWAY, broke))


def an_outcome(dice: Random) -> ToolResult | Failure:
    """Any end of an attempt at a tool call."""
    resend = ToolResult(content="", resend=True)
    wrong = ToolResult(content="no", status="error", error_type="execution")
    return dice.choice((ToolResult(content="ok"), ToolResult(content="ok"), wrong, resend, a_failure(dice)))


def a_reply(dice: Random, state: RunState) -> Event:
    """Any answer of the model; ids of calls are new in every turn, as the activity makes them."""
    match dice.randrange(9):
        case 8:
            too_long = TooLong(trigger=dice.choice(("window", "provider")), tokens=1000)
            return ModelReplied(reply=ModelReply(too_long=too_long, collapsed=1), at=AT)
        case 0:
            return ModelFailed(failure=a_failure(dice), at=AT)
        case 1:
            return says(dice.choice(("", "so", " ")), stop=dice.choice(("end", "length")))
        case 2:
            return ModelReplied(reply=ModelReply(), at=AT)
        case _:
            return calling(dice, state)


def a_compression(dice: Random, state: RunState) -> Event:
    """Any end of an attempt at compressing."""
    if dice.random() < 0.3:
        return CompressionFailed(failure=a_failure(dice), at=AT)
    summary = None if dice.random() < 0.2 else Message(role="system", content="so far", metadata={"compressed": True})
    kept = staying(state.transcript.messages, room=dice.choice((0, 1000))).kept
    done = Compressed(summary=summary, kept=kept, tokens=dice.choice((10, 1000)), usage=Usage(output_tokens=3))
    return ContextCompressed(compressed=done, at=AT)


def calling(dice: Random, state: RunState) -> ModelReplied:
    """Some calls, one of them `done` now and then."""
    names = [dice.choice(("bash",) * 9 + ("done", "ask_user")) for _ in range(dice.randint(1, 4))]
    calls = tuple(call(f"t{state.turn}c{n}", name, command="ls") for n, name in enumerate(names))
    message = Message(role="assistant", content="", tool_calls=calls)
    plans = tuple(a_plan(dice) for _ in calls)
    return ModelReplied(reply=ModelReply(message=message, plans=plans, usage=Usage(output_tokens=7)), at=AT)


def what_fits(dice: Random, state: RunState) -> Event:  # noqa: C901 - one case an action
    """What performing the run's next action brings."""
    match next_action(state):
        case Prepare():
            return RunPrepared(prepared=Prepared(spec=SPEC))
        case BeginTurn():
            return TurnBegan(at=at(dice.uniform(0, 2 * WEEK)))
        case CallModel():
            return a_reply(dice, state)
        case CompressContext():
            return a_compression(dice, state)
        case PlanCalls(calls=calls):
            ids = tuple(c.call.id for c in calls)
            return CallsPlanned(call_ids=ids, plans=CallPlans(plans=tuple(a_plan(dice) for _ in ids)), at=AT)
        case RunTools(calls=calls):
            came = {c.call.id: an_outcome(dice) for c in calls if dice.random() < 0.8}
            return ToolsReturned(outcomes=came, at=AT)
        case AskPerson():
            return an_answer(dice, state) if dice.random() < 0.7 else AsksExpired(at=at(dice.uniform(0, 2 * WEEK)))
        case AwaitAnswer():
            return MessageReceived(text="blue", at=AT)
        case Backoff():
            return BackoffEnded()
        case AwaitResume():
            return ResumeRequested(at=AT)
        case Finish():
            return WaitEnded()


def an_answer(dice: Random, state: RunState) -> Event:
    """An answer to an ask, to another call or to none."""
    call_id = dice.choice((None, "nonsense", *(c.call.id for c in state.calls)))
    if dice.random() < 0.3:
        return no(call_id)
    arguments = dice.choice((None, {"command": "ls"}, {"command": "make"}))
    return yes(call_id, scope=dice.choice(("once", "run")), arguments=arguments)


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


def anything(dice: Random, state: RunState) -> Event:
    """Mostly what fits, often a person, sometimes something out of place."""
    match dice.randrange(40):
        case 0:
            return dice.choice(RARE)
        case n if n < 8:
            return dice.choice(ANY_TIME)
        case n if n < 12:
            return an_answer(dice, state)
        case _:
            return what_fits(dice, state)


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
    trimmed = after.tries.trimmed > before.tries.trimmed or isinstance(event, ContextCompressed)
    trimmed = trimmed or before.phase is Phase.STARTING
    assert trimmed or kept.messages == before.transcript.messages


# A seed tells the same story whatever its length, so the shortest failing one is found by cutting its end.
SEEDS: Final = st.integers(0, 2**32)


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 60))
def test_any_sequence_of_events_keeps_a_run_whole(seed: int, steps: int) -> None:
    dice = Random(seed)
    budget = dice.choice((Budget(), Budget(), Budget(tokens=60), Budget(seconds=WEEK)))
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS, budget=budget), AT)
    check_state(state)
    for _ in range(steps):
        event = anything(dice, state)
        after = evolve(state, event)
        check_step(state, event, after)
        check_state(after)
        state = after


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_a_run_that_nobody_steers_comes_to_an_end(seed: int) -> None:
    dice = Random(seed)
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS), AT)
    for _ in range(500):
        state = evolve(state, what_fits(dice, state))
    assert isinstance(next_action(state), Finish)
