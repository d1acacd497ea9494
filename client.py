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
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, cast, overload
from uuid import uuid4

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from loom.activities.adapters.postgres.database import ANSWER_SECONDS, Database
from loom.activities.adapters.postgres.parts import PostgresParts
from loom.activities.adapters.postgres.payloads import create_payload_tables
from loom.activities.adapters.redis.stream import RedisReader
from loom.activities.adapters.temporal.errors import answered, no_run
from loom.activities.adapters.temporal.retries import TemporalRetries
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.encryption import PLAIN, Cipher
from loom.activities.ports import EventReader, PartStore
from loom.app.output_types import TypedResult, schema_of, typed
from loom.archive_upload import encoded_workspace, uploaded_workspace
from loom.composition.client_settings import ClientSettings
from loom.composition.encryption import encryption_from
from loom.composition.load_client_settings import load_client_settings
from loom.composition.temporal_connection import connected
from loom.domain.agents.stats import AgentStats, stats_of
from loom.domain.core.errors import (
    BadRequest,
    LoomError,
    RefusedError,
    RunExistsError,
    RunNotFoundError,
    UnreachableError,
)
from loom.domain.core.messages import JsonObject, Message
from loom.domain.core.requests import (
    AGENT_RUN,
    CREW_RUN,
    ENDED,
    STARTED_BY,
    ForkedFrom,
    RunRequest,
    RunResult,
    RunStatus,
    fork_view,
)
from loom.domain.core.tasks import Task
from loom.domain.tree.lineage import is_child
from loom.extras import WORKER, explained, is_installed
from loom.inline_content import refuse_large_content
from loom.part_upload import encoded, uploaded
from loom.request_fields import BudgetFields, CrewRunFields, ForkFields, PartFields, RunFields
from loom.run_lists import page_of_runs
from loom.status_fields import StatusFields
from loom.visibility import (
    SUMMARY_LENGTH,
    TASK,
    RunSummary,
    execution_of,
    failed_result,
    root_of,
    runs_of,
    task_summary,
    tenant_in,
    was_repaired,
)
from loom.watching import Streamed, Watched, closing, readable, streamed, watched
from loom.workflows.options import TASK_TIMEOUT

if TYPE_CHECKING:
    from loom.activities.adapters.temporal.run_history import TemporalPasts
    from loom.activities.approval_keys import ApprovalKey
    from loom.activities.bus import Transport
    from loom.composition.live_workers import LiveWorkers
    from loom.domain.history.costs import Costs
    from loom.domain.history.estimates import RunEstimate
    from loom.domain.history.forks import ForkPoint
    from loom.domain.history.past_turns import PastTurn
    from loom.domain.history.run_report import RunReport
    from loom.domain.history.task_rebuilding import Mask
    from loom.domain.run.events import SteeringEvent
    from loom.inbox import Waiting
    from loom.pending_approvals import PendingApproval
    from loom.recorded_runs import RecordedTasks
    from loom.run_artifacts import Artifact
    from loom.run_costs import RunCosts
    from loom.run_files import RunFiles
    from loom.run_repair import Repair
    from loom.schedules import Schedules

T = TypeVar("T")

LONGEST_RUN_ID: Final = 900
"""Maximum number of bytes of a run's ID. Temporal accepts 1,000, and the IDs of sub-agents are longer."""
STATUS_TRIES: Final = 4
"""How often an approval that names no call asks the run what is pending, while no worker answers."""
STATUS_PAUSE: Final = 0.5
"""Seconds between these attempts."""
MOST_COUNTED: Final = 10_000
"""Maximum number of executions in an agent's statistics. The newest executions are counted."""


