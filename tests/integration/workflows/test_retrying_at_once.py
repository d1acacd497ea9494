"""One end of a run is continued once, however many clients retry it, at once or late: a real server."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
)

from loom import LoomClient
from loom.activities.adapters.temporal import retries, runs
from loom.domain.core.errors import RefusedError, UnreachableError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult, RunStatus
from loom.testing.harness import Harness
from loom.testing.model_server import Reply, SeenRequest, calls, text
from loom.testing.model_server import ToolUse as Use
from loom.testing.waiting import eventually
from loom.workflows.payload_converter import data_converter
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_retrying import ASK, BROKEN, aborted, broken_until, each_ran_once, marks


class Held(Interceptor):
    """Holds its client after its first look at the run."""

    def __init__(self) -> None:
        self.has_looked = asyncio.Event()
        self.may_go_on = asyncio.Event()

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        held = self

        class Outbound(OutboundInterceptor):
            async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:  # noqa: A002
                description = await super().describe_workflow(input)
                held.has_looked.set()
                await held.may_go_on.wait()
                return description

        return Outbound(next)


async def client_of(loom: Harness, *interceptors: Interceptor) -> LoomClient:
    """A further client of the same server, as in another process."""
    temporal = await Client.connect(
        loom.settings.temporal_address,
        namespace=loom.settings.temporal_namespace,
        data_converter=data_converter(),
        interceptors=interceptors,
    )
    return LoomClient(temporal, task_queue=loom.client.task_queue)


async def told(retrying: Awaitable[JsonObject]) -> JsonObject | str:
    """The receipt of a retry, or what its caller is told instead."""
    try:
        return await retrying
    except RefusedError as error:
        said = error.message
    assert "fork" not in said
    return said


async def late(loom: Harness, run_id: str, meanwhile: Callable[[], Awaitable[Any]], **changes: Any) -> JsonObject | str:
    """Retry the run with a client that looks at it, and goes on only after what happens meanwhile."""
    held = Held()
    second = asyncio.create_task(told((await client_of(loom, held)).retry(run_id, **changes)))
    await held.has_looked.wait()
    await meanwhile()
    held.may_go_on.set()
    return await second


async def current(loom: Harness, run_id: str) -> WorkflowExecutionDescription:
    return await loom.client.temporal.get_workflow_handle(run_id).describe()


async def continued_by(loom: Harness, run_id: str, execution: str) -> str:
    """The execution that continues this one after its end, as the server knows it."""
    ended = await loom.client.temporal.get_workflow_handle(run_id, run_id=execution).describe()
    return ended.raw_description.workflow_extended_info.reset_run_id


async def chain(loom: Harness, run_id: str, execution: str) -> list[WorkflowExecutionDescription]:
    """This execution, the one that continues it after its end, and so on."""
    found: list[WorkflowExecutionDescription] = []
    while execution:
        found.append(await loom.client.temporal.get_workflow_handle(run_id, run_id=execution).describe())
        execution = found[-1].raw_description.workflow_extended_info.reset_run_id
    return found


async def asking_again(loom: Harness, run_id: str) -> str:
    """Retry a run that ended while it asked. Return its execution, which asks again."""
    await loom.client.retry(run_id, by="ann")
    await loom.asked(run_id)
    return (await current(loom, run_id)).run_id


async def approved(loom: Harness, run_id: str) -> RunResult:
    """Approve what the run asks, and wait for its end."""
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    return await loom.client.result(run_id)


async def test_a_late_retry_leaves_a_run_alone_that_has_ended_and_been_retried_again(
    working: Working, workspace: Path
) -> None:
    loom, _ = await working(lambda request: marks(request, 1))
    run_id = await loom.start(permissions=ASK)
    await loom.asked(run_id)
    await aborted(loom, run_id)

    asking: list[str] = []

    async def meanwhile() -> None:
        await asking_again(loom, run_id)
        await aborted(loom, run_id)
        asking.append(await asking_again(loom, run_id))

    answer = await late(loom, run_id, meanwhile, message="leave it")
    after = await approved(loom, run_id)

    assert (await current(loom, run_id)).run_id == asking[0]
    assert (after.status, after.retries) == (RunStatus.COMPLETED, 2)
    assert each_ran_once(workspace, 1)
    assert answer == (
        f"another retry by ann has already continued this end of run {run_id!r}, which is running;"
        " this request's message had no effect"
    )


async def test_a_late_retry_is_told_that_the_run_has_completed(working: Working, workspace: Path) -> None:
    is_back = asyncio.Event()
    loom, _ = await working(broken_until(is_back), patience=0, max_mode="bypass")
    run_id = await loom.start(mode="bypass")
    await loom.client.result(run_id)
    is_back.set()

    async def meanwhile() -> None:
        await loom.client.retry(run_id)
        assert (await loom.client.result(run_id)).output == "finished"

    answer = await late(loom, run_id, meanwhile)

    assert answer == (f"another retry has already continued this end of run {run_id!r}, which has since completed")
    assert (await loom.client.result(run_id)).retries == 1
    assert each_ran_once(workspace)
    assert "since completed" in str(await told(loom.client.retry(run_id)))


@pytest.mark.slow
async def test_a_late_retry_leaves_a_run_alone_that_has_continued_as_new(working: Working, workspace: Path) -> None:
    is_back = asyncio.Event()

    def reply(request: SeenRequest) -> Reply:
        if request.turn == 2 and not is_back.is_set():
            return BROKEN
        return calls(Use("bash", {"command": "true"}, f"b{request.turn}")) if request.turn < 30 else text("finished")

    loom, _ = await working(reply, patience=0, rotate_after_events=100, max_mode="bypass")
    run_id = await loom.start(mode="bypass", max_turns=50)
    await loom.client.result(run_id)
    ended = (await current(loom, run_id)).run_id
    is_back.set()

    async def meanwhile() -> None:
        await loom.client.retry(run_id)
        first = await continued_by(loom, run_id, ended)

        async def has_continued_as_new() -> bool:
            return (await current(loom, run_id)).run_id != first

        await eventually(has_continued_as_new)

    await late(loom, run_id, meanwhile)

    after = await loom.client.result(run_id)
    assert (after.output, after.retries, after.turns) == ("finished", 1, 31)


async def test_a_late_retry_with_the_same_wishes_gets_a_receipt_and_sends_nothing(
    working: Working, workspace: Path
) -> None:
    loom, _ = await working(lambda request: marks(request, 1))
    run_id = await loom.start(permissions=ASK)
    await loom.asked(run_id)
    await aborted(loom, run_id)
    asking: list[str] = []

    async def meanwhile() -> None:
        asking.append(await asking_again(loom, run_id))

    answer = await late(loom, run_id, meanwhile)
    await approved(loom, run_id)

    assert answer == {"accepted": True, "run_id": run_id, "after": "aborted", "retried_by": "ann"}
    assert (await current(loom, run_id)).run_id == asking[0]


async def test_a_retry_waits_for_one_that_is_about_to_reset_the_run(working: Working, workspace: Path) -> None:
    loom, _ = await working(lambda request: marks(request, 1))
    run_id = await loom.start(permissions=ASK)
    await loom.asked(run_id)
    await aborted(loom, run_id)
    ended = (await current(loom, run_id)).run_id
    first, second = await client_of(loom), await client_of(loom)
    is_about_to, may_reset, has_to_wait = asyncio.Event(), asyncio.Event(), asyncio.Event()
    reset, start = first.temporal.workflow_service.reset_workflow_execution, second.temporal.start_workflow

    async def resets(*args: Any, **options: Any) -> Any:
        is_about_to.set()
        await may_reset.wait()
        return await reset(*args, **options)

    async def starts(*args: Any, **options: Any) -> Any:
        try:
            return await start(*args, **options)
        finally:
            has_to_wait.set()

    with (
        patch.object(first.temporal.workflow_service, "reset_workflow_execution", resets),
        patch.object(second.temporal, "start_workflow", starts),
    ):
        one = asyncio.create_task(told(first.retry(run_id, by="ann")))
        await is_about_to.wait()
        other = asyncio.create_task(told(second.retry(run_id, message="leave it")))
        await has_to_wait.wait()
        may_reset.set()
        answers = await asyncio.gather(one, other)

    assert answers[0] == {"accepted": True, "run_id": run_id, "after": "aborted"}
    assert "another retry by ann" in str(answers[1])
    running = await current(loom, run_id)
    assert (running.status, running.run_id) == (
        WorkflowExecutionStatus.RUNNING,
        await continued_by(loom, run_id, ended),
    )


async def test_a_run_that_a_dead_client_has_only_reset_is_continued_from_its_second_end(
    working: Working, workspace: Path
) -> None:
    is_back = asyncio.Event()
    loom, _ = await working(broken_until(is_back), patience=0, max_mode="bypass")
    run_id = await loom.start(mode="bypass")
    await loom.client.result(run_id)
    ended = (await current(loom, run_id)).run_id
    dying = await client_of(loom)

    async def meanwhile() -> None:
        with patch.object(WorkflowHandle, "signal", _dies), pytest.raises(_Died):
            await dying.retry(run_id, max_turns=5)
        second = await continued_by(loom, run_id, ended)
        assert second != ended
        result = await loom.client.result(run_id)
        assert (result.status, result.retries) == (RunStatus.FAILED, 0)
        assert (await current(loom, run_id)).run_id == second
        is_back.set()

    answer = await late(loom, run_id, meanwhile, by="bob")

    assert answer == {"accepted": True, "run_id": run_id, "after": "failed"}
    after = await loom.client.result(run_id)
    assert (after.output, after.retries) == ("finished", 1)
    assert each_ran_once(workspace)


class _Died(Exception):
    """A client is gone."""


async def _dies(*_: object, **__: object) -> None:
    raise _Died


async def test_a_retry_waits_no_longer_for_a_dead_client_than_its_claim_lasts(working: Working) -> None:
    is_back = asyncio.Event()
    loom, _ = await working(broken_until(is_back), patience=0, max_mode="bypass")
    run_id = await loom.start(mode="bypass")
    await loom.client.result(run_id)
    is_back.set()
    claim = await loom.client.temporal.start_workflow(
        retries.CLAIM, id=f"retry:{run_id}", task_queue=retries.CLAIM, execution_timeout=timedelta(seconds=1)
    )
    assert (await loom.client.retry(run_id))["accepted"]
    left = loom.client.temporal.get_workflow_handle(claim.id, run_id=claim.result_run_id)
    assert (await left.describe()).status is WorkflowExecutionStatus.TIMED_OUT
    assert (await loom.client.result(run_id)).output == "finished"


async def test_a_retry_whose_claim_may_not_outlast_the_reset_changes_nothing(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    loom, _ = await working(broken_until(asyncio.Event()), patience=0, max_mode="bypass")
    run_id = await loom.start(mode="bypass")
    await loom.client.result(run_id)
    ended = (await current(loom, run_id)).run_id
    monkeypatch.setattr(retries, "RESET_LIMIT", retries.CLAIM_LIMIT + timedelta(seconds=1))
    with pytest.raises(UnreachableError, match="changed nothing"):
        await loom.client.retry(run_id)
    assert (await current(loom, run_id)).run_id == ended


async def test_a_retry_of_a_run_that_goes_on_is_told_so(working: Working) -> None:
    loom, _ = await working(lambda request: marks(request, 1))
    run_id = await loom.start(permissions=ASK)
    await loom.asked(run_id)
    await aborted(loom, run_id)
    await asking_again(loom, run_id)
    for changes in ({}, {"max_turns": 9}):
        assert "a retry has already continued it" in str(await told(loom.client.retry(run_id, **changes)))


async def test_without_a_worker_a_running_run_is_not_sent_limits_that_it_would_ignore(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    loom, _ = await working(lambda request: marks(request, 1))
    monkeypatch.setattr(runs, "UPDATE_LIMIT", 0.2)
    nobody = LoomClient(loom.client.temporal, task_queue="no-worker-polls-this")
    run_id = await nobody.start("wait")
    with pytest.raises(UnreachableError, match="hasn't ended"):
        await nobody.retry(run_id, message="leave it")
    assert (await nobody.retry(run_id))["queued"]
    await loom.client.temporal.get_workflow_handle(run_id).terminate()


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.slow)])
async def test_of_retries_at_once_one_continues_the_run_and_the_others_are_told(working: Working, rounds: int) -> None:
    back: set[str] = set()
    asked: list[str] = []

    def reply(request: SeenRequest) -> Reply:
        task = str(request.messages[1]["content"])
        if request.turn == 0:
            return calls(Use("bash", {"command": "true"}, "b1"))
        asked.append(task)
        return text("finished") if any(name in task for name in back) else BROKEN

    loom, _ = await working(reply, patience=0, max_mode="bypass")
    clients = [await client_of(loom) for _ in range(3)]
    for number in range(rounds):
        asked.clear()
        name = f"task-{number}-"
        run_id = await loom.start(name, mode="bypass")
        await loom.client.result(run_id)
        ended = (await current(loom, run_id)).run_id
        back.add(name)
        held = Held()
        latest = asyncio.create_task(told((await client_of(loom, held)).retry(run_id)))
        await held.has_looked.wait()

        answers = await asyncio.gather(*(told(client.retry(run_id, by=f"b{n}")) for n, client in enumerate(clients)))
        after = await loom.client.result(run_id)
        held.may_go_on.set()
        answers += [await latest, await told(loom.client.retry(run_id))]

        assert (after.output, after.retries) == ("finished", 1), answers
        now = await current(loom, run_id)
        assert now.status is WorkflowExecutionStatus.COMPLETED, answers
        # On a busy machine, a run may end again before its retry arrives. That end is then the one that is continued.
        *ends, last = await chain(loom, run_id, ended)
        assert {each.status for each in ends} == {WorkflowExecutionStatus.FAILED}, answers
        assert last.run_id == now.run_id, answers
        assert len(asked) == 2, answers
        plain = [each for each in answers if isinstance(each, dict) and "retried_by" not in each]
        assert len(plain) == 1, answers
