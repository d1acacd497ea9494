"""Runs as tasks of MCP, for clients with the extension `io.modelcontextprotocol/tasks`.

A task is a run, and the task's ID is the run's. Loom doesn't store tasks, so any instance can answer for them. What the
run waits for becomes the task's input requests, if the client can show them and its token may answer them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    ElicitationCapability,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    RequestParams,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json, to_jsonable_python

from loom.domain.core.errors import AccessDeniedError, BadRequest, RefusedError, RunNotFoundError
from loom.domain.core.messages import JsonObject, canonical, short_digest
from loom.domain.core.requests import RunResult, RunStatus
from loom.serve.access.roles import Caller, Operation
from loom.serve.caller_runs import CallerRuns
from loom.serve.faces.following import NO_ANSWER, Decision, Waits, about_call, decide, waits_in
from loom.serve.problems import ANTICIPATED, name_and_detail

EXTENSION: Final = "io.modelcontextprotocol/tasks"
POLL_INTERVAL: Final = 1_000
"""Milliseconds after which a client should ask again."""
ARGUMENTS_SHOWN: Final = 3_000
"""Maximum number of characters of a call's arguments in a question. Clients limit the length of questions."""
CANCELLED: Final = "cancelled by its MCP client"

Ctx = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """A request about a task."""

    task_id: str = Field(min_length=1)


class UpdateParams(TaskParams):
    """Answers to the input requests of a task."""

    input_responses: dict[str, ElicitResult]


class Approve(BaseModel):
    """The form of a question whether to approve a call."""

    approved: bool = Field(title="Approve this call")
    reason: str = Field("", title="Why not", description="The agent reads it.")


class Answer(BaseModel):
    """The form of an agent's question."""

    answer: str = Field(min_length=1, title="Answer")


class RunTasks(Extension):
    """Answers `start_run` with a task, and the requests about it."""

    identifier = EXTENSION

    def __init__(self, runs_of: Callable[[Any], CallerRuns], result_of: Callable[[str, RunResult], BaseModel]) -> None:
        """`result_of` returns what `run_result` says of a run that has ended."""
        self._runs_of = runs_of
        self._result_of = result_of

    def methods(self) -> list[MethodBinding]:
        """See the base class."""
        modern = frozenset(MODERN_PROTOCOL_VERSIONS)
        return [
            MethodBinding("tasks/get", TaskParams, self._get, modern),
            MethodBinding("tasks/update", UpdateParams, self._update, modern),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, modern),
        ]

    async def intercept_tool_call(self, params: CallToolRequestParams, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """See the base class."""
        result = await call_next(ctx)
        if params.name != "start_run" or not _has_extension(ctx):
            return result
        if not isinstance(result, CallToolResult) or result.is_error:
            return result
        # Nothing that could fail is asked about the run: it has started, and the client must get its ID.
        now = datetime.now(UTC)
        return {**_working(str(result.structured_content["run_id"]), now, now), "resultType": "task"}

    async def _get(self, ctx: Ctx, params: TaskParams) -> HandlerResult:
        with self._answering(ctx) as runs:
            return await self._task(runs, ctx, params.task_id)

    async def _update(self, ctx: Ctx, params: UpdateParams) -> HandlerResult:
        with self._answering(ctx) as runs:
            status = await runs.status(params.task_id)
            asked = _asked(status)
            for key, response in params.input_responses.items():
                if key in asked:  # the others were answered elsewhere, or in an earlier request
                    await _answered(runs, params.task_id, asked[key], response)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Ctx, params: TaskParams) -> HandlerResult:
        with self._answering(ctx) as runs, suppress(RefusedError):  # it has ended
            await runs.abort(params.task_id, reason=CANCELLED)
        return {"resultType": "complete"}

    async def _task(self, runs: CallerRuns, ctx: Ctx, run_id: str) -> dict[str, Any]:
        status = await runs.status(run_id)
        result = await runs.result(run_id, wait=0)
        began, ended = await runs.times(run_id)
        task = _working(run_id, began, ended)
        if result is not None and result.status is RunStatus.ABORTED:
            why = result.error.message if result.error else "the run was aborted"
            return {**task, "status": "cancelled", "statusMessage": why}
        if result is not None:
            return {**task, "status": "completed", "result": self._result(run_id, result)}
        if (waits := waits_in(status)) is None:
            return task
        task["statusMessage"] = "; ".join([*map(about_call, waits.calls), *filter(None, [waits.question])])
        requests = {
            key: {"method": "elicitation/create", "params": asked.model_dump(mode="json", by_alias=True)}
            for key, what in _asked(status).items()
            if (asked := _request(what, runs.caller, _elicitation(ctx))) is not None
        }
        return {**task, "status": "input_required", "inputRequests": requests} if requests else task

    def _result(self, run_id: str, result: RunResult) -> dict[str, Any]:
        said = to_jsonable_python(self._result_of(run_id, result))
        text = TextContent(type="text", text=to_json(said).decode())
        is_error = result.status is RunStatus.FAILED
        return CallToolResult(content=[text], structured_content=said, is_error=is_error).model_dump(
            mode="json", by_alias=True, exclude_none=True
        )

    @contextmanager
    def _answering(self, ctx: Ctx) -> Iterator[CallerRuns]:
        """Yield what the caller may do, and translate the errors."""
        require_client_extension(ctx, EXTENSION)
        try:
            yield self._runs_of(ctx.request)
        except ANTICIPATED as error:
            name, detail = name_and_detail(error)
            match error:
                case RunNotFoundError() | BadRequest():
                    code = INVALID_PARAMS
                case AccessDeniedError() | RefusedError():
                    code = INVALID_REQUEST
                case _:
                    code = INTERNAL_ERROR
            raise MCPError(code, f"{name}: {detail}") from error


