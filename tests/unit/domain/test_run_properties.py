"""Whatever happens to a run, in whatever order: what always holds."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from loom.domain.agents.hook_steps import HookPoint, HookResult, Moment
from loom.domain.agents.spec import AgentSpec
from loom.domain.context.compression import staying
from loom.domain.core.messages import Message, Part, Usage, transcript_of
from loom.domain.core.output_schema import CheckedAnswer
from loom.domain.core.repositories import Checkout, GitWorkspace, ReturnedChange
from loom.domain.core.requests import Budget, RunError, RunRequest, RunStatus
from loom.domain.core.tasks import Action as TaskAction
from loom.domain.core.tenants import Admission
from loom.domain.core.tool_calls import QUICK_READ, Effect, PreparedCall, ToolResult, Verdict
from loom.domain.core.tool_input import InputRequest, NeededInput
from loom.domain.core.tool_names import START_RUN
from loom.domain.machine.activity_requests import (
    evaluate_request,
    model_request,
    push_request,
    sample_request,
    summary_of,
    tool_request,
)
from loom.domain.machine.checkout_step import pushing_change, storing_change
from loom.domain.machine.tool_results import may_read_quickly, quick_calls, settled_by_plan
from loom.domain.machine.transitions import TABLE, closed, evolve, ignored, next_action, place, start
from loom.domain.run.actions import (
    AskPerson,
    AwaitAdmission,
    AwaitBudget,
    AwaitMessage,
    AwaitPerson,
    AwaitResume,
    Backoff,
    BeginTurn,
    CallModel,
    CompressContext,
    EvaluateAnswer,
    Finish,
    Prepare,
    PrepareCalls,
    PrepareWorkspace,
    RunChildren,
    RunHook,
    RunTools,
    SampleModel,
    StoreParts,
)
from loom.domain.run.activity_payloads import Compressed, Evaluated, ModelReply, Prepared, PreparedCalls, Sampled
from loom.domain.run.conversation import TooLong
from loom.domain.run.events import (
    AbortRequested,
    AnswerEvaluated,
    AsksExpired,
    BackoffEnded,
    CallsPrepared,
    ChangePushed,
    ChangeStored,
    CompressionFailed,
    ContextCompressed,
    EvaluationFailed,
    Event,
    HookFailed,
    HookReturned,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ModelSampled,
    NoticesPublished,
    PartsStored,
    PauseRequested,
    PermissionsSet,
    ResumeRequested,
    RetryRequested,
    ReturnStopped,
    RunAdmitted,
    RunPrepared,
    RunRefused,
    RunReopened,
    RunReset,
    SamplingFailed,
    SignalIgnored,
    TimeRanOut,
    ToolsReturned,
    TurnBegan,
    WaitEnded,
    WorkspacePrepared,
)
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import Outcome, Phase, RunState, result_of, status_of
from loom.domain.run.status import status_view
from loom.domain.tree.budget import BudgetRequest, Spend
from loom.domain.tree.events import (
    AncestryChanged,
    BudgetGranted,
    BudgetRequested,
    ChildEnded,
    ChildrenBegan,
    ChildReported,
    ChildStarted,
    TreeSignalSent,
)
from loom.domain.tree.lineage import TreeLimits
from loom.domain.tree.tree import ChildReport
from loom.status_fields import StatusFields
from loom.workflows.payload_converter import data_converter
from loom.workflows.visibility import markdown
from tests.typed_shapes import misfits
from tests.unit.domain.story import AT, AWAY, LOST, SPEC, WEEK, at, call, conversation, no, says, told, yes

CONVERTER: Final = data_converter().payload_converter
MAX_TURNS: Final = 6
REPOSITORY: Final = GitWorkspace(git="https://git.example/app.git", push="fix")
CHECKOUT: Final = Checkout(url=REPOSITORY.git, commit="1" * 40, revision="main", folder="/clones/1")

GRANTS: Final = ((), ("bash(ls)",), ("bash(make)", "bash(ls)"))
PROVIDER: Final = (
    "LLMRateLimitError",
    "LLMUnavailableError",
    "LLMContextLengthError",
    "LLMRefusedError",
    "LLMConfigurationError",
    "CircuitBreakerOpenError",
    "Timeout",
    "ValueError",
)


def an_agent(dice: Random) -> AgentSpec:
    """An agent with any of what decides what becomes of its answers."""
    return replace(
        SPEC,
        loop_window=dice.choice((0, 0, 2, 5)),
        output_schema=dice.choice((None, None, {"type": "array"})),
        pattern=dice.choice(("react", "react", "reflect")),
        evaluates=dice.random() < 0.3,
        require_done_tool=dice.random() < 0.1,
        patience=dice.choice((0.0, 60.0, WEEK)),
        fallbacks=dice.choice(((), ("demo:b",), ("demo:b", "demo:c"))),
    )


def a_plan(dice: Random) -> PreparedCall:
    """Any plan."""
    return PreparedCall(
        verdict=dice.choice(tuple(Verdict)),
        error=dice.choice(("", "", "", "no such tool")),
        effect=dice.choice((*Effect, QUICK_READ)),
        parallel=dice.random() < 0.5,
        digest="d",
        grants=dice.choice(GRANTS),
        arguments=dice.choice((None, None, {**LS, "command": "intercepted"})),
        answer=dice.choice((None,) * 9 + ("from the cache",)),
        stopped=dice.choice(("",) * 9 + ("no",)),
    )


def a_failure(dice: Random) -> Failure:
    """Any failure of an activity."""
    broke = Failure(kind="provider", type=dice.choice(PROVIDER), message="no", context={})
    return dice.choice((LOST, AWAY, broke))


def an_outcome(dice: Random) -> ToolResult | Failure:
    """Any end of an attempt at a tool call."""
    resend = ToolResult(content="", resend=True)
    wrong = ToolResult(content="no", status="error", error_type="execution")
    needs = ToolResult(content="", needs=needed_input(dice))
    return dice.choice((ToolResult(content="ok"), ToolResult(content="ok"), wrong, resend, needs, a_failure(dice)))


def needed_input(dice: Random) -> NeededInput:
    """Questions and model calls of an MCP server."""
    form = InputRequest(key="f", kind="form", message="Which?", schema={"properties": {"command": {}}})
    page = InputRequest(key="u", kind="url", message="Sign in", url="https://example.com")
    sample = InputRequest(
        key="s", kind="sampling", message="sum up", sampling={"max_tokens": 5}, asks=dice.random() < 0.5
    )
    requests = dice.choices((form, page, sample), k=dice.randrange(1, 3))
    return NeededInput(requests=tuple(requests), state=dice.choice(("", "s")), queue=dice.choice(("", "own")))


def a_reply(dice: Random, state: RunState) -> Event:
    """Any answer of the model; ids of calls are new in every turn, as the activity makes them."""
    match dice.randrange(9):
        case 8:
            too_long = TooLong(trigger=dice.choice(("window", "provider")), tokens=1000)
            return ModelReplied(reply=ModelReply(too_long=too_long, collapsed=1), at=AT)
        case 0:
            return ModelFailed(failure=a_failure(dice), at=AT)
        case 1:
            checked = dice.choice((None, CheckedAnswer(value=[1]), CheckedAnswer(problems=("no",))))
            said, stop = dice.choice(("", "so", " ")), dice.choice(("end", "length"))
            return says(said, stop=stop, checked=checked, approves=dice.random() < 0.3)
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


TOOLS: Final = ("bash",) * 7 + ("delegate_task",) * 2 + ("done", "ask_user")
LS: Final = {"command": "ls", "description": "a part", "prompt": "Do a part."}
"""Arguments for each of them."""


def calling(dice: Random, state: RunState) -> ModelReplied:
    """Some calls, one of them `done` now and then."""
    names = [dice.choice(TOOLS) for _ in range(dice.randint(1, 4))]
    calls = tuple(call(f"t{state.turn}c{n}", name, **LS) for n, name in enumerate(names))
    message = Message(role="assistant", content="", tool_calls=calls)
    plans = tuple(a_plan(dice) for _ in calls)
    ran = quick_calls(calls, plans, 10, AT) if may_read_quickly(state) and dice.random() < 0.8 else frozenset()
    plans = tuple(with_quick_read(dice, plan) if c.id in ran else plan for c, plan in zip(calls, plans, strict=True))
    return ModelReplied(reply=ModelReply(message=message, plans=plans, usage=Usage(output_tokens=7)), at=AT)


def with_quick_read(dice: Random, plan: PreparedCall) -> PreparedCall:
    """A quick read that has run with the model call, or wasn't done in time."""
    wrong = ToolResult(content="no", status="error", error_type="execution")
    return replace(plan, result=dice.choice((ToolResult(content="read"), ToolResult(content="read"), wrong, None)))


