"""Redis, Postgres or Temporal away in the middle of a run: it waits or goes on without, and loses nothing."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from loom.domain.core.errors import UnreachableError
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.stack import state
from loom.testing.harness import Addresses, harness
from loom.testing.model_server import Reply, Script, ToolUse, calls, script, text
from loom.testing.stream import texts, told
from loom.testing.waiting import eventually
from loom.testing.worker_processes import mortal
from loom.watching import Polled, Streamed, Watched
from loom.workflows.payload_converter import IN_LINE_BYTES
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import Cli, command_line
from tests.integration.activities.conftest import PostgresServer, RedisServer

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that nobody starts again."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A Postgres that nobody starts again."""
    # Not below pytest's own folder: as root the server runs as another user, who cannot enter it.
    folder = Path(tempfile.mkdtemp(prefix="loom-postgres-"))
    server = PostgresServer(folder)
    yield server
    server.close()
    shutil.rmtree(folder, ignore_errors=True)


async def test_a_run_ends_as_it_should_when_redis_dies_and_stays_dead(working: Working, redis: RedisServer) -> None:
    answer = "so much to say " * 10
    slowly = text(answer, chunks=40, delay=0.05)
    loom, model = await working(script([slowly]), redis_url=redis.url)
    run_id = await loom.start()
    seen: list[Watched] = []
    watching = asyncio.create_task(_watch(loom.client.watch(run_id), seen))
    await _until(lambda: sum(_says(event, Action.THINKING) for event in seen) >= 3)

    redis.kill()
    result = await loom.client.result(run_id)
    await watching

    assert (result.status, result.output, len(model.requests)) == (RunStatus.COMPLETED, answer, 1)
    last = seen[-1]
    assert isinstance(last, Polled)
    assert (last.status["status"], "Redis" in last.why) == ("completed", True)
    assert not any(_says(event, Action.COMPLETE) for event in seen)


async def test_whoever_watches_a_run_goes_on_watching_when_redis_is_back(working: Working, redis: RedisServer) -> None:
    loom, model = await working(script([calls(WRITE), text("written", chunks=3)]), redis_url=redis.url)
    run_id = await loom.start()
    seen: list[Watched] = []
    watching = asyncio.create_task(_watch(loom.client.watch(run_id), seen))
    await _until(lambda: any(_says(event, Action.APPROVAL_REQUESTED) for event in seen))

    redis.kill()
    await _until(lambda: any(isinstance(event, Polled) for event in seen))
    redis.start()
    await loom.client.approve(run_id)
    await watching

    assert (await loom.client.result(run_id)).output == "written"
    polled = [event.status["status"] for event in seen if isinstance(event, Polled)]
    assert polled[0] == "waiting_for_approval"
    streamed = [event for event in seen if isinstance(event, Streamed)]
    offsets = [event.offset for event in streamed]
    assert offsets == sorted(set(offsets))
    assert texts(streamed)[2] == "written"
    assert streamed[-1].task.action is Action.COMPLETE
    assert len(model.requests) == 2


async def test_a_run_with_small_payloads_does_not_miss_postgres(working: Working, postgres: PostgresServer) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]), database_url=postgres.url)
    run_id = await loom.start()
    await loom.asked(run_id)

    await postgres.stop()
    try:
        await loom.client.approve(run_id)
        assert (await loom.client.result(run_id)).output == "written"
    finally:
        await postgres.start()


async def test_a_payload_too_large_for_history_waits_for_postgres(working: Working, postgres: PostgresServer) -> None:
    large = "large " * 50_000
    loom, model = await working(lambda _: text(large), database_url=postgres.url, replay=False)
    await postgres.stop()
    run_id = await loom.start()

    await _until(lambda: len(model.requests) >= 2)
    assert (await loom.client.status(run_id))["status"] == "running"
    await postgres.start()
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, large, 1)
    assert texts(await told(loom.client, run_id)) == {1: large}


