"""The real servers that tests stand on, started once a session from the same packages as `loom up`."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from uuid import uuid4

import pytest
import structlog
from hypothesis import HealthCheck, settings

from loom.activities.adapters.postgres.database import Database
from tests.databases import fresh_database
from tests.harness import Addresses

# How long an example takes says nothing on a machine that others use, too; benches measure.
settings.register_profile("loom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loom")

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


@pytest.fixture(scope="module", autouse=True)
def _default_logs() -> Iterator[None]:
    """Let each file begin with structlog's defaults: commands that run in this process configure it for good."""
    configure = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog, "configure", lambda **given: configure(**{**given, "cache_logger_on_first_use": False})
        )
        structlog.reset_defaults()
        yield


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder for an agent to work in."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
async def url(addresses: Addresses) -> AsyncIterator[str]:
    """A database of the module's own."""
    async with fresh_database(addresses.database) as url:
        yield url


@pytest.fixture(scope="module")
async def database(url: str) -> AsyncIterator[Database]:
    """The same as Loom uses it."""
    async with aclosing(Database(url)) as database:
        yield database


@pytest.fixture
def session() -> str:
    """A session that nobody else has."""
    return uuid4().hex
