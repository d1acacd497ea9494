"""An ended run that is retried goes on from its end, under its own id: real providers, a real server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    SignalWorkflowInput,
    WorkflowExecutionStatus,
)

from loom.activities.adapters.temporal.retries import TemporalRetries
from loom.domain.core.errors import RefusedError
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tenants import TenantLimits
from loom.domain.machine.reopening import GOES_ON, INTERRUPTED
from loom.testing.harness import Harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, status, text
from loom.testing.stream import told
from loom.testing.waiting import eventually
from loom.watching import Streamed
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_crews import start as start_crew
from tests.integration.workflows.test_crews import team, you
from tests.integration.workflows.test_signed_requests import stranger
from tests.trees import by_task, delegate

BROKEN = status(401, message="no such key")
ASK = {"bash": "ask"}


def mark(number: int, then: str = "") -> Reply:
    """A call that leaves a line in a file of its own each time that it runs."""
    return calls(ToolUse("bash", {"command": f"echo once >> mark-{number}; {then}"}, f"mark-{number}"))


def marks(request: SeenRequest, number: int = 3) -> Reply:
    """So many marks, each in a turn of its own, and then an answer. A mark that was not made is made later."""
    results = [message for message in request.messages if message["role"] == "tool"]
    made = sum("not run" not in str(result["content"]) for result in results)
    return mark(made) if made < number else text("finished")


def broken_until(is_back: asyncio.Event, after: int = 2) -> Callable[[SeenRequest], Reply]:
    """The provider rejects the key after so many marks, until it is back."""
    return lambda request: marks(request) if is_back.is_set() or request.turn < after else BROKEN


def each_ran_once(workspace: Path, number: int = 3) -> bool:
    """Whether each mark was left exactly once."""
    left = {file.name: file.read_text() for file in workspace.glob("mark-*")}
    return left == {f"mark-{made}": "once\n" for made in range(number)}


async def retried(loom: Harness, run_id: str, **changes: Any) -> RunResult:
    """Retry the run, and wait for its next end."""
    receipt = await loom.client.retry(run_id, by="bob", **changes)
    assert receipt["accepted"]
    return await loom.client.result(run_id)


async def aborted(loom: Harness, run_id: str) -> RunResult:
    """Abort the run, and wait for its end."""
    await loom.client.abort(run_id, by="ann")
    result = await loom.client.result(run_id)
    assert result.status is RunStatus.ABORTED
    return result


async def test_a_run_whose_key_was_rejected_goes_on_under_its_id_and_each_tool_has_run_once(
    working: Working, workspace: Path
) -> None:
    is_back = asyncio.Event()
    loom, server = await working(broken_until(is_back), patience=0)
    run_id = await loom.start(mode="bypass")
    before = await loom.client.result(run_id)
    assert (before.status, before.turns) == (RunStatus.FAILED, 3)
    asked = len(server.requests)

    is_back.set()
    after = await retried(loom, run_id)

    assert (after.status, after.output, after.turns, after.retries) == (RunStatus.COMPLETED, "finished", 4, 1)
    assert each_ran_once(workspace)
    assert len(server.requests) == asked + 2
    assert after.usage["model_calls"] == 4
    events = await told(loom.client, run_id)
    assert [event.offset for event in events] == list(range(1, len(events) + 1))
    assert len({event.task.task_id for event in events}) == len(events)
    ends = [e.task.action for e in events if e.task.action in (Action.ERROR, Action.RETRIED, Action.COMPLETE)]
    assert ends == [Action.ERROR, Action.RETRIED, Action.COMPLETE]
    (said,) = [event.task.parameters for event in events if event.task.action is Action.RETRIED]
    assert said == {"after": "failed", "error": "LLMConfigurationError", "number": 1, "by": "bob"}


@pytest.mark.slow
async def test_a_retried_run_is_listed_once_with_the_status_that_it_has_now(working: Working) -> None:
    is_back = asyncio.Event()
    loom, _ = await working(broken_until(is_back), patience=0)
    run_id = await loom.start(mode="bypass")
    await loom.client.result(run_id)

    async def listed(status: str | None = None) -> list[str]:
        return [each.status for each in await loom.client.list(status=status, limit=500) if each.run_id == run_id]

    assert await eventually(lambda: listed("failed")) == ["failed"]
    is_back.set()
    await retried(loom, run_id)
    assert await eventually(lambda: listed("completed")) == ["completed"]
    assert (await listed(), await listed("failed")) == (["completed"], [])
    assert (await loom.client.status(run_id))["status"] == "completed"


async def test_a_watcher_sees_the_run_go_on_also_from_before_its_retry_is_noticed(working: Working) -> None:
    is_back = asyncio.Event()
    loom, _ = await working(broken_until(is_back), patience=0)
    run_id = await loom.start(mode="bypass")
    await loom.client.result(run_id)

    async def watched(events: AsyncIterator[Any]) -> list[Action]:
        return [event.task.action async for event in events if isinstance(event, Streamed)]

    assert (await watched(loom.client.watch(run_id)))[-1] is Action.ERROR
    is_back.set()
    await loom.client.retry(run_id)
    seen = await watched(loom.client.watch(run_id))
    assert (seen[-1], seen.count(Action.ERROR), seen.count(Action.RETRIED)) == (Action.COMPLETE, 1, 1)


@pytest.mark.parametrize(
    ("limits", "larger", "reached"),
    [
        ({"max_turns": 2}, {"max_turns": 6}, RunStatus.LIMIT_REACHED),
        ({"budget": {"tool_calls": 2}}, {"budget": {"tool_calls": 9}}, RunStatus.BUDGET_EXHAUSTED),
        ({"budget": {"tokens": 40}}, {"budget": {"tokens": 100_000}}, RunStatus.BUDGET_EXHAUSTED),
        ({"budget": {"turns": 2}}, {"budget": {"turns": 9}}, RunStatus.BUDGET_EXHAUSTED),
    ],
    ids=["turns", "tool calls", "tokens", "turns in all"],
)
async def test_a_run_that_reached_a_limit_goes_on_with_a_larger_one(
    working: Working, workspace: Path, limits: Any, larger: Any, reached: RunStatus
) -> None:
    def reply(request: SeenRequest) -> Reply:
        has_tools = bool(request.body.get("tools"))
        return marks(request) if has_tools else text("so far")

    loom, server = await working(reply)
    run_id = await loom.start(mode="bypass", **limits)
    before = await loom.client.result(run_id)
    assert before.status is reached
    with pytest.raises(RefusedError, match="name a larger one"):
        await loom.client.retry(run_id)

    after = await retried(loom, run_id, **larger)

    assert (after.status, after.output) == (RunStatus.COMPLETED, "finished")
    assert each_ran_once(workspace)
    assert after.usage["total_tokens"] > before.usage["total_tokens"]
    assert any(GOES_ON in str(message) for message in server.requests[-1].messages)


async def test_a_run_that_was_aborted_in_a_tool_does_not_run_it_again(working: Working, workspace: Path) -> None:
    def reply(request: SeenRequest) -> Reply:
        return text("finished") if INTERRUPTED[:40] in str(request.messages) else mark(0, "sleep 60")

    loom, server = await working(reply)
    run_id = await loom.start(mode="bypass")
    await eventually(lambda: asyncio.to_thread((workspace / "mark-0").exists))
    await aborted(loom, run_id)

    after = await retried(loom, run_id, message="leave it")

    assert (after.status, after.output) == (RunStatus.COMPLETED, "finished")
    assert each_ran_once(workspace, 1)
    assert "leave it" in str(server.requests[-1].messages)


async def test_an_ask_that_was_open_at_the_abort_can_be_answered_after_the_retry(
    working: Working, workspace: Path
) -> None:
    loom, server = await working(lambda request: marks(request, 1))
    run_id = await loom.start(permissions=ASK)
    await loom.asked(run_id)
    await aborted(loom, run_id)
    asked = len(server.requests)

    await loom.client.retry(run_id)
    await loom.asked(run_id)
    await loom.client.approve(run_id)

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert each_ran_once(workspace, 1)
    assert len(server.requests) == asked + 1


async def test_a_run_that_was_cancelled_through_temporal_can_be_retried(working: Working, workspace: Path) -> None:
    loom, _ = await working(lambda request: marks(request, 1))
    run_id = await loom.start(permissions=ASK)
    await loom.asked(run_id)
    await loom.client.temporal.get_workflow_handle(run_id).cancel()
    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED

    await loom.client.retry(run_id)
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED


async def test_a_run_whose_patience_ran_out_finishes_when_it_is_retried(working: Working, workspace: Path) -> None:
    is_back = asyncio.Event()

    def reply(request: SeenRequest) -> Reply:
        return marks(request) if is_back.is_set() or request.turn < 2 else status(500)

    loom, _ = await working(reply, patience=1, model_attempts=1)
    run_id = await loom.start(mode="bypass")
    assert (await loom.client.result(run_id)).status is RunStatus.FAILED
    is_back.set()

    assert (await retried(loom, run_id)).output == "finished"
    assert each_ran_once(workspace)


async def test_a_run_out_of_time_goes_on_until_its_new_deadline(working: Working, workspace: Path) -> None:
    def reply(request: SeenRequest) -> Reply:
        return text("finished") if INTERRUPTED[:40] in str(request.messages) else mark(0, "sleep 60")

    loom, _ = await working(reply)
    run_id = await loom.start(mode="bypass", budget={"seconds": 5})
    assert (await loom.client.result(run_id)).status is RunStatus.BUDGET_EXHAUSTED
    assert (await retried(loom, run_id, budget={"seconds": 3600})).output == "finished"
    assert each_ran_once(workspace, 1)


async def test_a_run_can_be_retried_again_and_again(working: Working, workspace: Path) -> None:
    may_make = 1

    def reply(request: SeenRequest) -> Reply:
        return marks(request) if request.turn < may_make else BROKEN

    loom, _ = await working(reply, patience=0)
    run_id = await loom.start(mode="bypass")
    for number in range(3):
        result = await loom.client.result(run_id)
        assert (result.status, result.retries) == (RunStatus.FAILED, number)
        may_make += 1
        await loom.client.retry(run_id)
    assert (await loom.client.result(run_id)).output == "finished"
    assert each_ran_once(workspace)


@pytest.mark.slow
async def test_a_run_that_had_continued_as_new_is_retried_in_its_last_execution(
    working: Working, workspace: Path
) -> None:
    is_back = asyncio.Event()

    def reply(request: SeenRequest) -> Reply:
        return marks(request, 12) if is_back.is_set() or request.turn < 10 else BROKEN

    loom, _ = await working(reply, patience=0, rotate_after_events=100)
    run_id = await loom.start(mode="bypass")
    assert (await loom.client.result(run_id)).turns == 11
    assert len(await loom.histories(run_id)) > 1
    is_back.set()
    assert (await retried(loom, run_id)).output == "finished"
    assert each_ran_once(workspace, 12)


async def test_two_retries_of_one_end_count_as_one(working: Working, workspace: Path) -> None:
    is_back = asyncio.Event()
    loom, _ = await working(broken_until(is_back), patience=0)
    run_id = await loom.start(mode="bypass")
    await loom.client.result(run_id)
    is_back.set()
    await asyncio.gather(loom.client.retry(run_id), loom.client.retry(run_id), return_exceptions=True)
    after = await loom.client.result(run_id)
    assert (after.output, after.retries) == ("finished", 1)
    assert each_ran_once(workspace)


@pytest.mark.slow
async def test_a_run_that_ends_again_before_the_retry_reaches_it_is_reset_once_more(
    working: Working, workspace: Path
) -> None:
    is_back = asyncio.Event()
    loom, _ = await working(broken_until(is_back), patience=0)
    run_id = await loom.start(mode="bypass")
    await loom.client.result(run_id)
    is_back.set()
    config = loom.client.temporal.config()
    slow = Client(**{**config, "interceptors": [*config["interceptors"], _SlowOnce()]})
    ended = await slow.get_workflow_handle(run_id).describe()

    await TemporalRetries(slow).reopen(run_id, ended.run_id, {"end": 1})

    after = await loom.client.result(run_id)
    assert (after.output, after.retries) == ("finished", 1)
    assert each_ran_once(workspace)
    events = await told(loom.client, run_id)
    assert [event.task.action for event in events].count(Action.ERROR) == 1
    assert [each.status for each in await loom.client.list(limit=500) if each.run_id == run_id] == ["completed"]


class _SlowOnce(Interceptor):
    """Sends its first signal only when the run has ended."""

    def __init__(self) -> None:
        self._signals = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        slow = self

        class Outbound(OutboundInterceptor):
            async def signal_workflow(self, input: SignalWorkflowInput) -> None:  # noqa: A002
                slow._signals += 1

                async def has_ended() -> bool:
                    described = DescribeWorkflowInput(
                        id=input.id, run_id=input.run_id, rpc_metadata={}, rpc_timeout=None
                    )
                    return (await self.describe_workflow(described)).status is not WorkflowExecutionStatus.RUNNING

                if slow._signals == 1:
                    await eventually(has_ended)
                await super().signal_workflow(input)

        return Outbound(next)


async def test_a_parent_goes_on_and_its_finished_children_do_not_run_again(working: Working, workspace: Path) -> None:
    is_back = asyncio.Event()

    def parent(request: SeenRequest) -> Reply:
        if request.turn == 0:
            return calls(delegate("look", "child: make a mark", "d1", tools=["bash"]))
        return text("all done") if is_back.is_set() else BROKEN

    def reply(request: SeenRequest) -> Reply:
        return marks(request, 1) if "child: make a mark" in str(request.messages[:2]) else parent(request)

    loom, _ = await working(reply, patience=0)
    run_id = await loom.start("parent", mode="bypass")
    before = await loom.client.result(run_id)
    assert (before.status, len(before.children)) == (RunStatus.FAILED, 1)
    with pytest.raises(RefusedError, match="sub-agent"):
        await loom.client.retry(str(before.children[0]["run_id"]))

    is_back.set()
    after = await retried(loom, run_id)

    assert (after.status, after.output) == (RunStatus.COMPLETED, "all done")
    assert [child["run_id"] for child in after.children] == [child["run_id"] for child in before.children]
    assert each_ran_once(workspace, 1)


async def test_a_run_that_was_aborted_with_its_child_hears_what_became_of_it(working: Working) -> None:
    child_waits = calls(ToolUse("bash", {"command": "true"}, "b1"))

    def reply(request: SeenRequest) -> Reply:
        if "child: wait" in str(request.messages[:2]):
            return child_waits
        return calls(delegate("wait", "child: wait", "d1", tools=["bash"])) if request.turn == 0 else text("all done")

    loom, server = await working(reply)
    run_id = await loom.start("parent", permissions=ASK)
    await loom.asked(run_id)
    await aborted(loom, run_id)

    assert (await retried(loom, run_id)).output == "all done"
    results = [message for message in server.requests[-1].messages if message["role"] == "tool"]
    assert "aborted" in str(results[-1])


async def test_a_crew_goes_on_with_the_member_that_failed(working: Working) -> None:
    is_back = asyncio.Event()

    def reply(request: SeenRequest) -> Reply:
        if you("searcher") in str(request.messages):
            return text("three facts")
        return text("a report") if is_back.is_set() else BROKEN

    loom, server = await working(reply, patience=0)
    run_id = await start_crew(loom, team("sequential", "searcher", "writer"))
    before = await loom.client.result(run_id)
    assert before.status is RunStatus.FAILED
    is_back.set()

    after = await retried(loom, run_id)

    assert (after.status, after.output) == (RunStatus.COMPLETED, "a report")
    assert sum(you("searcher") in str(request.messages) for request in server.requests) == 1


async def test_a_run_that_got_more_turns_is_not_shown_with_its_old_limit(working: Working, workspace: Path) -> None:
    loom, _ = await working(marks)
    run_id = await loom.start(mode="bypass", max_turns=2)
    error = (await loom.client.result(run_id)).error
    assert error is not None
    assert f"Continue with `loom retry {run_id} --max-turns N`, or split the task." in error.message

    assert (await retried(loom, run_id, max_turns=9)).output == "finished"

    status = await loom.client.status(run_id)
    assert (status["turn"], status["max_turns"], status["budget"]["turns"]["limit"]) == (5, None, None)
    assert each_ran_once(workspace)


async def test_a_run_of_a_tenant_is_admitted_again(working: Working, workspace: Path) -> None:
    is_back = asyncio.Event()
    loom, _ = await working(broken_until(is_back), patience=0, tenants={"acme": TenantLimits(runs=1)})
    run_id = await loom.start(mode="bypass", tenant="acme")
    assert (await loom.client.result(run_id)).status is RunStatus.FAILED
    is_back.set()
    assert (await retried(loom, run_id)).output == "finished"
    assert each_ran_once(workspace)


async def test_a_completed_run_and_one_that_the_server_ended_are_not_retried(working: Working) -> None:
    loom, _ = await working(by_task({"quick": [text("done")], "slow": [mark(0)]}))
    done = await loom.start("quick")
    await loom.client.result(done)
    with pytest.raises(RefusedError, match="loom fork"):
        await loom.client.retry(done)
    asks = await loom.start("slow", permissions=ASK)
    await loom.asked(asks)
    with pytest.raises(RefusedError, match="has not ended"):
        await loom.client.retry(asks, max_turns=9)
    await loom.client.temporal.get_workflow_handle(asks).terminate("gone")
    with pytest.raises(RefusedError):
        await loom.client.retry(asks)


async def test_a_signed_run_goes_on_only_for_the_owner_of_the_key(working: Working, workspace: Path) -> None:
    loom, _ = await working(lambda request: marks(request, 1), require_signed="on")
    run_id = await loom.start(permissions=ASK)
    await loom.asked(run_id)
    await aborted(loom, run_id)

    outside = await stranger(loom)
    described = await outside.get_workflow_handle(run_id).describe()
    await TemporalRetries(outside).reopen(run_id, described.run_id, {"end": 1})
    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED

    await loom.client.retry(run_id)
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert each_ran_once(workspace, 1)
