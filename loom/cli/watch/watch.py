"""What `run`, `watch` and `events` do once they are connected."""

import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.service import RPCError

from loom.activities.adapters.redis.stream import task_view
from loom.activities.ports import StreamUnavailable
from loom.cli.output import console, print_json, tell
from loom.cli.watch.approval_prompt import Prompter
from loom.cli.watch.follower import Follower, approve_all
from loom.cli.watch.json_output import JsonLines, Quiet
from loom.cli.watch.keyboard import Keyboard, at_terminal
from loom.cli.watch.screen import Screen
from loom.client import LoomClient, Streamed, closing
from loom.composition.load_settings import load_settings
from loom.domain.core.requests import RunResult

POLL_MEMORY: Final = timedelta(seconds=90)
"""A worker polls at least this often; the server lists those that are gone for five minutes more."""


async def tell_if_nobody_works(loom: LoomClient) -> None:
    """Say so when there is nobody to work on a run that has been started."""
    queue = load_settings().task_queue
    if not await has_worker(loom, queue):
        tell(f"no worker is polling {queue!r}; the run waits. Start one with `loom worker` or `loom up`")


async def has_worker(loom: LoomClient, queue: str) -> bool:
    """Whether a worker has asked this task queue for work of late; True when the server does not say."""
    request = DescribeTaskQueueRequest(
        namespace=loom.temporal.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    try:
        answer = await loom.temporal.workflow_service.describe_task_queue(request, timeout=timedelta(seconds=2))
    except RPCError:
        return True
    oldest = datetime.now(UTC) - POLL_MEMORY
    return any(poller.last_access_time.ToDatetime(tzinfo=UTC) > oldest for poller in answer.pollers)


async def watch_run(
    loom: LoomClient,
    run_id: str,
    *,
    after: int = 0,
    just_started: bool = False,
    by: str | None = None,
    as_json: bool = False,
    events: bool = True,
) -> RunResult:
    """Follow a run to its end in the form that fits; with `by` every ask is approved in that name."""
    if as_json:
        face = (JsonLines if events else Quiet)(run_id, answered=by is not None)
        follower = Follower(loom, run_id, face, approve_all if by else None, by or "")
        return await follower.follow(after, just_started=just_started)
    out = console()
    answerable = at_terminal() and by is None
    screen = Screen(out, run_id, live=out.is_terminal, answerable=answerable or by is not None, replies=answerable)
    keyboard = Keyboard(sys.stdin.fileno()) if answerable else None
    prompter = Prompter(screen, keyboard, run_id) if keyboard else None
    answerer = prompter.answer if prompter else None
    replier = prompter.reply if prompter else None
    with keyboard.opened() if keyboard else nullcontext():
        async with screen.moving():
            follower = Follower(loom, run_id, screen, approve_all if by else answerer, by or "", replier=replier)
            ended = await follower.follow(after, just_started=just_started)
    screen.ended(ended)
    return ended


async def print_events(loom: LoomClient, run_id: str, *, after: int) -> None:
    """Print the events there are beyond offset `after` as JSON lines; raises StreamUnavailable."""
    seen = False
    async with closing(loom.events(run_id, after=after)) as events:
        async for event in events:
            seen = True
            print_json(task_view(event.offset, event.task))
    if not seen:
        await loom.status(run_id)  # says so when there is no such run


async def follow_events(loom: LoomClient, run_id: str, *, after: int) -> None:
    """Print events until the run has ended; raises StreamUnavailable when none came, or the last ones did not."""
    seen = False
    away = ""
    async with closing(loom.watch(run_id, after=after)) as events:
        async for watched in events:
            if isinstance(watched, Streamed):
                seen, away = True, ""
                print_json(task_view(watched.offset, watched.task))
            elif not seen:
                raise StreamUnavailable(watched.why)
            elif not away:
                away = watched.why
                tell(f"live stream is away ({away}); going on when it is back")
    if away:
        raise StreamUnavailable(away)