def _working(run_id: str, began: datetime, updated: datetime) -> dict[str, Any]:
    return {
        "resultType": "complete",
        "taskId": run_id,
        "status": "working",
        "createdAt": began.isoformat(),
        "lastUpdatedAt": updated.isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL,
    }


def _has_extension(ctx: Ctx) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities else None
    return EXTENSION in (declared or ()) and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def _elicitation(ctx: Ctx) -> ElicitationCapability | None:
    capabilities = ctx.session.client_capabilities
    return capabilities.elicitation if capabilities else None


def _asked(status: JsonObject) -> Mapping[str, JsonObject | str]:
    """Return the pending calls and the question of a run, each under a key that no other ask of the run has."""
    waits = waits_in(status) or Waits((), "")
    asked: dict[str, JsonObject | str] = {str(call.get("digest") or call["call_id"]): call for call in waits.calls}
    if waits.question:
        asked[f"question-{short_digest(canonical({'turn': status.get('turn'), 'question': waits.question}))}"] = (
            waits.question
        )
    return asked


def _request(what: JsonObject | str, caller: Caller, can: ElicitationCapability | None) -> ElicitRequestParams | None:
    """Return the question for the client's user, or None if the client can't show it, or may not answer it."""
    if can is None or not caller.may(Operation.SEND if isinstance(what, str) else Operation.APPROVE):
        return None
    if not isinstance(what, str) and what.get("url"):
        return ElicitRequestURLParams(message=about_call(what), url=str(what["url"])) if can.url is not None else None
    if can.form is None and can.url is not None:
        return None
    match what:
        case str():
            return ElicitRequestFormParams(message=what, requested_schema=Answer.model_json_schema())
        case {"schema": dict(schema)}:
            return ElicitRequestFormParams(message=about_call(what), requested_schema=schema)
    arguments = to_json(what.get("arguments") or {}).decode()
    more = len(arguments) - ARGUMENTS_SHOWN
    shown = arguments if more <= 0 else f"{arguments[:ARGUMENTS_SHOWN]}… ({more} more characters: see `run_status`)"
    message = f"{about_call(what)}\n{shown}"
    return ElicitRequestFormParams(message=message, requested_schema=Approve.model_json_schema())


async def _answered(runs: CallerRuns, run_id: str, what: JsonObject | str, response: ElicitResult) -> None:
    """Pass on an answer of the client's user. Raises MCPError if it isn't one."""
    content, is_given = response.content or {}, response.action == "accept"
    try:
        if isinstance(what, str):
            await runs.send(run_id, Answer.model_validate(content).answer if is_given else NO_ANSWER)
            return
        decision = _decision(what, content) if is_given else Decision(approved=False, reason=NO_ANSWER)
    except ValidationError as error:
        raise MCPError(INVALID_PARAMS, f"inputResponses: {error.errors()[0]['msg']}") from None
    await decide(runs, run_id, decision, call_id=str(what["call_id"]), digest=what.get("digest"))


def _decision(call: JsonObject, content: Mapping[str, Any]) -> Decision:
    if call.get("url"):
        return Decision(approved=True)
    if call.get("schema") is not None:
        return Decision(approved=True, arguments=dict(content))
    said = Approve.model_validate(content)
    return Decision(approved=said.approved, reason=said.reason)
