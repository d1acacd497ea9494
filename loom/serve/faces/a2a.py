"""Loom's agents as A2A agents: a task is a run, and a context is a session.

Loom doesn't store tasks. Each response is built from the run, so any instance can give it, even after a restart.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import structlog
from a2a.helpers import get_message_text
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    HTTPAuthSecurityScheme,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SecurityRequirement,
    SecurityScheme,
    SendMessageRequest,
    StringList,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)
from a2a.utils.constants import PROTOCOL_VERSION_1_0, TransportProtocol
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct
from pydantic_core import to_jsonable_python
from sse_starlette import EventSourceResponse
from sse_starlette.event import ensure_bytes
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from loom.domain.core.errors import BadRequest, RefusedError, RunExistsError, RunNotFoundError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import ENDED
from loom.serve.caller_runs import CallerRuns
from loom.serve.faces.a2a_events import Event, Translation, artifacts_of, asking, ended
from loom.serve.faces.a2a_messages import CallDecision, decision_in, decision_of, files_in, task_in, with_call
from loom.serve.faces.following import (
    Followed,
    Waits,
    decide,
    follow,
    follow_to_end,
    waits_in,
)
from loom.serve.http_input import disconnected
from loom.serve.problems import ANTICIPATED, name_and_detail
from loom.watching import closing

_log = structlog.get_logger("loom.serve")

APPROVALS: Final = "urn:loom:a2a:approvals:v1"
"""The extension that describes the data parts for calls that wait for approval."""
LOOKBACK: Final = 2_000
"""The maximum number of events that are read again for the model's current text when a client subscribes."""
CANCELED_WITHIN: Final = 10.0
"""Seconds to wait until a cancelled run ends. After that, the response says that the run is still working."""

NO_PUSH: Final = "Loom sends no push notifications to A2A clients; subscribe to the task"
TERMINAL: Final = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)


def agent_card(agent: str, description: str, url: str) -> JsonObject:
    """Return the card of an agent whose address is `url`."""
    text = (
        description or f"Loom's agent {agent!r}. It works on tasks, and asks before it makes calls that need approval."
    )
    card = AgentCard(
        name=agent,
        description=text,
        version="1",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=TransportProtocol.JSONRPC, protocol_version=PROTOCOL_VERSION_1_0)
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            extensions=[
                AgentExtension(
                    uri=APPROVALS,
                    description="Data parts for calls that wait for approval, and for decisions on them.",
                    params=_struct({"decision": CallDecision.model_json_schema()}),
                )
            ],
        ),
        security_schemes={"token": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))},
        security_requirements=[SecurityRequirement(schemes={"token": StringList()})],
        default_input_modes=["text/plain", "application/json", "image/*", "audio/*", "application/pdf"],
        default_output_modes=["text/plain", "application/json"],
        skills=[AgentSkill(id=agent, name=agent, description=text, tags=["loom"])],
    )
    return dict(agent_card_to_dict(card))


async def answered(request: Request, runs: CallerRuns, agent: str) -> Response | AsyncIterator[bytes]:
    """Answer a JSON-RPC request to an agent: with a response or, if the method streams, with server-sent events.

    Raises those errors of `CallerRuns` that JSON-RPC has no code for.
    """
    await request.body()  # from now on, the client can only tell that it has gone
    answering = asyncio.create_task(JsonRpcDispatcher(AgentTasks(runs, agent)).handle_requests(request))
    gone = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            return Response(status_code=499)  # nobody reads it
        response = answering.result()
    except _Refusal as refusal:
        raise refusal.error from None
    finally:
        for task in (answering, gone):
            task.cancel()
        await asyncio.wait({answering, gone})
    return _encoded(response.body_iterator) if isinstance(response, EventSourceResponse) else response


async def _encoded(events: Any) -> AsyncIterator[bytes]:
    async with closing(events) as each:
        async for event in each:
            yield ensure_bytes(event, "\n")


