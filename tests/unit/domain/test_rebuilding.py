"""Tasks made again from what history says, fact by fact."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.agents.hook_steps import HookPoint, HookResult, Moment
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject, Message, Tail, ToolCall, Usage
from loom.domain.core.requests import RunError, RunRequest, RunResult, RunStatus
from loom.domain.core.tasks import Action, Notice, Origin, Published, Task
from loom.domain.core.tool_calls import Effect, PreparedCall, ToolResult, Verdict
from loom.domain.history.facts import (
    ActivityAttempt,
    ActivityOutcome,
    ActivityRequest,
    AttemptFailure,
    ExecutionStarted,
    Fact,
    PinnedSettings,
    PublishedNotices,
    RunEnded,
)
from loom.domain.history.task_rebuilding import tasks_of
from loom.domain.run.activity_payloads import (
    Compressed,
    CompressRequest,
    HookRequest,
    ModelReply,
    ModelRequest,
    PrepareCallsRequest,
    Prepared,
    PreparedCalls,
    PrepareRequest,
    ToolRequest,
)
from loom.domain.run.conversation import TooLong
from loom.domain.tree.budget import Spend

AT: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER: Final = AT + timedelta(seconds=2)
ORIGIN: Final = Origin(run_id="r", session_id="s", agent="writer")
SPEC: Final = AgentSpec(name="writer", model="openai:m", workspace="/w", max_turns=7, approval_timeout=60.0)
CALL: Final = ToolCall(id="c1", name="bash", arguments={"command": "cat secret"})
NOTICE: Final = Notice(action=Action.MESSAGE, key="n1", at=AT, parameters={"text": "hello"})
RESULT: Final = RunResult(
    status=RunStatus.COMPLETED,
    output="done",
    structured_output=None,
    completed_explicitly=True,
    turns=1,
    usage={},
    cost=None,
    quality_metrics=None,
    tool_calls=0,
    artifacts=(),
    error=None,
)


class Starred:
    """A mask that makes a star of every secret."""

    def clean(self, text: str) -> str:
        return text.replace("secret", "*")

    def clean_arguments(self, arguments: JsonObject) -> JsonObject:
        return {name: self.clean(str(value)) for name, value in arguments.items()}


MASK: Final = Starred()
MODEL: Final = ModelRequest(origin=ORIGIN, turn=1, spec_digest=SPEC.digest, spec=SPEC, tail=Tail())
TOOL: Final = ToolRequest(origin=ORIGIN, turn=1, call_id="c1", tool="bash", arguments=CALL.arguments)
SUMMED: Final = Usage(input_tokens=8, output_tokens=2, model_calls=1)
COMPRESS: Final = CompressRequest(
    origin=ORIGIN, turn=2, trigger="window", tokens=900, spec_digest=SPEC.digest, spec=SPEC, tail=Tail()
)
ANSWER: Final = ModelReply(
    message=Message(role="assistant", content="ok", tool_calls=(CALL,)),
    plans=(PreparedCall(verdict=Verdict.ASK, rule="bash", reason="it asks", digest="d", grants=("bash(cat:*)",)),),
    usage=Usage(input_tokens=10, output_tokens=5, cached_tokens=1),
    cost_micros=1_500_000,
)


def attempt(
    request: ActivityRequest, outcome: ActivityOutcome | None = None, *, began: datetime | None = AT
) -> ActivityAttempt:
    return ActivityAttempt(request=request, outcome=outcome, began=began, ended=LATER)


def seen(*facts: Fact) -> list[str]:
    """The ids of the tasks, without the run's."""
    return [task.task_id.removeprefix("r/") for task in tasks_of(facts, MASK)]


def only(action: Action, *facts: Fact) -> Task:
    (task,) = [task for task in tasks_of(facts, MASK) if task.action is action]
    return task


