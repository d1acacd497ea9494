"""A program that has used the SDK ends only when the SDK's threads have left the interpreter."""

import _thread
import asyncio
import sys
import threading
from contextlib import closing

import pytest

from loom.composition import temporal_connection
from loom.composition.temporal_connection import _WAKES, _is_answer_handed_over, _outermost, _wait_until_left


class Busy(asyncio.SelectorEventLoop):
    """An event loop that takes its time to wake up, as on a busy machine."""

    def __init__(self) -> None:
        super().__init__()
        self.waking, self.may_wake = threading.Event(), threading.Event()

    def _write_to_self(self) -> None:
        self.waking.set()
        self.may_wake.wait()


def test_the_end_waits_for_a_thread_that_hands_over_an_answer() -> None:
    with closing(Busy()) as loop:
        # As the SDK's threads do, which no Python code has started.
        _thread.start_new_thread(loop.call_soon_threadsafe, (print,))
        loop.waking.wait()
        ended = threading.Thread(target=_wait_until_left)
        ended.start()
        ended.join(5 * temporal_connection.LEAVE)
        assert (ended.is_alive(), _is_answer_handed_over()) == (True, True)
        loop.may_wake.set()
        ended.join()


def test_the_end_waits_for_no_thread_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal_connection, "LONGEST_LEAVE", 0.05)
    with closing(Busy()) as loop:
        _thread.start_new_thread(loop.call_soon_threadsafe, (print,))
        loop.waking.wait()
        _wait_until_left()
        loop.may_wake.set()


def test_a_thread_of_the_program_that_wakes_a_loop_is_not_waited_for() -> None:
    with closing(Busy()) as loop:
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(print,))
        thread.start()
        loop.waking.wait()
        frame = sys._current_frames()[thread.ident or 0]
        loop.may_wake.set()
        thread.join()
        assert _outermost(frame).f_code is not _WAKES
