"""Maintain the connection to one MCP server for the lifetime of the worker.

    connect ──▶ list tools ──▶ serve ──▶ (idle for long) sleep until called
      ▲            │             │
      └─── pause ◀─┴── it ended, hung, or did not respond

A single task owns the session until the session is closed, because in the library, only the task that entered a cancel
scope may exit it. Calls run in separate tasks, so a failing server affects only its own calls.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Final, cast

import anyio
import structlog
from mcp.client.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolResult,
    InputRequiredResult,
    PromptListChangedNotification,
    RequestParamsMeta,
    ResourceListChangedNotification,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from temporalio import activity

from loom.activities.adapters.mcp.error_text import SecretReplacer, readable
from loom.activities.adapters.mcp.input_requests import needed, responses
from loom.activities.adapters.mcp.open_calls import OpenCall, OpenCalls, Returned
from loom.activities.adapters.mcp.questions import Questions
from loom.activities.adapters.mcp.resources import feature_result, feature_tools
from loom.activities.adapters.mcp.results import data_text, forgotten, listed_tools, output_of, refusal, repeatable
from loom.activities.adapters.mcp.stderr import StderrTail
from loom.activities.adapters.mcp.tasks import (
    LONGEST_CALL,
    CreatedTask,
    Tasks,
    cancel,
    create,
    follow,
    runs_tasks,
)
from loom.activities.adapters.mcp.transport import Transport, open_transport
from loom.activities.leases import is_stopped
from loom.activities.ports import ToolOutput
from loom.activities.toolbox.mcp_tool import McpCall
from loom.domain.core.errors import LoomError, ToolExecutionError, ToolUnavailableError
from loom.domain.core.tool_calls import Effect
from loom.domain.core.tool_input import InputRequest, NeededInput
from loom.domain.tools.mcp_servers import ListedTool, McpServer, visible

_log = structlog.get_logger("loom.mcp")

KEY: Final = "loom.dev/idempotency-key"
"""The name of the `_meta` field that contains a request's idempotency key."""

_CHANGES: Final = (ToolListChangedNotification, PromptListChangedNotification, ResourceListChangedNotification)
_STATE_PAUSE: Final = 0.25
"""Seconds before a call goes on whose server only needs more time."""
_PAGES: Final = 50
"""Maximum number of pages in a list of tools. The limit is needed because a faulty server may never end its list."""

