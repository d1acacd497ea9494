"""Start, control and watch runs from Python.

    from loom import LoomClient

    async with LoomClient.connected() as loom:
        run_id = await loom.start("Audit src/ and write report.md", model="openai:gpt-5.2")
        async for event in loom.watch(run_id):
            ...
        result = await loom.result(run_id)

Methods that work on a single run take its ID, which is also the Workflow ID. They raise these errors from
`loom.errors`: BadRequest, RunNotFoundError, RunExistsError, RefusedError and UnreachableError.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar, Unpack, overload
from uuid import uuid4

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import Priority, WorkflowIDReusePolicy
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
from loom.domain.core.errors import BadRequest, RefusedError, RunExistsError, RunNotFoundError, UnreachableError
from loom.domain.core.messages import JsonObject, Message
from loom.domain.core.requests import ENDED, ForkedFrom, RunRequest, RunResult, fork_view
from loom.domain.core.tasks import Task, is_last
from loom.domain.history.forks import ForkPoint, begun_at, fork_point, fork_request, refuse_changes
from loom.domain.history.past_turns import PastTurn, turns_of
from loom.domain.machine.reopening import refused_reopening
from loom.domain.run.events import RetryRequested, SteeringEvent
from loom.domain.run.state import ParkedOn
from loom.domain.tree.lineage import is_child
from loom.request_fields import BudgetFields, CrewRunFields, ForkFields, RunFields
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
from loom.workflows.options import TASK_TIMEOUT
from loom.workflows.validation import AGENT_RUN, CREW_RUN, read_crew_request, read_request, read_steering

T = TypeVar("T")

MOST_OPENED: Final = 200
"""Maximum number of results that one `list` call reads. It reads a result if a run reported no final status."""
MOST_COUNTED: Final = 10_000
"""Maximum number of executions in an agent's statistics. The newest executions are counted."""
SILENCE_BEFORE_CHECK: Final = 2.0
"""Seconds without an event before the client asks the server whether the run has ended."""
POLL_INTERVAL: Final = 0.5
"""Seconds between two status queries while the live stream is unavailable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """An event from the live stream."""

    offset: int
    task: Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Polled:
    """The status of a run. The client queries it while the live stream is unavailable."""

    status: JsonObject
    why: str


Watched: TypeAlias = Streamed | Polled


class LoomClient:
    """A connection to the Temporal server and, if one is configured, to the live stream."""

    def __init__(self, temporal: Client, *, task_queue: str = "loom", events: EventReader | None = None) -> None:
        self.temporal = temporal
        self.task_queue = task_queue
        self._events = events
        self._runs = TemporalRuns(temporal)
        self._pasts = TemporalPasts(temporal)

    @classmethod
    @asynccontextmanager
    async def connected(cls, settings: Settings | None = None) -> AsyncIterator["LoomClient"]:
        """Connect with the given settings, or with settings from the environment.

        Raises UnreachableError if no server responds.
        """
        chosen = settings or load_settings()
        events = RedisReader(chosen.redis_url) if chosen.redis_url else None
        async with connected(chosen) as temporal:
            yield cls(temporal, task_queue=chosen.task_queue, events=events)

    async def start(
        self, task: str, *, run_id: str | None = None, output: Any = None, **request: Unpack[RunFields]
    ) -> str:
        """Start a run and return its ID. Pass the fields of the request as keyword arguments.

        `output` is the type of the answer: a pydantic model, a dataclass, or any other type that pydantic supports.
        Pass the same type to `result` to get the answer as a value of that type.

        Raises BadRequest, without sending the request, if the request is invalid. Raises RunExistsError if `run_id`
        is already in use.
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
        """Start a crew run and return its ID.

        `crew` is the name of a registered crew, or a crew definition (see docs/crews.md). The other arguments are the
        same as for `start`. All other methods of this client also work for crew runs.
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
        """Start a new run that continues another run from the end of the given turn, and return the new run's ID.

        Turn 0 is the start of the other run. `message` is sent to the agent at that point, and `changes` override
        fields of the other run's request. The fork doesn't repeat any of the other run's actions, and it sees files in
        their current state.

        Raises BadRequest if the turn doesn't exist or hasn't ended, or if a field can't be changed.
        """
        forked = ForkedFrom(run_id=run_id, turn=turn, message=message)
        point = await self.fork_point(forked)
        payload = {**fork_request(point, forked), **changes}
        is_crew = point.request.crew is not None
        asked = read_crew_request(payload) if is_crew else read_request(payload)
        refuse_changes(point, asked)
        return await self._start(CREW_RUN if is_crew else AGENT_RUN, payload, asked, fork_id)

    async def fork_point(self, forked: ForkedFrom) -> ForkPoint:
        """Return the state that a fork would start from. Raises the same errors as `fork`."""
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
                    task_queue=self.task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    task_timeout=TASK_TIMEOUT,
                    memo={"forked_from": forked} if (forked := fork_view(asked.forked_from)) else None,
                    static_summary=asked.task[:200],
                    priority=Priority(priority_key=asked.priority, fairness_key=asked.tenant),
                )
        except WorkflowAlreadyStartedError:
            raise RunExistsError(f"run {name!r} already exists; choose another id, or watch it") from None
        return name

    async def status(self, run_id: str) -> JsonObject:
        """Return the run's status.

        If the run has ended, the status comes from its result. If no worker responds, the status comes from the server
        and contains `"stale": true`.
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
        """Query a sub-agent for its current status. Its parent knows only the last reported status."""
        if child["status"] in ENDED:
            return child
        try:
            now = await self._asked(str(child["run_id"]))
        except (UnreachableError, RunNotFoundError):
            return child  # the sub-agent may not have started yet
        below = await asyncio.gather(*map(self._as_it_stands, now["children"]))
        told = ("status", "waiting_on", "turn", "tool_calls", "usage", "cost")
        return {**child, **{name: now[name] for name in told}, "children": below}

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Return the messages in the run's current context window. This call requires a running worker."""
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
        """Wait for the run to end and return its result. A failed run also has a result.

        If you pass `output`, the result's `structured_output` is a value of that type, or None if the run didn't
        produce an answer. Raises OutputSchemaError if the answer matches the schema but the type rejects it, for
        example in a validator.
        """
        try:
            with answered(run_id):
                result: RunResult = await self.temporal.get_workflow_handle(run_id, result_type=RunResult).result()
        except WorkflowFailureError as error:
            return failed_result(error)
        return result if output is None else typed(result, output)

    async def turns(self, run_id: str) -> tuple[PastTurn, ...]:
        """Read all turns of the run so far from its history and return them. This call doesn't require a worker."""
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
        """Approve a pending call. You can omit `call_id` if only one call is pending.

        Raises RefusedError if the call isn't pending.
        """
        payload = {"call_id": call_id, "scope": scope, "arguments": arguments, "digest": digest, "by": by}
        return await self._ask(run_id, "approve", payload)

    async def deny(self, run_id: str, call_id: str | None = None, *, reason: str = "", by: str = "") -> JsonObject:
        """Deny a pending call. The reason is passed to the model."""
        return await self._ask(run_id, "deny", {"call_id": call_id, "reason": reason, "by": by})

    async def pause(self, run_id: str, *, by: str = "") -> JsonObject:
        """Pause the run. A paused run doesn't start any new work until you call `resume`."""
        return await self._ask(run_id, "pause", {"by": by})

    async def resume(self, run_id: str, *, by: str = "") -> JsonObject:
        """Resume a paused run."""
        return await self._ask(run_id, "resume", {"by": by})

    async def retry(
        self,
        run_id: str,
        *,
        model: str | None = None,
        max_turns: int | None = None,
        budget: BudgetFields | None = None,
        message: str = "",
        by: str = "",
    ) -> JsonObject:
        """Let a run go on that waits or has ended, with `model` if you name one.

        A run that waits for its provider or its operator tries its model call now. A run that has failed, was aborted,
        or has reached a limit goes on from its end under the same ID. It repeats no finished step, and its usage and
        cost go on. `max_turns` and `budget` replace the limits of an ended run, and `message` is sent to its agent.

        Raises RefusedError if the run neither waits nor can go on.
        """
        changes = {"model": model, "max_turns": max_turns, "budget": budget, "message": message, "by": by}
        description = await self._described(run_id)
        if description.status is WorkflowExecutionStatus.RUNNING:
            return await self._ask(run_id, "retry", changes)
        if is_child(run_id, description.parent_id or ""):
            raise RefusedError(f"run {run_id!r} is a sub-agent of {description.parent_id!r}, which went on without it")
        result = await self.result(run_id)
        asked = _read("retry", given := _given({**changes, "end": result.retries + 1}))
        if isinstance(asked, RetryRequested) and (why := refused_reopening(result, asked)) is not None:
            raise RefusedError(f"run {run_id!r} can't go on: {why}")
        await self._runs.reopen(run_id, description.run_id, given)
        return {"accepted": True, "run_id": run_id, "after": result.status}

    async def abort(self, run_id: str, *, reason: str = "", by: str = "") -> JsonObject:
        """Abort the run within a second and cancel all of its running work."""
        return await self._ask(run_id, "abort", {"reason": reason, "by": by})

    async def set_permissions(self, run_id: str, rules: Mapping[str, str], *, by: str = "") -> JsonObject:
        """Merge permission rules into the run's own rules. Calls that haven't run yet are evaluated again."""
        return await self._ask(run_id, "set_permissions", {"rules": dict(rules), "by": by})

    async def send(self, run_id: str, text: str, *, by: str = "") -> JsonObject:
        """Reply to the agent's question, or send a message that the agent reads when its next turn starts."""
        return await self._signal(run_id, "send_message", {"text": text, "by": by})

    async def list(
        self,
        *,
        status: str | None = None,
        session: str | None = None,
        below: str | None = None,
        tenant: str | None = None,
        waiting: str | None = None,
        limit: int = 50,
    ) -> list[RunSummary]:
        """List runs, newest first. Sub-agents are omitted unless you set `below`.

        If `below` is set to a run ID, only that run and all of its direct and indirect sub-agents are listed. If
        `waiting` is `provider`, `operator`, `approval`, `input`, `resume` or `tenant`, only runs that wait for it are
        listed. Sub-agents wait for their provider and their operator themselves, so they are listed as well.
        """
        query = listing(status=status, session=session, below=below, tenant=tenant, waiting=waiting)
        with_sub_agents = below is not None or waiting in tuple(ParkedOn)
        found: list[RunSummary] = []
        opened = 0
        async with closing(self._runs.current(query)) as executions:
            async for execution in executions:
                if not with_sub_agents and is_sub_agent(execution):
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
        """Return an agent's state and statistics, computed from the runs that the server still retains."""
        listed = self._runs.found(runs_of(agent), limit=MOST_COUNTED + 1)
        found = [execution_of(execution) async for execution in listed]
        return stats_of(found[:MOST_COUNTED], is_complete=len(found) <= MOST_COUNTED)

    def events(self, run_id: str, *, after: int = 0, follow: bool = False) -> AsyncIterator[Streamed]:
        """Read events from the live stream only, starting after offset `after`.

        Raises StreamUnavailable if the stream can't be read.
        """
        return streamed(self._events, run_id, after=after, follow=follow)

    def watch(self, run_id: str, *, after: int = 0) -> AsyncIterator[Watched]:
        """Yield events as they happen, until the run ends.

        While the live stream is unavailable, yield the run's status each time it changes.
        """
        return watched(self._events, self, run_id, after=after)

    async def has_ended(self, run_id: str) -> bool:
        """Return whether the run has ended."""
        return (await self._described(run_id)).status is not WorkflowExecutionStatus.RUNNING

    async def has_gone_on(self, run_id: str, ended_at: datetime) -> bool:
        """Return whether the run was retried after this end, as far as the server knows."""
        with suppress(UnreachableError, RunNotFoundError):
            return (await self._described(run_id)).start_time > ended_at
        return False

    async def _described(self, run_id: str) -> WorkflowExecutionDescription:
        description = await self._runs.described(run_id)
        if description.workflow_type not in (AGENT_RUN, CREW_RUN):
            raise no_run(run_id)
        return description

    async def _ask(self, run_id: str, name: str, payload: JsonObject) -> JsonObject:
        """Send an Update and wait for its receipt. If the run can't take the Update now, send a Signal instead."""
        given = _checked(name, payload)
        receipt = await self._runs.update(run_id, name, given)
        if receipt is not None:
            return receipt
        if name in ("approve", "deny") and "call_id" not in given:
            # A Signal would be applied only when a worker runs again. By then, a different call could be the only
            # pending one, and nobody would have reviewed it.
            raise UnreachableError("no worker is responding; pass the call's id, or start a worker with `loom up`")
        return await self._signal(run_id, name, given)

    async def _signal(self, run_id: str, name: str, payload: JsonObject) -> JsonObject:
        await self._runs.signal(run_id, name, _checked(name, payload))
        return {"accepted": True, "run_id": run_id, "queued": True}


