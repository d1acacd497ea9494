"""kill -9 of workers during a chat: no message is lost, and each is answered once."""

from collections import Counter
from itertools import pairwise

import pytest

from loom.chat_session import ChatSession
from loom.client import LoomClient
from loom.domain.core.tasks import Action
from loom.testing.stream import told
from tests.acceptance.conftest import Killable
from tests.integration.workflows.test_chat import echo, words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "kills"),
    [(12, 1), pytest.param(300, 3, marks=pytest.mark.timeout(600))],
)
async def test_each_message_is_answered_once_although_workers_die(
    killable: Killable, session: str, count: int, kills: int
) -> None:
    loom, model, workers = await killable(echo)
    ends = [count * number // (kills + 1) for number in range(kills + 2)]
    answers: list[str] = []
    worker = await workers.start()
    for begin, end in pairwise(ends):
        # Each part has a terminal of its own, which knows only the session.
        async with LoomClient.connected(loom.settings) as client:
            chat = ChatSession(client, session, workspace=str(loom.workspace))
            sent = [await chat.send(f"message {n}", message_id=f"id-{n}") for n in range(begin, end)]
            await chat.answer(sent[len(sent) // 2])
            if end < count:
                await workers.kill(worker)
                worker = await workers.start()
            answers += [(await chat.answer(each)).output for each in sent]
    loom.started.append(chat.run_id)

    assert answers == [f"you said: message {n}" for n in range(count)]
    status = await loom.until(chat.run_id, lambda status: status["chat"] is not None)
    assert (status["chat"]["received"], status["chat"]["answered"]) == (count, count)
    events = [event.task for event in await told(loom.client, chat.run_id)]
    answers_told = [task for task in events if task.action is Action.ANSWER]
    answered = Counter(message for task in answers_told for message in task.parameters["message_ids"])
    assert answered == {f"id-{n}": 1 for n in range(count)}
    # A model call that a dying worker broke off is made again. Its words are the same.
    asked = {words(request)[-1]: words(request) for request in model.requests}
    said = [each for n in range(count) for each in (f"message {n}", f"you said: message {n}")]
    assert [asked[f"message {n}"] for n in range(count)] == [said[: 2 * n + 1] for n in range(count)]
