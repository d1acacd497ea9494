"""Notices: what a command waits for, and why it doesn't show the running worker."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loom.activities.adapters.temporal.deployments import TemporalDeployments
from loom.cli import connection
from loom.cli.commands import deployments, steering
from loom.cli.worker_preview import note_preview, running_worker


async def _slow(*_: Any) -> Any:
    for _turn in range(3):  # of the event loop
        await asyncio.sleep(0)


def test_no_command_waits_for_a_worker_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steering, "with_run", lambda run_id, work: asyncio.run(work(None, run_id)))
    monkeypatch.setattr(
        deployments, "with_client", lambda work: asyncio.run(work(SimpleNamespace(temporal=SimpleNamespace())))
    )
    monkeypatch.setattr(TemporalDeployments, "promote", _slow)

    def said() -> str:
        steering._steered("run-1", _slow)
        deployments.promote("shop", "2")
        return capsys.readouterr().err

    assert said() == ""
    monkeypatch.setattr(connection, "SILENT", 0)
    assert said() == "waiting for a worker to answer\nwaiting for a worker of shop 2\n"


@pytest.mark.parametrize(
    ("redis", "why"),
    [
        ("redis://127.0.0.1:1/0", "can't ask for the running worker: Redis does not respond: "),
        (None, "found no running worker (workers report themselves in Redis, and LOOM_REDIS_URL isn't set): "),
    ],
)
def test_a_preview_says_why_it_does_not_show_the_running_worker(
    redis: str | None, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))
    monkeypatch.delenv("LOOM_REDIS_URL", raising=False)
    if redis:
        monkeypatch.setenv("LOOM_REDIS_URL", redis)

    assert running_worker(None, "tools") is None
    note_preview(None, "crew")

    tools, crew = capsys.readouterr().err.splitlines()
    assert tools.startswith(why)
    assert tools.endswith("these are the tools that a worker started in this folder would have")
    assert crew.startswith(why)
    assert crew.endswith("this is the crew that a worker started in this folder would have")