OnListed = Callable[[Sequence[ListedTool], Sequence[str], str], None]
"""A callback that receives the listed tools, one message for each malformed tool, and the server's instructions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionTimeouts:
    """How long a connection waits for each event."""

    first_pause: float = 0.5
    """Seconds before the first reconnection attempt. The delay is doubled after each failure."""
    longest_pause: float = 30.0
    steady: float = 10.0
    """If a session lasts longer than this number of seconds, the reconnection delay is reset when the session ends."""
    probe: float = 10.0
    """Timeout in seconds for the health check after a call has timed out."""
    restart: float = 15.0
    """How long calls wait for a server that has been lost, in seconds."""
    idle: float | None = None
    """If there is no call for this number of seconds, the connection is closed. The default is 5 minutes for HTTP and
    30 minutes for a program.
    """


class ServerConnection:
    """The connection to one server. The server may be unavailable."""

    def __init__(
        self,
        server: McpServer,
        environment: Mapping[str, str],
        on_listed: OnListed,
        patience: ConnectionTimeouts,
        *,
        home: Path | None = None,
        own_queue: str = "",
    ) -> None:
        self._server = server
        self._environment = environment
        self._on_listed = on_listed
        self._patience = patience
        self._idle = patience.idle or (300.0 if server.url else 1800.0)
        self._redacted = SecretReplacer(server, environment)
        self._life = anyio.CancelScope()
        self._client: Client | None = None
        self._trouble: str | None = "Loom is connecting to it for the first time"
        self._recovered = anyio.Event()
        self._served = False
        """Whether the server has been connected since the last failure."""
        self._recovers_by = 0.0
        """Until this time, calls wait for a server that has been lost."""
        self._wanted = anyio.Event()
        self._wanted.set()
        self._settled = anyio.Event()
        self._stale = anyio.Event()
        self._calls = OpenCalls()
        self._questions = Questions(server.name, self._calls, self._redacted)
        self._own_queue = own_queue
        self._home = home
        self._turn = asyncio.Lock()
        self._cancelling: set[asyncio.Task[None]] = set()
        self._used = 0.0

    def trouble(self) -> str | None:
        """Return None if the server can be called. Otherwise, return why it can't be called and what Loom is doing
        about that. A call to a server that is being restarted waits for it.
        """
        if self._trouble is None or monotonic() < self._recovers_by:
            return None
        return f"the MCP server {self._server.name} is unavailable: {self._trouble}"

    async def settled(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed."""
        await self._settled.wait()

    def stop(self) -> None:
        """Close the connection without reconnecting."""
        self._life.cancel()

    async def run(self) -> None:
        """Serve the connection until it is stopped. Server errors are handled and never raised."""
        pause = self._patience.first_pause
        with self._life:
            while True:
                await self._wanted.wait()
                begun = anyio.current_time()
                if await self._run_session():
                    pause = self._patience.first_pause
                    continue
                if anyio.current_time() - begun > self._patience.steady:
                    pause = self._patience.first_pause
                await anyio.sleep(pause)
                pause = min(pause * 2, self._patience.longest_pause)

    async def call(self, call: McpCall) -> ToolOutput:
        """Send the call once. Raises a domain tool error if the call fails. A canceled caller doesn't wait for the
        server's response.
        """
        # A question during a task names the task, and a task may take hours.
        async with self._turn if self._questions.are_unclear and not call.task else nullcontext():
            return await self._called(call)

    def abandon(self, call_id: str, task: str = "") -> None:
        """Stop a call that waits for input, and its task, because its run has ended."""
        self._calls.abandon(call_id)
        self._cancel(task)

    async def _called(self, call: McpCall) -> ToolOutput:
        opened = await self._opened(call)
        try:
            result = await opened.outcome(call.timeout)
        except asyncio.CancelledError:
            opened.cancel()  # the library notifies the server of the cancellation, and the session continues
            if activity.in_activity() and is_stopped():  # otherwise, another attempt goes on with the task
                self._cancel(call.task)
            raise
        except MCPError as error:
            raise self._refused(call, error) from None
        except TimeoutError:
            opened.cancel()
            self._cancel(call.task)
            raise self._refused(call, MCPError(code=REQUEST_TIMEOUT, message="no result in time")) from None
        except (RuntimeError, ValidationError, OSError, anyio.BrokenResourceError) as error:
            reason = self._redacted(readable(error))
            raise ToolExecutionError(
                f"the MCP server {self._server.name} returned no usable result for {call.tool} ({reason}):"
                f" {repeatable(call)}"
            ) from None
        if isinstance(result, InputRequest):
            self._calls.keep(opened)
        return self._output(call, result)

    def _output(self, call: McpCall, result: Returned | InputRequest) -> ToolOutput:
        match result:
            case CallToolResult():
                return output_of(result, self._redacted)
            case InputRequiredResult():
                asked = result.input_requests or {}
                return ToolOutput(needs=needed(asked, result.request_state, call, self._server.name, self._redacted))
            case NeededInput():
                return ToolOutput(needs=result)
            case InputRequest():
                return ToolOutput(needs=NeededInput(requests=(result,), queue=self._own_queue, task=call.task))

    async def _opened(self, call: McpCall) -> OpenCall:
        """Send the call, or go on with a call that waits for these answers.

        A call that waits on a worker that is lost is sent again only if that's harmless.
        """
        if call.round and (waiting := self._calls.take(call.id)) is not None:
            waiting.go_on(call)
            return waiting
        if call.round and not (call.state or call.task) and call.effect is Effect.ONCE:
            raise ToolExecutionError(
                f"the connection to the MCP server {self._server.name} was lost while {call.tool} waited for input:"
                f" {repeatable(call)}"
            )
        # A server that is lost doesn't end a task, at first.
        sending = self._followed(call) if call.task else self._sent(await self._connected_client(), call)
        opened = OpenCall(call, asyncio.create_task(sending))
        opened.task.add_done_callback(_forget)
        self._calls.add(opened)
        return opened

    async def _run_session(self) -> bool:
        """Run one session until it ends. Return False if it failed."""
        transport = Transport(words=StderrTail(server=self._server.name, scrub=self._redacted))
        try:
            await self._dial_and_serve(transport)
        except LoomError as error:
            self._fail(error.message)
        except Exception as error:  # noqa: BLE001 - a server error must end only the session, not the worker
            self._fail(_reason(error, transport))
        else:
            _log.info("mcp_asleep", server=self._server.name)
            return True
        return False

    async def _dial_and_serve(self, transport: Transport) -> None:
        limit = self._server.connect_timeout
        self._stale = anyio.Event()
        with anyio.CancelScope(deadline=anyio.current_time() + limit) as scope:
            client = Client(
                open_transport(self._server, self._environment, transport, self._home),
                read_timeout_seconds=self._server.timeout,
                message_handler=self._hear,
                cache=None,
                elicitation_callback=self._questions.for_person if self._server.elicitation else None,
                sampling_callback=self._questions.for_model if self._server.sampling else None,
                extensions=[Tasks()],
            )
            async with client:
                await self._list(client, transport)
                scope.deadline = math.inf
                self._open(client)
                try:
                    await self._serve(client, transport)
                finally:
                    self._client = None
                    scope.deadline = anyio.current_time() + limit
        if scope.cancelled_caught:
            raise TimeoutError(f"no response within {limit:g} s")

    def _open(self, client: Client) -> None:
        self._client, self._served = client, True
        self._has_recovered()
        self._used = anyio.current_time()
        self._settled.set()
        _log.info("mcp_connected", server=self._server.name, protocol=client.protocol_version)

    async def _serve(self, client: Client, transport: Transport) -> None:
        """Keep the list of tools up to date until the server closes the connection or the connection has been idle for
        too long.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_it_ends, transport)
            group.start_soon(self._subscribe, client)
            while True:
                with anyio.move_on_after(max(0.0, self._used + self._idle - anyio.current_time())):
                    await self._stale.wait()
                if self._stale.is_set():
                    self._stale = anyio.Event()
                    await self._refresh(client, transport)
                elif self._calls:
                    self._used = anyio.current_time()
                elif anyio.current_time() >= self._used + self._idle:
                    # Set this before the first await, so that a new call wakes the connection again.
                    self._client, self._wanted = None, anyio.Event()
                    break
            group.cancel_scope.cancel()

    async def _refresh(self, client: Client, transport: Transport) -> None:
        with anyio.move_on_after(self._patience.probe) as scope:
            await self._list(client, transport)
            self._has_recovered()
        if scope.cancelled_caught:
            raise TimeoutError(f"it did not list its tools within {self._patience.probe:g} s")

    async def _until_it_ends(self, transport: Transport) -> None:
        await transport.ended.wait()
        raise ConnectionError("it has ended")

    async def _subscribe(self, client: Client) -> None:
        """Subscribe to changes if the server supports subscriptions. Older servers notify `_hear` without a
        subscription.
        """
        offered = client.server_capabilities
        tools, prompts, resources = (
            each is not None and bool(each.list_changed) for each in (offered.tools, offered.prompts, offered.resources)
        )
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools or prompts or resources):
            return
        while True:
            try:
                async with client.listen(
                    tools_list_changed=tools, prompts_list_changed=prompts, resources_list_changed=resources
                ) as changes:
                    async for _ in changes:
                        self._stale.set()
            except (MCPError, SubscriptionLost, TimeoutError) as error:
                _log.debug("mcp_subscription_lost", server=self._server.name, reason=str(error)[:200])
            await anyio.sleep(self._patience.longest_pause)
            self._stale.set()  # changes made before the subscription weren't announced

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, _CHANGES):
            self._stale.set()

    async def _list(self, client: Client, transport: Transport) -> None:
        """Request the list of tools, page by page."""
        found: list[ListedTool] = []
        transport.malformed.clear()
        cursor: str | None = None
        for _ in range(_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += listed_tools(page, as_tasks=runs_tasks(client))
            cursor = page.next_cursor
            if not cursor:
                break
        own = {tool.name for tool in found}
        found += [tool for tool in await feature_tools(client, self._server.name) if tool.name not in own]
        self._on_listed(
            [self._redacted.tool(tool) for tool in found],
            tuple(map(self._redacted, transport.malformed)),
            self._redacted(client.instructions or ""),
        )

    def _has_recovered(self) -> None:
        self._trouble = None
        self._recovered.set()

    def _is_lost(self, why: str, seconds: float) -> None:
        """Record a problem. For this number of seconds, calls wait for the server to recover."""
        if self._trouble is None:
            self._recovered = anyio.Event()
        self._recovers_by = max(self._recovers_by, monotonic() + seconds)
        self._trouble = why

    async def _connected_client(self) -> Client:
        """Return a client whose server is responding. Wake the connection if it is asleep, and wait for a server that
        is being restarted.
        """
        until = monotonic() + self._server.connect_timeout
        while self._trouble is not None and (left := min(until, self._recovers_by) - monotonic()) > 0:
            with anyio.move_on_after(left):
                await self._recovered.wait()
        if self._client is None and self._trouble is None:
            if self._settled.is_set():  # another caller may already be waiting for this connection
                self._settled = anyio.Event()
            self._wanted.set()
            await self._settled.wait()
        if self._client is None or self._trouble is not None:
            why = f"the MCP server {self._server.name} is unavailable: {self._trouble}"
            raise ToolUnavailableError(f"{why}; nothing was run")
        self._used = anyio.current_time()
        return self._client

    async def _followed(self, call: McpCall) -> CallToolResult | NeededInput:
        try:
            result = await follow(self._connected_client, self._suspect, call, self._server.name, self._teller(call))
            if isinstance(result, CallToolResult):
                return result
            asks = needed(result.input_requests, None, call, self._server.name, self._redacted)
        except ToolExecutionError as error:
            self._cancel(call.task)  # it needs an answer that there won't be, or it has ended
            raise ToolExecutionError(self._redacted(error.message)) from None
        return replace(asks, task=call.task)

    def _cancel(self, task: str) -> None:
        """Ask the server to cancel a task, without waiting for it."""
        if task:
            cancelling = asyncio.create_task(self._cancelled(task))
            self._cancelling.add(cancelling)
            cancelling.add_done_callback(self._cancelling.discard)

    async def _cancelled(self, task: str) -> None:
        try:
            await cancel(await self._connected_client(), task)
        except Exception as error:  # noqa: BLE001 - the server may have forgotten the task
            _log.debug("mcp_task_not_cancelled", server=self._server.name, reason=str(error)[:200])

    def _teller(self, call: McpCall) -> ProgressFnT:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            of = "" if total is None else f"/{total:g}"
            call.progress(self._redacted(visible(message or f"{progress:g}{of}"))[:2000])

        return tell

    async def _sent(self, client: Client, call: McpCall) -> Returned:
        if call.feature is not None:
            return await feature_result(client, call)
        meta = cast("RequestParamsMeta", {KEY: call.key}) if call.key else None
        if call.as_task and client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            created = await create(client, call, meta)
            return NeededInput(requests=(), task=created.task_id) if isinstance(created, CreatedTask) else created
        state = call.state or None
        given = responses(call.answers, self._server.name) if call.state else {}
        while True:
            result = await client.session.call_tool(
                call.tool,
                dict(call.arguments),
                # `OpenCall.outcome` limits the time, because a call may wait for a person for days.
                read_timeout_seconds=LONGEST_CALL,
                progress_callback=self._teller(call),
                input_responses=given or None,
                request_state=state,
                meta=meta,
                allow_input_required=True,
                allow_claimed=True,
            )
            if isinstance(result, CreatedTask):
                return NeededInput(requests=(), task=result.task_id)
            if isinstance(result, CallToolResult):
                return result
            if not isinstance(result, InputRequiredResult):
                raise TypeError(f"a result of the type {type(result).__name__}")
            if result.input_requests:
                return result
            # The server needs more time, and nothing else.
            given, state = {}, result.request_state
            await asyncio.sleep(_STATE_PAUSE)

    def _refused(self, call: McpCall, error: MCPError) -> LoomError:
        self._suspect(error)
        said, data = (self._redacted(visible(text)) for text in (error.message, data_text(error.data)))
        return refusal(self._server.name, call, error.code, said, data)

    def _suspect(self, error: MCPError) -> None:
        if error.code in (REQUEST_TIMEOUT, CONNECTION_CLOSED) or forgotten(error.code, error.message):
            self._check_alive()

    def _check_alive(self) -> None:
        """Check whether the server is alive by listing its tools. Other calls wait for the check."""
        if self._client is not None:
            why = "it did not respond to a call and has not yet shown that it is alive"
            self._is_lost(why, self._patience.probe + self._patience.restart)
            self._stale.set()

    def _fail(self, reason: str) -> None:
        self._is_lost(
            f"{self._redacted(reason)}; Loom is reconnecting", self._patience.restart if self._served else 0.0
        )
        self._served = False
        self._settled.set()
        _log.warning("mcp_lost", server=self._server.name, reason=self._trouble)


def _forget(task: "asyncio.Task[Returned]") -> None:
    if not task.cancelled():
        task.exception()  # retrieve the exception, because every waiting caller may have been canceled


def _reason(error: BaseException, transport: Transport) -> str:
    """Return a one-line description of the failure, including any details that the transport recorded."""
    known = [
        readable(error),
        transport.remark,
        f"its last output: {transport.words.text}" if transport.words.text else "",
    ]
    return "; ".join(part for part in known if part)
