"""The `notify` commands, which test the notifications that workers send."""

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import typer

from loom.activities.notifications import send
from loom.cli.arguments import Json, new_app
from loom.cli.output import print_json
from loom.composition.load_settings import load_settings
from loom.composition.notifications import receivers_from
from loom.composition.settings import Settings
from loom.composition.worker_report import variable_of
from loom.domain.core.errors import BadRequest, NotDeliveredError
from loom.domain.core.notifications import Channel, Notification, NotifyEvent
from loom.exit_codes import FAILED

app = new_app("notify", "Test notifications about approvals, questions and ended runs.")

_SETTINGS: dict[Channel, str] = {
    "webhook": "notify_url",
    "command": "notify_command",
    "escalation": "notify_escalate_url",
}


@app.callback()
def _group() -> None:
    """Test notifications about approvals, questions and ended runs."""


@app.command("test")
def trial(as_json: Json = False) -> None:
    """Send a test message to each receiver in the settings of this shell.

    A running worker keeps the settings that it was started with. Exit code 1: a receiver didn't accept the message.
    """
    outcomes = asyncio.run(_sent(load_settings()))
    if as_json:
        print_json([{"channel": channel, "ok": why is None, "error": why} for channel, why in outcomes.items()])
    else:
        for channel, why in outcomes.items():
            typer.echo(f"{variable_of(_SETTINGS[channel])}: {'sent' if why is None else f'not sent: {why}'}")
    if any(outcomes.values()):
        raise typer.Exit(FAILED)


async def _sent(settings: Settings) -> dict[Channel, str | None]:
    """Return, for each receiver, why it hasn't taken the message, or None if it has."""
    receivers = receivers_from(settings)
    if not receivers:
        raise BadRequest(
            "there is nobody to notify: set LOOM_NOTIFY_URL, LOOM_NOTIFY_COMMAND or LOOM_NOTIFY_ESCALATE_URL",
            field="LOOM_NOTIFY_URL",
        )
    outcomes: dict[Channel, str | None] = {}
    for channel, receiver in receivers.items():
        try:
            await send(receiver, _trial(), channel)
            outcomes[channel] = None
        except NotDeliveredError as error:
            outcomes[channel] = error.message
    return outcomes


def _trial() -> Notification:
    return Notification(
        event=NotifyEvent.TEST,
        key="test",
        run_id="loom-notify-test",
        execution=uuid4().hex,
        root_run_id="loom-notify-test",
        session_id="loom-notify-test",
        agent="loom",
        since=datetime.now(UTC),
        summary="This is a trial. Nothing waits for you.",
        commands=("loom inbox",),
    )
