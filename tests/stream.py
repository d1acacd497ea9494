"""Reading a run's live stream as a client does that shows it."""

import asyncio
from collections.abc import Sequence

from loom.activities.ports import StreamUnavailable
from loom.client import LoomClient, Streamed
from loom.domain.core.tasks import Action


async def told(client: LoomClient, run_id: str, *, after: int = 0) -> list[Streamed]:
    """Everything that the stream of an ended run says after an offset, however long a busy machine takes to read it."""
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
    """The text of each turn, by the rule of the public contract: `content` since the last reset, joined."""
    shown: dict[int, str] = {}
    for event in events:
        said = event.task.parameters
        if event.task.action is Action.SEGMENT_RESET:
            shown[said["turn"]] = ""
        if event.task.action is Action.THINKING:
            shown[said["turn"]] = shown.get(said["turn"], "") + said["content"]
    return shown


def actions(events: Sequence[Streamed]) -> list[str]:
    """What the events say, in order."""
    return [event.task.action.value for event in events]


def count(events: Sequence[Streamed], action: Action) -> int:
    """How often the stream says this."""
    return sum(event.task.action is action for event in events)


def assert_whole(events: Sequence[Streamed]) -> None:
    """One run as its client sees it: offsets without a gap, each task once, one start, one end, the end last."""
    assert [event.offset for event in events] == list(range(1, len(events) + 1))
    ids = [event.task.task_id for event in events]
    assert len(set(ids)) == len(ids)
    assert count(events, Action.START) == 1
    ends = [n for n, event in enumerate(events) if event.task.action in (Action.COMPLETE, Action.ERROR)]
    assert ends == [len(events) - 1]
