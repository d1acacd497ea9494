"""Processes that a server forks: they start, end and die as if they had been started anew."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from loom.stack.processes import wait_until
from loom.testing.fork_server import ForkServer

WAITS = {"TEMPORAL_ADDRESS": "127.0.0.1:1", "LOOM_METRICS_PORT": "off", "LOOM_MODEL": "demo"}
"""A worker with these settings waits for its server."""
OWNER = """
import os, sys, time
from pathlib import Path
from loom.testing.fork_server import fork_server

with fork_server() as forks, Path("log").open("wb") as output:
    fork = forks.start("worker", env=os.environ, folder=Path.cwd(), output=output)  # without a caller, it is killed
    print(fork.pid, flush=True)
    sys.stdin.read()
"""


def env_in(folder: Path) -> dict[str, str]:
    """The environment of a worker in this folder."""
    return {**os.environ, **WAITS, "LOOM_HOME": str(folder / ".loom"), "LOOM_WORKSPACE": str(folder)}


def test_a_fork_has_its_own_arguments_environment_folder_output_and_exit_code(
    loom_forks: ForkServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        told = loom_forks.start("down", env={"LOOM_HOME": "here"}, folder=tmp_path, output=output)
        assert told.wait() == 0
        refused = loom_forks.start("downwards", env={}, folder=tmp_path, output=output)
        assert refused.wait() == 2
    assert (told.poll(), refused.poll()) == (0, 2)
    assert log.read_text().startswith(f"Nothing was running in {tmp_path / 'here'}.")
    assert "downwards" in log.read_text()


def test_a_killed_fork_is_gone_and_says_by_which_signal(loom_forks: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as output:
        worker = loom_forks.start("worker", env=env_in(tmp_path), folder=tmp_path, output=output)
    assert wait_until(lambda: Path(psutil.Process(worker.pid).cwd()) == tmp_path, seconds=30)
    assert worker.poll() is None
    worker.kill()
    assert worker.wait() == -signal.SIGKILL
    assert not psutil.pid_exists(worker.pid)
    worker.kill()  # nothing, not another process with the same id


def test_forks_end_with_the_process_that_started_their_server(tmp_path: Path) -> None:
    command = (sys.executable, "-P", "-c", OWNER)
    with subprocess.Popen(
        command, cwd=tmp_path, env=env_in(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        worker = psutil.Process(int(owner.stdout.readline()))
        assert worker.is_running()
        owner.kill()
    assert wait_until(lambda: not worker.is_running(), seconds=30)
