"""A worker has stood still: its tools wait until it is known that their calls are still wanted."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, Final

import pytest
import structlog

from loom.activities import fence as fences
from loom.activities.fence import STANDSTILL, Fence
from loom.activities.publish import INTERVAL
from loom.domain.core.errors import ExecutionAbortedError
from loom.testing.waiting import eventually
from loom.workflows.options import LEASED_HEARTBEAT

pytestmark = pytest.mark.timeout(60)

WANTED: Final = True
UNWANTED: Final = False
UNKNOWN: Final = None


class Worker:
    """A worker that can stand still, and a run that says what it wants."""

    def __init__(self) -> None:
        self.time = 0.0
        self.asked = 0
        self.answers: asyncio.Queue[bool | None] = asyncio.Queue()

    def stand_still(self) -> None:
        self.time += 10 * STANDSTILL

    async def is_wanted(self, _: asyncio.Task[Any] | None) -> bool | None:
        self.asked += 1
        return await self.answers.get()

    async def was_asked(self, times: int = 1) -> None:
        async def look() -> bool:
            return self.asked == times

        await eventually(look)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker with a clock of its own."""
    worker = Worker()
    monkeypatch.setattr(fences, "_now", lambda: worker.time)
    monkeypatch.setattr(fences, "AGAIN", 0.0)
    return worker


class Tool:
    """Two steps, and what it did of them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.may_go_on = asyncio.Event()

    async def __call__(self) -> str:
        self.done.append("first")
        try:
            await self.may_go_on.wait()
        except asyncio.CancelledError:
            self.done.append("cancelled")
            raise
        self.done.append("second")
        return "result"

    async def has_begun(self) -> bool:
        return bool(self.done)


async def attempt(worker: Worker, tool: Tool) -> str:
    """An attempt at a call of the tool."""
    with Fence(worker.is_wanted) as fence:
        return await fence.held_back(tool)


async def stood_still(worker: Worker, tool: Tool) -> asyncio.Task[str]:
    """An attempt whose worker has stood still in the first step of the tool. Nothing keeps it from the second."""
    task = asyncio.create_task(attempt(worker, tool))
    await eventually(tool.has_begun)
    worker.stand_still()
    tool.may_go_on.set()
    await worker.was_asked()
    assert tool.done == ["first"]
    return task


def test_no_run_ends_during_a_standstill_that_goes_unnoticed() -> None:
    assert LEASED_HEARTBEAT.total_seconds() - INTERVAL > STANDSTILL


async def test_a_tool_whose_worker_goes_on_asks_nobody(worker: Worker) -> None:
    tool = Tool()
    tool.may_go_on.set()
    assert (await attempt(worker, tool), worker.asked) == ("result", 0)


async def test_a_tool_goes_on_once_it_is_known_that_its_call_is_wanted(worker: Worker) -> None:
    tool = Tool()
    task = await stood_still(worker, tool)
    worker.answers.put_nowait(UNKNOWN)
    await worker.was_asked(2)
    assert tool.done == ["first"]
    worker.answers.put_nowait(WANTED)
    assert await task == "result"
    assert tool.done == ["first", "second"]


async def test_a_tool_whose_call_nobody_wants_is_cancelled_before_its_next_step(worker: Worker) -> None:
    tool = Tool()
    task = await stood_still(worker, tool)
    with structlog.testing.capture_logs() as logs:
        worker.answers.put_nowait(UNWANTED)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert tool.done == ["first", "cancelled"]
    assert [(log["event"], log["call_goes_on"]) for log in logs] == [("worker_stood_still", False)]


async def test_a_tool_that_waits_is_cancelled_where_it_waits(worker: Worker) -> None:
    tool = Tool()
    task = asyncio.create_task(attempt(worker, tool))
    await eventually(tool.has_begun)
    worker.answers.put_nowait(UNWANTED)
    worker.stand_still()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tool.done == ["first", "cancelled"]


async def test_a_tool_whose_await_fails_does_not_go_on_until_its_call_is_known_to_be_wanted(worker: Worker) -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done: list[str] = []

    async def work() -> None:
        try:
            await answer
        except ConnectionError:
            done.append("retried")

    with Fence(worker.is_wanted) as fence:
        task = asyncio.create_task(fence.held_back(work))
        await asyncio.sleep(0)
        worker.stand_still()
        answer.set_exception(ConnectionError())
        await worker.was_asked()
        assert done == []
        worker.answers.put_nowait(WANTED)
        await task
    assert done == ["retried"]


async def test_an_answer_that_fails_is_no_answer(worker: Worker) -> None:
    tool, answers = Tool(), iter((ValueError("broken"), True))

    async def is_wanted(_: object) -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    tool.may_go_on.set()
    with Fence(is_wanted) as fence, structlog.testing.capture_logs() as logs:
        worker.stand_still()
        assert await fence.held_back(tool) == "result"
    assert [log["event"] for log in logs] == ["call_in_doubt", "worker_stood_still"]


async def test_a_tool_that_has_not_begun_does_not_begin(worker: Worker) -> None:
    tool = Tool()
    worker.answers.put_nowait(UNWANTED)
    with Fence(worker.is_wanted) as fence:
        worker.stand_still()
        with pytest.raises(asyncio.CancelledError):
            await fence.held_back(tool)
    assert tool.done == []


async def test_what_a_tool_awaits_is_the_same_behind_a_fence(worker: Worker) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    async def work() -> list[object]:
        seen: list[object] = list(await asyncio.gather(fail(), asyncio.sleep(0, "slept"), return_exceptions=True))
        with pytest.raises(ValueError, match="broken"):
            await fail()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        return seen

    with Fence(worker.is_wanted) as fence:
        broken, slept = await fence.held_back(work)
    assert (str(broken), slept) == ("broken", "slept")


def in_a_thread(work: Callable[[], None]) -> Future[None]:
    """What becomes of the work in a thread."""
    came: Future[None] = Future()

    def run() -> None:
        try:
            work()
            came.set_result(None)
        except ExecutionAbortedError as error:
            came.set_exception(error)

    Thread(target=run, daemon=True).start()
    return came


async def test_a_thread_waits_for_the_answer_and_goes_on(worker: Worker) -> None:
    with Fence(worker.is_wanted) as fence:
        worker.stand_still()
        checked = in_a_thread(fence.check)
        await worker.was_asked()
        assert not checked.done()
        worker.answers.put_nowait(WANTED)
        await asyncio.wrap_future(checked)


async def test_a_thread_whose_call_nobody_wants_learns_it_at_its_next_check(worker: Worker) -> None:
    worker.answers.put_nowait(UNWANTED)
    with Fence(worker.is_wanted) as fence:
        worker.stand_still()
        for _ in range(2):
            with pytest.raises(ExecutionAbortedError, match="this call is over: while its worker was frozen"):
                await asyncio.wrap_future(in_a_thread(fence.check))
    assert worker.asked == 1


async def test_a_thread_does_not_wait_for_an_answer_after_its_attempt(worker: Worker) -> None:
    with Fence(worker.is_wanted) as fence:
        worker.stand_still()
        checked = in_a_thread(fence.check)
        await worker.was_asked()
    with pytest.raises(ExecutionAbortedError):
        await asyncio.wrap_future(checked)
