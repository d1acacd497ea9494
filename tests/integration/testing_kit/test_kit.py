"""`loom.testing` as a user meets it: fixtures, assertions, cassettes, histories, time."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loom import LoomApp
from loom.testing import (
    Cassette,
    ModelServer,
    RecordedRun,
    ScriptedProvider,
    ToolUse,
    assert_replays,
    calls,
    conversation,
    save_histories,
    text,
)

SCRIPT = [calls(ToolUse("refund", {"number": 7})), text("Done.")]
ASK = {"refund": "ask"}


def shop() -> LoomApp:
    """An app with one tool."""
    app = LoomApp()

    @app.tool(effect="once")
    def refund(number: int) -> str:
        """Pay an order back."""
        return f"order {number} is paid back"

    return app


@pytest.fixture
async def recorded(loom_worker: Any) -> RecordedRun:
    """A run with one call, which a person approved."""
    async with loom_worker(SCRIPT, app=shop()) as (loom, _):
        run_id = await loom.start("Refund order 7", permissions=ASK)
        await loom.asked(run_id)
        await loom.client.approve(run_id)
        run: RecordedRun = await loom.recorded(run_id)
    return run


def test_the_assertions_hold_and_show_the_run_when_they_fail(recorded: RecordedRun) -> None:
    recorded.assert_calls("refund")
    recorded.assert_called("refund", {"number": 7}, times=1)
    recorded.assert_not_called("bash")
    recorded.assert_events("node.start", "node.approval_requested", "node.approval_decided", "node.complete")
    (call,) = recorded.calls
    assert (call.status, call.output, call.attempts) == ("success", "order 7 is paid back", 1)
    failures: list[tuple[Callable[[], None], str]] = [
        (lambda: recorded.assert_called("refund", {"number": 8}), "refund(number=8) was not called"),
        (lambda: recorded.assert_not_called("refund"), "refund() was called 1 times instead of 0"),
        (lambda: recorded.assert_calls("bash"), "the calls are ['refund']"),
        (lambda: recorded.assert_events("node.complete", "node.start"), "no node.start after"),
    ]
    for failing, told in failures:
        with pytest.raises(AssertionError) as failure:
            failing()
        assert told in str(failure.value)
        assert "t1 refund(number=7) → success: order 7 is paid back" in str(failure.value)


async def test_a_cassette_replays_what_it_has_recorded_in_another_workspace(loom_worker: Any, tmp_path: Path) -> None:
    file = tmp_path / "refund.json"
    secret = "sk-" + "a1B2c3D4e5F6g7H8" * 3
    async with ModelServer(SCRIPT) as provider:
        async with loom_worker(Cassette(file, record_from=provider.url), app=shop(), OPENAI_API_KEY=secret) as (
            loom,
            _,
        ):
            first = await loom.run(f"Refund order 7 with {secret}", permissions={"refund": "allow"})
        seen = provider.count
    assert secret not in file.read_text()
    assert str(tmp_path / "workspace") not in file.read_text()
    async with loom_worker(Cassette(file), app=shop(), OPENAI_API_KEY=secret) as (loom, model):
        second = await loom.run(f"Refund order 7 with {secret}", permissions={"refund": "allow"})
    assert (first.output, second.output, model.count) == ("Done.", "Done.", seen)


async def test_a_request_that_was_not_recorded_fails_with_the_first_difference(
    loom_worker: Any, tmp_path: Path
) -> None:
    file = tmp_path / "refund.json"
    async with ModelServer([text("Hello.")]) as provider, loom_worker(Cassette(file, record_from=provider.url)) as it:
        await it[0].run("Say hello")
    async with loom_worker(Cassette(file)) as (loom, _):
        result = await loom.run("Say goodbye")
    assert result.error is not None
    assert "Say hello" in result.error.message
    assert "Say goodbye" in result.error.message


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "doesn't exist: record it once"),
        ("[]", "isn't a cassette"),
        ('{"version": 9}', "has version 9 instead of"),
    ],
)
def test_a_file_that_is_no_cassette_is_refused(tmp_path: Path, content: str | None, told: str) -> None:
    file = tmp_path / "cassette.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=told):
        Cassette(file)


async def test_days_of_waiting_take_no_time(loom_time_skipping: Any) -> None:
    async with loom_time_skipping(SCRIPT, app=shop()) as (loom, _, time):
        before = await time.get_current_time()
        run_id = await loom.start("Refund order 7", permissions=ASK)
        await loom.asked(run_id)
        await time.sleep(3 * 86_400)
        await loom.client.approve(run_id)
        assert (await loom.client.result(run_id)).output == "Done."
        assert (await time.get_current_time() - before).days >= 3


async def test_a_model_in_process_needs_no_server(loom_worker: Any) -> None:
    app, provider = shop(), ScriptedProvider(SCRIPT)
    app.register_provider("scripted", provider)
    async with loom_worker([], app=app, model="scripted:any") as (loom, model):
        assert (await loom.run("Refund order 7", permissions={"refund": "allow"})).output == "Done."
    assert model.count == 0
    assert [call.messages[-1].role for call in provider.seen] == ["user", "tool"]


async def test_saved_histories_replay_and_a_changed_one_does_not(loom_worker: Any, tmp_path: Path) -> None:
    async with loom_worker(conversation(SCRIPT), app=shop()) as (loom, _):
        run_id = await loom.start("Refund order 7", permissions={"refund": "allow"})
        await loom.client.result(run_id)
        (file,) = await save_histories(loom.client, run_id, tmp_path / "histories")
    await assert_replays(tmp_path / "histories")
    history = json.loads(file.read_text())
    scheduled = next(each for each in history["events"] if "activityTaskScheduledEventAttributes" in each)
    scheduled["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "another"
    file.write_text(json.dumps(history))
    with pytest.raises(AssertionError, match=f"1 of 1 histories can't be replayed:\n  {run_id}"):
        await assert_replays(file)


async def test_a_worker_killed_within_a_tool_call_is_replaced_and_a_frozen_one_goes_on(loom_processes: Any) -> None:
    app = f"{Path(__file__).with_name('slow_shop.py')}:app"
    script = [calls(ToolUse("find_order", {"number": 7})), text("Found.")]
    async with loom_processes(script, app=app) as (loom, _, workers):
        run_id = await loom.start("Find order 7", permissions={"find_order": "allow"})
        await loom.until_runs(run_id, "find_order")
        worker = await workers.restart()
        with workers.frozen(worker):
            assert worker.poll() is None
        run = await loom.recorded(run_id)
    (call,) = run.calls
    assert (call.status, call.output) == ("success", "order 7: paid")
    assert call.attempts == 2


def test_pytest_starts_without_loading_loom(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it():\n    assert 'loom.testing.plugin' in sys.modules\n"
        "    assert not {'temporalio', 'pydantic', 'openai', 'psycopg', 'httpx2'} & set(sys.modules)\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
