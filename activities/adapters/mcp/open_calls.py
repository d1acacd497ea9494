"""The calls that MCP servers are working on, and the questions that servers of older protocols ask during a call.

Before the protocol 2026-07-28, a server asks while it runs a tool, over the same connection, and the question doesn't
say which call it belongs to. If exactly one call is running, the question is that call's. So after the first question,
the connection sends one call at a time; a call that waits for an answer doesn't count.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from mcp_types import CallToolResult, InputRequiredResult

from loom.activities.toolbox.mcp_tool import McpCall
from loom.domain.core.tool_input import InputAnswer, InputRequest, NeededInput

Returned: TypeAlias = CallToolResult | InputRequiredResult | NeededInput
"""What a server returns. With `NeededInput`, it runs the call as a task."""


class OpenCall:
    """A call that has been sent and hasn't returned."""

    def __init__(self, call: McpCall, task: "asyncio.Task[Returned]") -> None:
        self.call = call
        self.task = task
        self._question: InputRequest | None = None
        self._answer: asyncio.Future[InputAnswer] | None = None
        self._asked = asyncio.Event()
        self._numbers: Counter[str] = Counter()
        task.add_done_callback(lambda _: self._give_up())

    @property
    def question(self) -> InputRequest | None:
        """The question that the server waits for, or None."""
        return self._question

    def number(self, text: str) -> int:
        """Return how often the server has asked this in this call."""
        self._numbers[text] += 1
        return self._numbers[text]

    async def ask(self, request: InputRequest) -> InputAnswer:
        """Return the answer to the server's question. If the call was made before, the answer may be known."""
        if (known := next((a for a in self.call.known_answers if a.key == request.key), None)) is not None:
            return known
        self._question, self._answer = request, asyncio.get_running_loop().create_future()
        self._asked.set()
        try:
            return await self._answer
        finally:
            self._question, self._answer = None, None

    def go_on(self, call: McpCall) -> None:
        """Give the server the answer that it waits for."""
        self.call = call
        self._asked.clear()
        if self._answer is not None and self._question is not None and not self._answer.done():
            key = self._question.key
            answer = next((a for a in call.answers if a.key == key), None)
            self._answer.set_result(answer or _cancelled(self._question))

    async def outcome(self, limit: float) -> Returned | InputRequest:
        """Return the server's result, or the question that it asks first. Raises TimeoutError after `limit` seconds,
        and what the call raises.
        """
        asked = asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait({self.task, asked}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if self.task.done():
            return self.task.result()
        if self._asked.is_set() and self._question is not None:
            return self._question
        raise TimeoutError

    def cancel(self) -> None:
        """Stop the call. The library tells the server."""
        self.task.cancel()

    def _give_up(self) -> None:
        if self._answer is not None and self._question is not None and not self._answer.done():
            self._answer.set_result(_cancelled(self._question))


def _cancelled(request: InputRequest) -> InputAnswer:
    return InputAnswer(key=request.key, kind=request.kind, action="cancel", reason="the call has ended")


class OpenCalls:
    """All open calls of one connection."""

    def __init__(self) -> None:
        self._calls: list[OpenCall] = []
        self._waiting: dict[str, OpenCall] = {}

    def __iter__(self) -> Iterator[OpenCall]:
        """Iterate over the calls."""
        return iter(self._calls)

    def __bool__(self) -> bool:
        """Whether there is an open call."""
        return bool(self._calls)

    def add(self, opened: OpenCall) -> None:
        """Add a call until its server has returned."""
        self._calls.append(opened)
        opened.task.add_done_callback(lambda _: self._calls.remove(opened))

    def keep(self, opened: OpenCall) -> None:
        """Keep a call that waits for an answer, under its id."""
        self._waiting[opened.call.id] = opened

    def take(self, call_id: str) -> OpenCall | None:
        """Return the call that waits for an answer, and no longer keep it."""
        return self._waiting.pop(call_id, None)

    def abandon(self, call_id: str) -> None:
        """Stop a call that waits for an answer, because nobody needs it any more."""
        if (opened := self.take(call_id)) is not None:
            opened.cancel()

    def only(self) -> OpenCall | None:
        """Return the call that a question belongs to, or None if that isn't certain."""
        open_calls = (each for each in self._calls if not each.call.task)
        running = [each for each in open_calls if each.question is None and not each.task.done()]
        return running[0] if len(running) == 1 else None

    def of_task(self, task: str) -> OpenCall | None:
        """Return the call that waits for the result of a task."""
        return next((each for each in self._calls if each.call.task == task), None)
