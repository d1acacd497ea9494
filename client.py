"""Start, steer and watch runs from Python.

    from loom import LoomClient

    async with LoomClient.connected() as loom:
        run_id = await loom.start("Audit src/ and write report.md", model="openai:gpt-5.2")
        async for event in loom.watch(run_id):
            ...
        result = await loom.result(run_id)

Methods that concern one run take its id, which is also its workflow id. They raise the errors of `loom.errors`:
BadRequest, RunNotFoundError, RunExistsError, RefusedError, UnreachableError.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar, Unpack, overload
from uuid import uuid4

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from loom.activities.adapters.redis.stream import RedisReader
from loom.activities.adapters.temporal.errors import answered, no_run
from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.ports import EventReader, StreamUnavailable
from loom.app.output_types import TypedResult, schema_of, typed
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.composition.temporal_connection import connected
from loom.domain.agents.stats import AgentStats, stats_of
from loom.domain.core.errors import BadRequest, RunExistsError, RunNotFoundError, UnreachableError
from loom.domain.core.messages import JsonObject, Message
from loom.domain.core.requests import ENDED, ForkedFrom, RunRequest, RunResult, fork_view
from loom.domain.core.tasks import Task, is_last
from loom.domain.history.forks import ForkPoint, begun_at, fork_point, fork_request, refuse_changes
from loom.domain.history.past_turns import PastTurn, turns_of
from loom.request_fields import CrewRunFields, ForkFields, RunFields
from loom.visibility import (
    RunSummary,
    ended_untold,
    ended_view,
    execution_of,
    failed_result,
    is_sub_agent,
    listing,
    outside_view,
    runs_of,
    summary_of,
)
from loom.workflows.validation import AGENT_RUN, CREW_RUN, read_crew_request, read_request, read_steering

T = TypeVar("T")

MOST_OPENED: Final = 200
"""Maximum results that are read for one list, for runs whose status is known nowhere else."""
MOST_COUNTED: Final = 10_000
"""Maximum executions of an agent that its figures include, the newest."""
SILENCE_BEFORE_CHECK: Final = 2.0
"""Seconds without an event after which the client asks the server whether the run has ended."""
POLL_INTERVAL: Final = 0.5
"""Seconds between two status queries while the live stream is unavailable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """An event of the live stream."""

    offset: int
    task: Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Polled:
    """The run's status, queried because the live stream is unavailable."""

    status: JsonObject
    why: str


Watched: TypeAlias = Streamed | Polled