def test_a_prepared_run_has_started_with_its_pinned_agent() -> None:
    request = RunRequest(task="do it", metadata={"ticket": 1})
    task = only(Action.START, attempt(PrepareRequest(origin=ORIGIN, request=request), Prepared(spec=SPEC)))
    assert task == Task(
        task_id="r/t0/start/node.start",
        run_id="r",
        root_run_id="r",
        session_id="s",
        action=Action.START,
        created_at=AT,
        source_agent="writer",
        status="running",
        parameters={
            "task": "do it",
            "agent": "writer",
            "model": "openai:m",
            "workspace": "/w",
            "tools": [],
            "skills": [],
            "max_turns": 7,
            "metadata": {"ticket": 1},
        },
        metadata={"correlation_id": "r"},
    )


@pytest.mark.parametrize(
    ("outcome", "status", "says"),
    [
        (HookResult(), "completed", {"verdict": "allow"}),
        (HookResult(verdict="deny", reason="no"), "completed", {"verdict": "deny", "reason": "no"}),
        (AttemptFailure(type="HookFailedError", message="oops"), "failed", {"message": "oops"}),
        (AttemptFailure(type="ManifestChangedError", message="other code"), "failed", {"message": "other code"}),
    ],
)
def test_a_hook_tells_what_it_came_to(outcome: ActivityOutcome, status: str, says: JsonObject) -> None:
    step = HookPoint(moment=Moment.START, name="gate")
    task = only(Action.HOOK, attempt(HookRequest(origin=ORIGIN, step=step, task="do it"), outcome))
    assert (task.task_id, task.status) == ("r/t0/on_start-gate/node.hook", status)
    assert {name: task.parameters[name] for name in ("hook", "moment")} == {"hook": "gate", "moment": "on_start"}
    assert {name: text for name, text in task.parameters.items() if name not in ("hook", "moment", "ms")} == says


def test_an_answer_is_a_turn_a_model_call_and_its_asks() -> None:
    facts = (attempt(MODEL, ANSWER),)
    where = "t1-model.1"
    assert seen(*facts) == [
        f"{where}/turn/node.turn",
        f"{where}/call/node.model_call",
        f"{where}/ask-c1-d/node.approval_requested",
    ]
    assert only(Action.MODEL_CALL, *facts).parameters == {
        "model": "openai:m",
        "turn": 1,
        "attempt": 1,
        "tokens": 15,
        "input_tokens": 10,
        "output_tokens": 5,
        "cached_tokens": 1,
        "cost": 1.5,
        "ms": 2000.0,
    }
    request = only(Action.APPROVAL_REQUESTED, *facts)
    assert (request.status, request.parameters["expires_in"], request.parameters["for_run"]) == (
        "pending",
        60.0,
        ["bash(cat:*)"],
    )


@pytest.mark.parametrize(
    ("outcome", "began", "ids"),
    [
        (ModelReply(), AT, []),
        (None, None, []),
        (None, AT, ["turn/node.turn"]),
        (AttemptFailure(type="LLMUnavailableError", message="away"), AT, ["turn/node.turn", "call/node.model_call"]),
        (AttemptFailure(type="ManifestChangedError", message="other tools"), AT, ["call/node.model_call"]),
        (AttemptFailure(type="KeyError", message="a bug"), AT, ["turn/node.turn"]),
        (ModelReply(too_long=TooLong(trigger="window", tokens=9)), AT, ["turn/node.turn"]),
        (ModelReply(uncovered=Spend()), AT, ["turn/node.turn"]),
        (ModelReply(too_long=TooLong(trigger="provider", tokens=9)), AT, ["turn/node.turn", "call/node.model_call"]),
    ],
)
def test_an_attempt_without_an_answer_told_what_it_came_to(
    outcome: ActivityOutcome | None, began: datetime | None, ids: list[str]
) -> None:
    request = replace(MODEL, attempt=3, notices=(NOTICE,))
    expected = ["n1/node.message", *(f"t1-model.3/{one}" for one in ids)]
    assert sorted(seen(attempt(request, outcome, began=began))) == sorted(expected)


