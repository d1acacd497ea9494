"""Lists of runs, newest first, page by page."""

from bisect import insort
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.chat_ids import CHAT, is_chat
from loom.domain.core.requests import ParkedOn
from loom.visibility import RunSummary, ended_untold, is_sub_agent, listing, summary_of
from loom.watching import closing

MOST_OPENED: Final = 200
"""Maximum number of results that one page reads. It reads a result if a run reported no final status."""
MOST_SKIPPED: Final = 1_000
"""Number of runs that answer one message beside a chat, after which a page of chats ends early."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunsFound:
    """A page of a list."""

    runs: list[RunSummary]
    next: tuple[datetime, str] | None
    """Pass it as `after` to get the next page. None if this is the last page."""


async def page_of_runs(
    server: TemporalRuns,
    *,
    status: str | None = None,
    session: str | None = None,
    below: str | None = None,
    tenant: str | None = None,
    waiting: str | None = None,
    chats: bool = False,
    after: tuple[datetime, str] | None = None,
    limit: int = 50,
) -> RunsFound:
    """Return a page of the list that `LoomClient.list` describes. A page of chats may be short, or even empty, although
    others follow.
    """
    query = listing(status=status, session=session, below=below, tenant=tenant, waiting=waiting)
    query += f" AND WorkflowId STARTS_WITH '{CHAT}'" if chats else ""
    query += f" AND StartTime <= '{after[0].isoformat()}'" if after is not None else ""
    with_sub_agents = below is not None or waiting in tuple(ParkedOn)
    newest: list[RunSummary] = []
    opened = skipped = 0
    async with closing(server.current(query)) as executions:
        async for execution in executions:
            ended_at = execution.close_time
            # The server lists running executions first, and then the others by the time of their end.
            if len(newest) == limit and ended_at and ended_at <= newest[-1].started_at:
                break
            summary = summary_of(execution)
            is_answer = chats and not is_chat(summary.run_id, summary.session)  # to one message, beside a chat
            skipped += is_answer
            if is_answer and skipped >= MOST_SKIPPED and ended_at and (after is None or ended_at < after[0]):
                return _until(ended_at, newest)
            if is_answer or (not with_sub_agents and is_sub_agent(execution)):
                continue
            if ended_untold(execution) and opened < MOST_OPENED:
                opened += 1
                summary = replace(summary, status=await server.ended_as(execution) or summary.status)
            if status in (None, summary.status) and (after is None or _place(summary) > _placed(*after)):
                insort(newest, summary, key=_place)
                del newest[limit:]
    return RunsFound(runs=newest, next=(newest[-1].started_at, newest[-1].run_id) if len(newest) == limit else None)


def _until(ended_at: datetime, found: list[RunSummary]) -> RunsFound:
    """Return a page that ends early. The runs that haven't been read ended before this time, and so started before."""
    return RunsFound(runs=[run for run in found if run.started_at > ended_at], next=(ended_at, CHAT))


def _place(run: RunSummary) -> tuple[float, str]:
    """Return what lists are sorted by: the newest run is first."""
    return _placed(run.started_at, run.run_id)


def _placed(started_at: datetime, run_id: str) -> tuple[float, str]:
    return -started_at.timestamp(), run_id