class LoomClient:
    """A connection to the Temporal server and, if one is configured, to the live stream."""

    def __init__(
        self,
        temporal: Client,
        *,
        task_queue: str = "loom",
        events: EventReader | None = None,
        parts: PartStore | None = None,
        settings: ClientSettings | None = None,
        transport: "Transport | None" = None,
        cipher: Cipher = PLAIN,
    ) -> None:
        """`parts` stores the images, recordings and files of requests. Without it, the requests contain them.
        `add_memory` uses the database in `settings`. `transport` delivers the Tasks that `publish` sends. The caller
        must close it. If the client chooses the transport itself, `cipher` encrypts the Tasks.
        """
        self._cipher = cipher
        self._transport = transport
        self._settings = settings
        self._workers: LiveWorkers | None = None
        self.temporal = temporal
        self._parts = parts
        self.task_queue = task_queue
        self._events = events
        self._runs = TemporalRuns(temporal)
        self._retries = TemporalRetries(temporal)

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, settings: ClientSettings | None = None, *, transport: "Transport | None" = None
    ) -> AsyncIterator["LoomClient"]:
        """Connect with the given settings, or with those that `load_client_settings` finds.

        An installation with `loom-agents[worker]` reads the environment, `.env` and `loom.toml`, and finds the embedded
        stack. A smaller one reads the environment alone.

        `transport` delivers the Tasks that `publish` sends, if the workers' app has registered one. The client closes
        it. Raises UnreachableError if no server responds.
        """
        chosen = settings or load_client_settings()
        encryption = encryption_from(chosen)
        events = RedisReader(chosen.redis_url, encryption.cipher) if chosen.redis_url else None
        async with (
            aclosing(encryption),
            connected(chosen, encryption=encryption) as temporal,
            _part_store(chosen, encryption.cipher) as parts,
        ):
            client = cls(
                temporal,
                task_queue=chosen.task_queue,
                events=events,
                parts=parts,
                settings=chosen,
                transport=transport,
                cipher=encryption.cipher,
            )
            try:
                yield client
            finally:
                if client._transport is not None:
                    await client._transport.aclose()

    @cached_property
    def _pasts(self) -> "TemporalPasts":
        from loom.activities.adapters.temporal.run_history import TemporalPasts  # noqa: PLC0415 - slow to import

        return TemporalPasts(self.temporal)

    async def start(
        self, task: str, *, run_id: str | None = None, output: Any = None, by: str = "", **request: Unpack[RunFields]
    ) -> str:
        """Start a run and return its ID. Pass the fields of the request as keyword arguments.

        `by` is who starts the run, which `started_by` returns. `output` is the type of the answer: a pydantic model, a
        dataclass, or any other type that pydantic supports. Pass the same type to `result` to get the answer as a value
        of that type.

        Raises BadRequest, without sending the request, if the request is invalid, or if the running workers report that
        they don't have its agent, model, skills or workspace. Raises RunExistsError if `run_id` is already in use.
        """
        from loom.workflows.validation import read_request  # noqa: PLC0415 - slow to import

        payload: dict[str, Any] = {"task": task, **_output_schema(output), **request}
        if parts := request.get("parts"):
            payload["parts"] = encoded(parts)
        payload = _encoded(payload)
        return await self._start(AGENT_RUN, payload, read_request(payload), run_id, by)

    async def start_crew(
        self,
        crew: str | JsonObject,
        task: str,
        *,
        run_id: str | None = None,
        output: Any = None,
        by: str = "",
        **request: Unpack[CrewRunFields],
    ) -> str:
        """Start a crew run and return its ID.

        `crew` is the name of a registered crew, or a crew definition (see docs/crews.md). The other arguments are the
        same as for `start`. All other methods of this client also work for crew runs.
        """
        from loom.workflows.validation import read_crew_request  # noqa: PLC0415 - slow to import

        payload = _encoded({"crew": crew, "task": task, **_output_schema(output), **request})
        return await self._start(CREW_RUN, payload, read_crew_request(payload), run_id, by)

    async def fork(
        self,
        run_id: str,
        *,
        turn: int,
        message: str | None = None,
        fork_id: str | None = None,
        by: str = "",
        **changes: Unpack[ForkFields],
    ) -> str:
        """Start a new run that continues another run from the end of the given turn, and return the new run's ID.

        Turn 0 is the start of the other run. `message` is sent to the agent at that point, and `changes` override
        fields of the other run's request. The fork doesn't repeat any of the other run's actions, and it sees files in
        their current state.

        Raises BadRequest if the turn doesn't exist or hasn't ended, or if a field can't be changed.
        """
        from loom.domain.history.forks import fork_request, refuse_changes  # noqa: PLC0415 - slow to import
        from loom.workflows.validation import read_input  # noqa: PLC0415

        forked = ForkedFrom(run_id=run_id, turn=turn, message=message)
        point = await self.fork_point(forked)
        payload = _encoded({**fork_request(point, forked), **changes})
        kind = AGENT_RUN if point.request.crew is None else CREW_RUN
        asked = read_input(kind, payload)
        refuse_changes(point, asked)
        return await self._start(kind, payload, asked, fork_id, by)

    async def fork_point(self, forked: ForkedFrom) -> "ForkPoint":
        """Return the state that a fork would start from. Raises the same errors as `fork`."""
        from loom.domain.history.forks import begun_at, fork_point  # noqa: PLC0415 - slow to import

        point = fork_point(await self._pasts.records(forked.run_id), forked.turn)
        return begun_at(point, forked)

    async def _start(self, kind: str, payload: JsonObject, asked: RunRequest, run_id: str | None, by: str) -> str:
        if run_id is not None:
            _refuse_run_id(run_id)
        name = run_id or f"run-{uuid4().hex[:12]}"
        await self.refuse_unserved(asked)
        if parts := payload.get("parts"):
            payload = {**payload, "parts": await self.upload(parts, name)}
        if workspace := payload.get("workspace"):
            payload = {**payload, "workspace": await uploaded_workspace(workspace, self._parts, name)}
        refuse_large_content(payload)
        summary = asked.task[:SUMMARY_LENGTH]
        try:
            with answered(name):
                await self.temporal.start_workflow(
                    kind,
                    payload,
                    id=name,
                    task_queue=self.task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    task_timeout=TASK_TIMEOUT,
                    memo=_given({"forked_from": fork_view(asked.forked_from), STARTED_BY: by, TASK: summary}),
                    static_summary=summary,
                    priority=Priority(priority_key=asked.priority, fairness_key=asked.tenant),
                )
        except WorkflowAlreadyStartedError:
            raise RunExistsError(f"run {name!r} already exists; choose another id, or watch it") from None
        return name

    @property
    def schedules(self) -> "Schedules":
        """Schedules that start runs at the times of a cron expression. See docs/schedules.md."""
        from loom.schedules import Schedules  # noqa: PLC0415 - off the path of a run that isn't scheduled

        return Schedules(self.temporal, self.task_queue, self.refuse_unserved)

    @property
    def files(self) -> "RunFiles":
        """The files in the workspaces of runs. See docs/workspaces.md."""
        from loom.run_files import RunFiles  # noqa: PLC0415 - off the path of a run

        return RunFiles(self.temporal, self._parts)

    async def refuse_unserved(self, request: RunRequest) -> None:
        """Raise BadRequest if no worker can serve this request, as far as the request and the workers' reports tell."""
        from loom.domain.agents.request_options import read_options  # noqa: PLC0415 - slow to import

        _refuse_unstorable(request)
        if request.crew is None:
            read_options(request.metadata)
        else:
            request = _with_crew_rules(request)
        if request.permissions:
            from loom.domain.permissions.dead_rules import dead_by_name  # noqa: PLC0415 - off the path of most runs

            if dead := dead_by_name(request.permissions):
                raise BadRequest("; ".join(dead), field="permissions")
        if request.output_schema is not None and is_installed("jsonschema"):  # workers check the schema, too
            from loom.activities.output_schema import OutputSchema  # noqa: PLC0415 - slow to import

            OutputSchema(request.output_schema)
        if self._settings is None or not self._settings.redis_url:
            return
        if self._workers is None:
            from loom.composition.live_workers import LiveWorkers  # noqa: PLC0415 - off the path of a run without Redis

            self._workers = LiveWorkers(self._settings, self.temporal, self.task_queue)
        if (error := await self._workers.reason_to_refuse(request)) is not None:
            raise error

    async def started_by(self, run_id: str) -> str:
        """Return who started the run, or the root of its tree. Empty if `start` was called without `by`."""
        description = await self._described(run_id)
        if (root := root_of(description)) != run_id:
            description = await self._runs.described(root)
        return str((await description.memo()).get(STARTED_BY, ""))

    async def tenant_of(self, run_id: str) -> str:
        """Return the run's tenant, as the server knows it. Empty if the run has none."""
        return tenant_in(await self._described(run_id))

    async def status(self, run_id: str) -> StatusFields:
        """Return the run's status.

        If the run has ended, the status comes from its result. If no worker responds, the status comes from the server
        and contains `"stale": true`.
        """
        return cast("StatusFields", await self._status(run_id))

    async def _status(self, run_id: str) -> JsonObject:
        description = await self._described(run_id)
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return await self._as_ended(description)
        try:
            answer = await self._asked(run_id)
        except UnreachableError:
            return await self._from_outside(description)
        return {**answer, "children": await asyncio.gather(*map(self._as_it_stands, answer["children"]))}

    async def _as_ended(self, description: WorkflowExecutionDescription) -> JsonObject:
        from loom.outside_status import ended_view  # noqa: PLC0415 - slow to import

        run_id = description.id
        return ended_view(description, await self._pasts.beginning(run_id), await self.result(run_id))

    async def _from_outside(self, description: WorkflowExecutionDescription) -> JsonObject:
        from loom.activities.adapters.temporal.task_faults import task_fault  # noqa: PLC0415 - off the path of a run
        from loom.outside_status import outside_view  # noqa: PLC0415 - slow to import

        fault = await task_fault(self.temporal, description)
        return outside_view(description, await self._pasts.beginning(description.id), fault)

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
        handle = self.temporal.get_workflow_handle(run_id, result_type=RunResult)
        with answered(run_id):
            while True:
                try:
                    result: RunResult = await handle.result()
                    break
                except WorkflowFailureError as error:
                    # A repair terminates an execution, and the run goes on in another one.
                    ended = WorkflowExecutionStatus.TERMINATED
                    if not was_repaired(error) or (await handle.describe()).status is ended:
                        return failed_result(error)
        return result if output is None else typed(result, output)

    async def turns(self, run_id: str) -> "tuple[PastTurn, ...]":
        """Read all turns of the run so far from its history and return them. This call doesn't require a worker."""
        from loom.domain.history.past_turns import turns_of  # noqa: PLC0415 - slow to import

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

        The approval counts only for the call with this `digest`. Without `call_id` or `digest`, this method reads the
        run's status and fills in those of the pending call. The receipt then has the call's `call_id` and `tool`. If no
        worker responds, an approval with `call_id` or `digest` is queued as it is.

        If the settings name an approval key, and the call needs a proof, this method proves that `by` has approved it.
        `by` must then name somebody, or this method raises BadRequest.

        Raises RefusedError if the call isn't pending, or if several are pending and you name none, and UnreachableError
        if no worker says which call is pending.
        """
        key = self._approval_key
        if key is not None and not by.strip():
            raise BadRequest("an approval with a proof (LOOM_APPROVAL_KEY) needs the name of who approves", field="by")
        call = None if call_id and digest and key is None else await self._pending_call(run_id, call_id, digest)
        if call is not None:
            call_id, digest = call.call_id, digest or call.digest
        payload = {"call_id": call_id, "scope": scope, "arguments": arguments, "digest": digest, "by": by}
        if key is not None and call is not None and call.execution:
            payload["proof"] = key.proof(call.proven(run_id, digest or ""), by=by, scope=scope, arguments=arguments)
        receipt = await self._ask(run_id, "approve", payload)
        return receipt if call is None else {**receipt, **call.reference}

    @cached_property
    def _approval_key(self) -> "ApprovalKey | None":
        path = self._settings.approval_key if self._settings is not None else None
        if path is None:
            return None
        from loom.activities.adapters.signing.approval_key_files import read_approval_key  # noqa: PLC0415 - rarely used

        return read_approval_key(path)

    async def deny(self, run_id: str, call_id: str | None = None, *, reason: str = "", by: str = "") -> JsonObject:
        """Deny a pending call. You can omit `call_id` if only one call is pending. The reason is passed to the model.

        Raises the errors of `approve`.
        """
        call = None if call_id else await self._pending_call(run_id, call_id)
        given = call_id if call is None else call.call_id
        receipt = await self._ask(run_id, "deny", {"call_id": given, "reason": reason, "by": by})
        return receipt if call is None else {**receipt, **call.reference}

    async def _pending_call(
        self, run_id: str, call_id: str | None, digest: str | None = None
    ) -> "PendingApproval | None":
        """Return the call to decide on, or None if no worker says what is pending and the request names a call.

        A request that names none must not wait at the server: until a worker handles it, another call could be the only
        pending one, and nobody would have reviewed it. A worker that is being restarted gets the time to answer.
        """
        from loom.pending_approvals import chosen_call  # noqa: PLC0415 - off the path of a run

        is_named = bool(call_id or digest)
        for attempt in range(1 if is_named else STATUS_TRIES):
            if attempt:
                await asyncio.sleep(STATUS_PAUSE)
            with suppress(UnreachableError):
                return chosen_call(await self._asked(run_id), call_id or None)
        if is_named:
            return None
        raise UnreachableError("no worker is responding; pass the call's id, or start a worker with `loom up`")

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

        An end is continued once. If another retry of the same end was faster, and the run goes on in the way that you
        asked for, the receipt has `retried_by`.

        Raises RefusedError if the run neither waits nor can go on, or if another retry was faster and the run has ended
        since, or goes on in another way than you asked for.
        """
        from loom.domain.machine.reopening_rules import refused_reopening  # noqa: PLC0415 - slow to import
        from loom.domain.run.events import RetryRequested  # noqa: PLC0415

        changes = {"model": model, "max_turns": max_turns, "budget": budget, "message": message, "by": by}
        description = await self._described(run_id)
        if description.status is WorkflowExecutionStatus.RUNNING:
            return await self._ask(run_id, "retry", changes)
        if is_child(run_id, description.parent_id or ""):
            raise RefusedError(f"run {run_id!r} is a sub-agent of {description.parent_id!r}, which went on without it")
        result = await self._result_of(description)
        asked = _read("retry", given := _given({**changes, "end": result.retries + 1}))
        if isinstance(asked, RetryRequested) and (why := refused_reopening(result, asked)) is not None:
            raise RefusedError(f"run {run_id!r} can't go on: {why}")
        receipt = {"accepted": True, "run_id": run_id, "after": result.status}
        earlier = await self._retries.reopen(run_id, description.run_id, given)
        if earlier is None:
            return receipt
        await self._refuse_unless_met(run_id, given, earlier)
        return {**receipt, "retried_by": str(earlier.get("by", ""))}

    async def _result_of(self, ended: WorkflowExecutionDescription) -> RunResult:
        """Return the result of this execution, even if the run has gone on since."""
        handle = self.temporal.get_workflow_handle(ended.id, run_id=ended.run_id, result_type=RunResult)
        try:
            with answered(ended.id):
                result: RunResult = await handle.result(follow_runs=False)
        except WorkflowFailureError as error:
            return failed_result(error)
        return result

    async def _refuse_unless_met(self, run_id: str, asked: JsonObject, earlier: JsonObject) -> None:
        """Raise RefusedError unless the run goes on now, after an earlier retry, in the way that this one asks for."""
        now = await self._described(run_id)
        is_running = now.status is WorkflowExecutionStatus.RUNNING
        unmet = [name for name in asked if name not in ("by", "end") and asked[name] != earlier.get(name)]
        if is_running and not unmet:
            return
        by = f" by {earlier['by']}" if earlier.get("by") else ""
        since = "is running"
        if not is_running:
            status = (await self._result_of(now)).status
            since = "has since completed" if status is RunStatus.COMPLETED else f"has since ended again: {status}"
        ignored = f"; this request's {', '.join(unmet)} had no effect" if unmet else ""
        raise RefusedError(
            f"another retry{by} has already continued this end of run {run_id!r}, which {since}{ignored}"
        )

    async def repair(self, run_id: str) -> "Repair":
        """Continue a run whose workflow task fails, because today's code can't replay its history.

        The run goes on from its last sound workflow task. Messages, approvals and other requests that it has received
        since then are handled again, and so are its model calls. Call this where Loom is of the same release as the
        workers.

        Raises RefusedError if the run needs no repair, or if the repair would repeat an effect, and BadRequest if
        `loom-agents[worker]` isn't installed.
        """
        try:
            from loom.run_repair import RunRepair  # noqa: PLC0415 - replays the run with a worker's code
        except (ModuleNotFoundError, AttributeError) as error:
            if (missing := explained(error, "LoomClient.repair", WORKER)) is None:
                raise
            raise BadRequest(missing, field="repair") from error
        return await RunRepair(self.temporal).one(await self._described(run_id))

    async def abort(self, run_id: str, *, reason: str = "", by: str = "") -> JsonObject:
        """Abort the run within a second and cancel all of its running work."""
        return await self._ask(run_id, "abort", {"reason": reason, "by": by})

    async def set_permissions(self, run_id: str, rules: Mapping[str, str], *, by: str = "") -> JsonObject:
        """Merge permission rules into the run's own rules. Calls that haven't run yet are evaluated again.

        Raises BadRequest if a rule is invalid, or if it names no tool that a worker has.
        """
        payload = _checked("set_permissions", {"rules": dict(rules), "by": by})
        await self.refuse_unserved(RunRequest(task="", permissions=payload["rules"]))
        return await self._ask(run_id, "set_permissions", payload)

    async def send(
        self, run_id: str, text: str, *, parts: Sequence[PartFields] | None = None, by: str = ""
    ) -> JsonObject:
        """Reply to the agent's question, or send a message that the agent reads when its next turn starts.

        `parts` are images, PDFs, recordings and texts that belong to the message.
        """
        payload: dict[str, Any] = {"text": text, "by": by}
        if parts:
            given = encoded(parts)
            _checked("send_message", {**payload, "parts": given})
            payload["parts"] = await self.upload(given, run_id)
        refuse_large_content(payload)
        return await self._signal(run_id, "send_message", payload)

    async def upload(self, parts: Sequence[Mapping[str, Any]], run_id: str) -> list[dict[str, Any]]:
        """Store the contents of a run's parts, and return the parts for a request that you send yourself.

        Raises BadRequest if a content can't be used, and UnreachableError if the database is unavailable.
        """
        return await uploaded(encoded(parts), self._parts, run_id)

    async def upload_archive(self, workspace: Any, run_id: str) -> Any:
        """Store the content of a run's archive, and return the workspace for a request that you send yourself. Return
        any other workspace unchanged.

        Raises BadRequest if the content can't be used, and UnreachableError if the database is unavailable.
        """
        return await uploaded_workspace(encoded_workspace(workspace), self._parts, run_id)

    async def add_memory(
        self,
        text: str,
        *,
        session_id: str | None = None,
        for_all: bool = False,
        user_id: str | None = None,
        tenant: str | None = None,
        by: str = "",
        importance: float = 0.8,
        memory_id: str | None = None,
    ) -> None:
        """Add a memory. The runs of the session can find it. If you name a user or a tenant, it is their session. With
        `for_all`, all runs of the tenant can find it, or all runs without a tenant.

        With only `user_id` or `tenant`, it is a fact for all runs of a person, or of everybody in a tenant.
        `importance` is from 0 to 1. A memory with the same `memory_id` is added once.

        Raises BadRequest if the text or an owner is invalid, and UnreachableError if there is no database.
        """
        from loom.added_memory import add_fact, add_memory, memory_task  # noqa: PLC0415 - off the path of a run
        from loom.domain.core.tenants import Owner  # noqa: PLC0415
        from loom.domain.memory.people import owner_named  # noqa: PLC0415

        settings = self._settings or load_client_settings()
        owner = Owner() if user_id is None and tenant is None else owner_named(user_id, tenant)
        if owner != Owner() and session_id is None and not for_all:
            await add_fact(settings, owner, text)
            return
        task = memory_task(
            text, session_id, for_all=for_all, by=by, importance=importance, memory_id=memory_id, owner=owner
        )
        await add_memory(settings, task)

    async def publish(self, task: Task, wait_result: bool = True, *, patience: float = 300.0) -> Task:
        """Publish a Task on the bus, and return the Task that its handler returns.

        A Task with the action `execute` runs the agent or the crew that it names, on a worker with
        LOOM_TASK_REQUESTS=on. `loom.new_task` makes one. If no handler responds within `patience` seconds, or if you
        don't wait, the result is the Task itself. The work continues in either case, and a Task with the same `task_id`
        gets its result.

        Raises StreamUnavailable if the bus can't be reached, and UnreachableError if none is configured.
        """
        from loom.activities.bus import Bus  # noqa: PLC0415 - off the path of a run
        from loom.composition.bus import transport_from  # noqa: PLC0415

        if self._transport is None:
            self._transport = transport_from(self._settings or load_client_settings(), cipher=self._cipher)
        if self._transport is None:
            raise UnreachableError("there is no bus: set LOOM_REDIS_URL or LOOM_BUS_URL")
        return await Bus(self._transport).publish(task, wait_result, patience=patience)

    async def list(
        self,
        *,
        status: str | None = None,
        session: str | None = None,
        below: str | None = None,
        tenant: str | None = None,
        waiting: str | None = None,
        chats: bool = False,
        after: tuple[datetime, str] | None = None,
        limit: int = 50,
    ) -> list[RunSummary]:
        """List runs, newest first. Sub-agents are omitted unless you set `below`.

        To continue an earlier list, set `after` to the `started_at` and the `run_id` of its last entry.

        If `below` is set to a run ID, only that run and all of its direct and indirect sub-agents are listed. If
        `waiting` is `provider`, `operator`, `approval`, `input`, `resume` or `tenant`, only runs that wait for it are
        listed. Sub-agents wait for their provider and their operator themselves, so they are listed as well. With
        `chats`, only the chats of sessions are listed.
        """
        found: list[RunSummary] = []
        while True:
            page = await page_of_runs(
                self._runs,
                status=status,
                session=session,
                below=below,
                tenant=tenant,
                waiting=waiting,
                chats=chats,
                after=after,
                limit=limit - len(found),
            )
            found += page.runs
            after = page.next
            if after is None or len(found) == limit:
                return found

    async def pending(self, *, tenant: str | None = None, agent: str | None = None) -> "tuple[Waiting, ...]":
        """Return the calls and questions of all runs that wait for a person, oldest first.

        Calls of sub-agents are listed once, at the root of their tree. Runs whose worker doesn't respond, or whose
        status can't be read, are listed as `SilentRun`. This asks the newest 2,000 runs that wait, and takes at most
        about ten seconds.
        """
        from loom.inbox import Inbox  # noqa: PLC0415 - off the path of a run

        return await Inbox(self._runs, self.workspace_of).pending(tenant=tenant, agent=agent)

    async def pending_in(self, run_id: str) -> "tuple[Waiting, ...]":
        """Return the calls of this run and its sub-agents, and the run's question, that wait for a person."""
        from loom.inbox import Inbox  # noqa: PLC0415 - off the path of a run

        return await Inbox(self._runs, self.workspace_of).pending_in(await self._described(run_id))

    async def task_summary(self, run_id: str) -> str:
        """Return the first 200 characters of the run's task. Empty if the run was started without Loom's client."""
        return await task_summary(await self._described(run_id))

    async def workspace_of(self, run_id: str) -> str:
        """Return the run's folder on its worker's machine, or an empty string if it isn't known."""
        with suppress(RunNotFoundError, UnreachableError):
            prepared = (await self._pasts.beginning(run_id)).prepared
            return prepared.spec.workspace if prepared else ""
        return ""

    async def report(self, run_id: str) -> "RunReport":
        """Return where the run's time, tokens and money went. This call doesn't require a worker."""
        from loom.recorded_runs import RecordedRuns  # noqa: PLC0415 - off the path of a run

        await self._described(run_id)
        return await RecordedRuns(self.temporal, self.secret_mask()).report(run_id)

    async def recorded_tasks(self, run_id: str) -> "RecordedTasks":
        """Return the run's events so far, rebuilt from its history. This call requires neither a worker nor Redis."""
        from loom.recorded_runs import RecordedRuns  # noqa: PLC0415 - off the path of a run

        await self._described(run_id)
        return await RecordedRuns(self.temporal, self.secret_mask()).tasks(run_id)

    async def export(
        self, run_id: str, *, artifacts: bool = False, source: str | None = None
    ) -> AsyncIterator[JsonObject]:
        """Yield the complete record of the run and its sub-agents. This call doesn't require a worker.

        With `artifacts`, the contents of stored outputs and files are included. Events come from `source`, which is
        `stream` or `history`. By default, they come from the stream if it still has all of them.

        Raises BadRequest if the source is unknown, and UnreachableError if the source or the database isn't available.
        """
        from loom.run_artifacts import run_artifacts  # noqa: PLC0415 - off the path of a run
        from loom.run_export import RunExport  # noqa: PLC0415

        await self._described(run_id)
        async with AsyncExitStack() as stack:
            stored = None
            if artifacts:
                stored = await stack.enter_async_context(run_artifacts(self._settings or load_client_settings()))
            exporting = RunExport(self.temporal, self.secret_mask(), events=self._events, artifacts=stored)
            async with closing(exporting.records(run_id, source=source)) as records:
                async for record in records:
                    yield record

    async def artifacts(self, run_id: str) -> tuple["Artifact", ...]:
        """Return the outputs, shared texts and files that the run has stored, oldest first.

        Raises UnreachableError if the database isn't available.
        """
        from loom.run_artifacts import run_artifacts  # noqa: PLC0415 - off the path of a run

        await self._described(run_id)
        records = await self._pasts.records(run_id)
        async with run_artifacts(self._settings or load_client_settings()) as stored:
            return await stored.all(run_id, records)

    async def artifact(self, run_id: str, artifact_id: str) -> str:
        """Return a stored text in full. Raises BadRequest if the run has none with this ID, or if it is no text."""
        from loom.run_artifacts import text_of  # noqa: PLC0415 - off the path of a run

        return text_of(await self.artifact_bytes(run_id, artifact_id))

    async def artifact_bytes(self, run_id: str, artifact_id: str) -> bytes:
        """Return the content of an artifact: a file unchanged, or a text in UTF-8.

        Raises BadRequest if the run has none with this ID.
        """
        from loom.run_artifacts import run_artifacts  # noqa: PLC0415 - off the path of a run

        await self._described(run_id)
        records = await self._pasts.records(run_id)
        async with run_artifacts(self._settings or load_client_settings()) as stored:
            return await stored.read(run_id, artifact_id, records)

    async def costs(self, by: str = "agent", *, since: datetime | None = None, tenant: str | None = None) -> "Costs":
        """Return what runs cost, by `agent`, `session`, `tenant`, `user`, `model` or `day`.

        Runs that ended before `since` are left out, and with `tenant`, those of other tenants. Raises BadRequest if
        `by` is none of these, or if `tenant` is invalid.
        """
        from loom.domain.history.costs import cost_key  # noqa: PLC0415 - off the path of a run

        return await self._costs.by(cost_key(by), since, tenant)

    async def estimate(self, agent: str = "default", *, model: str | None = None) -> "RunEstimate":
        """Return what a run of this agent will probably cost and take, from up to 50 of its completed runs.

        With `model`, only runs with this model count. Raises BadRequest if no worker has the agent or the model.
        """
        await self.refuse_unserved(RunRequest(task="", agent=agent, model=model))
        return await self._costs.estimate(agent, model)

    @cached_property
    def _costs(self) -> "RunCosts":
        from loom.run_costs import RunCosts  # noqa: PLC0415 - off the path of a run

        return RunCosts(self.temporal)

    def secret_mask(self) -> "Mask":
        """Return what redacts the secrets in texts and arguments, such as those of `turns`, before they are shown."""
        from loom.activities.toolbox.output_sanitizer import OutputSanitizer  # noqa: PLC0415 - off the path of a run
        from loom.composition.secret_mask import secret_mask  # noqa: PLC0415

        return OutputSanitizer(secret_mask(self._settings or load_client_settings()), None)

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

    async def latest_offset(self, run_id: str) -> int:
        """Return the offset of the latest event in the live stream, or 0. Raises StreamUnavailable."""
        return await readable(self._events).latest(run_id)

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
        if name == "retry" and {"max_turns", "budget", "message"} & set(given):
            # A run that hasn't ended ignores a Signal with these. Perhaps another retry has just continued it.
            raise UnreachableError("the run hasn't ended, and no worker is responding; start one with `loom up`")
        return await self._signal(run_id, name, given)

    async def _signal(self, run_id: str, name: str, payload: JsonObject) -> JsonObject:
        from loom.activities.adapters.temporal.task_faults import task_fault  # noqa: PLC0415 - off the path of a run

        await self._runs.signal(run_id, name, _checked(name, payload))
        receipt = {"accepted": True, "run_id": run_id, "queued": True}
        with suppress(LoomError):  # the run has the Signal: an error now would make the caller send it again
            fault = await task_fault(self.temporal, await self._runs.described(run_id))
            return receipt if fault is None else {**receipt, "fault": fault.view()}
        return receipt


