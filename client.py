"""Start, steer and watch runs from Python.

    async with LoomClient.connected() as loom:
        run_id = await loom.start("Audit src/ and write report.md", model="openai:gpt-5.2")
        async for event in loom.watch(run_id):
            ...
        result = await loom.result(run_id)

Every method takes the run's id, which is its workflow id. Errors are those of `loom_domain.errors`: BadRequest,
RunNotFoundError, RunExistsError, RefusedError, UnreachableError.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, TypeVar
from uuid import uuid4

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.adapters.postgres_payloads import PostgresPayloads
from activities.adapters.redis_stream import RedisReader
from activities.adapters.temporal_pasts import TemporalPasts
from activities.ports import EventReader, StreamUnavailable
from loom_domain.agent_stats import AgentStats, stats_of
from loom_domain.errors import BadRequest, RefusedError, RunExistsError, RunNotFoundError, UnreachableError
from loom_domain.forks import ForkPoint, begun_at, fork_point, fork_request
from loom_domain.messages import JsonObject, Message
from loom_domain.past import PastTurn, turns_of
from loom_domain.requests import ENDED, ForkedFrom, RunRequest, RunResult, fork_view
from loom_domain.tasks import Task, is_last
from loom_output import schema_of, typed
from loom_settings import Settings, load_settings
from workflows.border import AGENT_RUN, CREW_RUN, read_crew_request, read_request, read_steering
from workflows.converter import data_converter
from workflows.outside import (
    RunSummary,
    ended_view,
    execution_of,
    failed_result,
    is_sub_agent,
    outside_view,
    quotable,
    status_filter,
    summary_of,
)

_T = TypeVar("_T")

ANSWER_LIMIT: Final = 2.0
"""Seconds that a live run may take to answer a query before its state from outside is shown instead."""
UPDATE_LIMIT: Final = 5.0
"""Seconds that a run may take to acknowledge a request before it is left for it as a signal."""
SILENCE: Final = 2.0
"""Seconds without an event after which `watch` asks the server whether the run is still there."""
MOST_COUNTED: Final = 10_000
"""Executions of an agent that its figures are made of, the newest."""
POLL: Final = 0.5
"""Seconds between two looks at a run whose stream is away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """An event of the live stream."""

    offset: int
    task: Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Polled:
    """The run's status, asked for because the live stream is away."""

    status: JsonObject
    why: str


Watched: TypeAlias = Streamed | Polled


