"""Start the processes of a benchmark: the embedded servers, the model server and the workers."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

QUEUE = f"bench-{os.getpid()}"
"""A separate task queue, so that no other worker takes part."""
BIN = Path(sys.executable).parent


@dataclass
class Stage:
    """The running processes and their addresses."""

    folder: Path
    env: dict[str, str]
    model_url: str
    server_pid: int
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_worker(self, name: str, *command: str, python: str = sys.executable) -> subprocess.Popen[bytes]:
        """Start or restart a worker process, with this interpreter. Its log goes to a file with its name."""
        log = (self.folder / f"{name}.log").open("ab")
        process = subprocess.Popen([python, "-m", *command], env=self.env, stdout=log, stderr=log)
        self.workers[name] = process
        return process

    def cpu(self, pid: int) -> float:
        """Return the processor time that a process has used, in seconds."""
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)

    def cpu_beside(self, pid: int) -> float:
        """Return the processor time that the children of a process have used, in seconds."""
        return sum(self.cpu(child.pid) for child in psutil.Process(pid).children(recursive=True))


@contextmanager
def servers() -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Start the servers of `loom up` in a temporary folder. Yield the folder and the addresses, then stop them."""
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as name:
        env = {**os.environ, "LOOM_HOME": f"{name}/.loom", "LOOM_LOG_LEVEL": "WARNING"}
        up = [str(BIN / "loom"), "up", "--detach", "--no-worker", "--json"]
        parts = json.loads(subprocess.run(up, env=env, check=True, capture_output=True, text=True).stdout)["parts"]
        try:
            yield Path(name), {part: told["address"] for part, told in parts.items() if told.get("address")}
        finally:
            subprocess.run([str(BIN / "loom"), "down"], env=env, check=True, capture_output=True)


@contextmanager
def stage() -> Iterator[Stage]:
    """Start the servers of `loom up` and a model server. At the end, stop them and all workers."""
    with ExitStack() as stack:
        folder, addresses = stack.enter_context(servers())
        env = {
            **os.environ,
            "LOOM_HOME": str(folder / ".loom"),
            "LOOM_MODEL": "openai:scripted",
            "LOOM_LOG_LEVEL": "WARNING",
            "LOOM_LOOP_WINDOW": "0",  # the scripted model reads the same file in every turn
        }
        model = subprocess.Popen([sys.executable, "-m", "bench.model"], stdout=subprocess.PIPE, text=True)
        stack.callback(_end, model)
        assert model.stdout is not None
        workspace = folder / "workspace"
        workspace.mkdir()
        (workspace / "data.txt").write_text("".join(f"line {n:04d} of the data {'x' * 24}\n" for n in range(45)))
        env |= {
            "TEMPORAL_ADDRESS": addresses["temporal"],
            "LOOM_DATABASE_URL": addresses["postgres"],
            "LOOM_REDIS_URL": addresses["redis"],
            "OPENAI_BASE_URL": (url := model.stdout.readline().strip()),
            "OPENAI_API_KEY": "sk-bench",
            "LOOM_WORKSPACE": str(workspace),
            "LOOM_METRICS_PORT": "off",
            "LOOM_TASK_QUEUE": QUEUE,
            "LOOM_APP": "bench.floor:app",
        }
        pids = json.loads((folder / ".loom" / "stack.json").read_text())
        ready = Stage(folder=folder, env=env, model_url=url, server_pid=_temporal_pid(pids))
        yield ready
        for process in ready.workers.values():
            _end(process)


def _temporal_pid(state: dict[str, object]) -> int:
    parts = state["parts"]
    assert isinstance(parts, dict)
    return int(parts["temporal"]["pid"])


def _end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
