"""Looking at a run from outside: files, a foreign database, Loom's ledger and Temporal's history."""

import asyncio
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from loom.client import LoomClient
from loom.domain.core.tasks import Action
from loom.watching import Streamed
from tests.chaos.plans import DATA, Call, Kind, Plan
from tests.chaos.rules import Facts
from tests.quick_calls import quick_calls

ACCOUNT: Final = "account.sqlite"
"""The foreign system of the idempotent tool; see `counting_worker`."""

_TABLES: Final = "CREATE TABLE begun (key, call); CREATE TABLE applied (key PRIMARY KEY, call);"
_CONNECTED: Final = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"
_LEDGER: Final = "SELECT key, result IS NOT NULL FROM loom_effects WHERE run_id = %s"


def set_up(workspace: Path) -> None:
    """Everything that the tools work on."""
    (workspace / "data.txt").write_text(DATA)
    with sqlite3.connect(workspace / ACCOUNT) as account:
        account.executescript(_TABLES)
    account.close()


@dataclass(kw_only=True)
class Outside:
    """One run, as seen without Loom's help."""

    client: LoomClient
    ledger: psycopg.AsyncConnection[Any]
    workspace: Path
    plan: Plan
    run_id: str
    called: set[str] = field(default_factory=set)
    """Calls of which the stream said that they run."""
    returned: set[str] = field(default_factory=set)
    """Calls of which the stream told the result."""

    async def follow(self) -> None:
        """Note what the stream says until the run ends."""
        seen = {Action.TOOL_CALL: self.called, Action.TOOL_RESULT: self.returned}
        async for event in self.client.watch(self.run_id):
            if isinstance(event, Streamed) and event.task.action in seen:
                seen[event.task.action].add(event.task.parameters["call_id"])

    async def claims(self) -> dict[str, bool]:
        """The calls in the ledger, and whether they have ended there."""
        try:
            cursor = await self.ledger.execute(_LEDGER, (self.run_id,))
        except psycopg.errors.UndefinedTable:  # no worker has needed it yet
            return {}
        return {key.split("/")[-2]: ended for key, ended in await cursor.fetchall()}

    def begun(self) -> Counter[str]:
        """How often each tool was begun."""
        return self._lines("begun.txt") + self._account("SELECT call FROM begun")

    def effects(self) -> Counter[str]:
        """How often each call took effect."""
        return self._lines("lines.txt") + self._account("SELECT call FROM applied")

    def keys(self) -> Counter[str]:
        """Under how many keys each idempotent call was run."""
        return self._account("SELECT DISTINCT call, key FROM begun")

    async def told(self) -> Counter[str]:
        """The calls whose result is in history."""
        quick = [call.activity_id for call in quick_calls(await self._events()) if call.result is not None]
        return self._counted([*quick, *await self._ended(EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED)])

    async def lost(self) -> Counter[str]:
        """How many attempts at each call Temporal gave up."""
        return self._counted(await self._ended(EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT))

    async def _events(self) -> Sequence[HistoryEvent]:
        return (await self.client.temporal.get_workflow_handle(self.run_id).fetch_history()).events

    async def _ended(self, how: "EventType.ValueType") -> list[str]:
        events = await self._events()
        names = {event.event_id: event.activity_task_scheduled_event_attributes.activity_id for event in events}
        return [names[_attributes(event).scheduled_event_id] for event in events if event.event_type == how]

    def _counted(self, ends: Sequence[str]) -> Counter[str]:
        return Counter(
            {call.id: sum(bool(re.match(rf"t\d+-{call.id}\b", name)) for name in ends) for call in self.plan.calls}
        )

    async def quiet(self, pid: int) -> None:
        """Wait until Postgres has done what a dead worker had sent, and let go of it."""
        name = f"%-{pid}"
        while await (await self.ledger.execute(_CONNECTED, (name,))).fetchone() != (0,):
            await asyncio.sleep(0.01)

    async def facts(self, dead: int) -> dict[str, Facts]:
        """Everything about every call that has an effect, once nothing of the dead worker moves any more."""
        await self.quiet(dead)
        before, now = None, await self._facts()
        while now != before:
            await asyncio.sleep(0.02)
            before, now = now, await self._facts()
        return now

    async def _facts(self) -> dict[str, Facts]:
        claims, told = await self.claims(), await self.told()
        begun, effects = self.begun(), self.effects()
        return {
            call.id: _facts(call, claims, told, begun, effects)
            for call in self.plan.calls
            if call.kind is not Kind.READ
        }

    def _lines(self, name: str) -> Counter[str]:
        path = self.workspace / name
        return Counter(path.read_text().split() if path.exists() else ())

    def _account(self, select: str) -> Counter[str]:
        account = sqlite3.connect(self.workspace / ACCOUNT)
        try:
            return Counter(row[0] for row in account.execute(select))
        finally:
            account.close()


def _attributes(event: HistoryEvent) -> Any:
    return getattr(event, event.WhichOneof("attributes") or "")


def _facts(
    call: Call, claims: dict[str, bool], told: Counter[str], begun: Counter[str], effects: Counter[str]
) -> Facts:
    return Facts(
        claimed=call.id in claims,
        begun=begun[call.id],
        effects=effects[call.id],
        ended=claims.get(call.id, False),
        told=told[call.id] > 0,
    )
