"""Loom as an MCP server, as the official client sees it, over both transports."""

import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any, Final
from uuid import uuid4

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitResult,
    EmptyResult,
    GetTaskRequestParams,
    InputRequest,
    Tool,
)

from loom.activities.adapters.mcp.tasks import (
    EXTENSION,
    CreatedTask,
    GetTask,
    ServerTask,
    UpdateTask,
    UpdateTaskParams,
    cancel,
)
from loom.domain.agents.worker_report import WorkerReport
from loom.serve.access.roles import Caller, Role
from loom.serve.caller_runs import CallerRuns
from loom.serve.faces.mcp_server import RunTools
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.integration.serve.conftest import Serving
from tests.integration.serve.processes import environment
from tests.integration.serve.served import Served

WRITES_AND_ASKS = [
    calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"})),
    calls(ToolUse("ask_user", {"question": "Which colour?"})),
    calls(ToolUse("write_file", {"path": "b.txt", "content": "more\n"})),
    text("done"),
]

NEEDED: Final = {
    "start_run": Role.OPERATOR,
    "run_status": Role.VIEWER,
    "run_result": Role.VIEWER,
    "list_pending": Role.VIEWER,
    "approve_call": Role.APPROVER,
    "deny_call": Role.APPROVER,
    "answer_question": Role.OPERATOR,
    "abort_run": Role.OPERATOR,
}
"""The least role for each tool."""


def arguments_of(tool: Tool, run_id: str) -> dict[str, Any]:
    """Arguments for a tool, about this run."""
    given = {"run_id": run_id, "call_id": "c", "text": "hello", "task": "do it"}
    return {name: value for name, value in given.items() if name in tool.input_schema["properties"]}


def over_http(api: Served, http: httpx2.AsyncClient) -> Client:
    return Client(streamable_http_client(f"{api.url}/mcp", http_client=http))


def over_stdio(api: Served) -> Client:
    arguments = ["-P", "-m", "loom", "mcp", "serve"]
    command = StdioServerParameters(command=sys.executable, args=arguments, env=environment(api.loom.settings))
    return Client(stdio_client(command))


def content(result: CallToolResult) -> Any:
    assert not result.is_error, result.content
    return result.structured_content


async def state_of(client: Client, task: str) -> ServerTask:
    return await client.session.send_request(GetTask(params=GetTaskRequestParams(task_id=task)), ServerTask)


async def answer(client: Client, task: str, **responses: Any) -> None:
    given = UpdateTaskParams.model_validate({"taskId": task, "inputResponses": responses})
    await client.session.send_request(UpdateTask(params=given), EmptyResult)


def message_of(asked: InputRequest) -> str:
    assert isinstance(asked, ElicitRequest)
    return asked.params.message


def accept(**fields: Any) -> dict[str, Any]:
    return {"action": "accept", "content": fields}


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_client_starts_a_run_follows_it_answers_and_gets_the_result(serving: Serving, transport: str) -> None:
    api = await serving(script(WRITES_AND_ASKS))
    messages: list[str] = []

    async def seen(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        messages.append(str(message))

    async with over_http(api, api.http) if transport == "http" else over_stdio(api) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint} == {
            "run_status",
            "run_result",
            "list_pending",
        }
        run = {"run_id": f"over-{transport}"}
        started = await client.call_tool("start_run", {"task": "write", "workspace": str(api.loom.workspace), **run})
        assert content(started) == run
        api.loom.started.append(run["run_id"])

        waits = content(await client.call_tool("run_result", {**run, "wait": 60}, progress_callback=seen))
        assert (waits["ended"], waits["status"]) == (False, "waiting_for_approval")
        (call,) = waits["pending_calls"]
        assert (call["tool"], call["arguments"]["content"]) == ("write_file", "new\n")
        assert "approval requested write_file" in messages
        listed = content(await client.call_tool("list_pending"))["waiting"]
        assert [each["call_id"] for each in listed if each["run_id"] == run["run_id"]] == [call["call_id"]]

        stale = await client.call_tool("approve_call", {**run, "call_id": call["call_id"], "digest": "0" * 12})
        assert stale.is_error
        assert "RefusedError: " in str(stale.content)
        decision = {**run, "call_id": call["call_id"], "digest": call["digest"]}
        assert content(await client.call_tool("approve_call", decision))["accepted"]

        asks = content(await client.call_tool("run_result", {**run, "wait": 60}))
        assert asks["question"] == "Which colour?"
        assert content(await client.call_tool("answer_question", {**run, "text": "Blue"}))["accepted"]

        (call,) = content(await client.call_tool("run_result", {**run, "wait": 60}))["pending_calls"]
        denial = {**run, "call_id": call["call_id"], "reason": "one file is enough"}
        assert content(await client.call_tool("deny_call", denial))["accepted"]

        ended = content(await client.call_tool("run_result", {**run, "wait": 60}))
        assert (ended["ended"], ended["status"], ended["result"]["output"]) == (True, "completed", "done")
        assert content(await client.call_tool("run_status", run))["status"] == "completed"
    assert (api.loom.workspace / "a.txt").read_text() == "new\n"
    assert not (api.loom.workspace / "b.txt").exists()


