"""Find the run that a person names: by its id, the beginning of its id, `@last`, or `@N` for row N of `loom list`."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.cli.connection import with_client
from loom.cli.output import counted, one_line, print_notice
from loom.cli.started_runs import remember, started_runs
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, RunNotFoundError
from loom.domain.core.messages import JsonObject
from loom.visibility import beginning_with
from loom.watching import closing

LAST: Final = "@last"
SHOWN: Final = 8
"""Maximum number of candidates in the error for an ambiguous name."""
LOOKED_AT: Final = 1000
"""Maximum number of runs that are compared with the beginning of an id. The newest ones are."""

T = TypeVar("T")


def with_run(name: str, work: Callable[[LoomClient, str], Awaitable[T]]) -> T:
    """Call `work` with a connected client and the id of the run that `name` means. Raises the errors of `run_named`."""

    async def named(loom: LoomClient) -> T:
        return await work(loom, await run_named(loom, name))

    return with_client(named)


async def run_named(loom: LoomClient, name: str) -> str:
    """Return the id of the run that a person names.

    Raises RunNotFoundError if there is none, and BadRequest if the name is empty or several runs' ids begin with it.
    """
    if not name:
        raise BadRequest(f"the run's id is empty: use an id, the beginning of one, or {LAST}", field="run_id")
    if name.startswith("@"):
        run_id = await _marked(loom, name)
        print_notice(f"{name} is {run_id}")
        return run_id
    try:
        await TemporalRuns(loom.temporal).described(name)
    except RunNotFoundError:
        candidates = await _beginning_with(loom, name)
        if not candidates:
            raise
        return _only(name, candidates, "run", "runs")
    return name


def remember_started(loom: LoomClient, run_id: str) -> None:
    """Make a run that this command has started the one that `@last` names at this terminal."""
    remember(_server(loom), run_id)


def call_named(status: JsonObject, name: str) -> str:
    """Return the id of the pending call that a person names by its id or the beginning of its id.

    A name that fits no pending call is returned as it is, because the run itself refuses it. Raises BadRequest if
    several calls fit.
    """
    pending = [str(ask["call_id"]) for ask in status.get("pending_approvals", ())]
    fitting = [call_id for call_id in pending if call_id.startswith(name)]
    return name if name in pending or not fitting else _only(name, fitting, "pending call", "pending calls")


async def _marked(loom: LoomClient, name: str) -> str:
    if name == LAST:
        return await _last(loom)
    row = name.removeprefix("@")
    if not (row.isascii() and row.isdigit()) or int(row) < 1:
        raise BadRequest(f"{name!r} names no run: use {LAST}, or @1 for the first row of `loom list`", field="run_id")
    listed = await loom.list(limit=int(row))
    if len(listed) < int(row):
        raise BadRequest(f"there is no {name}: `loom list` has {counted(len(listed), 'run')}", field="run_id")
    return listed[int(row) - 1].run_id


async def _last(loom: LoomClient) -> str:
    """Return the newest run that was started at this terminal, or else by this user, or else by anybody."""
    for run_id in started_runs(_server(loom)):
        if await _exists(loom, run_id):
            return run_id
    newest = await loom.list(limit=1)
    if not newest:
        raise RunNotFoundError('there are no runs yet; start one with `loom run "…"`')
    return newest[0].run_id


def _server(loom: LoomClient) -> str:
    """Return what tells the runs of the client's server and namespace apart from all others."""
    config = loom.temporal.service_client.config
    proxy = config.http_connect_proxy_config
    return " ".join([*([proxy.target_host] if proxy else []), config.target_host, loom.temporal.namespace])


async def _exists(loom: LoomClient, run_id: str) -> bool:
    try:
        await TemporalRuns(loom.temporal).described(run_id)
    except RunNotFoundError:
        return False
    return True


async def _beginning_with(loom: LoomClient, name: str) -> list[str]:
    """Return the ids that begin with the name, newest first. A run's id stands for those of its sub-agents."""
    if "'" in name:
        return []
    executions = TemporalRuns(loom.temporal).found(beginning_with(name), limit=LOOKED_AT)
    async with closing(executions) as found:
        ids = dict.fromkeys([execution.id async for execution in found])
    return [run_id for run_id in ids if not any(run_id.startswith(f"{other}/") for other in ids)]


def _only(name: str, candidates: list[str], noun: str, plural: str) -> str:
    if len(candidates) == 1:
        return candidates[0]
    shown = ", ".join(one_line(each) for each in candidates[:SHOWN])
    more = f" and {len(candidates) - SHOWN} more" if len(candidates) > SHOWN else ""
    raise BadRequest(
        f"the ids of {counted(len(candidates), noun, plural)} begin with {name!r}: {shown}{more}; use more of the id",
        field="run_id",
    )
