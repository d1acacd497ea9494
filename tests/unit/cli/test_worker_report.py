"""A worker's report doesn't contain what may contain passwords: addresses of servers, and commands."""

from typing import Any

import pytest

from loom.composition.settings import Settings
from loom.composition.worker_report import told_settings


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
