"""Runs in backoff while their workers stand still: the short form of `tests.chaos.stalls`."""

from pathlib import Path

from loom.testing.fork_server import ForkServer
from loom.testing.harness import Addresses
from tests.chaos.stalls import Given, stall


async def test_every_run_ends_and_every_history_can_be_replayed(
    addresses: Addresses, tmp_path: Path, loom_forks: ForkServer
) -> None:
    report = await stall(Given(runs=4, at_once=4, longest=1.2), addresses, tmp_path, loom_forks)

    assert report.wrong == []
    assert report.counted["queries answered"] > report.runs