def an_evaluation(dice: Random) -> Event:
    """Any end of an evaluation."""
    if dice.random() < 0.3:
        return EvaluationFailed(failure=a_failure(dice), at=AT)
    resend = dice.random() < 0.3
    if dice.random() < 0.1:
        return AnswerEvaluated(evaluated=Evaluated(uncovered=Spend(tokens=9)), at=AT)
    metrics = dice.choice((None, {"confidence": 0.5, "coverage": 1.0, "novelty": 0.0}))
    done = Evaluated(resend=True) if resend else Evaluated(metrics=metrics, usage=Usage(output_tokens=2))
    return AnswerEvaluated(evaluated=done, at=AT)


HOOKS = tuple(HookPoint(moment=moment, name="h") for moment in Moment)


def a_hook(dice: Random, step: HookPoint) -> Event:
    """Any end of a hook before the run."""
    if dice.random() < 0.1:
        return HookFailed(step=step, failure=a_failure(dice), at=AT)
    verdict: Any = dice.choice(("allow", "allow", "ask", "deny"))
    answer = HookResult(verdict=verdict, text=dice.choice((None, "another task")), instead=dice.random() < 0.1)
    return HookReturned(step=step, answer=answer, at=AT)


def of_children(dice: Random, state: RunState, call_ids: list[str]) -> Event:
    """Children begin for the calls that have none yet; else one of them starts, or ends in any way."""
    if missing := set(call_ids) - {child.call_id for child in state.tree.children}:
        return ChildrenBegan(names={c: f"d{state.turn}-{c}" for c in sorted(missing)}, at=AT)
    child = dice.choice(state.tree.running)
    if not child.started and dice.random() < 0.8:
        return ChildStarted(run_id=child.run_id)
    if dice.random() < 0.2:
        return ChildEnded(run_id=child.run_id, error=RunError(type="TerminatedError", message="gone"), at=AT)
    outcome = Outcome(status=dice.choice((RunStatus.COMPLETED, RunStatus.ABORTED, RunStatus.LIMIT_REACHED)))
    return ChildEnded(run_id=child.run_id, result=result_of(told(says("ok")), outcome), at=AT)


