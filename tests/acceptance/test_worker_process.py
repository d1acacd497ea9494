"""Workers as processes of their own: what their logs tell, and where their metrics are."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from loom.stack.ports import USUAL, any_free, is_free
from tests.acceptance.conftest import Killable
from tests.acceptance.processes import WORKER, Workers
from tests.acceptance.test_command_line import command_line
from tests.model_server import ToolUse, calls, script, text
from tests.waiting import eventually

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


async def test_where_nobody_set_a_port_a_taken_one_is_left_to_its_owner(killable: Killable) -> None:
    _, _, workers = await killable(script([text("done")]))
    with ExitStack() as stack:
        if is_free(USUAL["metrics"]):
            stack.enter_context(socket.create_server(("127.0.0.1", USUAL["metrics"])))
        await workers.start(LOOM_METRICS_PORT="")
    address = _metrics_address(workers, 0)
    assert address != f"http://127.0.0.1:{USUAL['metrics']}/metrics"
    assert "temporal_" in _scraped(address)


async def test_a_worker_that_is_still_starting_can_be_stopped(killable: Killable) -> None:
    _, _, workers = await killable(script([]))
    (workers.folder / "slow.py").write_text(SLOW)
    process = workers.spawn(LOOM_APP=str(workers.folder / "slow.py"))

    async def is_opening() -> bool | None:
        return (workers.folder / "opening").exists() or None

    await eventually(is_opening, within=60)
    process.terminate()
    assert await asyncio.to_thread(process.wait, 30) == 0
    assert not (workers.folder / "opened").exists()


def test_without_a_server_a_worker_ends_as_the_command_does(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "TEMPORAL_"))}
    env |= {"TEMPORAL_ADDRESS": "127.0.0.1:9", "LOOM_METRICS_PORT": "off"}
    ran = subprocess.run(
        [sys.executable, *WORKER], env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (5, "")
    assert ran.stderr.startswith("loom worker: no Temporal server answers at 127.0.0.1:9: run `loom up`")


def _lines(workers: Workers, number: int = 0) -> dict[str, list[dict[str, Any]]]:
    """What a worker has logged, by event."""
    found: dict[str, list[dict[str, Any]]] = {}
    for text_line in workers.log(number).read_text().splitlines():
        line = json.loads(text_line)
        found.setdefault(line["event"], []).append(line)
    return found


def _ids(line: dict[str, Any]) -> tuple[Any, Any, Any]:
    return line.get("run_id"), line.get("turn"), line.get("call_id")


def _metrics_address(workers: Workers, number: int) -> str:
    [served] = _lines(workers, number)["metrics_served"]
    return str(served["address"])


def _scraped(address: str) -> str:
    with urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())