@asynccontextmanager
async def _part_store(settings: ClientSettings, cipher: Cipher) -> AsyncIterator[PartStore | None]:
    """Yield the store of parts, which connects on first use, or None if no database is configured."""
    if not settings.database_url:
        yield None
        return
    database = Database(
        settings.database_url,
        max_connections=2,
        ensure=create_payload_tables,
        first_use_within=ANSWER_SECONDS,
        name="loom-parts",
        cipher=cipher,
    )
    try:
        yield PostgresParts(database)
    finally:
        await database.aclose()


def _refuse_run_id(run_id: str) -> None:
    """Raise BadRequest if a run with this id couldn't be stored, or couldn't be named in a command."""
    if not run_id.strip():
        raise BadRequest("the run's id is empty; leave it out for a new one", field="run_id")
    if run_id.startswith("@"):
        raise BadRequest(f"the run's id {run_id[:100]!r} begins with @, as the names of other runs do", field="run_id")
    if strange := next((char for char in run_id if not (char.isprintable() or char == " ")), ""):
        raise BadRequest(f"the run's id contains {strange!r}; choose another one", field="run_id")
    if len(run_id.encode()) > LONGEST_RUN_ID:
        raise BadRequest(f"the run's id is too long; choose one of up to {LONGEST_RUN_ID} bytes", field="run_id")


