"""`loom notify test`: a trial message to each receiver."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loom.exit_codes import COMPLETED, FAILED, USAGE
from tests.commands import commands_in
from tests.webhook_receiver import SECRET, WebhookReceiver


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    """A receiver beside this thread, in which the command runs its own loop."""
    receiver, ready, end = WebhookReceiver(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def listen() -> None:
        async with receiver.listening():
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(listen(),))
    thread.start()
    ready.wait()
    yield receiver
    loop.call_soon_threadsafe(end.set)
    thread.join()
    loop.close()


def test_a_trial_reaches_each_receiver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: WebhookReceiver
) -> None:
    written = tmp_path / "told.json"
    own = {
        "LOOM_NOTIFY_URL": receiver.url,
        "LOOM_NOTIFY_SECRET": SECRET,
        "LOOM_NOTIFY_COMMAND": f"tee {written}",
        "LOOM_NOTIFY_ESCALATE_URL": receiver.url,
    }
    with commands_in(tmp_path, monkeypatch, **own) as loom:
        ran = loom("notify", "test")
        assert (ran.code, ran.out.splitlines()) == (
            COMPLETED,
            ["LOOM_NOTIFY_URL: sent", "LOOM_NOTIFY_COMMAND: sent", "LOOM_NOTIFY_ESCALATE_URL: sent"],
        )
        assert [each.event for each in receiver.messages] == ["test", "test"]
        assert json.loads(written.read_text())["data"]["summary"] == "This is a trial. Nothing waits for you."

        receiver.answers += [403]
        ran = loom("notify", "test", "--json")
        assert ran.code == FAILED
        assert json.loads(ran.out)[0] == {"channel": "webhook", "ok": False, "error": "the receiver answered 403"}


def test_without_a_receiver_the_command_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with commands_in(tmp_path, monkeypatch) as loom:
        ran = loom("notify", "test")
    assert ran.code == USAGE
    assert "LOOM_NOTIFY_URL" in ran.err
