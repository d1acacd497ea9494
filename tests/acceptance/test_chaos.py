"""Ten runs at once while workers, servers and the provider fail: the short form of `make chaos`."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_is_lost_doubled_or_stuck_while_everything_fails() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.chaos.mixed",
        "--kills",
        "4",
        "--runs",
        "10",
        "--workers",
        "2",
        "--seed",
        "5",
    ]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost, doubled, stuck, deaf or left over" in done.stdout
