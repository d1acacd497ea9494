"""The memory writer, Redis and Postgres die in the middle of runs; `make chaos-memory` does it to two hundred."""

from pathlib import Path

from loom.testing.harness import Addresses
from tests.chaos.memory import survive, told
from tests.chaos.memory_oracle import Expected

RUNS = 4


async def test_memory_has_each_task_once_whatever_dies(addresses: Addresses, tmp_path: Path) -> None:
    report = await survive(RUNS, addresses, tmp_path)
    print(told(report))
    assert report.wrong == ()
    assert report.kills == ("writer", "redis", "postgres", "both")
    assert report.from_history > 0
    assert report.tasks >= RUNS * 12


def test_the_rules_see_what_is_wrong() -> None:
    due = Expected(certain=frozenset({"r/a", "r/b"}), lost=("r/t1-model.1/",))
    assert due.wrong(["r/a", "r/b"]) == []
    assert due.wrong(["r/a", "r/b", "r/t1-model.1/turn/node.turn"]) == []
    assert due.wrong(["r/a", "r/t1-model.2/turn/node.turn"]) == ["missing r/b", "surplus r/t1-model.2/turn/node.turn"]
