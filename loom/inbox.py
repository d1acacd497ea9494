"""The calls and questions of all runs that wait for a person: `loom inbox` and `LoomClient.pending`.

Visibility says which runs wait. Each root is then asked for its status, which lists the asks of its whole tree, so that
each ask is listed once. A run's question is in its own status. A run that doesn't answer in time is listed with what
the server knows about it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias

from temporalio.client import WorkflowExecution

from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.adapters.temporal.task_faults import is_failing
from loom.domain.core.errors import RunNotFoundError, UnreachableError
from loom.domain.core.messages import JsonObject
from loom.file_changes import change_of
from loom.pending_approvals import PendingApproval, approval_fields, read_approval
from loom.visibility import first_value, listing, root_of

_log = logging.getLogger("loom.inbox")

TIME_LIMIT: Final = 8.0
"""Seconds after which runs that haven't answered are listed as stale."""
LATE: Final = f"so many runs wait that it wasn't read within {TIME_LIMIT:.0f} s"
FAILING: Final = "its workflow task fails: `loom repair` continues it"
AT_ONCE: Final = 10
"""Number of runs of one task queue that are asked at the same time. A worker answers some tens of them per second. More
at once would only wait for it, until they look as if it were down.
"""
MOST_RUNS: Final = 2000
"""Maximum number of waiting runs that are looked at. The newest ones are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingCall(PendingApproval):
    """A tool call that waits for a person's decision: `client.approve(run_id, call_id, digest=…)` or `client.deny`."""

    run_id: str
    """The root of the tree. It takes the decision."""
    tenant: str
    """The tenant that the run works for. Empty if it works for none."""
    workspace: str = ""
    """The folder in which the call would run, on the worker's machine. Empty if it isn't known."""
    since: datetime
    """When the call began to wait, in UTC."""
    kind: Literal["approval"] = "approval"
    """Tells the three kinds of entries apart, also in JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingAnswer:
    """A question that an agent asks with `ask_user`: `client.send(run_id, text)` answers it."""

    run_id: str
    """The run that takes the answer."""
    agent: str
    """The agent that asks."""
    tenant: str
    """The tenant that the run works for. Empty if it works for none."""
    question: str
    """The question, in the agent's words."""
    since: datetime
    """When the run began to wait, in UTC."""
    turn: int = 0
    """The turn in which the agent asked."""
    kind: Literal["question"] = "question"
    """Tells the three kinds of entries apart, also in JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentRun:
    """A run that waits for a person, but whose worker doesn't answer, or whose status can't be read. Nothing else is
    known about what it waits for.
    """

    run_id: str
    """The run's id, which is also its Workflow ID."""
    agent: str
    """The name of the run's agent."""
    tenant: str
    """The tenant that the run works for. Empty if it works for none."""
    waiting_on: str
    """`approval`, `input` or `resume`."""
    since: datetime
    """When the run's last execution started."""
    error: str = ""
    """Why the status can't be read. Empty if no worker responds."""
    kind: Literal["stale"] = "stale"
    """Tells the three kinds of entries apart, also in JSON."""


Waiting: TypeAlias = PendingCall | PendingAnswer | SilentRun


def waiting_view(waiting: Waiting, now: datetime) -> JsonObject:
    """Return an entry as a JSON object, as `loom inbox --json` and the HTTP API show it."""
    view = {name: value for name, value in asdict(waiting).items() if name not in ("asked_at", "depth")}
    view |= {"age": round((now - waiting.since).total_seconds(), 1), "stale": isinstance(waiting, SilentRun)}
    return {**view, "change": change_in(waiting)} if isinstance(waiting, PendingCall) else view


def change_in(call: PendingCall) -> str | None:
    """Return what the call would change in a file, as a diff, if that is known."""
    return None if call.is_cut else change_of(call.tool, call.arguments, call.workspace)


