"""What an agent has done so far."""

from datetime import UTC, datetime, timedelta

import pytest

from loom.domain.agents.stats import AgentStats, Execution, NodeState, stats_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ran(status: str, begun: int, seconds: int | None = 60, *, goes_on: bool = False) -> Execution:
    """An execution that began so many minutes past noon."""
    started = NOON + timedelta(minutes=begun)
    closed = None if seconds is None else started + timedelta(seconds=seconds)
    return Execution(status=status, started_at=started, closed_at=closed, goes_on=goes_on)


def test_runs_are_counted_by_how_they_ended() -> None:
    newest_first = [ran("completed", 9), ran("failed", 5), ran("aborted", 3), ran("completed", 1, 30)]
    assert stats_of(newest_first) == AgentStats(
        state=NodeState.COMPLETED,
        execution_count=4,
        success_count=2,
        failure_count=1,
        total_duration=210.0,
        last_execution=NOON + timedelta(minutes=9),
    )


def test_a_run_that_continued_as_new_is_one_run_with_all_its_time() -> None:
    found = stats_of([ran("completed", 2), ran("running", 1, goes_on=True), ran("running", 0, goes_on=True)])
    assert (found.execution_count, found.success_count, found.total_duration) == (1, 1, 180.0)
    assert found.last_execution == NOON + timedelta(minutes=2)


@pytest.mark.parametrize(
    ("executions", "state"),
    [
        ([], NodeState.IDLE),
        ([ran("completed", 0)], NodeState.COMPLETED),
        ([ran("failed", 1), ran("completed", 0)], NodeState.FAILED),
        ([ran("aborted", 1), ran("failed", 0)], NodeState.IDLE),
        ([ran("limit_reached", 0)], NodeState.IDLE),
        ([ran("failed", 1), ran("waiting_for_approval", 0, None)], NodeState.RUNNING),
        ([ran("completed", 1), ran("failed", 0, 600)], NodeState.FAILED),  # it ended last
    ],
)
def test_an_agent_is_what_its_runs_are(executions: list[Execution], state: NodeState) -> None:
    assert stats_of(executions).state is state


def test_a_run_that_goes_on_has_no_duration_yet() -> None:
    found = stats_of([ran("running", 0, None)])
    assert (found.execution_count, found.running_count, found.total_duration) == (1, 1, 0.0)
