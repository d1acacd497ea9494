"""Many turns: past what one execution may hold, at a constant price, and still one run."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from bench.long_run import bytes_after_start, model_calls
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.model_server import script
from loom.testing.stream import assert_whole, count, told
from loom.watching import Streamed
from loom.workflows import payload_converter
from tests.acceptance.conftest import Working

SHORT: Final = 58
LONG: Final = 1000
RESULT: Final = "".join(f"line {n:03d} of the data {'x' * 22}\n" for n in range(48))


@pytest.fixture
def model_url(turns: int) -> Iterator[str]:
    """A scripted model in a process of its own: what it is sent grows to megabytes."""
    arguments = ("--turns", str(turns), "--tool", "read_file", "--arguments", '{"path": "data.txt"}')
    command = [sys.executable, "-m", "loom.testing.model_server", *arguments]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


@pytest.fixture
def _large_soon(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a short run, a state is already large after a few turns."""
    if turns == SHORT:
        monkeypatch.setattr(payload_converter, "OUT_OF_LINE_BYTES", 32 * 1024)


@pytest.mark.usefixtures("_large_soon")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("turns", "rotation"),
    [
        (SHORT, 110),
        pytest.param(300, 700, marks=pytest.mark.slow),
        pytest.param(LONG, 2300, marks=pytest.mark.slow),
    ],
)
async def test_each_of_many_turns_costs_the_same(
    working: Working, workspace: Path, model_url: str, turns: int, rotation: int
) -> None:
    (workspace / "data.txt").write_text(RESULT)
    loom, _ = await working(script([]), OPENAI_BASE_URL=model_url, replay=False, rotate_after_events=rotation)

    run_id = await loom.start(max_turns=turns + 1)
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "finished")
    assert (result.turns, result.tool_calls, result.usage["model_calls"]) == (turns + 1, turns, turns + 1)
    events = await told(loom.client, run_id)
    assert_whole(events)
    # On a busy machine, a quick attempt may take too long. The stream then has its result and the next attempt's.
    read = {event.task.parameters["call_id"] for event in events if event.task.action is Action.TOOL_RESULT}
    assert (count(events, Action.TURN), len(read)) == (turns + 1, turns)

    histories = await loom.histories(run_id)
    assert len(histories) >= 3
    assert sum(map(model_calls, histories)) == turns + 1
    assert all(len(history.events) < 1.25 * rotation for history in histories)
    # The first event carries the state on from the execution before: by reference, once it is large.
    assert all(history.events[0].ByteSize() < 4096 for history in histories)
    # What is left over at the end has too few turns for an average.
    whole = [history for history in histories if model_calls(history) > turns // 8]
    prices = [bytes_after_start(history) / model_calls(history) for history in whole]
    if turns == SHORT:
        del prices[0]  # the run is prepared in its first execution: too much for the average of a few turns
    assert max(prices) < 1.02 * min(prices)
    assert max(prices) < _longest_result(events) + 2700


def _longest_result(events: Sequence[Streamed]) -> int:
    found = [event.task.result for event in events if event.task.action is Action.TOOL_RESULT]
    return max(int(result["length"]) for result in found if result)
