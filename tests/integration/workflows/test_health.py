"""`loom health`: a container's health check tells a worker that serves from one that is stuck or away."""

from pathlib import Path
from subprocess import run as execute

import pytest

from loom.composition import gauges
from loom.domain.core import metrics
from loom.stack.ports import any_free
from loom.testing.model_server import text
from loom.testing.waiting import eventually
from tests.conftest import LOOM
from tests.integration.workflows.conftest import Working
from tests.scraping import scraped


async def test_a_worker_is_healthy_while_it_shows_signs_of_life(
    working: Working, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "ALIVE_EVERY", 3600)  # as if it got stuck after the first one
    port = any_free()

    def health(*options: str) -> tuple[int, str]:
        ran = execute(
            [LOOM, "health", *options],
            env={"LOOM_METRICS_PORT": str(port), "PATH": ""},
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
        )
        return ran.returncode, ran.stderr

    code, said = health()
    assert (code, "no worker serves metrics at" in said) == (5, True)

    await working([text("done")], metrics_port=port)
    await eventually(lambda: has_shown_life(port))
    assert health() == (0, "")
    code, said = health("--longest", "0.001")
    assert (code, "the worker is stuck: its last sign of life is" in said) == (5, True)


async def has_shown_life(port: int) -> bool | None:
    return bool(scraped(port).of(metrics.ALIVE.name)) or None
