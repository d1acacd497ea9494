"""Start runs at set times, with Temporal Schedules. The server starts the runs, so no client has to be running."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, Unpack, get_args
from uuid import uuid4
from zoneinfo import ZoneInfo, available_timezones

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleHandle,
    ScheduleListActionStartWorkflow,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.common import Priority
from temporalio.converter import WorkflowSerializationContext
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.temporal.errors import UNREADABLE, unanswered
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.repositories import RUN, GitWorkspace
from loom.domain.core.requests import AGENT_RUN, STARTED_BY, RunRequest
from loom.domain.core.schedules import SCHEDULED, checked_cron
from loom.request_fields import RunFields
from loom.visibility import SUMMARY_LENGTH, TASK
from loom.workflows.options import TASK_TIMEOUT
from loom.workflows.validation import read_request

Overlap: TypeAlias = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"]
"""What to do if a run is due while the previous one is still in progress."""

_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between the attempts to pause or resume a schedule."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSummary:
    """A schedule as `list` returns it."""

    name: str
    cron: str
    """This and `task` are empty if they are encrypted with a key that this process doesn't have."""
    timezone: str
    task: str
    overlap: str
    paused: bool
    note: str
    """Why it was paused or resumed."""
    last_runs: tuple[str, ...]
    """The ids of the runs that it started most recently, oldest first."""
    next_times: tuple[datetime, ...]
    """When the next runs are due, at most the next three."""


