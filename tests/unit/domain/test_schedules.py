"""Which cron expressions a schedule accepts, and what it says of the others."""

import pytest

from loom.domain.core.errors import BadRequest
from loom.domain.core.schedules import checked_cron, schedule_of


@pytest.mark.parametrize(
    "cron",
    [
        "0 8 * * 1-5",
        "*/15 9-17 * * mon-FRI",
        "0 0 1,15 jan-jun/2 *",
        "5 4 * * sun",
        "0 0 * * 7",
        "@daily",
        "@every 90m",
    ],
)
def test_valid_expressions_are_accepted(cron: str) -> None:
    assert checked_cron(f"  {cron.replace(' ', '  ')} ") == cron


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        ("", "has 0 of 5 fields"),
        ("0 8 * *", "has 4 of 5 fields: minute, hour"),
        ("60 8 * * *", "minute '60' isn't between 0 and 59"),
        ("0 24 * * *", "hour '24' isn't between 0 and 23"),
        ("0 8 0 * *", "day of the month '0' isn't between 1 and 31"),
        ("0 8 * 13 *", "month '13' isn't between 1 and 12, or one of jan"),
        ("0 8 * * mo", "day of the week 'mo' isn't between 0 and 7, or one of sun"),
        ("0 17-9 * * *", "hour '17-9' is a range that ends before it begins"),
        ("*/0 * * * *", "minute '*/0' has a step that isn't between 1 and 59"),
        ("0 8 * * 1,", "day of the week '1,' isn't a number, a range"),
        ("*-5 * * * *", "is a range that begins with `*`"),
        ("@fortnightly", "isn't known: write five fields, or one of @yearly"),
    ],
)
def test_an_invalid_expression_is_refused_with_its_field(cron: str, told: str) -> None:
    with pytest.raises(BadRequest) as refused:
        checked_cron(cron)
    assert told in refused.value.message


def test_the_id_of_a_run_names_its_schedule() -> None:
    assert schedule_of("schedule-nightly-2026-11-25T08:00:00Z") == "schedule-nightly"
    assert schedule_of("schedule-nightly") is None
    assert schedule_of("run-1-2026-11-25T08:00:00Z") is None
