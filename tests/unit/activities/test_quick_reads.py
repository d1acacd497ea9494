"""Quick reads ask the server for new events while the calls of an answer are prepared."""

import asyncio
from functools import partial
from typing import Any, cast

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from loom.activities import quick_reads
from loom.activities.publish import AbsentStream, StreamWriter
from loom.activities.quick_reads import QuickReads, TurnReads
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import Message, Tail, ToolCall
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import QUICK_READ, PreparedCall
from loom.domain.run.activity_payloads import ModelReply, ModelRequest


class _Tools:
    """Tools, of which one is quick."""

    def is_quick(self, tool: str) -> bool:
        return tool == "look"


class _Refusing:
    """Leases of an attempt that a later one has replaced."""

    async def store(self, *_: object, **__: object) -> bool:
        return False


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that have been sent to the server. Nothing has reached the run."""
    sent: list[str] = []

    async def asks() -> bool:
        sent.append("has anything reached the run?")
        return True

    monkeypatch.setattr(quick_reads, "_has_no_new_events", asks)
    return sent


def reads() -> TurnReads:
    request = ModelRequest(origin=Origin(run_id="run"), turn=1, spec_digest="", tail=Tail())
    spec = AgentSpec(name="reader", model="demo")
    writer = StreamWriter(AbsentStream(), request.origin, 1)
    return QuickReads(cast("Any", _Tools()), cast("Any", _Refusing())).of_turn(request, spec, writer)


def calls(*tools: str) -> list[ToolCall]:
    return [ToolCall(id=str(number), name=name, arguments={}) for number, name in enumerate(tools)]


@pytest.mark.parametrize(
    ("tools", "questions"), [(["look"], 1), (["shell", "look", "look"], 1), (["shell"], 0), ([], 0)], ids=str
)
async def test_the_question_is_sent_before_calls_to_quick_tools_are_prepared(
    asked: list[str], tools: list[str], questions: int
) -> None:
    await reads().expect(calls(*tools))
    assert len(asked) == questions


async def test_an_answer_is_kept_if_the_run_ends_while_the_question_is_sent(asked: list[str]) -> None:
    environment, turn = ActivityEnvironment(), reads()

    async def answered() -> str:
        asyncio.get_running_loop().call_soon(environment.cancel)
        await turn.expect(calls("look"))
        return "the answer"

    assert await environment.run(answered) == "the answer"
    assert len(asked) == 1


@pytest.mark.parametrize("why", [{"worker_shutdown": True}, {"timed_out": True}], ids=str)
async def test_another_cancellation_still_ends_the_attempt(asked: list[str], why: dict[str, bool]) -> None:
    environment, turn = ActivityEnvironment(), reads()

    async def answered() -> None:
        cancel = partial(environment.cancel, ActivityCancellationDetails(**why))
        asyncio.get_running_loop().call_soon(cancel)
        await turn.expect(calls("look"))

    with pytest.raises(asyncio.CancelledError):
        await environment.run(answered)


@pytest.mark.parametrize(("fresh", "questions"), [(60.0, 1), (-1.0, 2)], ids=["fresh", "stale"])
async def test_a_question_whose_answer_is_too_old_is_asked_again(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, fresh: float, questions: int
) -> None:
    monkeypatch.setattr(quick_reads, "_FRESH", fresh)
    turn = reads()
    await turn.expect(calls("look"))
    message = Message(role="assistant", content="", tool_calls=tuple(calls("look")))
    prepared = PreparedCall(effect=QUICK_READ, parallel=True)
    reply = await turn.with_results(ModelReply(message=message, plans=(prepared,)))
    assert len(asked) == questions
    assert not reply.plans[0].is_quick, "a later attempt has the answer, so activities make the calls"
