"""Loom as an MCP server: a few tools that start, follow and control runs, for any MCP client.

There is one tool that starts runs, whose input schema lists the agents, and not one tool per agent. A client shows all
tools to its model in each request, so each tool costs tokens, and what a person allows for `start_run` holds for agents
that come later. The list of agents is read from the running workers each time that a client lists the tools.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from typing import Annotated, Any, Final, Literal, TypeAlias

from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.domain.core.suggestions import nearest
from loom.domain.core.tasks import SHOWN_ONLY
from loom.serve.access.roles import Caller
from loom.serve.caller_runs import LONGEST_WAIT, CallerRuns, Service
from loom.serve.faces.following import follow, progress, waits_in
from loom.serve.faces.mcp_tasks import RunTasks
from loom.serve.problems import ANTICIPATED, name_and_detail
from loom.watching import Streamed, closing

PATH: Final = "/mcp"

Ctx: TypeAlias = Context[Any, Any]
RunsOf: TypeAlias = Callable[[Any], CallerRuns]
"""Returns what the caller of an HTTP request may do. None: the request came over stdio."""
RunId = Annotated[str, Field(description="The ID that `start_run` returned.", min_length=1)]
CallId = Annotated[str, Field(description="The `call_id` of a pending call.", min_length=1)]

READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False)
DECIDES: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True)
INSTRUCTIONS: Final = (
    "Loom runs durable agents. Start a run with `start_run`, then call `run_result` until `ended` is true. If the"
    " result lists pending calls or a question, show them to the user. Call `approve_call` only if the user has agreed"
    " to this very call; otherwise call `deny_call`. Answer questions with `answer_question`."
)


class Started(BaseModel):
    """A run that has started."""

    run_id: str


class RunState(BaseModel):
    """Where a run stands."""

    run_id: str
    ended: bool
    status: str
    result: dict[str, Any] | None = None
    """The result, if the run has ended. Its `output` is the agent's answer."""
    pending_calls: list[dict[str, Any]] = []
    """Tool calls that wait for a decision."""
    question: str | None = None
    """The agent's question, which waits for an answer."""