class LoomClient:
    """A connection to the Temporal server, and to the live stream if there is one."""

    def __init__(self, temporal: Client, *, task_queue: str = "loom", events: EventReader | None = None) -> None:
        self.temporal = temporal
        self._task_queue = task_queue
        self._events = events
        self._pasts = TemporalPasts(temporal)

    @classmethod
    @asynccontextmanager
    async def connected(cls, settings: Settings | None = None) -> AsyncIterator["LoomClient"]:
        """Connect as the environment says; raises UnreachableError when no server answers."""
        chosen = settings or load_settings()
        storage = PostgresPayloads(chosen.database_url) if chosen.database_url else None
        events = RedisReader(chosen.redis_url) if chosen.redis_url else None
        try:
            temporal = await _connect(chosen, storage)
            yield cls(temporal, task_queue=chosen.task_queue, events=events)
        finally:
            if storage is not None:
                await storage.aclose()

    async def start(self, task: str, *, run_id: str | None = None, output: Any = None, **request: Any) -> str:
        """Start a run and return its id; keyword arguments are the fields of the request (`model`, `workspace`, …).

        `output`, such as a pydantic model, is the type that the answer has to have; give it to `result`, too.
        Raises BadRequest before anything is sent, RunExistsError when `run_id` is taken.
        """
        payload = {"task": task, **({} if output is None else {"output_schema": schema_of(output)}), **request}
        return await self._start(AGENT_RUN, payload, read_request(payload), run_id)

    async def start_crew(
        self, crew: str | JsonObject, task: str, *, run_id: str | None = None, output: Any = None, **request: Any
    ) -> str:
        """Start a run of a crew, by its name or with its fields (docs/crews.md), and return the run's id.

        Everything else is as for `start`, and everything that can be done with a run can be done with this one.
        """
        form = {} if output is None else {"output_schema": schema_of(output)}
        payload = {"crew": crew, "task": task, **form, **request}
        return await self._start(CREW_RUN, payload, read_crew_request(payload), run_id)

    async def fork(
        self, run_id: str, *, turn: int, message: str | None = None, fork_id: str | None = None, **changes: Any
    ) -> str:
        """Start a run from where `turn` left another one and return its id; 0 is the other's beginning.

        `message` is said to the agent there; `changes` are fields of the request (`model`, `permissions`, …). Nothing
        that the other run did is done again, and files are as they are now. Raises BadRequest for a turn that is not
        there, or not over.
        """
        forked = ForkedFrom(run_id=run_id, turn=turn, message=message)
        point = await self.fork_point(forked)
        payload = {**fork_request(point, forked), **changes}
        if point.spec.crew is not None:
            return await self._start(CREW_RUN, payload, read_crew_request(payload), fork_id)
        return await self._start(AGENT_RUN, payload, read_request(payload), fork_id)

    async def fork_point(self, forked: ForkedFrom) -> ForkPoint:
        """What a fork would begin with; raises as `fork` does."""
        point = fork_point(await self._pasts.records(forked.run_id), forked.turn)
        return begun_at(point, forked)

    async def _start(self, kind: str, payload: JsonObject, asked: RunRequest, run_id: str | None) -> str:
        if run_id is not None and not run_id.strip():
            raise BadRequest("the run's id is empty; leave it out for a new one", field="run_id")
        name = run_id or f"run-{uuid4().hex[:12]}"
        try:
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
        except RPCError as error:
            raise _translated(error, name) from error
        return name

    async def status(self, run_id: str) -> JsonObject:
        """The run's status; of an ended run from its result, of a silent one from outside with `"stale": true`."""
        description = await self._describe(run_id)
        if description.status is not WorkflowExecutionStatus.RUNNING:
            forked = await description.memo_value("forked_from", None)
            return {**ended_view(description, await self.result(run_id)), "forked_from": forked}
        try:
            # Not `rpc_timeout`, which holds for each try.
            async with asyncio.timeout(ANSWER_LIMIT):
                answer: JsonObject = await self._handle(run_id).query("status", result_type=dict)
        except (RPCError, WorkflowQueryFailedError, TimeoutError):
            return outside_view(description)
        return {**answer, "children": await asyncio.gather(*map(self._as_it_stands, answer["children"]))}

    async def _as_it_stands(self, child: JsonObject) -> JsonObject:
        """A sub-agent as it says itself, since its parent only knows what it has reported."""
        if child["status"] in ENDED:
            return child
        with suppress(RPCError, WorkflowQueryFailedError, TimeoutError):
            async with asyncio.timeout(ANSWER_LIMIT):
                now: JsonObject = await self._handle(str(child["run_id"])).query("status", result_type=dict)
            below = await asyncio.gather(*map(self._as_it_stands, now["children"]))
            told = ("status", "waiting_on", "turn", "tool_calls", "usage", "cost")
            return {**child, **{name: now[name] for name in told}, "children": below}
        return child

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """The messages of the run's current window; needs a live worker."""
        await self._describe(run_id)
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                messages: tuple[Message, ...] = await self._handle(run_id).query(
                    "transcript", result_type=tuple[Message, ...]
                )
        except (RPCError, WorkflowQueryFailedError, TimeoutError) as error:
            raise UnreachableError("no worker answers; start one with `loom worker` or `loom up`") from error
        return messages

    async def result(self, run_id: str, *, output: Any = None) -> RunResult:
        """Wait for the run's end and return its result, of a failed run, too; `output` is the type of its answer."""
        try:
            result: RunResult = await self.temporal.get_workflow_handle(run_id, result_type=RunResult).result()
        except WorkflowFailureError as error:
            return failed_result(error)
        except RPCError as error:
            raise _translated(error, run_id) from error
        return result if output is None else typed(result, output)

    async def turns(self, run_id: str) -> tuple[PastTurn, ...]:
        """Every turn of a run so far, from its history: no worker has to be there."""
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
        """Let a waiting call run; without `call_id` the only one. Raises RefusedError when it does not wait."""
        payload = {"call_id": call_id, "scope": scope, "arguments": arguments, "digest": digest, "by": by}
        return await self._ask(run_id, "approve", payload)

    async def deny(self, run_id: str, call_id: str | None = None, *, reason: str = "", by: str = "") -> JsonObject:
        """Refuse a waiting call; the model reads the reason."""
        return await self._ask(run_id, "deny", {"call_id": call_id, "reason": reason, "by": by})

    async def pause(self, run_id: str, *, by: str = "") -> JsonObject:
        """Let nothing new start until `resume`."""
        return await self._ask(run_id, "pause", {"by": by})

    async def resume(self, run_id: str, *, by: str = "") -> JsonObject:
        """Let a paused run go on."""
        return await self._ask(run_id, "resume", {"by": by})

    async def abort(self, run_id: str, *, reason: str = "", by: str = "") -> JsonObject:
        """Stop the run within a second; what it was doing is cancelled."""
        return await self._ask(run_id, "abort", {"reason": reason, "by": by})

    async def set_permissions(self, run_id: str, rules: Mapping[str, str], *, by: str = "") -> JsonObject:
        """Lay rules over the run's own; calls that have not run yet are judged again."""
        return await self._ask(run_id, "set_permissions", {"rules": dict(rules), "by": by})

    async def send(self, run_id: str, text: str, *, by: str = "") -> JsonObject:
        """Tell the agent something; it reads it when its next turn begins."""
        return await self._signal(run_id, "send_message", {"text": text, "by": by})

    async def list(
        self,
        *,
        status: str | None = None,
        session: str | None = None,
        below: str | None = None,
        limit: int = 50,
    ) -> list[RunSummary]:
        """The newest runs first, without sub-agents; with `below` that run with everything that it delegated."""
        filters = [f"WorkflowType IN ('{AGENT_RUN}', '{CREW_RUN}')"]
        if status is not None:
            filters.append(status_filter(status))
        if session is not None:
            filters.append(f"LoomSession = '{quotable(session)}'")
        if below is not None:
            filters.append(f"LoomRootRun = '{quotable(below, 'below')}'")
        query = " AND ".join(filters)
        found: list[RunSummary] = []
        try:
            async for execution in self.temporal.list_workflows(query):
                known = dict(execution.search_attributes)
                if below is None and is_sub_agent(execution.id, known):
                    continue
                found.append(summary_of(execution, known))
                if len(found) == limit:
                    break
        except RPCError as error:
            raise _translated(error, "") from error
        return found

    async def agent_stats(self, agent: str) -> AgentStats:
        """What the runs of an agent have come to, as far as the server still has them."""
        query = f"WorkflowType = 'AgentRun' AND LoomAgent = '{quotable(agent)}'"
        try:
            listed = self.temporal.list_workflows(query, limit=MOST_COUNTED + 1)
            found = [execution_of(execution) async for execution in listed]
        except RPCError as error:
            raise _translated(error, "") from error
        return stats_of(found[:MOST_COUNTED], is_complete=len(found) <= MOST_COUNTED)

    async def events(self, run_id: str, *, after: int = 0, follow: bool = False) -> AsyncIterator[Streamed]:
        """The live stream alone, from the event after offset `after`; raises StreamUnavailable."""
        if self._events is None:
            raise StreamUnavailable("no Redis is configured: set LOOM_REDIS_URL")
        async with _closing(self._events.read(run_id, after, follow=follow)) as tasks:
            async for offset, task in tasks:
                yield Streamed(offset=offset, task=task)

    async def watch(self, run_id: str, *, after: int = 0) -> AsyncIterator[Watched]:
        """Events as they happen, until the run has ended; while the stream is away its status, when that changes."""
        shown: JsonObject | None = None
        while True:
            try:
                async with _closing(self._until_silent(run_id, after)) as streamed:
                    async for event in streamed:
                        after = event.offset
                        yield event
                        if is_last(event.task, run_id):
                            return
                # The run ended without a last event that we saw: what is there still counts.
                async for event in self.events(run_id, after=after):
                    yield event
                return
            except StreamUnavailable as error:
                ended, status = await self._has_ended(run_id), await self.status(run_id)
                if status != shown:
                    shown = status
                    yield Polled(status=status, why=str(error))
                if ended:
                    return
                await asyncio.sleep(POLL)

    async def _until_silent(self, run_id: str, after: int) -> AsyncIterator[Streamed]:
        stream = self.events(run_id, after=after, follow=True)
        coming: asyncio.Task[Streamed] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(anext(stream))
                while not (await asyncio.wait({coming}, timeout=SILENCE))[0]:
                    if await self._has_ended(run_id):
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
            await stream.aclose()  # type: ignore[attr-defined]  # an async generator, as `_closing` says

    async def _has_ended(self, run_id: str) -> bool:
        return (await self._describe(run_id)).status is not WorkflowExecutionStatus.RUNNING

    def _handle(self, run_id: str) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(run_id)

    async def _describe(self, run_id: str) -> WorkflowExecutionDescription:
        try:
            return await self._handle(run_id).describe()
        except RPCError as error:
            raise _translated(error, run_id) from error

    async def _ask(self, run_id: str, name: str, payload: JsonObject) -> JsonObject:
        """Send an update and wait for its receipt; to a run without a worker leave a signal instead."""
        given = {field: value for field, value in payload.items() if value not in (None, "")}
        read_steering(name, given, datetime.now().astimezone())
        try:
            receipt: JsonObject = await self._handle(run_id).execute_update(
                name, given, result_type=dict, rpc_timeout=timedelta(seconds=UPDATE_LIMIT)
            )
        except WorkflowUpdateFailedError as error:
            raise _refused(error) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            if name in ("approve", "deny") and "call_id" not in given:
                # Left as a signal it would answer whatever waits alone when a worker is back, which nobody has seen.
                raise UnreachableError("no worker answers; name the call, or start a worker with `loom up`") from None
            return await self._signal(run_id, name, given)
        except RPCError as error:
            raise _translated(error, run_id) from error
        return receipt

    async def _signal(self, run_id: str, name: str, payload: JsonObject) -> JsonObject:
        given = {field: value for field, value in payload.items() if value not in (None, "")}
        read_steering(name, given, datetime.now().astimezone())
        try:
            await self._handle(run_id).signal(name, given)
        except RPCError as error:
            raise _translated(error, run_id) from error
        return {"accepted": True, "run_id": run_id, "queued": True}


