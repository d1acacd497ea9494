"""Follow the tasks of MCP servers: calls that a server answers with a task's ID, before it has their result.

    call ──▶ task ──▶ tasks/get … ──▶ result
                        └──▶ needs input ──▶ the run asks ──▶ tasks/update ──▶ tasks/get …

The attempt that creates a task ends with its ID, which the run records. The attempts that follow only ask for the
result, so any worker can make them, any number of times. With the protocol 2025-11-25, `tasks/result` gets the result,
and the server asks for input while it runs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Literal

import anyio
from mcp.client.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    CancelTaskRequest,
    CancelTaskRequestParams,
    CreateTaskResult,
    EmptyResult,
    ErrorData,
    GetTaskPayloadRequest,
    GetTaskPayloadRequestParams,
    GetTaskRequest,
    GetTaskRequestParams,
    InputRequests,
    InputResponses,
    Request,
    RequestParams,
    RequestParamsMeta,
    Result,
    TaskMetadata,
    TaskStatus,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import AliasChoices, Field, TypeAdapter

from loom.activities.adapters.mcp.input_requests import responses
from loom.activities.adapters.mcp.results import forgotten, repeatable
from loom.activities.toolbox.mcp_tool import McpCall
from loom.activities.toolbox.untrusted_text import defused
from loom.domain.core.errors import ToolExecutionError, ToolUnavailableError
from loom.domain.tools.mcp_servers import visible

EXTENSION: Final = "io.modelcontextprotocol/tasks"
LONGEST_TASK_ID: Final = 1_000
"""Maximum number of characters of a task's ID, which runs record."""
LONGEST_CALL: Final = 30 * 86_400.0
"""Seconds that the library waits for a result at most. Loom's own limits are shorter."""
SILENCE: Final = 300.0
"""Seconds without an answer after which a task counts as lost."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 5.0
"""Seconds between two polls, unless the server suggests its own interval. The pause is doubled after each poll."""
SHORTEST: Final = 0.05
LONGEST: Final = 60.0
"""The limits of an interval that the server suggests, in seconds."""
SAID: Final = 200
"""Maximum number of characters of an error's message that the model reads."""
_FINAL: Final = (INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY)
"""The errors by which a server says that it doesn't know a task."""


class CreatedTask(Result):
    """A server's answer to a call that it runs as a task."""

    result_type: Literal["task"] = "task"
    task_id: str = Field(max_length=LONGEST_TASK_ID, min_length=1)


class ServerTask(Result):
    """The state of a task, in the form of either protocol."""

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    interval: float | None = Field(None, validation_alias=AliasChoices("pollIntervalMs", "pollInterval"))
    """The time between two polls that the server suggests, in milliseconds."""
    result: CallToolResult | None = None
    error: ErrorData | None = None
    input_requests: InputRequests = Field(default_factory=dict)


class GetTask(GetTaskRequest):
    """Asks for the state of a task."""

    name_param = "taskId"


class CancelTask(CancelTaskRequest):
    """Asks to cancel a task."""

    name_param = "taskId"


class UpdateTaskParams(RequestParams):
    """Answers to the input requests of a task."""

    task_id: str
    input_responses: InputResponses


class UpdateTask(Request[UpdateTaskParams, Literal["tasks/update"]]):
    """Gives a server the answers that a task needs. Only with the protocol 2026-07-28."""

    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateTaskParams
    name_param = "taskId"


class Tasks(ClientExtension):
    """Tells servers that Loom follows tasks."""

    identifier = EXTENSION

    def claims(self) -> tuple[ResultClaim[CreatedTask]]:
        """See the base class."""
        return (ResultClaim(result_type="task", model=CreatedTask, resolve=_unresolved),)


async def _unresolved(created: CreatedTask, context: ClaimContext) -> CallToolResult:
    """Loom's calls take the task itself, so that the run can record it."""
    raise NotImplementedError


def runs_tasks(client: Client) -> bool:
    """Whether the server may run any call as a task, as with the protocol 2026-07-28."""
    return EXTENSION in (client.server_capabilities.extensions or {})


_CREATED: Final[TypeAdapter[CreateTaskResult | CallToolResult]] = TypeAdapter(CreateTaskResult | CallToolResult)


async def create(client: Client, call: McpCall, meta: RequestParamsMeta | None) -> CreatedTask | CallToolResult:
    """Make a call as a task of the protocol 2025-11-25."""
    params = CallToolRequestParams(name=call.tool, arguments=dict(call.arguments), task=TaskMetadata(), _meta=meta)
    made = await client.session.send_request(CallToolRequest(params=params), _CREATED)
    return made if isinstance(made, CallToolResult) else CreatedTask(task_id=made.task.task_id)