class LoomClient:
    """A connection to the Temporal server, and to the live stream if there is one."""

    def __init__(self, temporal: Client, *, task_queue: str = "loom", events: EventReader | None = None) -> None:
        self.temporal = temporal
        self._task_queue = task_queue
        self._events = events
        self._runs = TemporalRuns(temporal)
        self._pasts = TemporalPasts(temporal)

    @classmethod
    @asynccontextmanager
    async def connected(cls, settings: Settings | None = None) -> AsyncIterator["LoomClient"]:
        """Connect as the environment says; raises UnreachableError when no server answers."""
        chosen = settings or load_settings()
        events = RedisReader(chosen.redis_url) if chosen.redis_url else None
        async with connected(chosen) as temporal:
            yield cls(temporal, task_queue=chosen.task_queue, events=events)

    async def start(
        self, task: str, *, run_id: str | None = None, output: Any = None, **request: Unpack[RunFields]
    ) -> str:
        """Start a run and return its id. The other keyword arguments are the fields of the request.

        `output` is the type of the answer: a pydantic model, a dataclass, or anything else that pydantic supports. Pass
        the same type to `result` to get the answer as a value of that type. Raises BadRequest before anything is sent,
        and RunExistsError if `run_id` is already used.
        """
        payload = {"task": task, **_output_schema(output), **request}
        return await self._start(AGENT_RUN, payload, read_request(payload), run_id)

    async def start_crew(
        self,
        crew: str | JsonObject,
        task: str,
        *,
        run_id: str | None = None,
        output: Any = None,
        **request: Unpack[CrewRunFields],
    ) -> str:
        """Start a run of a crew and return its id; `crew` is a registered name or the crew's fields (docs/crews.md).

        The other arguments are those of `start`. Every method for runs works for this run, too.
        """
        payload = {"crew": crew, "task": task, **_output_schema(output), **request}
        return await self._start(CREW_RUN, payload, read_crew_request(payload), run_id)

    async def fork(
        self,
        run_id: str,
        *,
        turn: int,
        message: str | None = None,
        fork_id: str | None = None,
        **changes: Unpack[ForkFields],
    ) -> str:
        """Start a run from the end of another run's `turn` and return its id; turn 0 is the other run's beginning.

        `message` is a message to the agent at that point, and `changes` replace fields of the other run's request.
        The fork repeats nothing that the other run did, and finds files as they are now. Raises BadRequest when the
        turn does not exist or has not ended, and when a field cannot be changed.
        """
        forked = ForkedFrom(run_id=run_id, turn=turn, message=message)
        point = await self.fork_point(forked)
        payload = {**fork_request(point, forked), **changes}
        is_crew = point.request.crew is not None
        asked = read_crew_request(payload) if is_crew else read_request(payload)
        refuse_changes(point, asked)
        return await self._start(CREW_RUN if is_crew else AGENT_RUN, payload, asked, fork_id)

    async def fork_point(self, forked: ForkedFrom) -> ForkPoint:
        """The state that a fork would begin with; raises the errors of `fork`."""
        point = fork_point(await self._pasts.records(forked.run_id), forked.turn)
        return begun_at(point, forked)

    async def _start(self, kind: str, payload: JsonObject, asked: RunRequest, run_id: str | None) -> str:
        if run_id is not None and not run_id.strip():
            raise BadRequest("the run's id is empty; leave it out for a new one", field="run_id")
        name = run_id or f"run-{uuid4().hex[:12]}"
        try:
            with answered(name):
                await self.temporal.start_workflow(
                    kind,
                    payload,
                    id=name,
                    task_queue=self._task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    memo={"forked_from": forked} if (forked := fork_view(asked.forked_from)) else None,
                    static_summary=asked.task[:200],
                )
        except WorkflowAlreadyStartedError:
            raise RunExistsError(f"run {name!r} exists already; choose another id, or watch it") from None
        return name

    async def status(self, run_id: str) -> JsonObject:
        """The run's status: of an ended run from its result; of a run without a worker from the server, with `"stale":
        true`.
        """
        description = await self._described(run_id)
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return ended_view(description, await self._pasts.beginning(run_id), await self.result(run_id))
        try:
            answer = await self._asked(run_id)
        except UnreachableError:
            return outside_view(description, await self._pasts.beginning(run_id))
        return {**answer, "children": await asyncio.gather(*map(self._as_it_stands, answer["children"]))}

    async def _asked(self, run_id: str) -> JsonObject:
        answer: JsonObject = await self._runs.query(run_id, "status", dict)
        return answer

    async def _as_it_stands(self, child: JsonObject) -> JsonObject:
        """The status of a sub-agent from itself, since its parent only knows what it last reported."""
        if child["status"] in ENDED:
            return child
        try:
            now = await self._asked(str(child["run_id"]))
        except (UnreachableError, RunNotFoundError):
            return child  # one that is about to be started is not there yet
        below = await asyncio.gather(*map(self._as_it_stands, now["children"]))
        told = ("status", "waiting_on", "turn", "tool_calls", "usage", "cost")
        return {**child, **{name: now[name] for name in told}, "children": below}

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """The messages of the run's current window. Needs a running worker."""
        await self._described(run_id)
        messages: tuple[Message, ...] = await self._runs.query(run_id, "transcript", tuple[Message, ...])
        return messages

    @overload
    async def result(self, run_id: str) -> RunResult: ...
    @overload
    async def result(self, run_id: str, *, output: type[T]) -> TypedResult[T]: ...
    @overload
    async def result(self, run_id: str, *, output: Any) -> RunResult: ...

    async def result(self, run_id: str, *, output: Any = None) -> RunResult:
        """Wait for the run to end and return its result. A failed run has a result too.

        With `output`, `structured_output` is a value of that type, or None if the run gave no answer. Raises
        OutputSchemaError if the answer matches the schema but the type rejects it, for example in a validator.
        """
        try:
            with answered(run_id):
                result: RunResult = await self.temporal.get_workflow_handle(run_id, result_type=RunResult).result()
        except WorkflowFailureError as error:
            return failed_result(error)
        return result if output is None else typed(result, output)

    async def turns(self, run_id: str) -> tuple[PastTurn, ...]:
        """Every turn of a run so far, from its history. Needs no worker."""
        return turns_of(await self._pasts.records(run_id))

    async def approve(
        self,
        run_id: str,
        call_id: str | None = None,
        *,
        scope: Literal["once", "run"] = "once",
        arguments: JsonObject | None = None,
        digest: str | None = None,
        by: str = "",
    ) -> JsonObject:
        """Approve a pending call; without `call_id`, the only one. Raises RefusedError if it is not pending."""
        payload = {"call_id": call_id, "scope": scope, "arguments": arguments, "digest": digest, "by": by}
        return await self._ask(run_id, "approve", payload)

    async def deny(self, run_id: str, call_id: str | None = None, *, reason: str = "", by: str = "") -> JsonObject:
        """Deny a pending call. The model reads the reason."""
        return await self._ask(run_id, "deny", {"call_id": call_id, "reason": reason, "by": by})

    async def pause(self, run_id: str, *, by: str = "") -> JsonObject:
        """Pause the run: it starts nothing new until `resume`."""
        return await self._ask(run_id, "pause", {"by": by})

    async def resume(self, run_id: str, *, by: str = "") -> JsonObject:
        """Resume a paused run."""
        return await self._ask(run_id, "resume", {"by": by})

    async def abort(self, run_id: str, *, reason: str = "", by: str = "") -> JsonObject:
        """Abort the run within a second. Everything that is running is cancelled."""
        return await self._ask(run_id, "abort", {"reason": reason, "by": by})

    async def set_permissions(self, run_id: str, rules: Mapping[str, str], *, by: str = "") -> JsonObject:
        """Merge rules into the run's own. Calls that have not run yet are judged again."""
        return await self._ask(run_id, "set_permissions", {"rules": dict(rules), "by": by})

    async def send(self, run_id: str, text: str, *, by: str = "") -> JsonObject:
        """Reply to the agent's question, or send a message that it reads when its next turn starts."""
        return await self._signal(run_id, "send_message", {"text": text, "by": by})

    async def list(
        self,
        *,
        status: str | None = None,
        session: str | None = None,
        below: str | None = None,
        limit: int = 50,
    ) -> list[RunSummary]:
        """The newest runs first, without sub-agents; with `below`, that run and everything that it delegated."""
        query = listing(status=status, session=session, below=below)
        found: list[RunSummary] = []
        opened = 0
        async with closing(self._runs.found(query)) as executions:
            async for execution in executions:
                if below is None and is_sub_agent(execution):
                    continue
                summary = summary_of(execution)
                if ended_untold(execution) and opened < MOST_OPENED:
                    opened += 1
                    summary = replace(summary, status=await self._runs.ended_as(execution) or summary.status)
                if status in (None, summary.status):
                    found.append(summary)
                if len(found) == limit:
                    break
        return found

    async def agent_stats(self, agent: str) -> AgentStats:
        """The state and figures of an agent, from the runs that the server still has."""
        listed = self._runs.found(runs_of(agent), limit=MOST_COUNTED + 1)
        found = [execution_of(execution) async for execution in listed]
        return stats_of(found[:MOST_COUNTED], is_complete=len(found) <= MOST_COUNTED)

    def events(self, run_id: str, *, after: int = 0, follow: bool = False) -> AsyncIterator[Streamed]:
        """The live stream alone, from the event after offset `after`; raises StreamUnavailable."""
        return streamed(self._events, run_id, after=after, follow=follow)

    def watch(self, run_id: str, *, after: int = 0) -> AsyncIterator[Watched]:
        """Events as they happen, until the run has ended. While the stream is unavailable, its status whenever that
        changes.
        """
        return watched(self._events, self, run_id, after=after)

    async def has_ended(self, run_id: str) -> bool:
        """Whether the run has ended."""
        return (await self._described(run_id)).status is not WorkflowExecutionStatus.RUNNING

    async def _described(self, run_id: str) -> WorkflowExecutionDescription:
        description = await self._runs.described(run_id)
        if description.workflow_type not in (AGENT_RUN, CREW_RUN):
            raise no_run(run_id)
        return description

    async def _ask(self, run_id: str, name: str, payload: JsonObject) -> JsonObject:
        """Send an update and wait for its receipt. If the run has no worker, leave a signal instead."""
        given = _checked(name, payload)
        receipt = await self._runs.update(run_id, name, given)
        if receipt is not None:
            return receipt
        if name in ("approve", "deny") and "call_id" not in given:
            # As a signal, it would approve whatever is the only pending call when a worker is back, which nobody has
            # seen.
            raise UnreachableError("no worker answers; name the call, or start a worker with `loom up`")
        return await self._signal(run_id, name, given)

    async def _signal(self, run_id: str, name: str, payload: JsonObject) -> JsonObject:
        await self._runs.signal(run_id, name, _checked(name, payload))
        return {"accepted": True, "run_id": run_id, "queued": True}