class Following(ClientExtension):
    """What a client needs to follow tasks with the official library. It ends where a person is needed."""

    identifier = EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolved)]

    async def _resolved(self, created: CreatedTask, context: ClaimContext) -> CallToolResult:
        return CallToolResult(content=[], structured_content={"run_id": created.task_id})


async def test_a_run_is_a_task_that_another_instance_goes_on_with(serving: Serving) -> None:
    api = await serving(script([*WRITES_AND_ASKS[:2], text("done"), WRITES_AND_ASKS[1]]))

    def client_of(http: httpx2.AsyncClient, *, can_ask: bool = True) -> Client:
        return Client(
            streamable_http_client(f"{api.url}/mcp", http_client=http),
            extensions=[Following()],
            elicitation_callback=nobody if can_ask else None,
        )

    async def nobody(context: Any, params: Any) -> ElicitResult:
        raise AssertionError(params)

    async def until(client: Client, status: str) -> ServerTask:
        async def look() -> ServerTask | None:
            task = await state_of(client, run_id)
            return task if task.status == status else None

        return await eventually(look)

    async with client_of(api.http) as client:
        started = await client.call_tool("start_run", {"task": "write", "workspace": str(api.loom.workspace)})
        run_id = content(started)["run_id"]
        api.loom.started.append(run_id)
        asks = await until(client, "input_required")
        ((key, asked),) = asks.input_requests.items()
        assert message_of(asked).startswith("write_file: ")
        assert '"content":"new\\n"' in message_of(asked)
        other = await api.with_token("otto", Role.ADMIN, tenant="other")
        operator = await api.with_token("olga", Role.OPERATOR)
    await api.move()

    for http in (other, operator):
        http.base_url = httpx2.URL(api.url)
    async with client_of(api.http) as client, client_of(operator) as olga:
        assert (await state_of(client, run_id)).input_requests.keys() == {key}
        assert (await state_of(olga, run_id)).status == "working"  # she may not approve
        with pytest.raises(MCPError, match="AccessDeniedError"):
            await answer(olga, run_id, **{key: accept(approved=True)})
        await answer(client, run_id, stale={"action": "accept"}, **{key: accept(approved=True)})
        question = await until(client, "input_required")
        ((second, asked),) = question.input_requests.items()
        assert (message_of(asked), second != key) == ("Which colour?", True)
        with pytest.raises(MCPError, match="Field required"):
            await answer(client, run_id, **{second: accept(colour="red")})
        async with client_of(other) as stranger:
            for about in (state_of(stranger, run_id), cancel(stranger, run_id)):
                with pytest.raises(MCPError, match="RunNotFoundError"):
                    await about
        assert (await state_of(olga, run_id)).status == "input_required"
        async with client_of(api.http, can_ask=False) as silent:
            waits = await state_of(silent, run_id)
            assert (waits.status, waits.status_message) == ("working", "Which colour?")
        await answer(client, run_id, **{second: accept(answer="Blue")})
        ended = await until(client, "completed")
        assert ended.result is not None
        assert content(ended.result)["result"]["output"] == "done"

        started = await client.call_tool("start_run", {"task": "write", "workspace": str(api.loom.workspace)})
        run_id = content(started)["run_id"]
        api.loom.started.append(run_id)
        await cancel(client, run_id)
        assert (await until(client, "cancelled")).status_message
    async with over_http(api, api.http) as plain:
        with pytest.raises(MCPError, match="required extension"):
            await state_of(plain, run_id)
    assert (api.loom.workspace / "a.txt").read_text() == "new\n"


