"""Everything that an authenticated caller may do with runs: the operations of `LoomClient`, with checks of access.

Each operation checks the caller's role first, and then that the run belongs to the caller's tenant. To a caller with a
tenant, a run of another tenant doesn't exist: the answer is the same as for an ID that nobody has used, and takes at
least as long as either answer takes.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from loom.activities.adapters.temporal.errors import no_run
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.ports import StreamUnavailable
from loom.chat_session import ChatSession, SentMessage
from loom.client import LoomClient
from loom.composition.live_workers import live_catalogs, live_reports
from loom.composition.settings import Settings
from loom.domain.agents.worker_catalog import WorkerCatalog
from loom.domain.agents.worker_report import WorkerReport
from loom.domain.core.errors import AccessDeniedError, BadRequest, RunNotFoundError, TooManyStreamsError
from loom.domain.core.messages import JsonObject, Message
from loom.domain.core.requests import ForkedFrom, RunRequest, RunResult
from loom.domain.core.run_files import CallerLimits
from loom.domain.core.tool_calls import Effect, PreparedCall
from loom.domain.history.costs import Costs, cost_key, costs_of
from loom.domain.permissions.judge import Mode
from loom.domain.permissions.risk import risk_of
from loom.domain.run.chat import MessageState, WhenBusy
from loom.inbox import PendingCall, Waiting, waiting_view
from loom.run_artifacts import Artifact
from loom.run_files import FileContent, FileList, RunFiles, WrittenFile
from loom.run_lists import RunsFound, page_of_runs
from loom.serve.access.approvals import Approval, Approvals
from loom.serve.access.audit_trail import AuditTrail
from loom.serve.access.roles import Caller, Operation
from loom.serve.access.tokens import AccessTokens
from loom.serve.http_input import refuse_long
from loom.serve.run_streams import RunStreams
from loom.serve.task_summaries import TaskSummaries
from loom.visibility import RunSummary
from loom.watching import Watched, closing

NOT_FOUND_AFTER: Final = 0.1
"""Seconds that it takes to say that a run doesn't exist, so that the time says nothing about other tenants' runs."""

LONGEST_WAIT: Final = 300.0
"""Maximum number of seconds that a request for a result may wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """The parts that all requests share."""

    client: LoomClient
    settings: Settings
    streams: RunStreams
    approvals: Approvals
    tasks: TaskSummaries
    tokens: AccessTokens | None
    """None: there is no database for them."""
    audit: AuditTrail
    following: Counter[Caller] = field(default_factory=Counter)
    """How many requests of each caller follow a run or wait for it now."""

    def runs_for(self, caller: Caller, address: str = "") -> "CallerRuns":
        """Return what a caller may do. `address` is the network address of the caller."""
        return CallerRuns(self, caller, address)