class RunTools:
    """The tools. Each request has the rights of its caller."""

    def __init__(self, runs_of: RunsOf) -> None:
        self._runs_of = runs_of
        self._arguments: dict[str, list[str]] = {}
        """The names of each tool's arguments."""

    def server(self) -> MCPServer[Any]:
        """Return a server with these tools."""
        # The library would log to the console with a handler of its own, which the service's log replaces.
        server = MCPServer[Any](
            "loom",
            instructions=INSTRUCTIONS,
            log_level="CRITICAL",
            middleware=[self._list_agents, self._refuse_unknown_arguments],
            extensions=[RunTasks(self._runs_of, _ended)],
            subscriptions=False,  # it sends no notifications of its own, so a subscription would only hold a connection
        )
        for tool, annotations in (
            (self.start_run, ADDS),
            (self.run_status, READS),
            (self.run_result, READS),
            (self.list_pending, READS),
            (self.approve_call, DECIDES),
            (self.deny_call, ADDS),
            (self.answer_question, ADDS),
            (self.abort_run, DECIDES),
        ):
            server.add_tool(tool, annotations=annotations)
            self._arguments[tool.__name__] = [name for name in signature(tool).parameters if name != "ctx"]
        return server

    async def _list_agents(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Name the agents in the schema of `start_run`. `LoomClient.start` refuses those that no worker has."""
        answer = await call_next(ctx)
        if ctx.method != "tools/list" or not isinstance(answer, dict):
            return answer
        with suppress(*ANTICIPATED):  # without the workers' reports, the schema accepts any name
            reports = await self._runs_of(ctx.request).workers()
            agents = sorted({name for report in reports for name in report.agents})
            return {**answer, "tools": [_with_agents(tool, agents) for tool in answer["tools"]]}
        return answer

    async def _refuse_unknown_arguments(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Refuse arguments that the tool doesn't have. The library ignores them, and a run would start without them."""
        params = ctx.params or {}
        tool, given = str(params.get("name")), params.get("arguments")
        known = self._arguments.get(tool)
        if ctx.method != "tools/call" or known is None or not isinstance(given, dict):
            return await call_next(ctx)
        listed = f"known: {', '.join(known)}"
        unknown = [f"{name!r}; {nearest(name, known, listed)}" for name in given if name not in known]
        if not unknown:
            return await call_next(ctx)
        said = f"BadRequest: {tool} has no argument {', '.join(unknown)}"
        return CallToolResult(content=[TextContent(type="text", text=said)], is_error=True)

    async def start_run(  # noqa: PLR0917 - the tool's input schema is made from these
        self,
        ctx: Ctx,
        task: Annotated[str, Field(description="What the agent should do.", min_length=1)],
        agent: Annotated[str, Field(description="The agent that does it.")] = "default",
        run_id: Annotated[str | None, Field(description="An ID of your choice, to repeat the call safely.")] = None,
        session_id: Annotated[str | None, Field(description="Runs of a session share their conversation.")] = None,
        workspace: Annotated[str | None, Field(description="A folder on the worker's machine.")] = None,
        max_turns: Annotated[int | None, Field(ge=1, description="The most model calls of the run.")] = None,
    ) -> Started:
        """Start a run of a Loom agent. Returns at once; call `run_result` to wait for the answer.

        If your client supports tasks, the run is one, and the result of this call is the run's.
        """
        given = {"session_id": session_id, "workspace": workspace, "max_turns": max_turns}
        request = {"task": task, "agent": agent, **{name: value for name, value in given.items() if value is not None}}
        with self._answering(ctx) as runs:
            return Started(run_id=await runs.start(request, run_id))

    async def run_status(self, ctx: Ctx, run_id: RunId) -> dict[str, Any]:
        """Return a run's status in full: turn, usage, cost, pending calls, sub-agents."""
        with self._answering(ctx) as runs:
            return dict(await runs.status(run_id))

    async def run_result(
        self,
        ctx: Ctx,
        run_id: RunId,
        wait: Annotated[float, Field(ge=0, le=LONGEST_WAIT, description="The most seconds to wait.")] = 30.0,
    ) -> RunState:
        """Wait until a run ends or needs a person, or until `wait` seconds have passed, and return its state.

        Sends progress notifications while it waits. Call it again if the run hasn't ended.
        """
        with self._answering(ctx) as runs, runs.following():
            with suppress(TimeoutError):
                async with asyncio.timeout(wait), closing(follow(runs, run_id)) as followed:
                    async for each in followed:
                        if isinstance(each, Streamed) and each.task.action not in SHOWN_ONLY:
                            await ctx.report_progress(each.offset, message=progress(each.task))
            return await _state(runs, run_id)

    async def list_pending(self, ctx: Ctx) -> dict[str, Any]:
        """List everything that waits for a person in all runs, oldest first: tool calls and questions."""
        with self._answering(ctx) as runs:
            return {"waiting": to_jsonable_python(await runs.pending())}

    async def approve_call(  # noqa: PLR0917 - as above
        self,
        ctx: Ctx,
        run_id: RunId,
        call_id: CallId,
        digest: Annotated[
            str | None, Field(description="The `digest` of the pending call: the call must not have changed.")
        ] = None,
        scope: Annotated[
            Literal["once", "run"], Field(description="`run` approves calls like this one for the rest of the run.")
        ] = "once",
        arguments: Annotated[dict[str, Any] | None, Field(description="Other arguments for the call.")] = None,
    ) -> dict[str, Any]:
        """Approve a pending tool call. Only do this if the user has agreed to it."""
        with self._answering(ctx) as runs:
            return dict(await runs.approve(run_id, call_id, scope=scope, arguments=arguments, digest=digest))

    async def deny_call(
        self,
        ctx: Ctx,
        run_id: RunId,
        call_id: CallId,
        reason: Annotated[str, Field(description="The agent reads it.")] = "",
    ) -> dict[str, Any]:
        """Deny a pending tool call. The run goes on without it."""
        with self._answering(ctx) as runs:
            return dict(await runs.deny(run_id, call_id, reason=reason))

    async def answer_question(
        self, ctx: Ctx, run_id: RunId, text: Annotated[str, Field(description="The answer.", min_length=1)]
    ) -> dict[str, Any]:
        """Answer the question of a run's agent, or send the agent a message."""
        with self._answering(ctx) as runs:
            return dict(await runs.send(run_id, text))

    async def abort_run(
        self, ctx: Ctx, run_id: RunId, reason: Annotated[str, Field(description="Why.")] = ""
    ) -> dict[str, Any]:
        """Abort a run and cancel its current work."""
        with self._answering(ctx) as runs:
            return dict(await runs.abort(run_id, reason=reason))

    @contextmanager
    def _answering(self, ctx: Ctx) -> Iterator[CallerRuns]:
        """Yield what the caller may do, and tell the client's model what was wrong. Otherwise, it would only learn that
        there was an error.
        """
        runs = self._runs_of(ctx.request_context.request)
        try:
            yield runs
        except ANTICIPATED as error:
            raise ToolError("{}: {}".format(*name_and_detail(error))) from error


def _with_agents(tool: JsonObject, agents: list[str]) -> JsonObject:
    if tool["name"] != "start_run" or not agents:
        return tool
    schema = tool["inputSchema"]
    agent = {**schema["properties"]["agent"], "enum": agents}
    return {**tool, "inputSchema": {**schema, "properties": {**schema["properties"], "agent": agent}}}


def _ended(run_id: str, result: RunResult) -> RunState:
    return RunState(run_id=run_id, ended=True, status=result.status, result=to_jsonable_python(result))


async def _state(runs: CallerRuns, run_id: str) -> RunState:
    if (result := await runs.result(run_id, wait=0)) is not None:
        return _ended(run_id, result)
    status = await runs.status(run_id)
    waits = waits_in(status)
    return RunState(
        run_id=run_id,
        ended=False,
        status=str(status["status"]),
        pending_calls=to_jsonable_python(waits.calls) if waits else [],
        question=waits.question or None if waits else None,
    )


def mcp_app() -> Starlette:
    """Return an application that speaks streamable HTTP at `/mcp`, for callers that `Authentication` has let through.

    It keeps no sessions, so that each request has the rights of its own token, and any instance can answer it.
    """

    def runs_of(request: Any) -> CallerRuns:
        runs: CallerRuns = request.state.runs
        return runs

    app = (
        RunTools(runs_of)
        .server()
        .streamable_http_app(
            streamable_http_path=PATH,
            stateless_http=True,
            # `LocalUser` refuses other hosts and origins, also of the other routes.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
    )
    for route in app.routes:
        if isinstance(route, Route):
            route.app = _PostOnly(route.app)
    return app


class _PostOnly:
    """Refuses the streams that clients open with GET. Without sessions, nothing is ever sent on them, and a caller
    could hold any number of them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"Allow": "POST"})
        await self._app(scope, receive, send)


async def serve_stdio(service: Service, caller: Caller) -> None:
    """Serve one client over stdin and stdout, with the rights of `caller`, until the client closes stdin."""
    await RunTools(lambda _: service.runs_for(caller)).server().run_stdio_async()
