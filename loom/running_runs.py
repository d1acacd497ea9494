"""Find the runs that haven't ended, and abort them together: `loom abort --all`.

Visibility knows which runs are running, and of most of them whom they work for. What it doesn't know is in the run's
request: the user, and everything about a run that no worker has prepared. The requests to abort are signals, so they
need no worker. The server then tells which runs have ended.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from time import monotonic
from typing import Final

from temporalio.client import Client, WorkflowExecution

from loom.activities.adapters.temporal.errors import UNREADABLE
from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.domain.core.errors import RefusedError, RunNotFoundError
from loom.domain.core.requests import RunRequest
from loom.outside_status import request_of
from loom.run_overviews import RunOverview
from loom.visibility import TASK, RunSummary, first_value, listing, root_of, summary_of
from loom.workflows.validation import read_steering

MOST_RUNS: Final = 10_000
"""Maximum number of runs that are looked at. The newest ones are."""
AT_ONCE: Final = 20
"""Number of runs that are read or asked at the same time."""
PATIENCE: Final = 15.0
"""Seconds without the end of any run, after which the others aren't waited for. A run waits up to ten seconds for its
sub-agents.
"""
CHECK_INTERVAL: Final = 0.3
"""Seconds between two looks at which runs have ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFilter:
    """Which runs are meant. None: any."""

    agent: str | None = None
    """The agent of the run itself, which may be a sub-agent."""
    session: str | None = None
    tenant: str | None = None
    user: str | None = None
    """The session, tenant and user are those of the root of the run's tree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """The runs that are running and that a filter means."""

    runs: tuple[RunOverview, ...]
    """Oldest first, without sub-agents of another one of them, with which they end."""
    unread: tuple[str, ...]
    """The runs of which nobody knows whether the filter means them, because their request can't be read."""


class RunningRuns:
    """Finds and aborts runs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._runs = TemporalRuns(client)
        self._pasts = TemporalPasts(client)
        self._working = asyncio.Semaphore(AT_ONCE)

    async def meant_by(self, which: RunFilter) -> Running:
        """Return the runs that the filter means."""
        found = await self._running()
        owners = {run_id: found.get(root_of(each), each) for run_id, each in found.items()}
        requests = {} if which == RunFilter() else await self._requests(found, owners, which)
        asked = {name: want for name, want in asdict(which).items() if want is not None}
        meant, unread = set(), []
        for run_id, each in found.items():
            known = {"agent": _agent(each, requests), **_works_for(owners[run_id], requests)}
            if any(known[name] not in (None, want) for name, want in asked.items()):
                continue
            if any(known[name] is None for name in asked):
                unread.append(run_id)
            else:
                meant.add(run_id)
        tops = [found[run_id] for run_id in meant if not _is_below(found[run_id], meant)]
        tops.sort(key=lambda each: (each.start_time, each.id))
        return Running(runs=tuple([await _overview(each) for each in tops]), unread=tuple(sorted(unread)))

    async def abort(self, runs: Collection[str], *, reason: str = "", by: str = "") -> tuple[RunSummary, ...]:
        """Ask the runs to end, wait until they and their sub-agents have, and return those that haven't.

        Raises BadRequest, without asking any, if the reason is invalid.
        """
        payload = {name: value for name, value in {"reason": reason, "by": by}.items() if value}
        read_steering("abort", payload, datetime.now().astimezone())

        async def ask(run_id: str) -> None:
            with suppress(RefusedError, RunNotFoundError):  # it has ended
                async with self._working:
                    await self._runs.signal(run_id, "abort", payload)

        await asyncio.gather(*map(ask, runs))
        left = await self._left(runs)
        since = monotonic()
        while left and monotonic() - since < PATIENCE:
            await asyncio.sleep(CHECK_INTERVAL)
            before, left = left, await self._left(runs)
            since = monotonic() if len(left) < len(before) else since
        return tuple(summary_of(each) for each in left)

    async def _left(self, runs: Collection[str]) -> list[WorkflowExecution]:
        running = (await self._running()).values()
        return [each for each in running if each.id in runs or _is_below(each, runs)]

    async def _running(self) -> dict[str, WorkflowExecution]:
        query = listing(status=None, session=None, below=None, tenant=None, waiting=None)
        found: dict[str, WorkflowExecution] = {}
        running = self._runs.found(f"{query} AND ExecutionStatus = 'Running'", limit=MOST_RUNS)
        async with aclosing(running) as executions:  # type: ignore[type-var]
            async for execution in executions:
                found.setdefault(execution.id, execution)
        return found

    async def _requests(
        self, found: Mapping[str, WorkflowExecution], owners: Mapping[str, WorkflowExecution], which: RunFilter
    ) -> dict[str, RunRequest | None]:
        """Return the requests of the runs about which the server doesn't know enough. None: it can't be read."""
        unprepared = {run_id for run_id, each in found.items() if not first_value(each, "LoomAgent")}
        of_users = {owner.id for owner in owners.values()} if which.user is not None else set()
        wanted = sorted(unprepared | of_users)
        return dict(zip(wanted, await asyncio.gather(*(self._request(found[each]) for each in wanted)), strict=True))

    async def _request(self, execution: WorkflowExecution) -> RunRequest | None:
        async with self._working:
            try:
                request = request_of(execution, await self._pasts.beginning(execution.id))
            except UNREADABLE:
                return None
        return request if request.task else None


def _agent(execution: WorkflowExecution, requests: Mapping[str, RunRequest | None]) -> str | None:
    if known := first_value(execution, "LoomAgent"):
        return known
    request = requests.get(execution.id)
    return None if request is None else request.agent


def _works_for(execution: WorkflowExecution, requests: Mapping[str, RunRequest | None]) -> Mapping[str, str | None]:
    """Return the run's session, tenant and user, or None for each that can't be read."""
    request = requests.get(execution.id)
    told = {
        "session": first_value(execution, "LoomSession") or None,
        "tenant": first_value(execution, "LoomTenant") if first_value(execution, "LoomAgent") else None,
        "user": None,
    }
    if request is None:
        return told
    return {
        "session": told["session"] or request.session_id or execution.id,
        "tenant": request.tenant or "",
        "user": request.user_id or "",
    }


def _is_below(execution: WorkflowExecution, others: Collection[str]) -> bool:
    """Whether the run is a sub-agent of one of the others, at any depth."""
    root = root_of(execution)
    above = execution.id
    while above != root and "/" in above:
        above = above.rpartition("/")[0]
        if above in others:
            return True
    return False


async def _overview(execution: WorkflowExecution) -> RunOverview:
    task = ""
    with suppress(*UNREADABLE):
        task = str((await execution.memo()).get(TASK, ""))
    return RunOverview(summary=summary_of(execution), task=task)
