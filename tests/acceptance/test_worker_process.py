"""Workers as processes of their own: what their logs tell, and where their metrics are."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, Final
from urllib.request import urlopen

import pytest

from loom.stack.ports import USUAL, any_free
from loom.testing.harness import Addresses
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import PATIENCE, eventually
from loom.testing.worker_processes import Workers
from tests.acceptance.conftest import Killable
from tests.acceptance.test_command_line import command_line

SLOW: Final = """
import asyncio
from pathlib import Path
from loom import LoomApp

class Pool: ...

async def pool() -> Pool:
    Path("opening").touch()
    await asyncio.sleep(600)
    Path("opened").touch()
    return Pool()

app = LoomApp()
app.provide(pool)
"""
WRITE: Final = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


@pytest.mark.slow
async def test_each_line_of_a_run_says_which_run_turn_and_call_it_is_of(killable: Killable) -> None:
    loom, _, workers = await killable(script([calls(WRITE), text("written")]))
    await workers.start()
    run_id = await loom.start(permissions={"write_file": "ask"})
    await loom.asked(run_id)
    await loom.client.temporal.get_workflow_handle(run_id).signal("no_such_signal")
    await loom.client.approve(run_id, "w1")
    assert (await loom.client.result(run_id)).status == "completed"

    lines = _lines(workers)
    assert [_ids(line) for line in lines["run_prepared"]] == [(run_id, None, None)]
    assert [_ids(line) for line in lines["model_replied"]] == [(run_id, 1, None), (run_id, 2, None)]
    assert [_ids(line) for line in lines["tool_finished"]] == [(run_id, 1, "w1")]
    [ignored] = [line for event, found in lines.items() if event.startswith("signal ignored") for line in found]
    assert _ids(ignored) == (run_id, None, None)


@pytest.mark.slow
async def test_prometheus_reads_a_worker_where_the_setting_says_and_nobody_else_may_have_that_port(
    killable: Killable,
) -> None:
    loom, _, workers = await killable(script([text("done")]))
    port = str(any_free())
    await workers.start(LOOM_METRICS_PORT=port)
    await loom.run()
    assert _metrics_address(workers, 0) == f"http://127.0.0.1:{port}/metrics"

    async def counted() -> bool | None:
        return "temporal_workflow_completed{" in _scraped(f"http://127.0.0.1:{port}/metrics") or None

    await eventually(counted)
    second = await command_line(loom, LOOM_METRICS_PORT=port)("worker")
    assert (second.code, second.out) == (2, "")
    assert second.err.startswith(f"loom: LOOM_METRICS_PORT: cannot serve metrics at 127.0.0.1:{port} (Address")


@pytest.mark.slow
async def test_where_nobody_set_a_port_a_taken_one_is_left_to_its_owner(killable: Killable) -> None:
    _, _, workers = await killable(script([text("done")]))

    async def is_taken() -> bool:
        with suppress(OSError):  # a worker of another test still has the port, or a stack of this machine's user
            owner.enter_context(socket.create_server(("127.0.0.1", USUAL["metrics"])))
            return True
        return False

    with ExitStack() as owner:
        with suppress(AssertionError):
            await eventually(is_taken, within=10)
        await workers.start(LOOM_METRICS_PORT="")
    address = _metrics_address(workers, 0)
    assert address != f"http://127.0.0.1:{USUAL['metrics']}/metrics"
    assert "temporal_" in _scraped(address)


@pytest.mark.slow
async def test_a_worker_that_is_still_starting_can_be_stopped(killable: Killable) -> None:
    _, _, workers = await killable(script([]))
    (workers.folder / "slow.py").write_text(SLOW)
    process = workers.spawn(LOOM_APP=str(workers.folder / "slow.py"))

    async def is_opening() -> bool | None:
        return (workers.folder / "opening").exists() or None

    await eventually(is_opening)
    process.terminate()
    assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    assert not (workers.folder / "opened").exists()


@pytest.mark.slow
async def test_a_worker_that_starts_before_the_server_waits_for_it(killable: Killable, addresses: Addresses) -> None:
    loom, _, workers = await killable(script([text("done")]))
    port = any_free()
    worker = workers.spawn(TEMPORAL_ADDRESS=f"127.0.0.1:{port}")

    async def waits() -> bool:
        return "waiting_for_temporal" in workers.log(0).read_text()

    await eventually(waits)
    assert "no Temporal server answers" in _lines(workers)["waiting_for_temporal"][0]["reason"]
    async with forwarded(port, addresses.temporal):
        assert (await loom.run()).status == "completed"
    assert worker.poll() is None


@pytest.mark.slow
async def test_a_worker_that_waits_for_the_server_can_be_stopped(killable: Killable) -> None:
    _, _, workers = await killable(script([]))
    worker = workers.spawn(TEMPORAL_ADDRESS="127.0.0.1:9")

    async def waits() -> bool:
        return "waiting_for_temporal" in workers.log(0).read_text()

    await eventually(waits)
    worker.terminate()
    assert await asyncio.to_thread(worker.wait, PATIENCE) == 0


@pytest.mark.slow
async def test_a_worker_that_is_to_fail_fast_ends_without_a_server(killable: Killable) -> None:
    loom, *_ = await killable(script([]))
    ran = await command_line(loom, TEMPORAL_ADDRESS="127.0.0.1:9")("worker", "--fail-fast")
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.startswith("loom: no Temporal server answers at 127.0.0.1:9: run `loom up`")


@asynccontextmanager
async def forwarded(port: int, address: str) -> AsyncIterator[None]:
    """A server at another port, from now on."""
    host, _, there = address.rpartition(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(host, int(there))
        await asyncio.gather(_copied(reader, to_server), _copied(from_server, writer))

    async with await asyncio.start_server(forward, "127.0.0.1", port):
        yield


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def _lines(workers: Workers, number: int = 0) -> dict[str, list[dict[str, Any]]]:
    """What a worker has logged, by event. The native part of the SDK may warn in its own format on a busy machine."""
    found: dict[str, list[dict[str, Any]]] = {}
    for text_line in workers.log(number).read_text().splitlines():
        if "temporalio_sdk_core" in text_line and not text_line.startswith("{"):
            continue
        line = json.loads(text_line)
        found.setdefault(line["event"], []).append(line)
    return found


def _ids(line: dict[str, Any]) -> tuple[Any, Any, Any]:
    return line.get("run_id"), line.get("turn"), line.get("call_id")


def _metrics_address(workers: Workers, number: int) -> str:
    [served] = _lines(workers, number)["metrics_served"]
    return str(served["address"])


def _scraped(address: str) -> str:
    with urlopen(address, timeout=PATIENCE) as answer:
        return str(answer.read().decode())