class CallerRuns:
    """The runs that one caller sees. Each method raises AccessDeniedError if the caller's role doesn't include it, and
    RunNotFoundError if the run doesn't exist for the caller. The other errors are those of `LoomClient`.
    """

    def __init__(self, service: Service, caller: Caller, address: str = "") -> None:
        self._client = service.client
        self._settings = service.settings
        self._streams = service.streams
        self._approvals = service.approvals
        self._tasks = service.tasks
        self._audit = service.audit
        self._following = service.following
        self._address = address
        self.caller = caller

    async def start(self, request: Mapping[str, Any], run_id: str | None = None) -> str:
        """Start a run of an agent or, if the request has a `crew`, of a crew. Return its ID."""
        with self._recorded(Operation.START):
            self.caller.refuse_unless_allowed(Operation.START)
            refuse_long(request)
            self._refuse_new_rights(request)
            if (forked := request.get("forked_from")) is not None:
                if not self.caller.may(Operation.GRANT):
                    raise AccessDeniedError("forked_from: send the request to the run's `fork`", field="forked_from")
                await self._refuse_unless_visible(Operation.START, str(forked["run_id"]))
            fields = self._in_tenant(dict(request))
        task, by, name = fields.pop("task"), self.caller.name, self._own_id(run_id)
        if (crew := fields.pop("crew", None)) is not None:
            return await self._client.start_crew(crew, task, run_id=name, by=by, **fields)
        return await self._client.start(task, run_id=name, by=by, **fields)

    async def fork(
        self, run_id: str, *, turn: int, message: str | None, fork_id: str | None, changes: Mapping[str, Any]
    ) -> str:
        """Start a new run from a past turn of this one, and return the new run's ID."""
        await self._may(Operation.FORK, run_id)
        refuse_long({**changes, "message": message})
        point = await self._client.fork_point(ForkedFrom(run_id=run_id, turn=turn, message=message))
        with self._recorded(Operation.FORK, run_id):
            self._refuse_new_rights(_rights_of_fork(point.request, changes))
            fields = self._in_tenant(dict(changes))
        name = self._own_id(fork_id)
        return await self._client.fork(run_id, turn=turn, message=message, fork_id=name, by=self.caller.name, **fields)

    async def list(
        self,
        *,
        status: str | None = None,
        session: str | None = None,
        below: str | None = None,
        tenant: str | None = None,
        waiting: str | None = None,
        after: tuple[datetime, str] | None = None,
        limit: int = 50,
    ) -> list[RunSummary]:
        """List the runs that the caller sees, newest first."""
        self.require(Operation.READ_RUNS)
        if tenant is not None and self.caller.tenant not in (None, tenant):
            return []
        return await self._client.list(
            status=status,
            session=session,
            below=below,
            tenant=self.caller.tenant or tenant,
            waiting=waiting,
            after=after,
            limit=limit,
        )

    async def chats(self, *, tenant: str | None, after: tuple[datetime, str] | None, limit: int) -> RunsFound:
        """Return a page of the chats that the caller sees, newest first."""
        self.require(Operation.READ_RUNS)
        if tenant is not None and self.caller.tenant not in (None, tenant):
            return RunsFound(runs=[], next=None)
        server = TemporalRuns(self._client.temporal)
        return await page_of_runs(server, tenant=self.caller.tenant or tenant, chats=True, after=after, limit=limit)

    async def status(self, run_id: str) -> JsonObject:
        """Return the run's status."""
        await self._may(Operation.READ_RUNS, run_id)
        return await self._client.status(run_id)

    async def times(self, run_id: str) -> tuple[datetime, datetime]:
        """Return when the run started or last continued as new, and when it ended: now, if it hasn't."""
        await self._may(Operation.READ_RUNS, run_id)
        described = await self._client.temporal.get_workflow_handle(run_id).describe()
        return described.start_time, described.close_time or datetime.now(UTC)

    async def result(self, run_id: str, *, wait: float) -> RunResult | None:
        """Return the run's result, or None if the run hasn't ended within `wait` seconds."""
        await self._may(Operation.READ_RUNS, run_id)
        if await self._client.has_ended(run_id):
            return await self._client.result(run_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                return await self._client.result(run_id)
        return None

    @contextmanager
    def following(self) -> Iterator[None]:
        """Count a request that follows a run or waits for it. Raises TooManyStreamsError if the caller has too many."""
        most = self._settings.serve_streams
        if self._following[self.caller] >= most:
            raise TooManyStreamsError(
                f"you follow {most} runs already, the most that LOOM_SERVE_STREAMS allows: close a stream first"
            )
        self._following[self.caller] += 1
        try:
            yield
        finally:
            self._following[self.caller] -= 1
            if not self._following[self.caller]:
                del self._following[self.caller]

    @asynccontextmanager
    async def events(self, run_id: str, *, after: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the run's events after this offset, encoded as server-sent events. They end when the run ends."""
        await self._may(Operation.READ_RUNS, run_id)
        await self._client.has_ended(run_id)  # raises an error if there is no such run
        async with closing(self._streams.watch(run_id, after)) as chunks:
            yield chunks

    @asynccontextmanager
    async def watch(self, run_id: str, *, after: int = 0) -> AsyncIterator[AsyncIterator[Watched]]:
        """Yield the run's events after this offset as values, as `LoomClient.watch` does."""
        await self._may(Operation.READ_RUNS, run_id)
        await self._client.has_ended(run_id)  # raises an error if there is no such run
        async with closing(self._client.watch(run_id, after=after)) as events:
            yield events

    async def latest_offset(self, run_id: str) -> int:
        """Return the offset of the run's latest event, or 0 if there is none or the live stream is unavailable."""
        await self._may(Operation.READ_RUNS, run_id)
        return await self._latest_offset(run_id)

    async def _latest_offset(self, run_id: str) -> int:
        with suppress(StreamUnavailable):
            return await self._client.latest_offset(run_id)
        return 0

    async def pending(
        self, *, agent: str | None = None, tenant: str | None = None, limit: int | None = None
    ) -> tuple[JsonObject, ...]:
        """Return what waits for a person in the runs that the caller sees, oldest first."""
        self.require(Operation.READ_RUNS)
        if tenant is not None and self.caller.tenant not in (None, tenant):
            return ()
        waiting = await self._client.pending(tenant=self.caller.tenant or tenant, agent=agent)
        return await self._views(waiting[:limit])

    async def _views(self, waiting: Sequence[Waiting]) -> tuple[JsonObject, ...]:
        now = datetime.now(UTC)
        needed = await self._approvals.views([each for each in waiting if isinstance(each, PendingCall)])
        # A view of a call reads and compares files. Other requests go on meanwhile.
        views = await asyncio.to_thread(lambda: [waiting_view(each, now) for each in waiting])
        return tuple(
            {**view, **(needed[each.run_id, each.call_id] if isinstance(each, PendingCall) else {})}
            for view, each in zip(views, waiting, strict=True)
        )

    async def pending_in(self, run_id: str) -> tuple[JsonObject, ...]:
        """Return what waits for a person in this run and its sub-agents."""
        await self._may(Operation.READ_RUNS, run_id)
        return await self._views(await self._client.pending_in(run_id))

    async def task_summaries(self, runs: Sequence[RunSummary]) -> dict[str, str]:
        """Return the first characters of the tasks of listed runs, by run ID."""
        self.require(Operation.READ_RUNS)
        return await self._tasks.of([run.run_id for run in runs])

    async def approve(
        self,
        run_id: str,
        call_id: str | None = None,
        *,
        scope: Literal["once", "run"] = "once",
        arguments: JsonObject | None = None,
        digest: str | None = None,
    ) -> JsonObject:
        """Approve a pending call, or record the approval if other people must approve the call, too."""
        await self._may(Operation.APPROVE, run_id)
        refuse_long({"arguments": arguments})
        asked = Approval(run_id=run_id, call_id=call_id, scope=scope, arguments=arguments, digest=digest)
        with self._recorded(Operation.APPROVE, run_id):
            return await self._approvals.approve(asked, self.caller)

    async def deny(self, run_id: str, call_id: str | None = None, *, reason: str = "") -> JsonObject:
        """Deny a pending call."""
        await self._may(Operation.DENY, run_id)
        refuse_long({"reason": reason})
        return await self._client.deny(run_id, call_id, reason=reason, by=self.caller.name)

    async def pause(self, run_id: str) -> JsonObject:
        """Pause the run."""
        await self._may(Operation.PAUSE, run_id)
        return await self._client.pause(run_id, by=self.caller.name)

    async def resume(self, run_id: str) -> JsonObject:
        """Resume the run."""
        await self._may(Operation.RESUME, run_id)
        return await self._client.resume(run_id, by=self.caller.name)

    async def abort(self, run_id: str, *, reason: str = "") -> JsonObject:
        """Abort the run."""
        await self._may(Operation.ABORT, run_id)
        refuse_long({"reason": reason})
        return await self._client.abort(run_id, reason=reason, by=self.caller.name)

    async def send(self, run_id: str, text: str, *, parts: Any = None) -> JsonObject:
        """Send the agent a message, or the answer to its question."""
        await self._may(Operation.SEND, run_id)
        refuse_long({"text": text, "parts": parts})
        with self._recorded(Operation.SEND, run_id):
            self._refuse_digests(parts)
        return await self._client.send(run_id, text, parts=parts, by=self.caller.name)

    async def send_in_chat(
        self,
        session: str,
        text: str,
        *,
        message_id: str | None,
        when_busy: WhenBusy,
        parts: Any = None,
        request: Mapping[str, Any],
    ) -> tuple[str, SentMessage, int]:
        """Send a message in the chat of a session. Return the chat's run ID, what became of the message, and the offset
        of an event before the answer.

        The fields of the request say whose chat it is, and apply if the message begins it.
        """
        with self._recorded(Operation.SEND):
            self.caller.refuse_unless_allowed(Operation.SEND)
            refuse_long({**request, "text": text, "parts": parts})
            self._refuse_new_rights(request)
            self._refuse_digests(parts)
            chat = ChatSession(self._client, session, **self._in_tenant(dict(request)))
        before = await self._latest_offset(chat.run_id)
        sent = await chat.send(text, parts=parts, when_busy=when_busy, message_id=message_id, by=self.caller.name)
        return chat.run_id, sent, before if sent.run_id == chat.run_id else 0

    async def _chat(self, session: str, tenant: str | None, user_id: str | None) -> ChatSession:
        """Return a chat to read. Raises RunNotFoundError if it doesn't exist for the caller."""
        self.require(Operation.READ_RUNS)
        chat = ChatSession(self._client, session, tenant=self.caller.tenant or tenant, user_id=user_id)
        try:
            if tenant is not None and self.caller.tenant not in (None, tenant):
                raise no_run(chat.run_id)
            await self._refuse_unless_visible(Operation.READ_RUNS, chat.run_id)
            await self._client.has_ended(chat.run_id)  # raises an error if there is no such run
        except RunNotFoundError:
            raise RunNotFoundError(f"there is no chat of the session {session!r}") from None
        return chat

    async def messages(
        self, session: str, *, tenant: str | None, user_id: str | None
    ) -> tuple[str, tuple[Message, ...]]:
        """Return the run ID of a session's chat, and the messages in its current window, oldest first."""
        chat = await self._chat(session, tenant, user_id)
        return chat.run_id, await chat.messages()

    async def answer(
        self, session: str, message_id: str, *, tenant: str | None, user_id: str | None, wait: float
    ) -> MessageState:
        """Return what has become of a message, after its answer or after `wait` seconds. Raises MessageNotFoundError if
        a worker says that the chat doesn't know it.
        """
        chat = await self._chat(session, tenant, user_id)
        state = await chat.look(message_id)
        if state.answer is not None:
            return state
        if state.handling is None:
            await chat.refuse_unknown(message_id)
        run_id = chat.own_run_id(message_id) if state.handling == "own_run" else chat.run_id
        sent = SentMessage(message_id=message_id, run_id=run_id, handling=state.handling)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                return replace(state, answer=await chat.answer(sent))
        return await chat.look(message_id)

    async def costs(self, by: str, *, since: datetime | None = None, tenant: str | None = None) -> Costs:
        """Return what the runs that the caller sees cost."""
        self.require(Operation.READ_RUNS)
        if tenant is not None and self.caller.tenant not in (None, tenant):
            return costs_of((), cost_key(by))
        return await self._client.costs(by, since=since, tenant=self.caller.tenant or tenant)

    async def retry(self, run_id: str, **changes: Any) -> JsonObject:
        """Let the run go on that waits or has ended."""
        await self._may(Operation.RETRY, run_id)
        refuse_long(changes)
        return await self._client.retry(run_id, by=self.caller.name, **changes)

    async def set_permissions(self, run_id: str, rules: Mapping[str, str]) -> JsonObject:
        """Merge permission rules into the run's own rules."""
        await self._may(Operation.GRANT, run_id)
        refuse_long({"rules": rules})
        return await self._client.set_permissions(run_id, rules, by=self.caller.name)

    async def artifacts(self, run_id: str) -> tuple[Artifact, ...]:
        """Return the outputs, shared texts and files that the run has stored."""
        await self._may(Operation.READ_RUNS, run_id)
        return await self._client.artifacts(run_id)

    async def artifact_bytes(self, run_id: str, artifact_id: str) -> bytes:
        """Return the content of an artifact."""
        await self._may(Operation.READ_RUNS, run_id)
        return await self._client.artifact_bytes(run_id, artifact_id)

    async def list_files(self, run_id: str, path: str) -> FileList:
        """List a folder in the run's workspace."""
        files = await self._files(Operation.READ_FILES, run_id, "list_dir", Effect.READ)
        return await files.list(run_id, path, by=self.caller.name)

    async def read_file(self, run_id: str, path: str) -> FileContent:
        """Return a file in the run's workspace, or a folder as an archive."""
        files = await self._files(Operation.READ_FILES, run_id, "read_file", Effect.READ)
        return await files.read(run_id, path, by=self.caller.name)

    async def write_file(self, run_id: str, path: str, content: bytes) -> WrittenFile:
        """Create or replace a file in the run's workspace."""
        files = await self._files(Operation.WRITE_FILES, run_id, "write_file", Effect.IDEMPOTENT)
        return await files.write(run_id, path, content, by=self.caller.name)

    async def _files(self, operation: Operation, run_id: str, tool: str, effect: Effect) -> RunFiles:
        """Return the files of the run for the caller, who uses them as an agent does with this tool."""
        await self._may(operation, run_id)
        risk = risk_of(tool, PreparedCall(effect=effect))
        objection = await self._approvals.objection_by_hand(run_id, tool, risk, self.caller)
        return self._client.files.for_caller(CallerLimits(roots=self._settings.bounds.roots, objection=objection))

    async def workers(self) -> tuple[WorkerReport, ...]:
        """Return the reports of the running workers, the newest worker first. Raises StreamUnavailable."""
        self.require(Operation.READ_CATALOG)
        return tuple(await live_reports(self._settings))

    async def catalogs(self) -> tuple[WorkerCatalog, ...]:
        """Return what the running workers have, that of the newest worker first. Raises StreamUnavailable."""
        self.require(Operation.READ_CATALOG)
        return tuple(catalog for _, catalog in await live_catalogs(self._settings))

    def streams(self) -> RunStreams:
        """Return the streams of all runs, which say how many people watch how many runs."""
        with self._recorded(Operation.READ_METRICS):
            self.caller.refuse_unless_allowed(Operation.READ_METRICS)
            if self.caller.tenant is not None:
                raise AccessDeniedError("metrics are about the runs of all tenants, and your token is for one tenant")
        return self._streams

    def refused(self, what: str, error: Exception, run_id: str = "") -> None:
        """Record in the audit log that the caller may not do something."""
        self._audit.refused(what, error, caller=self.caller, identity=self._address, run_id=run_id)

    @contextmanager
    def _recorded(self, operation: Operation, run_id: str = "") -> Iterator[None]:
        """Record in the audit log that the body refuses the operation."""
        try:
            yield
        except AccessDeniedError as error:
            self.refused(operation, error, run_id)
            raise

    def require(self, operation: Operation, run_id: str = "") -> None:
        """Raise AccessDeniedError if the caller's role doesn't include the operation."""
        with self._recorded(operation, run_id):
            self.caller.refuse_unless_allowed(operation)

    async def _may(self, operation: Operation, run_id: str) -> None:
        self.require(operation, run_id)
        await self._refuse_unless_visible(operation, run_id)

    async def _refuse_unless_visible(self, operation: Operation, run_id: str) -> None:
        if self.caller.tenant is None:
            return
        answer_at = asyncio.get_running_loop().time() + NOT_FOUND_AFTER
        with suppress(RunNotFoundError):
            if await self._client.tenant_of(run_id) == self.caller.tenant:
                return
            self.refused(operation, no_run(run_id), run_id)
        await asyncio.sleep(answer_at - asyncio.get_running_loop().time())
        raise no_run(run_id)

    def _refuse_new_rights(self, request: Mapping[str, Any]) -> None:
        """Raise AccessDeniedError if a caller who may not grant rights asks for more than the agent has."""
        if "mode" in request:
            self._settings.bounds.refuse_mode(Mode(request["mode"]))
        match request.get("workspace"):
            case str() as folder:
                self._settings.bounds.refuse_workspace(_real_path(folder))
            case _:
                pass  # the worker knows which repositories it clones, and an archive is the caller's own
        if self.caller.may(Operation.GRANT):
            return
        match request.get("workspace"):
            case {"push": str()}:
                raise AccessDeniedError(
                    "workspace.push: only an admin may let a run push to a repository. Leave it out, and take the patch"
                    " from the run's artifacts",
                    field="workspace.push",
                )
        gained = [rule for rule, verdict in request.get("permissions", {}).items() if verdict != "deny"]
        if gained or request.get("mode") not in (None, Mode.READ_ONLY) or isinstance(request.get("crew"), Mapping):
            what = f"permissions.{gained[0]}" if gained else "mode" if request.get("mode") else "crew"
            raise AccessDeniedError(
                f"{what}: only an admin may give a run more rights than its agent has. You may add `deny` rules, choose"
                " the mode `read-only`, and name a registered crew",
                field=what,
            )

    def _in_tenant(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the request's fields with the caller's tenant."""
        self._refuse_digests(fields.get("parts"), fields.get("workspace"))
        if self.caller.tenant is None:
            return fields
        if fields.get("tenant") not in (None, self.caller.tenant):
            raise AccessDeniedError(
                f"tenant: you may start runs only for {self.caller.tenant!r}; leave the field out", field="tenant"
            )
        return {**fields, "tenant": self.caller.tenant}

    def _own_id(self, run_id: str | None) -> str | None:
        """Return the ID for a new run. The IDs of tenants don't collide, so that a collision tells nothing."""
        if run_id is None:
            return None
        if "/" in run_id:
            raise BadRequest(
                "run_id: must not contain a slash, which separates a sub-agent from its run", field="run_id"
            )
        prefix = f"{self.caller.tenant}:"
        if self.caller.tenant is not None and not run_id.startswith(prefix):
            raise BadRequest(f"run_id: must begin with {prefix!r}, the name of your tenant", field="run_id")
        return run_id

    def _refuse_digests(self, parts: Any, workspace: Any = None) -> None:
        """Raise AccessDeniedError if a caller with a tenant refers to content that another tenant may have stored."""
        if self.caller.tenant is None:
            return
        archive = workspace.get("archive") if isinstance(workspace, Mapping) else None
        for name, contents in (("parts", parts or ()), ("workspace.archive", (archive,) if archive else ())):
            if any(content.get("digest") for content in contents):
                raise AccessDeniedError(
                    f"{name}: send the content as `data`; you may not refer to it by `digest`", field=name
                )


def _rights_of_fork(request: RunRequest, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that give a fork its rights: those of the other run's request, with the fork's changes."""
    inherited = {name: getattr(request, name) for name in ("mode", "workspace", "crew")}
    rules = {**request.permissions, **changes.get("permissions", {})}
    given = {name: value for name, value in inherited.items() if value is not None}
    return {**given, **changes, "permissions": rules}


def _real_path(workspace: str) -> str:
    """Return the real path of a workspace. Raises BadRequest if the worker could understand it differently.

    The service signs its requests, so the worker may serve them any folder: the service must not mistake one for a
    folder in its own bounds.
    """
    path = Path(workspace)
    if not path.is_absolute() or ".." in path.parts:
        raise BadRequest(
            f"workspace {workspace!r} must be an absolute path on the worker, without `..`", field="workspace"
        )
    try:
        return str(path.resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise BadRequest(f"workspace {workspace!r} cannot be used: {error}", field="workspace") from None