def _output_schema(output: Any) -> JsonObject:
    return {} if output is None else {"output_schema": schema_of(output)}


def _checked(name: str, payload: JsonObject) -> JsonObject:
    """The request without fields that were left out; raises BadRequest as the run would."""
    given = {field: value for field, value in payload.items() if value not in (None, "")}
    read_steering(name, given, datetime.now().astimezone())
    return given


async def streamed(
    reader: EventReader | None, run_id: str, *, after: int, follow: bool = False
) -> AsyncIterator[Streamed]:
    """The live stream alone, from the event after offset `after`; raises StreamUnavailable."""
    if reader is None:
        raise StreamUnavailable("no Redis is configured: set LOOM_REDIS_URL")
    async with closing(reader.read(run_id, after, follow=follow)) as tasks:
        async for offset, task in tasks:
            yield Streamed(offset=offset, task=task)


async def watched(reader: EventReader | None, server: LoomClient, run_id: str, *, after: int) -> AsyncIterator[Watched]:
    """Events as they happen, until the run has ended. While the stream is unavailable, its status whenever that
    changes.
    """
    shown: JsonObject | None = None
    while True:
        try:
            async with closing(_until_silent(reader, server, run_id, after)) as events:
                async for event in events:
                    after = event.offset
                    yield event
                    if is_last(event.task, run_id):
                        return
            # The run ended without a final event. What the stream has still counts.
            async for event in streamed(reader, run_id, after=after):
                yield event
            return
        except StreamUnavailable as error:
            ended, status = await server.has_ended(run_id), await server.status(run_id)
            if status != shown:
                shown = status
                yield Polled(status=status, why=str(error))
            if ended:
                return
            await asyncio.sleep(POLL_INTERVAL)


async def _until_silent(
    reader: EventReader | None, server: LoomClient, run_id: str, after: int
) -> AsyncIterator[Streamed]:
    """The stream as it grows, until there are no events and the server says that the run has ended."""
    coming: asyncio.Task[Streamed] | None = None
    async with closing(streamed(reader, run_id, after=after, follow=True)) as stream:
        try:
            while True:
                coming = asyncio.ensure_future(anext(stream))
                while not (await asyncio.wait({coming}, timeout=SILENCE_BEFORE_CHECK))[0]:
                    if await server.has_ended(run_id):
                        return
                try:
                    yield coming.result()
                except StopAsyncIteration:
                    return
        finally:
            if coming is not None and not coming.done():
                coming.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await coming


def closing(events: AsyncIterator[T]) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """Events, closed if the caller stops early: a generator that is only garbage-collected outlives its loop."""
    return aclosing(events)  # type: ignore[type-var]  # async generators, all of them
