"""What a worker reports of itself: no passwords, and which proofs of approvals it demands."""

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from loom import doctor_checks
from loom.activities.adapters.redis.stream import dump_json, load_json
from loom.activities.adapters.signing.approval_key_files import create_approval_key, public_file
from loom.composition.build import parts_for
from loom.composition.settings import Settings
from loom.composition.worker_report import first_report, told_settings
from loom.domain.agents.worker_report import WorkerReport


@pytest.mark.parametrize(
    "addresses",
    [
        {"bus_url": "nats://loom:hunter2@bus:4222"},
        {"otlp_endpoint": "https://loom:hunter2@traces"},
        {"redis_url": "redis://:hunter2@redis"},
        {"database_url": "postgresql://loom:hunter2@db/loom"},
        {"openai_base_url": "https://loom:hunter2@models"},
        {"notify_command": "curl --data @- https://hooks.example/hunter2"},
    ],
)
def test_a_report_contains_no_password(addresses: dict[str, Any]) -> None:
    told = dict(told_settings(Settings(**addresses)))

    assert not any("hunter2" in value for value in told.values())


def test_the_address_of_the_web_ui_is_not_a_difference_between_a_command_and_a_worker() -> None:
    assert "temporal_ui" not in dict(told_settings(Settings(temporal_ui="http://127.0.0.1:8233")))


async def test_doctor_warns_if_workers_of_a_queue_demand_different_proofs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (create_approval_key(tmp_path / name) for name in ("one", "other"))

    def report(name: str) -> WorkerReport:
        settings = Settings(redis_url=None, approval_keys=public_file(tmp_path / name) if name else None)
        return first_report(parts_for(settings), settings, identity=f"worker-{name}")

    async def warning(*reports: WorkerReport) -> str | None:
        monkeypatch.setattr(doctor_checks, "live_reports", AsyncMock(return_value=list(reports)))
        return (await doctor_checks.reported(Settings())).get("warning")

    told = await warning(report("one"), report("other"), report("")) or ""
    assert f"worker-one: {one.id}; worker-other: {other.id}; worker-: no proof" in told
    assert await warning(report("one"), report("one")) is None

    without_proofs = dump_json(WorkerReport, report(""))
    assert "approval_keys" not in str(without_proofs), "reports of older releases don't have the field"
    assert await warning(report(""), load_json(WorkerReport, without_proofs)) is None