async def follow(
    connected: Callable[[], Awaitable[Client]],
    suspect: Callable[[MCPError], None],
    call: McpCall,
    server: str,
    tell: ProgressFnT,
) -> CallToolResult | ServerTask:
    """Return the result of a call's task, or its state if it needs input. `suspect` learns of requests that failed.

    Raises ToolExecutionError if the server has cancelled the task, no longer knows it, or hasn't answered for a long
    time, and MCPError if the call has failed.
    """
    known, told = {answer.key for answer in call.known_answers}, ""
    polls = _Polls(connected, suspect, call, server)
    while True:
        client, task = await polls.next()
        if task.status_message and task.status_message != told:
            told = task.status_message
            await tell(0, None, told)
        if task.status == "cancelled":
            why = f": {defused(visible(task.status_message)[:SAID])}" if task.status_message else ""
            raise ToolExecutionError(f"the MCP server {server} has cancelled the task of {call.tool}{why}")
        if task.status != "working" and not _is_modern(client):
            if (result := await polls.result(client)) is not None:
                return result
            continue
        if task.status in ("completed", "failed"):
            return _result_of(task)
        if asked := {key: each for key, each in task.input_requests.items() if key not in known}:
            return task.model_copy(update={"input_requests": asked})


def _result_of(task: ServerTask) -> CallToolResult:
    if task.result is not None:
        return task.result
    error = task.error or ErrorData(code=INTERNAL_ERROR, message="the task has no result")
    raise MCPError(error.code, error.message, error.data)


class _Polls:
    """Asks for the state of a call's task again and again. First, it gives the server the answers to its questions."""

    def __init__(
        self,
        connected: Callable[[], Awaitable[Client]],
        suspect: Callable[[MCPError], None],
        call: McpCall,
        server: str,
    ) -> None:
        self._connected = connected
        self._suspect = suspect
        self._call = call
        self._server = server
        self._answers = responses(call.answers, server) if call.answers else {}
        self._wait = 0.0
        self._pause = FIRST_PAUSE
        self._heard = monotonic()

    async def next(self) -> tuple[Client, ServerTask]:
        """Return the next state. Raises ToolExecutionError if trying again is useless."""
        while True:
            await asyncio.sleep(self._wait)
            try:
                client = await self._connected()
                task = await self._asked(client)
            except (MCPError, ToolUnavailableError, OSError, anyio.BrokenResourceError) as error:
                self._refuse_if_lost(error)
                self._wait = self._longer_pause()
            else:
                self._heard = monotonic()
                suggested = None if task.interval is None else task.interval / 1000
                self._wait = self._longer_pause() if suggested is None else min(max(suggested, SHORTEST), LONGEST)
                return client, task

    async def result(self, client: Client) -> CallToolResult | None:
        """Return the task's result, or None if the connection is lost. Only before the protocol 2026-07-28."""
        request = GetTaskPayloadRequest(params=GetTaskPayloadRequestParams(task_id=self._call.task))
        try:
            return await client.session.send_request(request, CallToolResult, LONGEST_CALL)
        except (MCPError, OSError, anyio.BrokenResourceError) as error:
            if isinstance(error, MCPError) and not _is_lost(error):
                raise
            self._refuse_if_lost(error)
            self._wait = self._longer_pause()
            return None

    def _refuse_if_lost(self, error: Exception) -> None:
        tool, server = self._call.tool, self._server
        if isinstance(error, MCPError):
            self._suspect(error)
            if error.code in _FINAL and not forgotten(error.code, error.message):
                why = defused(visible(error.message)[:SAID])
                raise ToolExecutionError(
                    f"the MCP server {server} no longer knows the task of {tool} ({why}): {repeatable(self._call)}"
                ) from None
        if monotonic() - self._heard > SILENCE:
            raise ToolExecutionError(
                f"the MCP server {server} hasn't answered about the task of {tool} for {SILENCE:g} s:"
                f" {repeatable(self._call)}"
            ) from None

    async def _asked(self, client: Client) -> ServerTask:
        if self._answers and _is_modern(client):
            update = UpdateTaskParams(task_id=self._call.task, input_responses=self._answers)
            await client.session.send_request(UpdateTask(params=update), EmptyResult)
        self._answers = {}
        return await client.session.send_request(
            GetTask(params=GetTaskRequestParams(task_id=self._call.task)), ServerTask
        )

    def _longer_pause(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        return pause


async def cancel(client: Client, task: str) -> None:
    """Ask a server to cancel a task. It may have ended already."""
    request = CancelTask(params=CancelTaskRequestParams(task_id=task))
    await client.session.send_request(request, EmptyResult)


def related_task(meta: object) -> str:
    """Return the task that a server's question belongs to, or an empty string. For the protocol 2025-11-25."""
    related = meta.get("io.modelcontextprotocol/related-task") if isinstance(meta, dict) else None
    return str(related.get("taskId") or "") if isinstance(related, dict) else ""


def _is_lost(error: MCPError) -> bool:
    """Whether the connection was lost, so that the error says nothing about the task."""
    return error.code == CONNECTION_CLOSED or forgotten(error.code, error.message)


def _is_modern(client: Client) -> bool:
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS
