"""Runs as they are seen with and without a worker: one's status, and lists of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loom.client import LoomClient
from loom.domain.core.messages import JsonObject
from loom.run_overviews import RunOverviews
from loom.status_fields import StatusFields
from loom.testing.harness import Addresses, harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.workflows.payload_converter import IN_LINE_BYTES, OUT_OF_LINE_BYTES
from tests.databases import fresh_database, rows
from tests.integration.workflows.conftest import Working
from tests.trees import by_task
from tests.typed_shapes import misfits

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
LIMITS: dict[str, Any] = {"max_turns": 9, "budget": {"tokens": 50_000, "seconds": 600}}


def keys(view: Mapping[str, Any]) -> JsonObject:
    """The names in a view, and those in the objects in it."""
    return {name: sorted(value) if isinstance(value, Mapping) else None for name, value in view.items()}


async def test_a_status_has_the_same_keys_whether_the_run_lives_is_silent_or_has_ended(working: Working) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start(**LIMITS)
    live = await loom.asked(run_id)
    await loom.client.approve(run_id)
    await loom.client.result(run_id)
    ended = await loom.client.status(run_id)
    unserved = LoomClient(loom.client.temporal, task_queue="nobody-works-here")
    silent = await unserved.start("do it", **LIMITS)
    stale = await unserved.status(silent)
    await loom.client.temporal.get_workflow_handle(silent).terminate()
    terminated = await loom.client.status(silent)

    assert stale["stale"] is True
    assert [misfits(view, StatusFields) for view in (live, ended, stale, terminated)] == [[]] * 4
    assert keys(live) == keys(ended) == {**keys(terminated), "error": None}
    assert keys(stale) == {**keys(live), "stale": None}
    assert (live["error"], ended["error"], stale["error"]) == (None, None, None)


async def test_a_status_without_a_worker_has_the_limits_that_the_run_was_started_with(working: Working) -> None:
    loom, _ = await working(script([text("done")]), context_window=20_000)
    run_id = await loom.start(**LIMITS)
    result = await loom.client.result(run_id)
    unserved = LoomClient(loom.client.temporal, task_queue="nobody-works-here")
    silent = await unserved.start("do it", **LIMITS)

    ended, stale = await loom.client.status(run_id), await unserved.status(silent)

    assert ended["usage"] == result.usage
    assert ended["budget"] == {
        "tokens": {"spent": result.usage["total_tokens"], "limit": 50_000},
        "cost_usd": {"spent": result.cost, "limit": None},
        "tool_calls": {"spent": 0, "limit": None},
        "seconds": {"limit": 600},
        "turns": {"spent": 1, "limit": 9},
    }
    assert (ended["max_turns"], ended["context"]["window"]) == (9, 20_000)
    assert (stale["max_turns"], stale["budget"]["tokens"]) == (9, {"spent": None, "limit": 50_000})
    await loom.client.temporal.get_workflow_handle(silent).terminate()


@pytest.mark.slow
async def test_the_status_of_a_run_that_went_on_in_a_fresh_history_has_its_limits(working: Working) -> None:
    loom, _ = await working(
        lambda seen: text("enough") if seen.turn >= 20 else calls(ToolUse("list_dir", {"path": "."})),
        rotate_after_events=100,
    )
    run_id = await loom.start(**{**LIMITS, "max_turns": 30})
    await loom.client.result(run_id)

    status = await loom.client.status(run_id)

    assert len(await loom.histories(run_id)) > 1
    assert (status["turn"], status["max_turns"], status["budget"]["seconds"]) == (21, 30, {"limit": 600})


async def test_the_status_of_a_refused_run_says_why(working: Working) -> None:
    loom, _ = await working(script([text("never")]))
    handle = await loom.client.temporal.start_workflow(
        "AgentRun", {"tsak": "x"}, id=f"refused-{id(loom)}", task_queue=loom.settings.task_queue
    )

    status = await loom.until(handle.id, lambda status: status["status"] == "failed")

    assert status["error"]["type"] == "BadRequest"
    assert status["error"]["context"] == {"field": "task"}


async def test_lists_know_runs_that_ended_or_wait_without_having_been_prepared(working: Working) -> None:
    loom, _ = await working(script([text("done")]))
    await loom.run()
    aborted = await loom.client.temporal.start_workflow(
        "AgentRun",
        {"task": "never begun"},
        id=f"aborted-{id(loom)}",
        task_queue=loom.settings.task_queue,
        start_signal="abort",
        start_signal_args=[{"reason": "not wanted"}],
    )
    assert (await loom.client.result(aborted.id)).status == "aborted"
    unserved = LoomClient(loom.client.temporal, task_queue="nobody-works-here")
    waiting = await unserved.start("do it")

    async def listed() -> dict[str | None, set[str]] | None:
        statuses = (None, "running", "aborted", "completed", "limit_reached", "waiting_for_approval")
        found = {status: await loom.client.list(status=status) for status in statuses}
        ids = {status: {run.run_id for run in runs} for status, runs in found.items()}
        seen = {run.run_id: run.status for run in found[None]}
        return ids if (seen.get(aborted.id), seen.get(waiting)) == ("aborted", "running") else None

    ids = await eventually(listed)
    done = loom.started[0]
    assert {status: runs & {done, aborted.id, waiting} for status, runs in ids.items()} == {
        None: {done, aborted.id, waiting},
        "running": {waiting},
        "aborted": {aborted.id},
        "completed": {done},
        "limit_reached": set(),
        "waiting_for_approval": set(),
    }
    await loom.client.temporal.get_workflow_handle(waiting).terminate()


async def test_a_run_whose_content_is_gone_hides_no_other(addresses: Addresses, workspace: Path) -> None:
    task = f"Read this: {'x' * OUT_OF_LINE_BYTES}"
    replies = by_task({"Read this": [text("y" * IN_LINE_BYTES)], "Hello": [text("hello")]})
    async with (
        fresh_database(addresses.database) as url,
        harness(addresses, workspace, replies, database_url=url, replay=False) as (loom, _),
    ):
        large, small = await loom.start(task), await loom.start("Hello")
        for run_id in (large, small):
            await loom.client.result(run_id)
        await rows(url, b"TRUNCATE loom_payloads")

        listed = {each.run_id: each for each in await loom.client.list(limit=10)}
        gone, there = await RunOverviews(loom.client.temporal).of([listed[large], listed[small]])

        assert (gone.turns, there.turns) == (None, 1)
        assert (gone.task[:9], there.task) == ("Read this", "Hello")
        assert all([(await loom.client.costs(by)).groups for by in ("agent", "user")])
