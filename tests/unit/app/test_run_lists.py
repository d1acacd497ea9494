"""A page of chats ends after many runs that aren't chats, and the pages together have every chat once, newest first."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client, WorkflowExecutionStatus

from loom import run_lists
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.client import LoomClient
from loom.run_lists import page_of_runs

BEGAN = datetime(2026, 5, 1, tzinfo=UTC)


class Server:
    """Lists runs as Temporal does: those in progress first, and then the others by the time of their end."""

    def __init__(self, runs: list[tuple[bool, int, int | None]]) -> None:
        self.read = 0
        self.runs = [self._run(number, *run) for number, run in enumerate(runs)]

    def _run(self, number: int, is_chat: bool, started: int, lasted: int | None) -> Any:
        at = BEGAN + timedelta(minutes=started)
        return SimpleNamespace(
            id=f"chat-s{number}" if is_chat else f"chat-s-m{number}",
            root_id=None,
            parent_id=None,
            status=WorkflowExecutionStatus.RUNNING if lasted is None else WorkflowExecutionStatus.COMPLETED,
            start_time=at,
            close_time=None if lasted is None else at + timedelta(minutes=lasted),
            search_attributes={
                "LoomStatus": ["completed"],
                "LoomSession": [f"s{number}" if is_chat else "s"],
                "LoomWaitingOn": [],
            },
            raw_info=None,
        )

    async def current(self, query: str) -> AsyncIterator[Any]:
        until = query.partition("StartTime <= '")[2].rstrip("'")
        found = [run for run in self.runs if not until or run.start_time <= datetime.fromisoformat(until)]
        never = datetime.max.replace(tzinfo=UTC)
        for run in sorted(found, key=lambda run: (run.close_time or never, run.start_time), reverse=True):
            self.read += 1
            yield run


RUNS = st.tuples(st.booleans(), st.integers(0, 20), st.none() | st.integers(0, 5))


@given(st.lists(RUNS, max_size=30), st.integers(1, 5), st.integers(1, 5))
async def test_the_pages_of_a_list_have_every_chat_once_newest_first(
    runs: list[tuple[bool, int, int | None]], limit: int, most: int
) -> None:
    server, found, after = Server(runs), [], None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_lists, "MOST_SKIPPED", most)
        patch.setattr("loom.visibility.is_failing", lambda _: False)
        for _ in range(100):
            page = await page_of_runs(cast("TemporalRuns", server), chats=True, after=after, limit=limit)
            found += page.runs
            after = page.next
            if after is None:
                break
    chats = [run for run in server.runs if run.id.count("-") == 1]
    expected = sorted(chats, key=lambda run: (-run.start_time.timestamp(), run.id))
    assert [run.run_id for run in found] == [run.id for run in expected]


async def test_a_page_of_chats_does_not_read_all_runs_beside_a_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([(True, 0, 1), *((False, minute, 1) for minute in range(1, 3 * run_lists.MOST_SKIPPED))])
    page = await page_of_runs(cast("TemporalRuns", server), chats=True)
    assert (page.runs, page.next is None, server.read) == ([], False, run_lists.MOST_SKIPPED)

    monkeypatch.setattr(TemporalRuns, "current", lambda _, query: server.current(query))
    client = LoomClient(await Client.connect("127.0.0.1:1", lazy=True))
    assert [run.run_id for run in await client.list(chats=True)] == ["chat-s0"]