def a_sample(dice: Random, call_id: str) -> Event:
    """What the run's model says to an MCP server, if anything."""
    if dice.random() < 0.3:
        return SamplingFailed(call_id=call_id, failure=LOST, at=AT)
    short = Spend(tokens=9) if dice.random() < 0.3 else None
    return ModelSampled(call_id=call_id, sampled=Sampled(text="hi", uncovered=short), at=AT)


def what_fits(dice: Random, state: RunState) -> Event:  # noqa: C901, PLR0912 - one case an action
    """What performing the run's next action brings."""
    match next_action(state):
        case StoreParts():
            return PartsStored(parts=(Part(type="text", text="a part"),))
        case Prepare():
            spec = replace(an_agent(dice), hooks=dice.choice(((), HOOKS)))
            admission: Admission = dice.choice(("", "waiting", "admitted"))
            limits, quick = TreeLimits(children=4), dice.random() < 0.5
            prepared = Prepared(spec=spec, limits=limits, admission=admission, quick_reads=quick)
            return RunPrepared(prepared=prepared)
        case PrepareWorkspace():
            return WorkspacePrepared(checkout=CHECKOUT, at=AT)
        case RunHook(step=step):
            return a_hook(dice, step)
        case BeginTurn():
            return TurnBegan(at=at(dice.uniform(0, 2 * WEEK)))
        case CallModel():
            return a_reply(dice, state)
        case CompressContext():
            return a_compression(dice, state)
        case EvaluateAnswer():
            return an_evaluation(dice)
        case PrepareCalls(calls=calls):
            ids = tuple(c.call.id for c in calls)
            return CallsPrepared(call_ids=ids, plans=PreparedCalls(plans=tuple(a_plan(dice) for _ in ids)), at=AT)
        case RunTools(calls=calls):
            came = {c.call.id: an_outcome(dice) for c in calls if dice.random() < 0.8}
            return ToolsReturned(outcomes=came, at=AT)
        case SampleModel(call_id=call_id):
            return a_sample(dice, call_id)
        case RunChildren(calls=calls):
            return of_children(dice, state, [c.call.id for c in calls])
        case AskPerson():
            return an_answer(dice, state) if dice.random() < 0.7 else AsksExpired(at=at(dice.uniform(0, 2 * WEEK)))
        case AwaitPerson() | AwaitMessage():
            return MessageReceived(text="blue", at=AT)
        case Backoff():
            return BackoffEnded()
        case AwaitResume():
            return ResumeRequested(at=AT)
        case AwaitBudget():
            return WaitEnded()
        case AwaitAdmission():
            return RunAdmitted()
        case Finish():
            return WaitEnded()


