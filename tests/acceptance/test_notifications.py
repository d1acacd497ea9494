"""Notifications outlive the workers: one is killed while its receiver is away, and the next one delivers."""

import pytest

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Killable
from tests.webhook_receiver import SECRET, WebhookReceiver


@pytest.mark.slow
async def test_a_killed_worker_loses_no_notification_and_doubles_can_be_dropped(killable: Killable) -> None:
    receiver = WebhookReceiver()
    async with receiver.listening():
        pass  # nobody listens on this port now
    ask = calls(ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1"))
    loom, _, workers = await killable(script([ask, text("written")]))
    notifies = {"LOOM_NOTIFY_URL": receiver.url, "LOOM_NOTIFY_SECRET": SECRET}
    worker = await workers.start(**notifies)
    run_id = await loom.start("write it")
    await loom.asked(run_id)

    async def tried() -> bool:
        return b"not_delivered" in workers.log(0).read_bytes()

    await eventually(tried)
    await workers.kill(worker)

    async with receiver.listening():
        await workers.start(**notifies)
        await eventually(lambda: _told(receiver, run_id, ["ask"]))
        await loom.client.approve(run_id, "w1")
        assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
        await eventually(lambda: _told(receiver, run_id, ["ask", "ended"]))
    assert receiver.url not in "".join(workers.log(number).read_text() for number in (0, 1))


async def _told(receiver: WebhookReceiver, run_id: str, events: list[str]) -> bool:
    """Whether these events have come. A receiver drops doubles by their ids."""
    messages = {each.headers["webhook-id"]: each.event for each in receiver.about(run_id)}
    return list(messages.values()) == events