def test_a_tool_call_shows_no_secrets_and_the_beginning_of_its_result() -> None:
    facts = (attempt(TOOL, ToolResult(content="x" * 3000, stage_ms=(1.0,))),)
    assert only(Action.TOOL_CALL, *facts).parameters == {
        "arguments": {"command": "cat *"},
        "summary": "bash: cat *",
        "effect": Effect.ONCE,
        "turn": 1,
        "attempt": 1,
        "call_id": "c1",
        "tool": "bash",
    }
    told = only(Action.TOOL_RESULT, *facts)
    assert told.result is not None
    assert (told.status, told.result["content"], told.result["length"]) == ("success", "x" * 2000, 3000)


def test_a_call_that_made_a_tool_tells_of_it() -> None:
    made = {"name": "double", "description": "Keeps a secret.", "parameters": {}, "code": "def run(x): ..."}
    request = replace(TOOL, tool="create_tool", arguments=made)
    assert only(Action.REGISTERED, attempt(request, ToolResult(content="made"))) == Task(
        task_id="r/t1-call-c1.1/registered/tool.registered",
        run_id="r",
        root_run_id="r",
        session_id="s",
        action=Action.REGISTERED,
        created_at=LATER,
        source_agent="writer",
        parameters={"turn": 1, "name": "made__double", "description": "Keeps a *.", "from": "writer"},
        metadata={"correlation_id": "r"},
    )
    refused = attempt(request, ToolResult(content="the tool was not made", status="error"))
    assert [task.action for task in tasks_of([refused], MASK)] == [Action.TOOL_CALL, Action.TOOL_RESULT]


def test_a_notice_to_an_agent_names_it() -> None:
    published = Published(notices=(replace(NOTICE, target_agent="writer"),))
    assert (
        only(Action.MESSAGE, ExecutionStarted(origin=ORIGIN), PublishedNotices(published=published)).target_agent
        == "writer"
    )


def test_arguments_that_went_by_name_are_those_of_the_models_answer() -> None:
    by_name = replace(TOOL, arguments=None, arguments_digest="d")
    task = only(Action.TOOL_CALL, attempt(MODEL, ANSWER), attempt(by_name, ToolResult(content="x")))
    assert task.parameters["arguments"] == {"command": "cat *"}


@pytest.mark.parametrize(
    ("outcome", "ids"),
    [
        (ToolResult(content="", resend=True), []),
        (None, ["call/node.tool_call"]),
        (AttemptFailure(type="StoreUnavailable", message="away"), ["call/node.tool_call"]),
    ],
)
def test_a_tool_call_without_a_result_told_that_it_began(outcome: ActivityOutcome | None, ids: list[str]) -> None:
    assert seen(attempt(TOOL, outcome)) == [f"t1-call-c1.1/{one}" for one in ids]


def test_calls_that_are_judged_again_ask_again() -> None:
    request = PrepareCallsRequest(origin=ORIGIN, turn=1, spec=SPEC, calls=(CALL,))
    plans = PreparedCalls(plans=(PreparedCall(verdict=Verdict.ASK, digest="e"),))
    refused = PreparedCalls(plans=(PreparedCall(verdict=Verdict.ASK, digest="e", error="no such tool"),))
    assert seen(attempt(request, plans)) == ["t1/ask-c1-e/node.approval_requested"]
    assert seen(attempt(request, refused)) == []


def test_a_compressed_conversation_tells_how_much_shorter_it_is() -> None:
    shorter = Compressed(summary=Message(role="user", content="so far"), tokens=300, usage=SUMMED, cost_micros=500_000)
    task = only(Action.COMPRESSION, attempt(COMPRESS, shorter))
    assert (task.task_id, task.parameters["pre_tokens"], task.parameters["post_tokens"]) == (
        "r/t2-compress.1/compressed/node.compression",
        900,
        300,
    )
    spent = {name: task.parameters[name] for name in ("model", "model_calls", "input_tokens", "output_tokens", "cost")}
    assert spent == {"model": "openai:m", "model_calls": 1, "input_tokens": 8, "output_tokens": 2, "cost": 0.5}
    failed = only(Action.MODEL_CALL, attempt(COMPRESS, AttemptFailure(type="LLMUnavailableError", message="away")))
    assert (failed.status, failed.parameters["purpose"]) == ("failed", "compression")
    assert seen(attempt(COMPRESS, Compressed())) == []


