"""Chats that rest between numbered messages, and what must hold of them: each message is answered once, in order."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

from temporalio.service import RPCError

from loom import errors
from loom.chat_session import ChatSession, SentMessage
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.run.chat import MessageState
from loom.testing.harness import Harness
from loom.testing.stream import told
from tests.chaos.replays import patiently
from tests.chaos.stories import heard, task_of
from tests.chaos.storm import CHAT_IDLE, Storm

FEWEST, MOST = 5, 60
"""How many messages a chat gets."""
PAUSES: Final = (0.0, 0.2, CHAT_IDLE.total_seconds(), CHAT_IDLE.total_seconds() + 0.5, 4.0)
"""Seconds between two messages. In the longer ones, the chat comes to rest."""
DEAF: Final = 180.0
"""Seconds after the storm after which a message without an answer counts as never heard."""
TO_END: Final = 30.0
"""Seconds that a chat has to end, or to answer when somebody has already waited for `DEAF` seconds."""
AGAIN: Final = 0.3
"""How often a message is sent a second time."""


@dataclass(kw_only=True)
class Talk:
    """A person who talks with a chat."""

    loom: Harness
    number: int
    """The run's number."""
    folder: Path
    random: Random
    counted: Counter[str]
    texts: list[str] = field(default_factory=list)
    """The messages that the server has taken, in order. A message's id is its number."""
    is_deaf: bool = False
    """Whether a person has waited for an answer in vain, and gone."""

    def __post_init__(self) -> None:
        session = f"{self.loom.settings.task_queue}-{self.number}"
        self.chat = ChatSession(self.loom.client, session, workspace=str(self.folder))

    @property
    def run_id(self) -> str:
        """The chat's run."""
        return self.chat.run_id

    async def begin(self) -> None:
        """Send the first message."""
        await self._deliver(task_of(self.number), "0", "send")
        self.texts.append(task_of(self.number))

    async def go_on(self, storm: Storm) -> None:
        """Send messages, with pauses in between, until nothing fails any more."""
        while len(self.texts) < FEWEST or (not storm.is_over and len(self.texts) < MOST):
            if self.is_deaf:
                return
            await asyncio.sleep(self.random.choice(PAUSES))
            text, message_id = f"message {len(self.texts)}", str(len(self.texts))
            ways = self.random.choices(("send", "ask", "signal"), k=2 if self.random.random() < AGAIN else 1)
            await asyncio.gather(*(self._deliver(text, message_id, way) for way in ways))
            self.counted["chat messages"] += 1
            self.counted["chat messages sent twice"] += len(ways) - 1
            self.texts.append(text)

    async def _deliver(self, text: str, message_id: str, way: str) -> None:
        """Send a message until the server has certainly taken it. To ask is to wait for the answer, too."""

        async def once() -> SentMessage | None:
            with suppress(errors.RefusedError):
                if way != "signal":
                    return await self.chat.send(text, message_id=message_id)
                handle = self.loom.client.temporal.get_workflow_handle(self.run_id)
                said = {"text": text, "message_id": message_id}
                await handle.signal("send_message", said, rpc_timeout=timedelta(seconds=5))
            return None

        sent = await patiently(once, DEAF)
        if way == "ask" and sent is not None:
            try:
                async with asyncio.timeout(DEAF):
                    await self.chat.answer(sent)
            except TimeoutError:
                self.is_deaf = True

    async def faults(self) -> list[str]:
        """Return what is wrong with the chat, after all messages have been sent. Then end it."""
        states = await asyncio.gather(*(self._outcome(str(number)) for number in range(len(self.texts))))
        wrong = [*self._of_states(states)] or [each async for each in self._of_all()]
        await self._end()
        wrong += [each async for each in self._of_stream()]
        return [f"chat {self.number} ({self.run_id}): {what}" for what in wrong]

    async def _outcome(self, message_id: str) -> MessageState:
        """Return what has become of a message, after it has had the time to be answered."""
        state = MessageState()
        with suppress(TimeoutError):
            async with asyncio.timeout(TO_END if self.is_deaf else DEAF):
                while state.answer is None:
                    with suppress(errors.UnreachableError, RPCError):
                        state = await self.chat.look(message_id)
                    await asyncio.sleep(0.5)
        return state

    def _of_states(self, states: list[MessageState]) -> Iterator[str]:
        for number, (text, state) in enumerate(zip(self.texts, states, strict=True)):
            if state.answer is None and state.handling is None:
                yield f"message {number} is lost"
            elif state.answer is None:
                yield f"deaf: message {number} is {state.handling} for good"
            elif (state.answer.status, state.answer.output) != (RunStatus.COMPLETED, heard(text)):
                yield f"message {number} got {state.answer.status} {state.answer.output!r}, {state.answer.error}"

    async def _of_all(self) -> AsyncIterator[str]:
        entries = await patiently(self.chat.messages)
        spoken = [each.text for each in entries if each.role in ("user", "assistant")]
        said = [each for each in spoken if not each.startswith("<system-reminder>")]
        if said != (due := [each for text in self.texts for each in (text, heard(text))]):
            yield f"doubled or out of order: {said} instead of {due}"
        chat = (await patiently(self.chat.status))["chat"]
        if (chat["received"], chat["answered"]) != (len(self.texts), len(self.texts)):
            yield f"{len(self.texts)} messages were sent, but {chat}"

    async def _of_stream(self) -> AsyncIterator[str]:
        events = [event.task for event in await told(self.loom.client, self.run_id)]
        answers = [task for task in events if task.action is Action.ANSWER]
        times = Counter(each for task in answers for each in task.parameters["message_ids"])
        for message_id, often in times.items():
            if often > 1:
                yield f"the stream has the answer to message {message_id} {often} times"

    async def _end(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TO_END):
                while not await patiently(lambda: self.loom.client.has_ended(self.run_id)):
                    with suppress(errors.LoomError):
                        await self.loom.client.abort(self.run_id)
                    await asyncio.sleep(0.2)