class _Refusal(HTTPException):
    """Carries an error through the library if JSON-RPC has no code for it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(403, name_and_detail(error)[1])
        self.error = error


@contextmanager
def _protocol_errors() -> Iterator[None]:
    """Translate the errors of `CallerRuns` into those of the protocol."""
    try:
        yield
    except (A2AError, GeneratorExit):
        raise
    except ANTICIPATED as error:
        raise _translated(error) from error
    except Exception as error:
        _log.error("request_failed", protocol="A2A", exc_info=error)
        raise InternalError("the service failed; its log says why") from error


def _translated(error: Exception) -> Exception:
    name, detail = name_and_detail(error)
    match error:
        case RunNotFoundError():
            return TaskNotFoundError(detail, {"type": name})
        case BadRequest():
            return InvalidParamsError(detail, {"type": name, "field": str(error.context.get("field", ""))})
        case RefusedError():
            return UnsupportedOperationError(detail, {"type": name})
        case _:
            return _Refusal(error)


class AgentTasks(RequestHandler):
    """The tasks of an agent, as one caller sees them. Errors of `CallerRuns` become those of the protocol."""

    def __init__(self, runs: CallerRuns, agent: str) -> None:
        self._runs = runs
        self._agent = agent

    @validate_request_params
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        """Start a run, or send an answer to one. Then wait until the run ends or needs a person."""
        with _protocol_errors():
            sent = await self._send(params)
            if params.configuration.return_immediately:
                return sent.task
            async with closing(self._followed(sent)) as followed:
                async for _ in followed:
                    pass
            return await self._task(sent.task.id)

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Start a run, or send an answer to one. Yield the run's events until it ends or needs a person."""
        with _protocol_errors():
            sent = await self._send(params)
            yield sent.task
            translation = Translation(sent.task)
            async with closing(self._followed(sent)) as followed:
                async for each in followed:
                    for event in translation.of(each):
                        yield event

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Yield a run's state, and its events until the run ends, even while it waits for a person."""
        with _protocol_errors():
            latest = await self._runs.latest_offset(params.id)
            task = await self._task(params.id)
            if task.status.state in TERMINAL:
                raise UnsupportedOperationError("the task has ended; read it with GetTask")
            yield task
            waits = task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            after = latest if waits else max(0, latest - LOOKBACK)
            translation = Translation(task, silent_until=latest)
            async with closing(follow_to_end(self._runs, task.id, after=after, knows_waits=waits)) as followed:
                async for each in followed:
                    for event in translation.of(each):
                        yield event

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        """Return a run's state."""
        with _protocol_errors():
            return await self._task(params.id)

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        """Abort a run."""
        with _protocol_errors():
            try:
                await self._runs.abort(params.id, reason="cancelled by its A2A client")
            except RefusedError as error:
                raise TaskNotCancelableError(error.message) from error
            await self._runs.result(params.id, wait=CANCELED_WITHIN)
            return await self._task(params.id)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Refuse: the HTTP API lists runs."""
        raise UnsupportedOperationError("tasks aren't listed here; list runs with GET /v1/runs")

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Refuse: the card is complete."""
        raise UnsupportedOperationError("the agent has no extended card")

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Refuse: Loom's own webhooks notify people."""
        raise PushNotificationNotSupportedError(NO_PUSH)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Refuse, as above."""
        raise PushNotificationNotSupportedError(NO_PUSH)

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Refuse, as above."""
        raise PushNotificationNotSupportedError(NO_PUSH)

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Refuse, as above."""
        raise PushNotificationNotSupportedError(NO_PUSH)

    def _followed(self, sent: "Sent") -> AsyncIterator[Followed]:
        return follow(self._runs, sent.task.id, after=sent.after, knows_waits=sent.has_answer)

    async def _send(self, params: SendMessageRequest) -> "Sent":
        if params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError(NO_PUSH)
        return await (self._answer if params.message.task_id else self._start)(params.message)

    async def _start(self, message: Message) -> "Sent":
        """Start a run with a message. The same message always starts the same run, so clients can resend it."""
        caller = self._runs.caller
        same = blake2b(f"{caller.name}\0{self._agent}\0".encode(), digest_size=12)
        same.update(message.SerializeToString(deterministic=True))
        name = f"a2a-{same.hexdigest()}"
        run_id = f"{caller.tenant}:{name}" if caller.tenant else name
        context_id = message.context_id or name
        request = {"task": task_in(message), "agent": self._agent, "session_id": context_id, **files_in(message)}
        try:
            await self._runs.start(request, run_id)
        except RunExistsError:
            return Sent(task=await self._task(run_id))
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        return Sent(task=Task(id=run_id, context_id=context_id, status=status))

    async def _answer(self, message: Message) -> "Sent":
        """Decide on a run's pending calls, answer its question, or send it a message."""
        run_id = message.task_id
        after = await self._runs.latest_offset(run_id)
        status = await self._runs.status(run_id)
        context_id = self._context_of(status)
        if message.context_id not in ("", context_id):
            raise InvalidParamsError(f"message.contextId: the task belongs to the context {context_id!r}")
        if status["status"] in ENDED:
            raise UnsupportedOperationError("the task has ended; send a message without taskId to start another one")
        waits = waits_in(status) or Waits((), "")
        text = get_message_text(message)
        files = files_in(message)
        decisions = [decision_in(part) for part in message.parts if part.HasField("data")]
        if not decisions and waits.calls and not waits.question:
            decisions, text = [decision_of(text)], ""
        for decision in [with_call(each, waits) for each in decisions]:
            await decide(self._runs, run_id, decision, call_id=str(decision.call_id), digest=decision.digest)
        if text or files or not decisions:
            await self._runs.send(run_id, text, **files)
        working = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        return Sent(
            task=Task(id=run_id, context_id=context_id, status=working),
            after=after,
            has_answer=bool(waits.question and text),
        )

    async def _task(self, run_id: str) -> Task:
        """Return a run as a task."""
        status = await self._runs.status(run_id)
        facts = {"status": status["status"], "agent": status["agent"]}
        task = Task(id=run_id, context_id=self._context_of(status), metadata=_struct({"loom": facts}))
        if status["status"] in ENDED and (result := await self._runs.result(run_id, wait=0)) is not None:
            task.status.CopyFrom(ended(run_id, result))
            task.artifacts.extend(artifacts_of(result))
        elif (waits := waits_in(status)) is not None:
            task.status.CopyFrom(asking(run_id, waits))
        else:
            task.status.state = TaskState.TASK_STATE_WORKING
        return task

    def _context_of(self, status: JsonObject) -> str:
        return str(status.get("session_id") or status["run_id"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A message that has reached its run."""

    task: Task
    after: int = 0
    """The offset of the run's latest event before the message."""
    has_answer: bool = False
    """Whether the message answers the agent's question."""


def _struct(value: JsonObject) -> Struct:
    struct: Struct = ParseDict(to_jsonable_python(value), Struct())
    return struct