@pytest.mark.slow
async def test_a_result_that_lies_in_a_postgres_that_is_away_cannot_be_reached_and_is_no_failed_run(
    working: Working, postgres: PostgresServer
) -> None:
    large = "large " * (IN_LINE_BYTES // len("large ") + 1)
    loom, _ = await working(lambda _: text(large), database_url=postgres.url, replay=False)
    result = await loom.run()
    (run_id,) = loom.started
    cli = command_line(loom)
    await postgres.stop()
    try:
        for words in (("result", run_id), ("status", run_id), ("show", run_id)):
            ran = await cli(*words, "--json")
            assert (ran.code, ran.out) == (5, ""), words
            assert "correct LOOM_DATABASE_URL" in ran.err
        with pytest.raises(UnreachableError, match="correct LOOM_DATABASE_URL"):
            await loom.client.start(large)
    finally:
        await postgres.start()
    elsewhere = Cli(env={name: value for name, value in cli.env.items() if name != "LOOM_DATABASE_URL"})
    nowhere = await elsewhere("result", run_id)
    assert (nowhere.code, nowhere.out) == (5, "")
    assert "stored in Postgres: set LOOM_DATABASE_URL, which needs" in nowhere.err
    assert (await cli("result", run_id, "--json")).json["output"] == result.output == large


@pytest.mark.slow
async def test_runs_go_on_when_temporal_comes_back_with_its_database(
    own_stack: tuple[Path, Addresses], workspace: Path
) -> None:
    home, addresses = own_stack
    answer = "a long answer " * 10
    first = {"wait": calls(WRITE), "talk": text(answer, chunks=50, delay=0.1)}
    async with harness(addresses, workspace, _by_task(first)) as (loom, model):
        waiting, talking = await loom.start("wait"), await loom.start("talk")
        asked = await loom.asked(waiting)
        await _until(lambda: any(request.messages[-1]["content"] == "talk" for request in model.requests))

        before = state.read(home).living()["temporal"]
        os.kill(before.pid, signal.SIGKILL)
        await _until(lambda: state.read(home).living().get("temporal", before) != before)

        assert await loom.asked(waiting) == asked
        await loom.client.approve(waiting)
        assert (await loom.client.result(waiting)).output == "ended"
        assert (await loom.client.result(talking)).output == answer
        assert texts(await told(loom.client, talking)) == {1: answer}
        assert sum(request.messages[-1]["role"] == "tool" for request in model.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("back", [signal.SIGCONT, signal.SIGKILL], ids=["goes on", "is started again"])
async def test_calls_go_on_while_temporal_is_away_and_their_results_arrive_when_it_is_back(
    own_stack: tuple[Path, Addresses], workspace: Path, back: signal.Signals
) -> None:
    home, addresses = own_stack
    command = "echo begun >> begun; sleep 8; echo ended >> ended; echo all of it"
    answer = "a long answer " * 10
    first = {
        "command": calls(ToolUse("bash", {"command": command}, "b1")),
        "talk": text(answer, chunks=80, delay=0.1),
    }
    async with mortal(addresses, workspace, _by_task(first)) as (loom, model, workers):
        for _ in range(2):
            await workers.start()
        talking = await loom.start("talk")
        commanding = await loom.start("command", permissions={"bash": "allow"})
        await _until((workspace / "begun").exists)

        server = state.read(home).living()["temporal"]
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.sleep(15)  # longer than the SDK keeps on sending a result; if it is too short, nothing fails
        os.kill(server.pid, back)

        commanded, talked = [await loom.client.result(run_id) for run_id in (commanding, talking)]
        assert (commanded.status, commanded.tool_calls, talked.output) == (RunStatus.COMPLETED, 1, answer)
        assert [(workspace / name).read_text() for name in ("begun", "ended")] == ["begun\n", "ended\n"]
        told_to_the_model = [str(request.messages[-1]["content"]) for request in model.requests]
        assert sum("all of it" in told and "echo" not in told for told in told_to_the_model) == 1
        assert told_to_the_model.count("talk") == 1
        assert texts(await told(loom.client, talking)) == {1: answer}


def _by_task(first: Mapping[str, Reply]) -> Script:
    """The first answer by what the run was asked to do, then the end."""
    return lambda request: text("ended") if request.turn else first[str(request.messages[-1]["content"])]


async def _watch(events: AsyncIterator[Watched], seen: list[Watched]) -> None:
    async for event in events:
        seen.append(event)  # noqa: PERF401 - as they come


def _says(event: Watched, action: Action) -> bool:
    return isinstance(event, Streamed) and event.task.action is action


async def _until(holds: Callable[[], bool]) -> None:
    async def look() -> bool | None:
        return holds() or None

    await eventually(look)
