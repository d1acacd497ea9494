"""How the inbox reads many runs: the oldest first, and no task queue at the expense of another."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loom import inbox
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.domain.core.errors import UnreachableError
from loom.inbox import AT_ONCE, Inbox, PendingCall, SilentRun

NOW = datetime.now(UTC)
ASK = {"call_id": "c1", "tool": "bash", "arguments": {}}


class Server:
    """A server with runs of three task queues: `up` has a worker, `down` has none, and `slow` answers too late."""

    def __init__(self, **numbers: int) -> None:
        self.busy: Counter[str] = Counter()
        self.busiest: Counter[str] = Counter()
        self.asked: list[str] = []
        self._runs = [
            SimpleNamespace(
                id=f"{queue}-{number}",
                task_queue=queue,
                search_attributes={"LoomWaitingOn": ["approval"]},
                start_time=NOW - timedelta(seconds=number),
                root_id=None,
                status=None,
            )
            for queue, count in numbers.items()
            for number in range(count)  # as a server does, the newest first
        ]

    async def found(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        for run in self._runs:
            yield run

    async def query(self, run_id: str, *_: Any) -> Any:
        queue = run_id.partition("-")[0]
        self.asked.append(run_id)
        self.busy[queue] += 1
        self.busiest[queue] = max(self.busiest[queue], self.busy[queue])
        await asyncio.sleep({"up": 0.0, "down": 0.02, "slow": 10}[queue])
        self.busy[queue] -= 1
        if queue == "down":
            raise UnreachableError("no worker responds")
        return {"pending_approvals": [ASK]}

    async def waiting_since(self, _: Any) -> datetime | None:
        return None


async def test_runs_without_a_worker_do_not_delay_others_and_those_not_read_in_time_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "TIME_LIMIT", 1.0)
    server = Server(up=100, down=30, slow=12)

    async def nowhere(_: str) -> str:
        return ""

    found = await Inbox(cast("TemporalRuns", server), nowhere).pending()
    told = Counter((each.run_id.partition("-")[0], type(each), getattr(each, "error", "")) for each in found)
    assert told == {
        ("up", PendingCall, ""): 100,
        ("down", SilentRun, ""): 30,
        ("slow", SilentRun, inbox.LATE): 12,
    }
    assert server.busiest == {"up": AT_ONCE, "down": AT_ONCE, "slow": AT_ONCE}
    assert [each for each in server.asked if each.startswith("slow")] == [f"slow-{n}" for n in range(11, 1, -1)]
    assert [each.since for each in found] == sorted(each.since for each in found)
