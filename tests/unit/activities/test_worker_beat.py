"""What becomes of the commands of a worker that stands still, and what is said of it."""

import signal

import pytest

from loom.activities.adapters.sandbox.worker_beat import INTERVAL, LIMIT, PAUSE, due_signal, why_killed


@pytest.mark.parametrize(
    ("silent", "due"),
    [
        (INTERVAL, None),
        (PAUSE - INTERVAL, None),
        (PAUSE, signal.SIGSTOP),
        (LIMIT - INTERVAL, signal.SIGSTOP),
        (LIMIT, signal.SIGKILL),
        (60.0, signal.SIGKILL),
    ],
)
def test_commands_stand_still_with_their_worker_and_are_killed_if_it_does_not_come_back(
    silent: float, due: signal.Signals | None
) -> None:
    assert due_signal(silent, LIMIT) is due


def test_a_pause_of_ten_seconds_kills_no_command() -> None:
    assert LIMIT >= 10 + INTERVAL


@pytest.mark.parametrize("seconds", [0.0, 0.5, 10.0])
def test_a_pause_that_kills_nothing_explains_nothing(seconds: float) -> None:
    assert why_killed(seconds) == ""


def test_a_command_that_was_killed_says_why_and_that_it_may_have_taken_effect() -> None:
    assert why_killed(30.2) == (
        "the command was stopped because its worker stood still for 30 s. It may have taken effect in part: check what "
        "is there before you run it again"
    )