def test_a_turn_whose_call_comes_again_after_a_compression_begins_once() -> None:
    put_off = attempt(MODEL, ModelReply(too_long=TooLong(trigger="window", tokens=900, limit=800)))
    again = replace(attempt(MODEL, ANSWER), began=LATER, ended=LATER)
    assert only(Action.TURN, put_off, again).created_at == AT


def test_a_reply_that_was_stopped_halfway_belongs_to_a_turn() -> None:
    assert seen(attempt(MODEL, ModelReply(broken_off="I was about"))) == ["t1-model.1/turn/node.turn"]


def test_the_end_is_told_as_its_result_says() -> None:
    done = only(Action.COMPLETE, ExecutionStarted(origin=ORIGIN), RunEnded(result=RESULT, at=LATER))
    assert (done.task_id, done.status, done.session_id) == ("r/end/node.complete", "completed", "s")
    error = RunError(type="LLMRefusedError", message="no")
    failed = replace(RESULT, status=RunStatus.FAILED, error=error)
    told = only(Action.ERROR, ExecutionStarted(origin=ORIGIN), RunEnded(result=failed, at=LATER))
    assert told.result is not None
    assert told.result["error"] == {"type": "LLMRefusedError", "message": "no", "context": {}}


def test_a_refused_request_says_nothing_of_its_session() -> None:
    refused = replace(RESULT, status=RunStatus.FAILED, error=RunError(type="BadRequest", message="no task"))
    task = only(Action.ERROR, ExecutionStarted(origin=ORIGIN), RunEnded(result=refused, at=LATER))
    assert (task.session_id, task.source_agent) == ("r", "default")


def test_notices_told_outside_of_activities_belong_to_the_run() -> None:
    facts = (ExecutionStarted(origin=ORIGIN), PublishedNotices(published=Published(notices=(NOTICE,))))
    task = only(Action.MESSAGE, *facts)
    assert (task.task_id, task.created_at, task.session_id) == ("r/n1/node.message", AT, "s")


def test_what_a_run_brought_along_is_known_where_its_first_history_is_gone() -> None:
    request = replace(MODEL, spec=None)
    began = ExecutionStarted(origin=ORIGIN, pinned={SPEC.digest: PinnedSettings(model="openai:m")})
    assert only(Action.MODEL_CALL, began, attempt(request, ANSWER)).parameters["model"] == "openai:m"
    assert only(Action.MODEL_CALL, attempt(request, ANSWER)).parameters["model"] == ""


FACTS: Final[Sequence[Fact]] = (
    ExecutionStarted(origin=ORIGIN),
    attempt(PrepareRequest(origin=ORIGIN, request=RunRequest(task="do it")), Prepared(spec=SPEC)),
    attempt(replace(MODEL, notices=(NOTICE,)), None),
    attempt(replace(MODEL, attempt=2, notices=(NOTICE,)), ANSWER),
    attempt(TOOL, None),
    attempt(replace(TOOL, attempt=2), ToolResult(content="x")),
    attempt(COMPRESS, Compressed(summary=Message(role="user", content="so far"))),
    PublishedNotices(published=Published(notices=(NOTICE, replace(NOTICE, key="n2")))),
    RunEnded(result=RESULT, at=LATER),
)


@given(st.lists(st.sampled_from(FACTS)), st.data())
def test_facts_that_are_told_twice_change_nothing_and_more_facts_take_nothing_away(
    facts: list[Fact], data: Any
) -> None:
    facts = [FACTS[0], *facts]
    tasks = tasks_of(facts, MASK)
    ids = [task.task_id for task in tasks]
    assert len(set(ids)) == len(ids)
    assert tasks_of([*facts, *facts], MASK) == tasks
    more = data.draw(st.sampled_from(FACTS))
    assert set(ids) <= {task.task_id for task in tasks_of([*facts, more], MASK)}
    assert [task.created_at for task in tasks] == sorted(task.created_at for task in tasks)