class Schedules:
    """The schedules of a namespace: `client.schedules`.

    Methods that take a name raise BadRequest if there is no such schedule. All raise UnreachableError if the server
    doesn't respond.
    """

    def __init__(
        self, temporal: Client, task_queue: str, refuse_unserved: Callable[[RunRequest], Awaitable[None]]
    ) -> None:
        self._temporal = temporal
        self._task_queue = task_queue
        self._refuse_unserved = refuse_unserved

    async def add(
        self,
        cron: str,
        task: str,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        overlap: Overlap = "skip",
        paused: bool = False,
        by: str = "",
        **request: Unpack[RunFields],
    ) -> str:
        """Start a run at each time that `cron` names, and return the schedule's name.

        The id of each run is `schedule-NAME-` and the time at which it was due, in UTC. `by` is who starts the runs.
        The other arguments are the fields of the runs' request. A schedule's requests can't have `parts` or an archive.

        Raises BadRequest if the expression, the time zone, the name or the request is invalid, or if the name is
        in use.
        """
        chosen = name if name is not None else f"s-{uuid4().hex[:8]}"
        if not _NAME.fullmatch(chosen):
            raise BadRequest(
                f"name {chosen!r}: use up to 80 letters, digits, dots, hyphens and underscores", field="name"
            )
        if overlap not in get_args(Overlap):
            raise BadRequest(f"overlap {overlap!r}: must be one of {', '.join(get_args(Overlap))}", field="overlap")
        if request.get("parts"):
            raise BadRequest(
                "a schedule can't send parts with its task: put the files into the workspace", field="parts"
            )
        payload: dict[str, Any] = {"task": task, **request}
        if isinstance(workspace := request.get("workspace"), dict) and "archive" in workspace:
            raise BadRequest(
                "a schedule's runs can't work on an archive: put the files into a folder or a Git repository",
                field="workspace.archive",
            )
        asked = read_request(payload)
        _refuse_one_branch(asked)
        spec = ScheduleSpec(cron_expressions=[checked_cron(cron)], time_zone_name=_time_zone(timezone))
        await self._refuse_unserved(asked)
        action = ScheduleActionStartWorkflow(
            AGENT_RUN,
            payload,
            id=f"{SCHEDULED}{chosen}",
            task_queue=self._task_queue,
            task_timeout=TASK_TIMEOUT,
            memo={TASK: asked.task[:SUMMARY_LENGTH]} | ({STARTED_BY: by} if by else {}),
            static_summary=asked.task[:SUMMARY_LENGTH],
            priority=Priority(priority_key=asked.priority, fairness_key=asked.tenant),
        )
        schedule = Schedule(
            action=action,
            spec=spec,
            policy=SchedulePolicy(overlap=ScheduleOverlapPolicy[overlap.upper()]),
            state=ScheduleState(paused=paused),
        )
        try:
            with _reached(chosen):
                await self._temporal.create_schedule(
                    f"{SCHEDULED}{chosen}",
                    schedule,
                    memo={"cron": spec.cron_expressions[0]},  # the server lists it, and no tenant's key encrypts it
                )
        except ScheduleAlreadyRunningError:
            raise BadRequest(
                f"schedule {chosen!r} already exists: remove it first, or choose another name", field="name"
            ) from None
        return chosen

    async def list(self) -> list[ScheduleSummary]:
        """Return all of Loom's schedules, sorted by name. The server lists a new schedule after about a second."""
        with _reached(""):
            found = [each async for each in await self._temporal.list_schedules() if _is_loom_s(each)]
            summaries = await asyncio.gather(*map(self._summary, found))
        return sorted((each for each in summaries if each is not None), key=lambda each: each.name)

    async def _summary(self, listed: ScheduleListDescription) -> ScheduleSummary | None:
        """Return the schedule, or None if it has been removed in the meantime."""
        try:
            found = await self._temporal.get_schedule_handle(listed.id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        action = found.schedule.action
        if not isinstance(action, ScheduleActionStartWorkflow):
            return None
        cron, task = await self._content(listed, action)
        executions = [each.action for each in found.info.recent_actions]
        started = [each.workflow_id for each in executions if isinstance(each, ScheduleActionExecutionStartWorkflow)]
        return ScheduleSummary(
            name=listed.id.removeprefix(SCHEDULED),
            cron=cron,
            timezone=found.schedule.spec.time_zone_name or "UTC",
            task=task,
            overlap=found.schedule.policy.overlap.name.lower(),
            paused=found.schedule.state.paused,
            note=found.schedule.state.note or "",
            last_runs=tuple(started),
            next_times=tuple(found.info.next_action_times[:3]),
        )

    async def _content(self, listed: ScheduleListDescription, action: ScheduleActionStartWorkflow) -> tuple[str, str]:
        """Return the cron expression and the task, which may be encrypted."""
        context = WorkflowSerializationContext(namespace=self._temporal.namespace, workflow_id=action.id)
        try:
            memo = await listed.memo()
            (request,) = await self._temporal.data_converter.with_context(context).decode(action.args, [dict])
        except UNREADABLE:
            return "", ""
        return str(memo.get("cron", "")), str(request.get("task", ""))

    async def pause(self, name: str, *, note: str = "") -> None:
        """Start no more runs until `resume`. Runs that are running go on."""
        await self._set_paused(name, is_paused=True, note=note)

    async def resume(self, name: str, *, note: str = "") -> None:
        """Start runs again. Those that were due meanwhile are left out."""
        await self._set_paused(name, is_paused=False, note=note)

    async def trigger(self, name: str) -> None:
        """Start a run now, also if the schedule is paused. Its overlap policy applies."""
        with _reached(name):
            await self._handle(name).trigger()

    async def remove(self, name: str) -> None:
        """Remove the schedule. Runs that it has started go on."""
        with _reached(name):
            await self._handle(name).delete()

    async def _set_paused(self, name: str, *, is_paused: bool, note: str) -> None:
        """Ask until the server says that it is so: it can lose a request if another one follows at once."""
        handle = self._handle(name)
        ask = handle.pause if is_paused else handle.unpause
        for wait in _PAUSES:
            with _reached(name):
                await ask(note=note or None)
                if (await handle.describe()).schedule.state.paused is is_paused:
                    return
            await asyncio.sleep(wait)
        raise UnreachableError(f"the Temporal server doesn't change schedule {name!r}: try again")

    def _handle(self, name: str) -> ScheduleHandle:
        return self._temporal.get_schedule_handle(f"{SCHEDULED}{name}")


@contextmanager
def _reached(name: str) -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in str(error).lower():
            raise BadRequest(f"there is no schedule {name!r}; `loom schedule list` shows all", field="NAME") from error
        raise unanswered(error, name) from error


def _refuse_one_branch(request: RunRequest) -> None:
    """Raise BadRequest if all runs would push to the same branch, which only the first one can make."""
    workspace = request.workspace
    if isinstance(workspace, GitWorkspace) and workspace.push and RUN not in workspace.push:
        raise BadRequest(
            f"workspace.push: each run of a schedule needs a branch of its own: put `{RUN}`, which stands for the run's"
            f" id, into the name, such as `{workspace.push}-{RUN}`",
            field="workspace.push",
        )


def _time_zone(name: str) -> str:
    if not available_timezones():  # Windows has none, so that the server checks the name
        return name
    try:
        return ZoneInfo(name).key
    except (ValueError, OSError, KeyError):
        raise BadRequest(
            f"time zone {name!r} isn't known: use an IANA name such as Europe/Berlin", field="timezone"
        ) from None


def _is_loom_s(found: ScheduleListDescription) -> bool:
    action = found.schedule.action if found.schedule else None
    is_run = isinstance(action, ScheduleListActionStartWorkflow) and action.workflow == AGENT_RUN
    return is_run and found.id.startswith(SCHEDULED)