def _closing(events: AsyncIterator[_T]) -> AbstractAsyncContextManager[AsyncIterator[_T]]:
    """A reader closed when it is left early, and not whenever it is collected: all of them are async generators."""
    return aclosing(events)  # type: ignore[type-var]


async def _connect(settings: Settings, storage: PostgresPayloads | None) -> Client:
    key = settings.temporal_api_key
    address = settings.temporal_address
    if address is None:
        raise UnreachableError("no Temporal address is configured: run `loom up`, or set TEMPORAL_ADDRESS")
    try:
        return await Client.connect(
            address,
            namespace=settings.temporal_namespace,
            api_key=key.get_secret_value() if key else None,
            tls=settings.temporal_tls,
            data_converter=data_converter(storage),
        )
    except (RuntimeError, RPCError) as error:
        why = str(error).splitlines()[0]
        raise UnreachableError(
            f"no Temporal server answers at {address}: run `loom up`, or set TEMPORAL_ADDRESS ({why})"
        ) from error


def _translated(error: RPCError, run_id: str) -> Exception:
    if error.status is RPCStatusCode.NOT_FOUND and str(error).lower().startswith("namespace"):
        return UnreachableError(f"the Temporal server does not know the namespace: {error}; see TEMPORAL_NAMESPACE")
    if error.status is RPCStatusCode.NOT_FOUND:
        if "already completed" in str(error):
            return RefusedError(f"run {run_id!r} has ended")
        return RunNotFoundError(f"there is no run {run_id!r}; `loom list` shows those there are")
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return BadRequest(str(error), field="")
    return UnreachableError(f"the Temporal server does not answer: {error}")


def _refused(error: WorkflowUpdateFailedError) -> Exception:
    cause = error.cause
    message = cause.message if isinstance(cause, ApplicationError) else str(cause)
    kind = cause.type if isinstance(cause, ApplicationError) else ""
    return BadRequest(message, field="") if kind == "BadRequest" else RefusedError(message)
