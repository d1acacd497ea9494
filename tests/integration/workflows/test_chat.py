"""Chats on a real server: every message is answered once, whatever restarts, and the words of earlier turns stay."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowUpdateFailedError

from loom._worker import worker
from loom.activities.adapters.temporal import runs
from loom.chat_session import ChatSession
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, RunNotFoundError, UnreachableError
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import Addresses, Harness, replay_all, settings_for
from loom.testing.model_server import ModelServer, Reply, SeenRequest, ToolUse, calls, hang, script, text
from loom.testing.waiting import eventually
from loom.workflows import options
from loom.workflows.payload_converter import data_converter
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_compression import SMALL, SUMMARY, WORDS, is_about_compressing


def words(request: SeenRequest) -> list[str]:
    """What people and the model have said, without the system prompt and reminders."""
    said = [m for m in request.messages if m["role"] in ("user", "assistant")]
    texts = [m["content"] if isinstance(m["content"], str) else m["content"][0]["text"] for m in said]
    return [each for each in texts if not each.startswith("<system-reminder>")]


def echo(request: SeenRequest) -> Reply:
    """Answers each message with its own words."""
    return text(f"you said: {words(request)[-1]}")


def chat_in(loom: Harness, session: str, **request: Any) -> ChatSession:
    """A session whose run is replayed after the test."""
    chat = ChatSession(loom.client, session, workspace=str(loom.workspace), **request)
    loom.started.append(chat.run_id)
    return chat


async def test_a_conversation_goes_on_from_message_to_message(working: Working, session: str) -> None:
    loom, model = await working(echo)
    chat = chat_in(loom, session)
    assert await chat.messages() == ()

    first = await chat.ask("one", by="ann")
    assert await loom.client.started_by(chat.run_id) == "ann"
    second = await ChatSession(loom.client, session).ask("two")

    assert (first.status, first.output, first.turns) == (RunStatus.COMPLETED, "you said: one", 1)
    assert (second.output, second.usage.total_tokens) == ("you said: two", 15)
    assert words(model.requests[1]) == ["one", "you said: one", "two"]
    assert [m.text for m in await chat.messages()] == ["one", "you said: one", "two", "you said: two"]
    status = await chat.status()
    assert (status["status"], status["waiting_on"]) == ("waiting_for_input", "message")
    assert (status["chat"]["received"], status["chat"]["answered"]) == (2, 2)
    answers = [task for _, task in await _events(loom, chat) if task.action is Action.ANSWER]
    assert [(task.result or {})["output"] for task in answers] == ["you said: one", "you said: two"]


async def test_equal_sessions_of_different_owners_are_different_chats(working: Working, session: str) -> None:
    loom, model = await working(echo)
    owners = {
        "ann of t1": {"tenant": "t1", "user_id": "ann"},
        "eve of t2": {"tenant": "t2", "user_id": "eve"},
        "eve of t1": {"tenant": "t1", "user_id": "eve"},
        "nobody": {},
    }
    chats = {name: chat_in(loom, session, **owner) for name, owner in owners.items()}
    for said in ("first", "second"):
        for name, chat in chats.items():
            assert (await chat.ask(f"{said} of {name}")).output == f"you said: {said} of {name}"
    aside = await chats["ann of t1"].answer(await chats["ann of t1"].send("aside", when_busy="own_run"))

    assert aside.output == "you said: aside"
    assert len({chat.run_id for chat in chats.values()}) == 4
    for name, chat in chats.items():
        again = ChatSession(loom.client, session, **owners[name])  # type: ignore[arg-type]
        told = [f"first of {name}", f"you said: first of {name}", f"second of {name}", f"you said: second of {name}"]
        assert [message.text for message in await again.messages()][:4] == told
        (asked,) = (request for request in model.requests if words(request)[-1] == f"second of {name}")
        assert words(asked) == told[:3]
        assert await loom.client.tenant_of(chat.run_id) == owners[name].get("tenant", "")


async def test_the_longest_names_of_an_owner_have_a_chat(working: Working, session: str) -> None:
    loom, _ = await working(echo)
    chat = chat_in(loom, session + "/" * 268, tenant="t" * 63, user_id="日" * 200)
    other = ChatSession(loom.client, session + "/" * 267, tenant="t" * 63, user_id="日" * 200)

    assert (await chat.ask("one")).output == "you said: one"
    assert await other.messages() == ()


async def test_a_message_with_the_same_id_is_answered_once(working: Working, session: str) -> None:
    loom, model = await working(echo)
    chat = chat_in(loom, session)
    sent = await asyncio.gather(*(chat.send("one", message_id="a") for _ in range(5)))
    answers = [await chat.answer(each) for each in sent]
    again = await chat.send("one", message_id="a")

    assert len({answer.output for answer in answers}) == 1
    assert again.handling == "answered"
    assert (await chat.status())["chat"]["answered"] == 1
    assert len(model.requests) == 1


async def test_messages_that_come_while_the_agent_works_wait_in_order(working: Working, session: str) -> None:
    loom, model = await working(echo)
    chat = chat_in(loom, session)
    sent = [await chat.send(f"message {number}") for number in range(8)]
    answers = [await chat.answer(each) for each in sent]

    assert [answer.output for answer in answers] == [f"you said: message {number}" for number in range(8)]
    assert len(model.requests) == 8


async def test_an_interruption_stops_the_model_and_is_answered(working: Working, session: str) -> None:
    loom, model = await working(script([hang(), text("stopped")]))
    chat = chat_in(loom, session)
    first = await chat.send("count to a million")
    await eventually(lambda: _true(len(model.requests) == 1))
    third = await chat.send("and then this")
    second = await chat.send("stop", when_busy="interrupt")
    assert (third.handling, second.handling) == ("queued", "interrupts")

    interrupted, answered = await chat.answer(first), await chat.answer(second)

    assert (interrupted.status, interrupted.error and interrupted.error.type) == (
        RunStatus.ABORTED,
        "MessageInterrupted",
    )
    assert answered.output == "stopped"
    assert words(model.requests[1])[0] == "count to a million"
    assert words(model.requests[1])[-1] == "stop"
    assert [turn.number for turn in await loom.client.turns(chat.run_id)][:2] == [1, 2]


async def test_a_message_can_have_a_run_of_its_own_beside_the_work(working: Working, session: str) -> None:
    def reply(request: SeenRequest) -> Reply:
        return hang() if words(request)[-1] == "long work" else echo(request)

    loom, model = await working(reply)
    chat = chat_in(loom, session)
    await chat.ask("my name is Ann")
    await chat.send("long work")
    await eventually(lambda: _true(len(model.requests) == 2))
    beside = await chat.send("what is my name", when_busy="own_run", message_id="beside")

    assert (beside.handling, beside.run_id) == ("own_run", f"{chat.run_id}-beside")
    loom.started.append(beside.run_id)
    assert (await chat.answer(beside)).output == "you said: what is my name"
    assert words(model.requests[2]) == ["my name is Ann", "you said: my name is Ann", "what is my name"]
    assert (await chat.send("what is my name", when_busy="own_run", message_id="beside")).run_id == beside.run_id
    assert (await chat.status())["chat"]["answering"] != []
    await loom.client.abort(chat.run_id)


async def test_an_approval_is_asked_within_a_chat(working: Working, session: str, workspace: Path) -> None:
    write = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
    loom, _ = await working(script([calls(write), text("written"), text("yes")]))
    chat = chat_in(loom, session)
    sent = await chat.send("write it")
    await loom.asked(chat.run_id)
    await loom.client.approve(chat.run_id, "w1")

    assert (await chat.answer(sent)).output == "written"
    assert (workspace / "out.txt").read_text() == "hello"
    assert (await chat.ask("did you?")).output == "yes"


async def test_an_aborted_chat_ends_and_the_next_message_begins_another(working: Working, session: str) -> None:
    loom, model = await working(script([hang(), text("anew")]))
    chat = chat_in(loom, session)
    first = await chat.send("one")
    await eventually(lambda: _true(len(model.requests) == 1))
    await loom.client.abort(chat.run_id, reason="enough")
    answer, after = await chat.answer(first), await chat.ask("two")

    assert (answer.status, answer.output) == (RunStatus.ABORTED, "")
    assert after.output == "anew"
    assert words(model.requests[1]) == ["two"]


@pytest.fixture
def quick_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats leave the memory of their worker almost at once."""
    monkeypatch.setattr(options, "CHAT_IDLE", timedelta(seconds=0.3))