def an_answer(dice: Random, state: RunState) -> Event:
    """An answer to an ask, to another call or to none."""
    call_id = dice.choice((None, "nonsense", *(c.call.id for c in state.calls.open)))
    if dice.random() < 0.3:
        return no(call_id)
    arguments = dice.choice((None, LS, {**LS, "command": "make"}))
    return yes(call_id, scope=dice.choice(("once", "run")), arguments=arguments)


ANY_TIME: Final[tuple[Event, ...]] = (
    PauseRequested(at=AT),
    PauseRequested(at=AT),
    ResumeRequested(at=AT),
    MessageReceived(text="use blue", at=AT),
    MessageReceived(text="look", parts=(Part(type="file", data="eA=="),), at=AT),
    RetryRequested(at=AT),
    RetryRequested(model="openai:b", at=AT),
    RetryRequested(end=1, max_turns=MAX_TURNS, message="go on", at=AT),
    RunReopened(at=AT),
    RunReset(at=AT),
    PermissionsSet(rules={"bash": "deny"}, at=AT),
    PermissionsSet(rules={"bash": "perhaps"}, at=AT),
    SignalIgnored(signal="stop", why="unknown", at=AT),
    NoticesPublished(count=2),
    WaitEnded(),
    BackoffEnded(),
    TurnBegan(at=AT),
    RunAdmitted(),
    RunPrepared(prepared=Prepared(spec=SPEC, limits=TreeLimits(children=4))),
    says("late"),
    AsksExpired(at=at(3 * WEEK)),
    ToolsReturned(outcomes={"t1c0": ToolResult(content="late"), "t2c1": LOST}),
    AncestryChanged(above=()),
    BudgetRequested(request=BudgetRequest(run_id="run-1/d1-t1c0", number=1, need=Spend(tokens=3))),
    BudgetGranted(number=1, granted=Spend(tokens=5)),
    ChildReported(report=ChildReport(run_id="run-1/d1-t1c0", status=RunStatus.PAUSED, waiting_on="resume")),
    TreeSignalSent(),
    CallsPrepared(call_ids=("t1c0",), plans=PreparedCalls(plans=(PreparedCall(),)), at=AT),
)
RARE: Final[tuple[Event, ...]] = (
    AbortRequested(reason="enough", at=AT),
    RunRefused(error=RunError(type="BadRequest", message="no")),
    TimeRanOut(at=at(WEEK)),
)
OUT_OF_PLACE: Final[tuple[Event, ...]] = (
    ModelFailed(failure=LOST, at=AT),
    ContextCompressed(compressed=Compressed(), at=AT),
    CompressionFailed(failure=LOST, at=AT),
    AnswerEvaluated(evaluated=Evaluated(), at=AT),
    EvaluationFailed(failure=LOST, at=AT),
    HookReturned(step=HookPoint(moment=Moment.BEFORE, name="another"), answer=HookResult(), at=AT),
    HookFailed(step=HookPoint(moment=Moment.BEFORE, name="another"), failure=LOST, at=AT),
    ChildrenBegan(names={"another": "d1"}, at=AT),
    ChildStarted(run_id="run-1/another"),
    ChildEnded(run_id="run-1/another", at=AT),
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
    for number, message in enumerate(messages):
        if message.role == "assistant":
            results: list[str] = []
            for later in messages[number + 1 :]:
                if later.role != "tool":
                    break
                results.append(later.tool_call_id or "")
            yield [c.id for c in message.tool_calls], results


def check_state(state: RunState) -> None:
    """What holds of every state."""
    *settled, (last, results) = list(pairs(state.transcript.messages)) or [([], [])]
    assert all(calls == answered for calls, answered in settled)
    calls = () if state.phase is Phase.STARTING else state.calls.open
    assert results == ([] if calls else last)
    assert [c.call.id for c in calls] == (last if calls else [])
    assert state.phase is not Phase.STARTING or [c.call.name for c in state.calls.open] in ([], ["start_run"])
    assert all(calls == answered for calls, answered in pairs(closed(state, AT).transcript.messages))
    assert sum(m.role == "tool" for m in state.transcript.messages) == sum(
        len(r) for _, r in pairs(state.transcript.messages)
    )
    assert state.turns <= state.max_turns
    assert state.turn <= state.max_turns + 1 + state.last_answers
    known = state.transcript.messages[: state.conversation.known.count]
    assert transcript_of(known).ref == state.conversation.known
    assert transcript_of(state.transcript.messages) == state.transcript
    check_action(state)
    assert status_view(state)["status"] == status_of(state)
    assert misfits(status_view(state), StatusFields) == []
    assert markdown(state)
    assert CONVERTER.from_payloads(CONVERTER.to_payloads([state]), [RunState])[0] == state


def check_action(state: RunState) -> None:  # noqa: C901 - one case an action
    """What holds of what is done next."""
    match next_action(state):
        case RunTools(calls=calls):
            assert calls
            for c in calls:
                assert c.result is None
                assert not c.stale
                assert not c.plan.error
                assert not c.plan.stopped
                assert c.plan.verdict is not Verdict.DENY
                assert c.plan.verdict is Verdict.ALLOW or (c.decision is not None and c.decision.approved)
                assert tool_request(state, c, "x", with_notices=True).call_id == c.call.id
        case RunChildren(calls=calls):
            assert calls
            assert all(c.call.name == "delegate_task" and c.result is None for c in calls)
        case AskPerson(calls=calls, until=until):
            assert calls
            assert until is not None
        case PrepareCalls(calls=calls):
            assert calls
        case CallModel():
            assert model_request(state).turn == state.turn
            assert summary_of(state)
        case SampleModel(call_id=call_id):
            assert sample_request(state, call_id).call_id == call_id
        case EvaluateAnswer():
            assert evaluate_request(state).turn == state.turn
        case Finish(outcome=outcome):
            assert outcome == state.outcome
            assert result_of(closed(state, AT), outcome).status is outcome.status
        case _:
            pass
    if state.hold is not None:
        assert isinstance(next_action(state), AwaitResume | Finish)


def check_step(before: RunState, event: Event, after: RunState) -> None:
    """What holds of every step from one state to the next."""
    assert evolve(before, event) == after
    if ignored(before, event):
        assert after is before
    else:
        assert place(after) in TABLE[type(event)].to[place(before)]
    assert before.turn <= after.turn <= before.turn + 1
    assert before.spending.tool_calls <= after.spending.tool_calls
    assert before.spending.usage.total_tokens <= after.spending.usage.total_tokens
    assert set(before.calls.grants) <= set(after.calls.grants)
    if before.outcome is not None and not isinstance(event, RunReopened):
        assert after.outcome == before.outcome
    kept = replace(after.transcript, messages=after.transcript.messages[: len(before.transcript.messages)])
    trimmed = after.tries.trimmed > before.tries.trimmed or isinstance(event, ContextCompressed)
    trimmed = trimmed or before.phase is Phase.STARTING
    assert trimmed or kept.messages == before.transcript.messages


def without_result(state: RunState) -> set[str]:
    """The model's calls that haven't come to their end."""
    return {c.call.id for c in state.calls.open if c.result is None and c.call.name != START_RUN}


def told_by_notice(state: RunState) -> set[str]:
    """The calls whose end the run tells the stream."""
    notices = (*state.notices.pending, *state.notices.not_run)
    return {str(each.parameters["call_id"]) for each in notices if each.action is TaskAction.TOOL_RESULT}


def check_ends_are_told(before: RunState, event: Event, after: RunState) -> None:
    """A call comes to its end in an activity, which tells it, or through a message, or the run tells it by a notice."""
    running = without_result(before)
    # The model's activity tells what it has ruled out, also if that is checked again because the rules have changed.
    told = told_by_notice(after) | {c.call.id for c in before.calls.open if settled_by_plan(c.plan) is not None}
    match event:
        case ModelReplied(reply=ModelReply(message=Message(tool_calls=calls), plans=plans)) if after is not before:
            running |= {c.id for c, plan in zip(calls, plans, strict=True) if settled_by_plan(plan) is None}
            told |= {c.id for c, plan in zip(calls, plans, strict=True) if plan.result is not None}
        case ToolsReturned(outcomes=outcomes):
            told |= outcomes.keys()
        case MessageReceived() | RunReopened() if before.question is not None:  # a retry may bring a message
            told.add(before.question.call.id)
        case _:
            pass
    assert running - without_result(after) <= told
    assert without_result(after) <= told_by_notice(closed(after, AT))


# A seed tells the same story whatever its length, so the shortest failing one is found by cutting its end.
SEEDS: Final = st.integers(0, 2**32)


@settings(max_examples=settings().max_examples // 3)
@given(seed=SEEDS, steps=st.integers(1, 60))
def test_any_sequence_of_events_keeps_a_run_whole(seed: int, steps: int) -> None:
    dice = Random(seed)
    budget = dice.choice((Budget(), Budget(), Budget(tokens=60), Budget(seconds=WEEK)))
    workspace = dice.choice((None, REPOSITORY))
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS, budget=budget, workspace=workspace), AT)
    check_state(state)
    for _ in range(steps):
        event = anything(dice, state)
        after = evolve(state, event)
        check_step(state, event, after)
        check_state(after)
        state = after


