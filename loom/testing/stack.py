"""The embedded servers for a test session, without a worker."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loom.testing.harness import Addresses


@contextmanager
def running_stack(home: Path) -> Iterator[Addresses]:
    """Run `loom up --no-worker` in this folder, and `loom down` when the block ends."""
    loom = [sys.executable, "-P", "-m", "loom"]
    env = {**os.environ, "LOOM_HOME": str(home)}
    up = subprocess.run(
        [*loom, "up", "--detach", "--no-worker", "--json"], env=env, check=False, capture_output=True, text=True
    )
    assert up.returncode == 0, up.stderr
    parts = json.loads(up.stdout)["parts"]
    try:
        yield Addresses(
            temporal=parts["temporal"]["address"],
            database=parts["postgres"]["address"],
            redis=parts["redis"]["address"],
            ui=parts["temporal"]["ui"],
            home=home,
        )
    finally:
        subprocess.run([*loom, "down"], env=env, check=True, capture_output=True)