@pytest.mark.usefixtures("quick_rest")
async def test_a_chat_at_rest_is_in_no_worker_and_wakes_with_the_next_message(working: Working, session: str) -> None:
    loom, model = await working(echo)
    chat = chat_in(loom, session)
    sent = await chat.send("one")
    answer = await chat.answer(sent)
    await _at_rest(loom, chat)

    assert [m.text for m in await chat.messages()] == ["one", "you said: one"]
    assert (await chat.look(sent.message_id)).answer == answer
    status = await chat.status()
    assert (status["status"], status["chat"]["answered"]) == ("waiting_for_input", 1)
    second = await chat.send("two")
    assert second.handling == "answering"
    assert (await chat.answer(second)).output == "you said: two"
    assert words(model.requests[1]) == ["one", "you said: one", "two"]


@pytest.mark.usefixtures("quick_rest")
async def test_a_chat_at_rest_can_be_aborted(working: Working, session: str) -> None:
    loom, _ = await working(echo)
    chat = chat_in(loom, session)
    await chat.ask("one")
    await _at_rest(loom, chat)
    await loom.client.abort(chat.run_id)

    assert (await loom.client.result(chat.run_id)).status is RunStatus.ABORTED


@pytest.mark.usefixtures("quick_rest")
@pytest.mark.parametrize("number", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_chats_at_rest_hear_every_request(working: Working, session: str, number: int) -> None:
    loom, model = await working(echo)

    async def talk(chat: ChatSession) -> None:
        handle = loom.client.temporal.get_workflow_handle(chat.run_id)
        await chat.ask("one")
        await _at_rest(loom, chat)
        for text_ in ("two", "three"):
            await handle.signal("send_message", {"text": text_, "message_id": text_})
        await _answered(chat, "three", "you said: three")
        await _at_rest(loom, chat)
        await loom.client.send(chat.run_id, "four")
        await _answered(chat, "m4", "you said: four")
        await _at_rest(loom, chat)
        assert (await loom.client.pause(chat.run_id))["accepted"]
        await loom.client.resume(chat.run_id)
        await _at_rest(loom, chat)
        said = [message.text for message in await chat.messages()]
        assert said == [each for word in ("one", "two", "three", "four") for each in (word, f"you said: {word}")]
        assert (await chat.status())["chat"]["answered"] == 4

    async def cancelled(chat: ChatSession) -> RunStatus:
        await loom.client.temporal.get_workflow_handle(chat.run_id).cancel()
        result: RunResult = await loom.client.result(chat.run_id)
        return result.status

    chats = [chat_in(loom, f"{session}-{place}") for place in range(number)]
    await asyncio.gather(*map(talk, chats))
    assert len(model.requests) == 4 * number
    half = number // 2
    await asyncio.gather(*(loom.client.abort(chat.run_id) for chat in chats[:half]))
    ends = [(await loom.client.result(chat.run_id)).status for chat in chats[:half]]
    ends += await asyncio.gather(*map(cancelled, chats[half:]))
    assert ends == [RunStatus.ABORTED] * number


@pytest.mark.usefixtures("quick_rest")
@pytest.mark.parametrize("number", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_what_reaches_chats_at_rest_without_a_worker_is_answered_in_order(
    addresses: Addresses, workspace: Path, session: str, number: int
) -> None:
    async with ModelServer(echo) as model:
        settings = settings_for(addresses, workspace, model)
        async with LoomClient.connected(settings) as client:
            loom = Harness(client=client, settings=settings, workspace=workspace)
            chats = [chat_in(loom, f"{session}-{place}") for place in range(number)]
            async with worker(settings):
                await asyncio.gather(*(chat.ask("one") for chat in chats))
                await asyncio.gather(*(_at_rest(loom, chat) for chat in chats))
            for chat in chats:
                assert [message.text for message in await chat.messages()] == ["one", "you said: one"]
                await client.send(chat.run_id, "two")
                await client.temporal.get_workflow_handle(chat.run_id).signal("send_message", {"text": "three"})
            aborted = chat_in(loom, f"{session}-aborted")
            async with worker(settings):
                await asyncio.gather(*(_answered(chat, "m3", "you said: three") for chat in chats))
                await aborted.ask("one")
                await _at_rest(loom, aborted)
            await client.temporal.get_workflow_handle(aborted.run_id).signal("abort", {"reason": "enough"})
            async with worker(settings):
                assert (await client.result(aborted.run_id)).status is RunStatus.ABORTED
                for chat in chats:
                    said = [message.text for message in await chat.messages()]
                    assert said == [each for word in ("one", "two", "three") for each in (word, f"you said: {word}")]
                await replay_all(loom)
    assert len(model.requests) == 3 * number + 1


@pytest.mark.usefixtures("quick_rest")
async def test_a_chat_that_takes_only_signed_messages_rests_and_goes_on(working: Working, session: str) -> None:
    loom, _ = await working(echo, require_signed="on")
    chat = chat_in(loom, session)
    assert (await chat.ask("one")).output == "you said: one"
    await _at_rest(loom, chat)
    stranger = await Client.connect(
        loom.settings.temporal_address, namespace=loom.settings.temporal_namespace, data_converter=data_converter()
    )
    unsigned = stranger.get_workflow_handle(chat.run_id)
    with pytest.raises(WorkflowUpdateFailedError):
        await unsigned.execute_update("send_message", {"text": "obey me"})

    assert (await chat.ask("two")).output == "you said: two"
    assert (await chat.status())["chat"]["received"] == 2


@pytest.mark.slow
async def test_a_chat_of_many_executions_loses_nothing(working: Working, session: str) -> None:
    loom, model = await working(echo, rotate_after_events=100)
    chat = chat_in(loom, session)
    sent = [await chat.send(f"m{number}") for number in range(20)]
    answers = [await chat.answer(each) for each in sent]

    assert [answer.output for answer in answers] == [f"you said: m{number}" for number in range(20)]
    assert len(await loom.histories(chat.run_id)) > 1
    assert len(model.requests) == 20
    assert words(model.requests[-1])[:-1] == [
        each for number in range(19) for each in (f"m{number}", f"you said: m{number}")
    ]


@pytest.mark.slow
async def test_each_message_is_answered_once_over_restarts_of_worker_and_terminal(
    addresses: Addresses, workspace: Path, session: str
) -> None:
    count = 30
    async with ModelServer(echo) as model:
        settings = settings_for(addresses, workspace, model)
        answers: list[str] = []
        for part in (range(15), range(15, count)):
            # Another terminal, which knows only the session.
            async with LoomClient.connected(settings) as client:
                chat = ChatSession(client, session, workspace=str(workspace))
                async with worker(settings):
                    sent = [await chat.send(f"message {number}", message_id=f"id-{number}") for number in part]
                    await chat.answer(sent[len(sent) // 2])
                # The worker has stopped in the middle of the queue; another one takes over.
                async with worker(settings):
                    answers += [(await chat.answer(each)).output for each in sent]
        async with LoomClient.connected(settings) as client, worker(settings):
            loom = Harness(client=client, settings=settings, workspace=workspace, started=[chat.run_id])
            status = await loom.until(chat.run_id, lambda status: status["chat"] is not None)  # once it is replayed
            await replay_all(loom)

    assert answers == [f"you said: message {number}" for number in range(count)]
    assert (status["chat"]["received"], status["chat"]["answered"]) == (count, count)
    # A model call that a stopping worker broke off is made again, but nothing is answered twice.
    asked = {words(request)[-1]: request for request in model.requests}
    assert len(asked) == count
    last = words(asked[f"message {count - 1}"])
    assert last == [
        *(each for number in range(count - 1) for each in (f"message {number}", f"you said: message {number}")),
        f"message {count - 1}",
    ]


async def test_words_stay_as_far_as_the_window_allows_and_are_then_compressed(working: Working, session: str) -> None:
    def reply(request: SeenRequest) -> Reply:
        return text(SUMMARY) if is_about_compressing(request) else text(f"read {len(words(request))}")

    loom, model = await working(reply, **SMALL)
    chat = chat_in(loom, session)
    for number in range(12):
        assert (await chat.ask(f"part {number}: {WORDS.strip()}")).status is RunStatus.COMPLETED

    asked = [request for request in model.requests if not is_about_compressing(request)]
    assert len(asked) == 12
    assert len(model.requests) > 12
    assert words(asked[2])[::2] == [f"part {number}: {WORDS.strip()}" for number in range(3)]
    last = words(asked[-1])
    assert "what matters of" in str(asked[-1].messages)
    assert last[-1] == f"part 11: {WORDS.strip()}"
    assert last[-3] == f"part 10: {WORDS.strip()}"


async def test_what_is_wrong_is_said_before_anything_is_sent(working: Working, session: str) -> None:
    loom, _ = await working(echo)
    with pytest.raises(BadRequest, match="session"):
        ChatSession(loom.client, " ")
    with pytest.raises(BadRequest, match="text"):
        await ChatSession(loom.client, session).send("  ")
    with pytest.raises(BadRequest, match="when_busy"):
        await ChatSession(loom.client, session).send("one", when_busy="later")  # type: ignore[arg-type]
    with pytest.raises(RunNotFoundError):
        await ChatSession(loom.client, session).look("a")
    with pytest.raises(BadRequest, match="message_id"):
        await loom.client.start("one", message_id="a")


async def test_without_a_worker_a_message_is_kept_but_nobody_starts_a_run_of_its_own(
    addresses: Addresses, workspace: Path, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "UPDATE_LIMIT", 1.0)
    async with ModelServer(echo) as model:
        settings = settings_for(addresses, workspace, model)
        async with LoomClient.connected(settings) as client:
            chat = ChatSession(client, session)
            sent = await chat.send("one")
            assert sent.handling is None
            with pytest.raises(UnreachableError, match="at work"):
                await chat.send("two", when_busy="own_run")
            async with worker(settings):
                assert (await chat.answer(sent)).output == "you said: one"
    assert len(model.requests) == 1


async def _at_rest(loom: Harness, chat: ChatSession) -> None:
    """Wait until the chat's newest execution has done nothing but begin to wait."""

    async def rests() -> bool:
        *earlier, newest = await loom.histories(chat.run_id)
        last, number = newest.events[-1].event_type, len(newest.events)
        return bool(earlier) and (last, number) == (EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED, 4)

    await eventually(rests)


async def _answered(chat: ChatSession, message_id: str, output: str) -> None:
    """Wait for the answer to a message, and look at it."""

    async def answer() -> str | None:
        found = (await chat.look(message_id)).answer
        return None if found is None else found.output

    assert await eventually(answer) == output


async def _events(loom: Harness, chat: ChatSession) -> Sequence[Any]:
    return [(each.offset, each.task) async for each in loom.client.events(chat.run_id)]


async def _true(value: bool) -> bool:
    return value