@settings(max_examples=settings().max_examples * 4)
@given(SEEDS)
def test_whatever_ends_a_call_people_are_told(seed: int) -> None:
    dice = Random(seed)
    budget = dice.choice((Budget(), Budget(tokens=60), Budget(tool_calls=3)))
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS, budget=budget), AT)
    for _ in range(60):
        event = anything(dice, state)
        after = evolve(state, event)
        check_ends_are_told(state, event, after)
        state = after


@settings(max_examples=settings().max_examples // 3)
@given(seed=SEEDS, steps=st.integers(0, 60))
def test_a_run_that_is_retried_after_any_end_goes_on_or_stays_as_it_ended(seed: int, steps: int) -> None:
    dice = Random(seed)
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS, budget=Budget(tokens=60)), AT)
    while not isinstance(next_action(state), Finish):
        state = evolve(state, anything(dice, state))
    if dice.random() < 0.3:
        state = closed(state, AT)
    for number in range(1, 4):
        most, budget, now = state.max_turns + 3, Budget(tokens=1000 * number), at(2 * WEEK)
        asked = RetryRequested(end=number, max_turns=most, budget=budget, message="go on", at=now)
        going_on = evolve(evolve(state, asked), RunReopened(at=now))
        check_state(going_on)
        assert conversation(going_on)[: len(conversation(state))] == conversation(state)
        assert going_on.spending == replace(state.spending, warned=going_on.spending.warned)
        if going_on.outcome is not None:
            assert going_on.outcome == state.outcome
            return
        state = going_on
        for _ in range(steps):
            event = anything(dice, state)
            check_step(state, event, after := evolve(state, event))
            check_state(after)
            state = after
        state = evolve(state, AbortRequested(reason="enough", at=AT))


