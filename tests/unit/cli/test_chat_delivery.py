"""What `loom chat` says of a message, and how long it waits, if the server goes away."""

from collections.abc import Awaitable, Callable

import pytest
from temporalio.service import RPCError, RPCStatusCode

from loom.cli.commands import chat
from loom.client import LoomClient
from loom.domain.core.errors import UnreachableError
from loom.exit_codes import UNREACHABLE, code_of


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 1000:
            raise KeyboardInterrupt


def away() -> UnreachableError:
    error = UnreachableError("the Temporal server does not respond")
    error.__cause__ = RPCError("timeout", RPCStatusCode.DEADLINE_EXCEEDED, b"")
    return error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    def unreached(_work: Callable[[LoomClient], Awaitable[object]]) -> object:
        raise away()

    clock = Clock()
    monkeypatch.setattr(chat, "time", clock)
    monkeypatch.setattr(chat, "with_client", unreached)
    return clock


def talk(*, patience: float = chat.PATIENCE) -> chat._Talk:
    begun = chat._Talk("s", {}, "queue", as_json=False, in_place=False)
    begun._was_reached = True
    begun._patience = patience
    return begun


def test_without_a_person_at_a_terminal_the_wait_ends_with_the_message_named(clock: Clock) -> None:
    with pytest.raises(UnreachableError) as caught:
        talk()._answered("hello", ())
    assert code_of(caught.value) == UNREACHABLE
    assert "the message isn't sent: hello" in caught.value.__notes__
    assert 20 < clock.now <= 30


def test_at_a_terminal_only_the_person_ends_the_wait(clock: Clock) -> None:
    with pytest.raises(KeyboardInterrupt):
        talk(patience=float("inf"))._answered("hello", ())
    assert clock.now > 1000


def test_a_message_that_the_server_may_have_taken_is_not_called_unsent(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = talk()

    def cut_off(_work: Callable[[LoomClient], Awaitable[object]]) -> object:
        begun._delivery = chat._Delivery.UNKNOWN
        raise away()

    monkeypatch.setattr(chat, "with_client", cut_off)
    with pytest.raises(UnreachableError) as caught:
        begun._answered("hello", ())
    assert "the message may not have arrived: hello" in caught.value.__notes__
    assert clock.now <= 30