def _refuse_unstorable(request: RunRequest) -> None:
    """Raise BadRequest if a value would be stored differently from how it was given, or names nobody."""
    if request.user_id and not request.user_id.strip():
        raise BadRequest("user_id is empty: give it a value, or leave it out", field="user_id")
    try:
        json.dumps(request.metadata, allow_nan=False, ensure_ascii=False, default=str).encode()
    except ValueError:
        raise BadRequest(
            "metadata must be JSON without NaN, Infinity or unpaired surrogates", field="metadata"
        ) from None


def _with_crew_rules(request: RunRequest) -> RunRequest:
    """Return the request with the rules of the crew in it. Raises BadRequest if the crew's fields are wrong, or if the
    request has options that crews don't have.
    """
    from loom.activities.crew_lookup import refuse_form, refuse_ignored  # noqa: PLC0415 - only for crews
    from loom.app.forms.crew import read_crew  # noqa: PLC0415

    refuse_ignored(request)
    if request.crew is None or isinstance(request.crew, str):
        return request
    crew = read_crew(request.crew)
    if request.output_schema is not None:
        refuse_form(crew)
    return replace(request, permissions={**crew.permissions, **request.permissions})


def _output_schema(output: Any) -> JsonObject:
    return {} if output is None else {"output_schema": schema_of(output)}


def _encoded(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the request with the content of its archive in base64."""
    workspace = payload.get("workspace")
    return payload if workspace is None else {**payload, "workspace": encoded_workspace(workspace)}


def _checked(name: str, payload: JsonObject) -> JsonObject:
    """Return the payload without empty values. Raises BadRequest if the run would reject the request."""
    given = _given(payload)
    _read(name, given)
    return given


def _given(payload: JsonObject) -> JsonObject:
    return {field: value for field, value in payload.items() if value not in (None, "")}


def _read(name: str, given: JsonObject) -> "SteeringEvent":
    from loom.workflows.validation import read_steering  # noqa: PLC0415 - slow to import

    return read_steering(name, given, datetime.now().astimezone())