RETURNING: Final[tuple[Event, ...]] = (
    ChangeStored(change=ReturnedChange(files=1, patch="workspace.patch", tree="2" * 40), at=AT),
    ChangeStored(change=ReturnedChange(problem="the change wasn't stored: no"), at=AT),
    ChangePushed(commit="3" * 40, at=AT),
    ChangePushed(problem="the change wasn't pushed: no", at=AT),
    ReturnStopped(at=AT),
    AbortRequested(reason="enough", at=AT),
    RetryRequested(max_turns=MAX_TURNS + 9, budget=Budget(tokens=1000), at=AT),
    RunReopened(at=AT),
)


@settings(max_examples=settings().max_examples // 3)
@given(seed=SEEDS, steps=st.integers(0, 12))
def test_a_change_is_pushed_only_after_the_run_completed_whoever_ends_the_wait(seed: int, steps: int) -> None:
    dice = Random(seed)
    workspace = dice.choice((None, REPOSITORY))
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS, workspace=workspace), AT)
    while not isinstance(next_action(state), Finish):
        state = evolve(state, anything(dice, state))
    state, outcome = storing_change(closed(state, AT)), state.outcome
    for _ in range(steps):
        if state.returning is None and state.outcome is not None:
            state = pushing_change(state)
        if state.returning is not None and state.returning.step == "push":
            assert push_request(state, AT).branch == "fix"
            assert outcome is not None
            assert outcome.status is RunStatus.COMPLETED
        event = dice.choice(RETURNING)
        check_step(state, event, after := evolve(state, event))
        check_state(after)
        state = after
        if state.outcome is None:  # a retry has let it go on
            assert state.returning is None
            return
    if state.change is not None and state.change.commit:
        assert state.outcome is not None
        assert state.outcome.status is RunStatus.COMPLETED


@given(seed=SEEDS, steps=st.integers(0, 40))
def test_in_any_state_an_event_that_does_not_fit_leaves_the_very_same_state(seed: int, steps: int) -> None:
    dice = Random(seed)
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS), AT)
    for _ in range(steps):
        state = evolve(state, anything(dice, state))
    for event in (*ANY_TIME, *RARE, *OUT_OF_PLACE):
        if why := ignored(state, event):
            assert evolve(state, event) is state
            assert why.startswith(type(event).__name__)


@given(SEEDS)
def test_a_run_that_nobody_steers_comes_to_an_end(seed: int) -> None:
    dice = Random(seed)
    state = start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS), AT)
    for _ in range(500):
        state = evolve(state, what_fits(dice, state))
    assert isinstance(next_action(state), Finish)