def _output_schema(output: Any) -> JsonObject:
    return {} if output is None else {"output_schema": schema_of(output)}


def _checked(name: str, payload: JsonObject) -> JsonObject:
    """Return the payload without empty values. Raises BadRequest if the run would reject the request."""
    given = _given(payload)
    _read(name, given)
    return given


def _given(payload: JsonObject) -> JsonObject:
    return {field: value for field, value in payload.items() if value not in (None, "")}


def _read(name: str, given: JsonObject) -> SteeringEvent:
    return read_steering(name, given, datetime.now().astimezone())


async def streamed(
    reader: EventReader | None, run_id: str, *, after: int, follow: bool = False
) -> AsyncIterator[Streamed]:
    """Read events from the live stream only, starting after offset `after`.

    Raises StreamUnavailable if the stream can't be read.
    """
    if reader is None:
        raise StreamUnavailable("no Redis is configured: set LOOM_REDIS_URL")
    async with closing(reader.read(run_id, after, follow=follow)) as tasks:
        async for offset, task in tasks:
            yield Streamed(offset=offset, task=task)


async def watched(reader: EventReader | None, server: LoomClient, run_id: str, *, after: int) -> AsyncIterator[Watched]:
    """Yield events as they happen, until the run ends.

    While the live stream is unavailable, yield the run's status each time it changes.
    """
    shown: JsonObject | None = None
    while True:
        try:
            async with closing(_until_last_end(reader, server, run_id, after)) as events:
                async for event in events:
                    after = event.offset
                    yield event
            # If the run ended without a final event, there may still be events in the stream.
            async with closing(streamed(reader, run_id, after=after)) as events:
                async for event in events:
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


async def _until_last_end(
    reader: EventReader | None, server: LoomClient, run_id: str, after: int
) -> AsyncIterator[Streamed]:
    """Follow the stream until the run has ended, also beyond ends after which a person has retried it."""
    while True:
        ended_at: datetime | None = None
        async with closing(_until_silent(reader, server, run_id, after)) as events:
            async for event in events:
                after = event.offset
                ended_at = event.task.created_at if is_last(event.task, run_id) else None
                yield event
        if ended_at is None or not await server.has_gone_on(run_id, ended_at):
            return


async def _until_silent(
    reader: EventReader | None, server: LoomClient, run_id: str, after: int
) -> AsyncIterator[Streamed]:
    """Follow the stream until no more events arrive and the server reports that the run has ended."""
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
    """Return a context manager that closes the generator even if the caller stops iterating early.

    A generator that is closed only by garbage collection can outlive its event loop.
    """
    return aclosing(events)  # type: ignore[type-var]  # all of these iterators are async generators