async def test_the_schema_lists_the_agents_that_workers_report() -> None:
    async def workers() -> tuple[SimpleNamespace, ...]:
        return (SimpleNamespace(agents=["writer"]), SimpleNamespace(agents=["default", "writer"]))

    runs: Any = SimpleNamespace(workers=workers)
    async with Client(RunTools(lambda _: runs).server()) as client:
        (start, *_) = (await client.list_tools()).tools
        assert start.input_schema["properties"]["agent"]["enum"] == ["default", "writer"]


async def test_each_request_has_the_rights_of_its_token(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    run_id = await api.start(tenant="mcp-owner")
    viewer = await api.with_token("vera", Role.VIEWER, tenant="mcp-owner")
    other = await api.with_token("otto", Role.OPERATOR, tenant="mcp-other")
    async with over_http(api, viewer) as client:
        misspelt = await client.call_tool("start_run", {"task": "do it", "workspce": "/"})
        assert misspelt.is_error
        assert "start_run has no argument 'workspce'; did you mean 'workspace'?" in str(misspelt.content)
        refused = await client.call_tool("start_run", {"task": "do it"})
        assert refused.is_error
        assert "AccessDeniedError: 'vera' has the role viewer" in str(refused.content)
        assert content(await client.call_tool("run_result", {"run_id": run_id}))["ended"]
    async with over_http(api, other) as client:
        missing = await client.call_tool("run_status", {"run_id": run_id})
        assert missing.is_error
        assert "RunNotFoundError" in str(missing.content)
    assert (await api.anonymous.post("/mcp", json={})).status_code == 401


class RunsWithoutServers(CallerRuns):
    """What a caller may do, where nothing but the checks of the caller's role works."""

    async def workers(self) -> tuple[WorkerReport, ...]:
        return ()


def tools_of(runs: CallerRuns) -> RunTools:
    return RunTools(lambda _: runs)


async def test_each_tool_refuses_every_role_below_its_own_and_nobody_else() -> None:
    audit = SimpleNamespace(refused=lambda *_, **__: None)
    nothing: Any = SimpleNamespace(client=None, streams=None, approvals=None, tasks=None, audit=audit)
    nothing.settings, nothing.following = SimpleNamespace(serve_streams=1), Counter()
    refused, expected = {}, {}
    for role in Role:
        runs = RunsWithoutServers(nothing, Caller(name="ann", role=role))
        async with Client(tools_of(runs).server()) as client:
            for tool in (await client.list_tools()).tools:
                answer = await client.call_tool(tool.name, arguments_of(tool, "never"))
                assert answer.is_error
                refused[tool.name, role] = "AccessDeniedError" in str(answer.content)
                expected[tool.name, role] = not role.includes(NEEDED[tool.name])
    assert refused == expected


async def test_no_tool_tells_one_tenant_anything_about_another(serving: Serving) -> None:
    api = await serving(script([calls(ToolUse("ask_user", {"question": "Which colour?"}))], repeat_last=True))
    run_id = await api.start("the plan of acme", tenant="acme", run_id=f"acme:{uuid4().hex}")
    await api.loom.until(run_id, lambda status: bool(status["question"]))
    stranger = await api.with_token("eve", Role.ADMIN, tenant="evil")
    async with over_http(api, stranger) as client:
        for tool in (await client.list_tools()).tools:
            about = [
                str((await client.call_tool(tool.name, arguments_of(tool, run))).content)
                for run in (run_id, "acme:never")
            ]
            assert about[0].replace(run_id, "acme:never") == about[1], tool.name
            assert not any(word in about[0] for word in ("plan", "colour")), tool.name
    await api.http.post(f"/v1/runs/{run_id}/abort", json={})
    await api.result(run_id)
