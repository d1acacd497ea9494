"""`make demo` as a program: what it prints, what it leaves behind, and that nothing of it goes on running."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from examples.audit.proof import Evidence, Step, broken_promises
from loom.domain.core.requests import RunResult, RunStatus
from loom.stack import up_down as stack

FOREIGN = {"TEMPORAL_ADDRESS": "127.0.0.1:1", "LOOM_REDIS_URL": "redis://127.0.0.1:1", "LOOM_MODEL": "openai:none"}
"""Settings of somebody who uses Loom for something else: the demo has a stack of its own."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo's folder, the same for the tests of this file."""
    folder = tmp_path_factory.mktemp("demo") / ".loom-demo"
    yield folder
    stack.down(folder)


def _started(home: Path) -> "subprocess.Popen[str]":
    """The demo in a folder with files that are not meant for it."""
    home.parent.joinpath(".env").write_text("LOOM_TASK_QUEUE=elsewhere\nLOOM_HOME=/nowhere\n", encoding="utf-8")
    # Whoever starts the tests in the background has interrupts ignored, and a child inherits that.
    return subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "examples.audit.demo"],
        env={**os.environ, **FOREIGN, "LOOM_DEMO_HOME": str(home), "PYTHONUNBUFFERED": "1"},
        cwd=home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _left_of(home: Path) -> list[str]:
    """Processes that belong to this home, by command line, working directory or environment."""
    return [str(process.info["cmdline"]) for process in psutil.process_iter(["cmdline"]) if _mentions(process, home)]


def _mentions(process: psutil.Process, home: Path) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        told = (*process.cmdline(), process.cwd(), *process.environ().values())
    except psutil.Error:
        return False
    return any(str(home) in word for word in told)


def test_the_demo_does_what_it_promises_and_leaves_nothing_running(home: Path) -> None:
    with _started(home) as demo:
        said, _ = demo.communicate()
    assert demo.returncode == 0, said
    assert "7 calls side by side" in said
    assert "write_file waits for a person" in said
    assert "✓ approved by demo user" in said
    assert re.search(r"kill -9 (\d+): .*\n.*has started worker (?!\1)\d+", said)
    assert re.search(r"^completed: ", said, re.MULTILINE)
    assert re.search(r"^turns +5$", said, re.MULTILINE)
    assert re.search(r"^tool calls +11, up to 6 side by side$", said, re.MULTILINE)
    assert re.search(r"^Web UI +http://127\.0\.0\.1:\d+/namespaces/default/workflows/audit-\w{8}$", said, re.MULTILINE)
    report = home / "report.md"
    assert re.search(rf"^report +{re.escape(str(report))}$", said, re.MULTILINE)
    assert "looks like a hard-coded secret" in report.read_text(encoding="utf-8")
    assert "not-a-real-token" not in report.read_text(encoding="utf-8")
    assert _left_of(home) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "order"), [("starting Temporal", signal.SIGINT), ("kill -9", signal.SIGTERM)], ids=["start", "kill"]
)
def test_an_interrupted_demo_leaves_nothing_running(home: Path, moment: str, order: signal.Signals) -> None:
    with _started(home) as demo:
        assert demo.stdout is not None
        heard = next(line for line in demo.stdout if moment in line)
        demo.send_signal(order)
        rest = demo.stdout.read()
    assert demo.returncode == 130, heard + rest
    assert "Nothing is left running." in rest
    assert _left_of(home) == []


RESULT = RunResult(
    status=RunStatus.COMPLETED,
    output="",
    structured_output=None,
    completed_explicitly=True,
    turns=4,
    usage={},
    cost=None,
    quality_metrics=None,
    tool_calls=2,
    artifacts=(),
    error=None,
)
READ = Step(kind="run_tool", name="t1-read", decided_in=4, worker=1, attempt=1, completed=True)
SEEN = Evidence(
    result=RESULT,
    steps=(READ, replace(READ, name="t1-list", worker=2)),
    history_events=9,
    stream=(),
    report=Path("nowhere"),
    approved="",
    workers=(1, 2),
)


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (SEEN, "written report"),
        (SEEN, "one approval"),
        (SEEN, "one model call a turn"),
        (replace(SEEN, result=replace(RESULT, status=RunStatus.FAILED)), "the run completes"),
        (replace(SEEN, result=replace(RESULT, turns=3)), "four turns"),
        (replace(SEEN, steps=(READ, replace(READ, name="t2-list", decided_in=9))), "side by side"),
        (replace(SEEN, steps=(READ, READ)), "done twice"),
        (replace(SEEN, steps=(replace(READ, attempt=2),)), "done twice"),
        (replace(SEEN, workers=(1, 3)), "the second worker"),
    ],
)
def test_a_promise_that_was_not_kept_is_named(seen: Evidence, word: str) -> None:
    assert any(word in promise for promise in broken_promises(seen))