class Inbox:
    """Finds what waits for a person."""

    def __init__(self, runs: TemporalRuns, workspace_of: Callable[[str], Awaitable[str]]) -> None:
        """`workspace_of` returns a run's folder on its worker's machine, or an empty string."""
        self._runs = runs
        self._workspace_of = workspace_of
        # A task queue whose workers are down mustn't delay the others.
        self._asking: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))

    async def pending(self, *, tenant: str | None = None, agent: str | None = None) -> tuple[Waiting, ...]:
        """Return everything that waits, oldest first. Raises BadRequest if a filter is invalid."""
        query = listing(status=None, session=None, below=None, tenant=tenant, waiting=None)
        query += " AND ExecutionStatus = 'Running' AND LoomWaitingOn IN ('approval', 'input', 'resume')"
        about: dict[str, WorkflowExecution] = {}
        async with aclosing(self._runs.found(query, limit=MOST_RUNS)) as executions:  # type: ignore[type-var]
            async for execution in executions:
                root = root_of(execution)
                # The asks of a whole tree are in the status of its root. A question is in that of the run itself, which
                # may be paused.
                asks_itself = root == execution.id or first_value(execution, "LoomWaitingOn") != "approval"
                about.setdefault(execution.id if asks_itself else root, execution)
        found = await self._looked_at(about)
        shown = [each for each in found if agent in (None, each.agent)]
        return tuple(sorted(shown, key=lambda each: (each.since, each.run_id)))

    async def pending_in(self, execution: WorkflowExecution) -> tuple[Waiting, ...]:
        """Return what waits in one run and its sub-agents. The root knows all calls, and the run its question."""
        root = root_of(execution)
        at_root = await self._look(root, execution)
        if root == execution.id:
            return tuple(at_root)
        below = f"{execution.id}/"
        calls = [
            each
            for each in at_root
            if isinstance(each, SilentRun) or (isinstance(each, PendingCall) and f"{each.made_by}/".startswith(below))
        ]
        own = await self._look(execution.id, execution)
        return (*calls, *(each for each in own if isinstance(each, PendingAnswer)))

    async def _looked_at(self, about: Mapping[str, WorkflowExecution]) -> list[Waiting]:
        # Visibility lists the newest first. If there isn't enough time, the oldest have been read.
        looking = {asyncio.create_task(self._look(*each)): each for each in reversed(list(about.items()))}
        if not looking:
            return []
        done, late = await asyncio.wait(looking, timeout=TIME_LIMIT)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        silent = [_silent(run_id, execution, None, LATE) for run_id, execution in map(looking.__getitem__, late)]
        return [*silent, *(waiting for task in done for waiting in task.result())]

    async def _look(self, run_id: str, execution: WorkflowExecution) -> list[Waiting]:
        """Return what one run waits for. An answer that can't be read must not hide those of other runs."""
        async with self._asking[execution.task_queue]:
            try:
                return await self._asked(run_id, execution)
            except Exception as error:  # noqa: BLE001 - a worker of any release, or a codec, may have answered
                _log.warning("status_unreadable", extra={"run_id": run_id}, exc_info=error)
                return [_silent(run_id, execution, since=None, error=f"{type(error).__name__}: {error}")]

    async def _asked(self, run_id: str, execution: WorkflowExecution) -> list[Waiting]:
        """Ask one run. `execution` is the run, or a sub-agent that it is listed for."""
        if execution.id == run_id and is_failing(execution):
            return [_silent(run_id, execution, await self._since(execution), FAILING)]
        try:
            status: JsonObject = await self._runs.query(run_id, "status", dict)
        except RunNotFoundError:
            return []
        except UnreachableError:
            return [_silent(run_id, execution, await self._since(execution))]
        asks = status.get("pending_approvals", ()) if root_of(execution) == run_id else ()
        waiting: list[Waiting] = [await self._call(run_id, execution, ask) for ask in asks]
        if status.get("question"):
            since = await self._since(execution) or execution.start_time
            waiting.append(_question(run_id, status, execution, since))
        return waiting

    async def _since(self, execution: WorkflowExecution) -> datetime | None:
        with suppress(RunNotFoundError, UnreachableError):
            return await self._runs.waiting_since(execution)
        return None

    async def _call(self, run_id: str, execution: WorkflowExecution, ask: JsonObject) -> PendingCall:
        call = read_approval(ask)
        made_by = call.made_by or run_id
        changes_files = call.tool in ("write_file", "edit_file")
        return PendingCall(
            **{**approval_fields(ask), "made_by": made_by},
            run_id=run_id,
            tenant=first_value(execution, "LoomTenant"),
            workspace=await self._workspace_of(made_by) if changes_files else "",
            since=datetime.fromisoformat(call.asked_at) if call.asked_at else execution.start_time,
        )


def _question(run_id: str, status: JsonObject, execution: WorkflowExecution, since: datetime) -> PendingAnswer:
    return PendingAnswer(
        run_id=run_id,
        agent=str(status.get("agent", "")),
        tenant=first_value(execution, "LoomTenant"),
        question=str(status["question"]),
        since=since,
        turn=int(status.get("turn") or 0),
    )


def _silent(run_id: str, execution: WorkflowExecution, since: datetime | None, error: str = "") -> SilentRun:
    return SilentRun(
        run_id=run_id,
        agent=first_value(execution, "LoomAgent"),
        tenant=first_value(execution, "LoomTenant"),
        waiting_on=first_value(execution, "LoomWaitingOn"),
        since=since or execution.start_time,
        error=error,
    )
