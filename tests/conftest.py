"""The real servers that tests stand on, started once a session from the same packages as `loom up`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Addresses

LOOM = str(Path(sys.executable).parent / "loom")


@pytest.fixture(scope="session")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """A Temporal server, a Redis and a Postgres of this test session."""
    home = tmp_path_factory.mktemp("stack")
    env = {**os.environ, "LOOM_HOME": str(home / ".loom")}
    up = subprocess.run(
        [LOOM, "up", "--detach", "--no-worker", "--json"], env=env, check=False, capture_output=True, text=True
    )
    assert up.returncode == 0, up.stderr
    parts = json.loads(up.stdout)["parts"]
    yield Addresses(
        temporal=parts["temporal"]["address"],
        database=parts["postgres"]["address"],
        redis=parts["redis"]["address"],
        ui=parts["temporal"]["ui"],
    )
    subprocess.run([LOOM, "down"], env=env, check=True, capture_output=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder for an agent to work in."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder
