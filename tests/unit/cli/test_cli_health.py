"""`loom health` asks the worker of the stack that commands talk to."""

from pathlib import Path

import pytest

from loom.exit_codes import UNREACHABLE
from loom.stack.state import StackState, write
from tests.commands import commands_in


@pytest.mark.parametrize(
    ("environment", "port"), [({}, 1), ({"LOOM_METRICS_PORT": "2"}, 2)], ids=["of the stack", "of the setting"]
)
def test_the_worker_of_another_stack_is_not_asked(
    environment: dict[str, str], port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".loom").mkdir()
    write(tmp_path / ".loom", StackState(ports={"metrics": 1}, worker_wanted=True))
    with commands_in(tmp_path, monkeypatch, **environment) as command:
        ran = command("health")
    assert ran.code == UNREACHABLE
    assert ran.err.startswith(f"no worker serves metrics at http://127.0.0.1:{port}/metrics: ")
