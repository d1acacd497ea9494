"""The periods that `--since` understands."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from loom.cli.commands import costs
from loom.cli.output import money
from loom.cli.report_screen import costs as reported
from loom.domain.core.errors import BadRequest
from loom.domain.history.costs import CostGroup
from loom.domain.history.run_report import Spending
from loom.periods import read_since

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("cost", [0.0, 0.002, 0.155, 1.0, 1.085, 12.5])
def test_an_amount_of_money_looks_the_same_everywhere(cost: float) -> None:
    group = CostGroup(name="a", cost=cost, runs=1, sub_agents=0, unknown=0, running=0)
    assert costs._money(group) == reported(Spending(cost=cost)) == money(cost)


@pytest.mark.parametrize(
    ("text", "ago"),
    [("30m", {"minutes": 30}), ("24h", {"hours": 24}), ("7d", {"days": 7}), ("4w", {"weeks": 4}), ("0d", {})],
)
def test_a_span_ends_now(text: str, ago: dict[str, int]) -> None:
    assert read_since(text, NOW) == NOW - timedelta(**ago)


def test_a_date_begins_at_midnight_here_and_a_time_may_name_its_zone() -> None:
    assert read_since("2026-01-31", NOW) == datetime(2026, 1, 31).astimezone()
    assert read_since("2026-01-31T10:00+02:00", NOW) == datetime(2026, 1, 31, 8, tzinfo=UTC)


@given(some.text() | some.from_regex(r"[0-9]{1,9}[mhdw]|[0-9]{4}-[0-9]{2}-[0-9]{2}(T23:59[+-]14:00)?", fullmatch=True))
@example("200000000w")
@example("9999-12-31T23:59:59-14:00")
@example("0001-01-01T00:00:00+14:00")
def test_any_text_is_a_time_in_utc_or_is_refused(text: str) -> None:
    with suppress(BadRequest):
        assert read_since(text, NOW).tzinfo is UTC
