"""Read a run's live stream as a client does that shows it."""

import asyncio
from collections.abc import Sequence

from loom.activities.ports import StreamUnavailable
from loom.client import LoomClient
from loom.domain.core.tasks import Action
from loom.watching import Streamed


async def told(client: LoomClient, run_id: str, *, after: int = 0) -> list[Streamed]:
    """Return all events of an ended run after an offset, however long a busy machine takes to read them."""
    events: list[Streamed] = []
    while True:
        try:
            async for event in client.events(run_id, after=events[-1].offset if events else after):
                events.append(event)  # noqa: PERF401 - what came before a failure is kept
        except StreamUnavailable:
            await asyncio.sleep(1)
        else:
            return events


def texts(events: Sequence[Streamed]) -> dict[int, str]:
    """Return the text of each turn, as the public contract defines it: the `content` since the last reset, joined."""
    shown: dict[int, str] = {}
    for event in events:
        said = event.task.parameters
        if event.task.action is Action.SEGMENT_RESET:
            shown[said["turn"]] = ""
        if event.task.action is Action.THINKING:
            shown[said["turn"]] = shown.get(said["turn"], "") + said["content"]
    return shown


def actions(events: Sequence[Streamed]) -> list[str]:
    """Return the actions of the events, in order."""
    return [event.task.action.value for event in events]


def count(events: Sequence[Streamed], action: Action) -> int:
    """Return the number of events with this action."""
    return sum(event.task.action is action for event in events)


def assert_whole(events: Sequence[Streamed]) -> None:
    """Fail unless the offsets have no gap, each task occurs once, and there is one start and one end, which is last."""
    assert [event.offset for event in events] == list(range(1, len(events) + 1))
    ids = [event.task.task_id for event in events]
    assert len(set(ids)) == len(ids)
    assert count(events, Action.START) == 1
    ends = [n for n, event in enumerate(events) if event.task.action in (Action.COMPLETE, Action.ERROR)]
    assert ends == [len(events) - 1]
