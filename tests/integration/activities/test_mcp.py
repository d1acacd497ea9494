"""MCP servers as tool sources: real programs over pipes, real HTTP, and every way they go wrong."""

import asyncio
import gzip
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest
import structlog
from typer.testing import CliRunner

from loom import doctor_checks as checks
from loom.activities.adapters.mcp.connection import ConnectionTimeouts
from loom.activities.adapters.mcp.servers import McpServers
from loom.activities.adapters.mcp.tool_cache import ToolCache
from loom.activities.ports import ToolContext, ToolOutput
from loom.activities.toolbox.mcp_tool import McpTool
from loom.cli.commands import tools
from loom.composition.settings import Settings
from loom.domain.core.errors import (
    BadRequest,
    ToolExecutionError,
    ToolExecutionTimeout,
    ToolUnavailableError,
    ToolValidationError,
)
from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec, Verdict
from loom.domain.permissions.subjects import Subject
from loom.domain.tools.mcp_servers import ListedTool, McpServer, read_servers, tool_name, variables
from loom.testing.waiting import PATIENCE, eventually
from tests.missing_programs import skip_or_fail
from tests.processes import command_of

TESTS = Path(__file__).parents[2]
ECHO = (sys.executable, str(TESTS / "mcp_echo_server.py"))
QUICK = ConnectionTimeouts(first_pause=0.05, longest_pause=0.2, probe=60.0, restart=0.5)
PATIENT = replace(QUICK, restart=PATIENCE)
ANY = {"type": "object"}
NODE_PACKAGE = "@modelcontextprotocol/server-everything@2026.8.31"


def tool(name: str, **given: Any) -> dict[str, Any]:
    """A tool as a server lists it."""
    return {"name": name, "inputSchema": ANY, **given}


class Raw:
    """A hand-written server: its files, and how to configure it."""

    def __init__(self, folder: Path) -> None:
        self.listed = folder / "tools.json"
        self.diary = folder / "diary"
        self.list(
            *map(
                tool,
                ("say", "die", "hang", "quiet", "env", "child", "flood", "reload", "session", "meta", "book", "sum"),
            )
        )

    def list(self, *tools: Any) -> None:
        """What it lists from now on."""
        self.listed.write_text(json.dumps(tools))

    def server(self, name: str = "raw", **given: Any) -> McpServer:
        """Its configuration."""
        script = str(TESTS / "mcp_raw_server.py")
        return McpServer(name=name, command=(sys.executable, script, str(self.listed), str(self.diary)), **given)

    async def heard(self, line: str, times: int = 1) -> bool:
        """Wait until it has heard a message that often."""

        async def look() -> bool | None:
            written = self.diary.read_text().splitlines() if self.diary.exists() else []
            return written.count(line) >= times or None

        return await eventually(look)


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    return Raw(tmp_path)


def connect(*servers: McpServer, **given: Any) -> McpServers:
    """A worker's connections to these servers."""
    return McpServers(servers, **{"environment": os.environ, "patience": QUICK, **given})


async def call(
    servers: McpServers,
    name: str,
    /,
    told: Callable[[str], None] = lambda _: None,
    context: Mapping[str, Any] = MappingProxyType({}),
    **arguments: Any,
) -> ToolOutput:
    """One call the way the pipeline makes it."""
    found = servers.tools[name]
    if (missing := found.is_available()) is not None:
        raise ToolUnavailableError(missing)
    given = ToolContext(
        workspace=Path("/"), run_id="r", call_id="c", idempotency_key="r/t1/c", timeout=60, progress=told
    )
    output = await found.run(found.parse(arguments), replace(given, **context))
    assert isinstance(output, ToolOutput)
    return output


async def answer(servers: McpServers, name: str, **arguments: Any) -> str:
    """The answer to a call that is repeated as long as a pause of the machine takes longer than the server may."""

    async def ask() -> str | None:
        with suppress(ToolExecutionTimeout):
            return (await call(servers, name, **arguments)).text
        return None

    return await eventually(ask)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""

    async def look() -> bool | None:
        return holds() or None

    await eventually(look)


async def until_available(servers: McpServers, name: str) -> None:
    """Wait until the server of a tool answers."""
    await until(lambda: name in servers.tools and servers.tools[name].is_available() is None)


@pytest.fixture(scope="module")
def echo_diary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the echo server writes down."""
    diary = tmp_path_factory.mktemp("echo") / "diary"
    diary.touch()
    return diary


@pytest.fixture(scope="module")
async def echo(echo_diary: Path) -> AsyncIterator[McpServers]:
    """Connections that no test breaks: the official library over pipes, and a published server."""
    async with connect(
        McpServer(name="echo", command=(*ECHO, "--diary", str(echo_diary)), trust=True),
        McpServer(name="time", command=(str(Path(sys.executable).parent / "mcp-server-time"),)),
        first_wait=30,
    ) as servers:
        yield servers


async def test_the_tools_of_all_servers_are_listed_by_name(echo: McpServers) -> None:
    names = list(echo.tools)
    assert names == sorted(names)
    assert {"mcp__echo__echo", "mcp__time__convert_time", "mcp__time__get_current_time"} <= set(names)
    assert echo.report()["time"] == {"ok": True, "tools": 2, "refused": []}


async def test_a_tool_is_described_by_its_server_and_judged_by_the_trust_rule(echo: McpServers) -> None:
    spec = echo.tools["mcp__echo__echo"].spec
    properties = {
        "text": {"title": "Text", "type": "string"},
        "times": {"default": 1, "title": "Times", "type": "integer"},
    }
    assert spec == ToolSpec(
        name="mcp__echo__echo",
        description="Say it again.\n(From the MCP server echo.)",
        parameters={"properties": properties, "required": ["text"], "title": "echoArguments", "type": "object"},
        effect=Effect.READ,
        parallel=True,
        timeout=3630.0,  # the server may run any call as a task
        scope=Scope.MCP,
        declared=Verdict.ALLOW,
    )
    untrusted = echo.tools["mcp__time__get_current_time"].spec
    assert (untrusted.effect, untrusted.parallel, untrusted.declared) == (Effect.ONCE, True, Verdict.ASK)
    assert "It says of the tool, unverified: read-only" in untrusted.description


async def test_a_published_server_answers(echo: McpServers) -> None:
    output = await call(echo, "mcp__time__get_current_time", timezone="Asia/Kathmandu")
    assert json.loads(output.text)["timezone"] == "Asia/Kathmandu"


async def test_arguments_are_checked_before_anything_is_sent(echo: McpServers) -> None:
    with pytest.raises(ToolValidationError, match="`times`: 'two' is not of type 'integer'"):
        await call(echo, "mcp__echo__echo", text="a", times="two")


async def test_an_idempotent_tool_gets_the_key_and_no_other_does(echo: McpServers, raw: Raw) -> None:
    assert (await call(echo, "mcp__echo__put", value="v")).text == "v r/t1/c"
    async with connect(raw.server()) as servers:
        assert "idempotency" not in (await call(servers, "mcp__raw__meta")).text


async def test_an_image_becomes_a_part(echo: McpServers) -> None:
    output = await call(echo, "mcp__echo__picture")
    assert output.text == "a picture"
    assert [(part.type, part.media_type, part.data[:6]) for part in output.parts] == [("image", "image/png", "iVBORw")]


async def test_an_image_that_is_too_large_is_left_out_and_said_to_be(echo: McpServers) -> None:
    output = await call(echo, "mcp__echo__picture", size=4_000_000)
    assert output == ToolOutput(
        text="a picture\n[image image/png of 4000005 bytes was left out: ask for a smaller one]"
    )


async def test_resources_and_prompts_are_reached_through_tools(echo: McpServers) -> None:
    listed = await call(echo, "mcp__echo__list_resources")
    assert listed.text.splitlines() == [
        "notes://today: today; text/plain; What is noted for today.",
        "notes://{day}: of_day; text/plain; What is noted for a day. [template]",
    ]
    read = await call(echo, "mcp__echo__read_resource", uri="notes://Monday")
    assert read.text == "notes://Monday:\nNothing on Monday."
    prompt = await call(echo, "mcp__echo__get_prompt", name="review", arguments={"code": "x = 1"})
    assert prompt.text == "user:\nReview this code: x = 1"
    specs = {name: echo.tools[name].spec for name in echo.tools}
    assert "review(code): How to review code." in specs["mcp__echo__get_prompt"].description
    assert specs["mcp__echo__read_resource"].effect is Effect.READ
    assert not [name for name in specs if name.startswith("mcp__time__") and "resource" in name]
    with pytest.raises(ToolExecutionError, match="notes:/other"):
        await call(echo, "mcp__echo__read_resource", uri="notes:/other")


async def test_a_tool_that_fails_says_why(echo: McpServers) -> None:
    with pytest.raises(ToolExecutionError, match="^Error executing tool fail: no such city$"):
        await call(echo, "mcp__echo__fail", reason="no such city")


async def test_a_new_tool_is_there_once_its_server_has_told(echo: McpServers) -> None:
    await call(echo, "mcp__echo__learn", name="greet")
    await until(lambda: "mcp__echo__greet" in echo.tools)
    assert (await call(echo, "mcp__echo__greet")).text == "greet says hello"


async def test_calls_of_one_server_run_beside_each_other_and_an_abort_ends_only_its_own(
    echo: McpServers, echo_diary: Path
) -> None:
    stays = asyncio.create_task(call(echo, "mcp__echo__wait", seconds=0.5, mark="stays"))
    goes = asyncio.create_task(call(echo, "mcp__echo__wait", seconds=600, mark="goes"))
    await until(lambda: {"begun stays", "begun goes"} <= set(echo_diary.read_text().splitlines()))
    goes.cancel()
    with pytest.raises(asyncio.CancelledError):
        await goes
    await until(lambda: "stopped goes" in echo_diary.read_text())
    assert (await stays).text == "stays"
    assert (await call(echo, "mcp__echo__echo", text="still here")).text == "still here"


@pytest.fixture(scope="session")
def node_server(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The reference server of the npm registry, installed once a session."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        skip_or_fail("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    install = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", NODE_PACKAGE]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=90)
    if done.returncode != 0:
        skip_or_fail(f"npm cannot install {NODE_PACKAGE}: {done.stderr[-300:]}")
    return str(folder / "node_modules" / ".bin" / "mcp-server-everything")


@pytest.mark.slow
async def test_a_node_server_of_the_older_protocol_works_and_reports_progress(node_server: str) -> None:
    progress: list[str] = []
    async with connect(McpServer(name="node", command=(node_server, "stdio")), first_wait=30) as servers:
        assert (await call(servers, "mcp__node__echo", message="hi")).text == "Echo: hi"
        structured = await call(servers, "mcp__node__get-structured-content", location="Chicago")
        image = await call(servers, "mcp__node__get-tiny-image")
        long = "mcp__node__trigger-long-running-operation"
        await call(servers, long, duration=0.1, steps=2, told=progress.append)
    assert set(json.loads(structured.text)) == {"temperature", "conditions", "humidity"}
    assert [part.media_type for part in image.parts] == ["image/png"]
    assert progress == ["1/2", "2/2"]


async def test_a_server_that_dies_in_a_call_gives_an_error_and_is_dialled_again(raw: Raw, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Raw(tmp_path / "other")
    async with connect(raw.server(), other.server("other")) as servers:
        with pytest.raises(ToolExecutionError) as died:
            await call(servers, "mcp__raw__die")
        assert died.value.message == (
            "the connection to the MCP server raw was lost during the call to die: the outcome is unknown,"
            " and it may have run; find out what happened before you call it again"
        )
        assert "mcp__raw__say" in servers.tools
        assert (await call(servers, "mcp__other__say", a=1)).text == '{"a": 1}'
        await until_available(servers, "mcp__raw__say")
        assert (await call(servers, "mcp__raw__say", a=2)).text == '{"a": 2}'
    assert raw.diary.read_text().splitlines().count("tools/call die") == 1


async def test_a_dead_server_keeps_its_tools_and_says_what_is_wrong(raw: Raw) -> None:
    slow = replace(QUICK, first_pause=60.0, probe=0.5)
    async with connect(raw.server(), patience=slow) as servers:
        with pytest.raises(ToolExecutionError):
            await call(servers, "mcp__raw__die")
        await until(lambda: "has ended" in str(servers.tools["mcp__raw__say"].is_available()))
        assert servers.tools["mcp__raw__say"].is_available() == (
            "the MCP server raw is unavailable: it has ended; its last output: so long; Loom is reconnecting"
        )
        tried = servers.tools["mcp__raw__say"]
        assert isinstance(tried, McpTool)
        context = ToolContext(workspace=Path("/"), run_id="r", call_id="c", idempotency_key="k", timeout=5)
        with pytest.raises(ToolUnavailableError, match="nothing was run"):
            await tried.run({}, context)


async def test_a_hanging_server_ends_the_call_and_its_session(raw: Raw) -> None:
    patience = replace(PATIENT, probe=0.5)
    async with connect(raw.server(timeout=0.3), patience=patience, first_wait=0.0) as servers:
        await until_available(servers, "mcp__raw__hang")
        with pytest.raises(ToolExecutionTimeout, match=r"^hang was stopped after 0.3 s without a response"):
            await call(servers, "mcp__raw__hang")
        assert await answer(servers, "mcp__raw__say", a=1) == '{"a": 1}'
        assert await raw.heard("initialize", times=2)
        await until_available(servers, "mcp__raw__say")


async def test_a_slow_tool_does_not_cost_a_living_server_its_session(raw: Raw) -> None:
    async with connect(raw.server(timeout=2.0)) as servers:  # more than a pause of the machine
        with pytest.raises(ToolExecutionTimeout):
            await call(servers, "mcp__raw__quiet")
        await raw.heard("notifications/cancelled")
        await until_available(servers, "mcp__raw__say")
        assert await answer(servers, "mcp__raw__say") == "{}"
    assert raw.diary.read_text().splitlines().count("initialize") == 1


async def test_an_answer_that_is_none_is_an_error_of_the_call_only(raw: Raw) -> None:
    async with connect(raw.server()) as servers:
        with pytest.raises(ToolExecutionError, match="returned no usable result for session .*it may have run"):
            await call(servers, "mcp__raw__session")
        assert (await call(servers, "mcp__raw__say")).text == "{}"


async def test_broken_tools_are_left_out_and_reported_and_the_others_work(raw: Raw) -> None:
    raw.list(
        tool("say"),
        tool("say", description="again"),
        {"name": "bare"},
        tool("text", inputSchema={"type": "string"}),
        tool("lost", inputSchema={"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}),
        tool("null", inputSchema={"type": "object", "properties": None, "required": None}, description=7),
        tool("hints", annotations={"readOnlyHint": "yes", "destructiveHint": True}, outputSchema={"type": 1}),
        tool("", inputSchema=ANY),
        "nonsense",
        tool("wörd.s"),
        tool("hidden"),
    )
    with structlog.testing.capture_logs() as logs:
        async with connect(raw.server(disabled_tools=("hidden",))) as servers:
            report = servers.report()["raw"]
            names = list(servers.tools)
            assert (await call(servers, "mcp__raw__hints")).text == "{}"
    assert names == ["mcp__raw__hints", "mcp__raw__null", "mcp__raw__say", tool_name("raw", "wörd.s")]
    assert report == {
        "ok": True,
        "tools": 4,
        "refused": [
            "'bare': its schema does not describe an object",
            "'text': its schema does not describe an object",
            "a tool without a name",
            "a tool without a name",
            "'say': the server lists it twice, and the first one is used",
            "'lost': its schema has a $ref whose target is not in it: #/$defs/a",
        ],
    }
    assert [log["count"] for log in logs if log["event"] == "mcp_tools_refused"] == [6]


async def test_a_changed_list_replaces_the_old_one(raw: Raw) -> None:
    async with connect(raw.server()) as servers:
        raw.list(tool("reload"), tool("fresh"))
        await call(servers, "mcp__raw__reload")
        await until(lambda: "mcp__raw__fresh" in servers.tools)
        assert list(servers.tools) == ["mcp__raw__fresh", "mcp__raw__reload"]


async def test_changed_prompts_and_resources_are_read_again(echo: McpServers) -> None:
    await call(echo, "mcp__echo__write_down", name="harbour")
    await until(lambda: "harbour(): " in echo.tools["mcp__echo__get_prompt"].spec.description)
    assert "notes://harbour: harbour" in (await call(echo, "mcp__echo__list_resources")).text
    assert "It lists 3 with list_resources" in echo.tools["mcp__echo__read_resource"].spec.description


async def test_a_server_that_is_away_does_not_hold_up_the_start_and_comes_when_it_can(raw: Raw, tmp_path: Path) -> None:
    listed = raw.listed.read_text()
    raw.listed.unlink()
    missing = McpServer(name="missing", command=("no-such-program",))
    mute = McpServer(name="mute", command=("sleep", "600"))
    async with connect(raw.server(), missing, mute, first_wait=0.1) as servers:
        assert dict(servers.tools) == {}
        await until(lambda: "no-such-program" in servers.report()["missing"]["hint"])
        hints = {name: entry["hint"].partition("unavailable: ")[2] for name, entry in servers.report().items()}
        assert hints["missing"].startswith("the program 'no-such-program' is not on the worker's PATH: install it")
        assert hints["mute"] == "Loom is connecting to it for the first time"
        raw.listed.write_text(listed)
        await until_available(servers, "mcp__raw__say")


async def test_a_server_that_never_answers_is_given_up_and_dialled_again(tmp_path: Path) -> None:
    mute = McpServer(name="mute", command=("sleep", "600"), connect_timeout=0.3)
    async with connect(mute) as servers:
        await until(lambda: "no response within 0.3 s" in servers.report()["mute"]["hint"])
        assert "reconnecting" in servers.report()["mute"]["hint"]


async def test_the_last_known_tools_of_an_absent_server_stay_listed(raw: Raw, tmp_path: Path) -> None:
    async with connect(raw.server(), home=tmp_path) as servers:
        specs = {name: tool.spec for name, tool in servers.tools.items()}
    raw.listed.unlink()
    async with connect(raw.server(), home=tmp_path) as servers:
        assert {name: tool.spec for name, tool in servers.tools.items()} == specs
        with pytest.raises(ToolUnavailableError, match="the MCP server raw is unavailable: .*reconnecting"):
            await call(servers, "mcp__raw__say")
    other = McpServer(name="raw", command=("no-such-program",))
    async with connect(other, home=tmp_path) as servers:
        assert dict(servers.tools) == {}


def test_a_broken_memory_is_no_memory(tmp_path: Path) -> None:
    server = McpServer(name="a", command=("x",))
    shelf = ToolCache(tmp_path)
    shelf.save(server, [ListedTool(name="say", schema=ANY)], "Say it.")
    assert shelf.load(server) == ([ListedTool(name="say", schema=ANY)], "Say it.")
    (tmp_path / "mcp" / "a.json").write_text('{"address": 1')
    with structlog.testing.capture_logs() as logs:
        assert shelf.load(server) == ((), "")
    assert logs[0]["event"] == "mcp_memory_unreadable"


async def test_the_workers_secrets_do_not_reach_a_program(raw: Raw) -> None:
    environment = {**os.environ, "OPENAI_API_KEY": "sk-worker", "TOKEN": "t-0123456789"}
    server = raw.server(env={"API": "key ${TOKEN}", "PLAIN": "p"})
    async with connect(server, environment=environment) as servers:
        seen = json.loads((await call(servers, "mcp__raw__env")).text)
    assert {"API": seen["API"], "PLAIN": seen["PLAIN"]} == {"API": "key [REDACTED]", "PLAIN": "p"}
    assert seen.keys() <= {"API", "PLAIN", "PATH", "HOME", "LANG", "LC_CTYPE", "LOGNAME", "SHELL", "TERM", "USER"}


async def test_a_variable_that_is_not_set_is_named(raw: Raw) -> None:
    async with connect(raw.server(env={"A": "${NOT_SET_AT_ALL}"})) as servers:
        assert "the variable NOT_SET_AT_ALL is not set" in servers.report()["raw"]["hint"]


async def test_a_flood_on_standard_error_is_read_and_logged_in_part(raw: Raw) -> None:
    with structlog.testing.capture_logs() as logs:
        async with connect(raw.server()) as servers:
            assert (await call(servers, "mcp__raw__flood")).text == "flooded"
    assert sum(log["event"] == "mcp_stderr" for log in logs) == 200
    assert next(log for log in logs if log["event"] == "mcp_stderr_cut")["lines"] > 200


async def test_a_server_that_prints_without_end_is_hung_up() -> None:
    chatter = McpServer(name="yes", command=("yes", "no message"))
    async with connect(chatter, patience=ConnectionTimeouts(), first_wait=30) as servers:
        assert "it sent 100 lines that are not messages" in servers.report()["yes"]["hint"]


async def test_an_idle_server_is_hung_up_and_woken_by_a_call(raw: Raw) -> None:
    patience = ConnectionTimeouts(idle=0.2)
    async with connect(raw.server(), patience=patience) as servers:
        await until(lambda: not psutil.Process().children(recursive=True) or not _running(raw))
        assert servers.report()["raw"]["ok"]
        assert (await call(servers, "mcp__raw__say", a=1)).text == '{"a": 1}'
    assert raw.diary.read_text().splitlines().count("initialize") == 2


def _running(raw: Raw) -> bool:
    return any(str(raw.diary) in command_of(child) for child in psutil.Process().children(recursive=True))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_what_a_server_has_started_is_gone_with_the_worker(raw: Raw) -> None:
    async with connect(raw.server()) as servers:
        pids = json.loads((await call(servers, "mcp__raw__child")).text)
        assert [_alive(pid) for pid in pids] == [True, True]
    await until(lambda: not any(map(_alive, pids)))


HOST = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
from tests.integration.activities.test_mcp import Raw, call, connect
from pathlib import Path
async def main():
    async with connect(Raw(Path({folder!r})).server()) as servers:
        Path({folder!r}, "pids").write_text((await call(servers, "mcp__raw__child")).text)
        busy = asyncio.create_task(call(servers, "mcp__raw__hang"))
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_a_killed_worker_leaves_no_server_behind_even_one_that_hangs(raw: Raw, tmp_path: Path) -> None:
    program = HOST.format(root=str(TESTS.parent), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL) as worker:
        try:
            await raw.heard("tools/call hang")
        finally:
            worker.send_signal(signal.SIGKILL)
    pids = json.loads((tmp_path / "pids").read_text())
    assert len(pids) == 2
    await until(lambda: not any(map(_alive, pids)))


class Http:
    """A server over HTTP, on one port for as many lives as a test gives it."""

    def __init__(self, *command: str, diary: Path | None = None) -> None:
        """`PORT` in the command stands for the port, which is in its environment, too."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.diary = diary or Path(os.devnull)
        self._command = [str(self.port) if word == "PORT" else word for word in command]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env={**os.environ, "PORT": str(self.port)})

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def server(self, **given: Any) -> McpServer:
        return McpServer(name="web", url=f"http://127.0.0.1:{self.port}/mcp", **given)


@asynccontextmanager
async def serving(web: Http) -> AsyncIterator[Http]:
    """The server, gone at the end."""
    web.start()
    try:
        yield web
    finally:
        web.kill()


def http(folder: Path) -> AbstractAsyncContextManager[Http]:
    """The echo server."""
    diary = folder / "diary"
    return serving(Http(*ECHO, "--http", "PORT", "--diary", str(diary), diary=diary))


@pytest.mark.slow
async def test_a_published_server_over_http_is_killed_in_a_call_and_found_again(node_server: str) -> None:
    web = Http(node_server, "streamableHttp")
    async with serving(web), connect(web.server(), first_wait=0.1, patience=PATIENT) as servers:
        await until_available(servers, "mcp__web__echo")
        assert (await call(servers, "mcp__web__echo", message="hi")).text == "Echo: hi"

        progress: list[str] = []
        long = "mcp__web__trigger-long-running-operation"
        lost = asyncio.create_task(call(servers, long, duration=600, steps=6000, told=progress.append))
        await until(lambda: bool(progress))
        web.kill()
        with pytest.raises(ToolExecutionError, match="was lost during the call"):
            await lost

        waiting = asyncio.create_task(call(servers, "mcp__web__echo", message="back"))
        web.start()
        assert (await waiting).text == "Echo: back"


async def test_a_server_over_http_is_called_told_apart_killed_and_found_again(tmp_path: Path) -> None:
    async with http(tmp_path) as web, connect(web.server(trust=True), first_wait=0.1) as servers:
        await until_available(servers, "mcp__web__echo")
        assert (await call(servers, "mcp__web__echo", text="hi", times=2)).text == "hihi"

        aborted = asyncio.create_task(call(servers, "mcp__web__wait", seconds=600, mark="one"))
        await until(lambda: web.diary.exists() and "begun one" in web.diary.read_text())
        aborted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await aborted
        await until(lambda: "stopped one" in web.diary.read_text())

        await call(servers, "mcp__web__learn", name="greet")
        await until(lambda: "mcp__web__greet" in servers.tools)

        lost = asyncio.create_task(call(servers, "mcp__web__wait", seconds=600, mark="two"))
        await until(lambda: "begun two" in web.diary.read_text())
        web.kill()
        with pytest.raises(ToolExecutionError, match="was lost during the call to wait: you may call it again"):
            await lost
        await until(lambda: servers.tools["mcp__web__echo"].is_available() is not None)

        web.start()
        await until_available(servers, "mcp__web__echo")
        assert (await call(servers, "mcp__web__echo", text="back")).text == "back"


@asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives one answer to everything, its address, and the heads of the requests it gets."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        with suppress(ConnectionError):
            await answer(writer)
            await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp", seen


async def test_headers_are_sent_and_a_refusal_names_its_status() -> None:
    async def refuse(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    async with listening(refuse) as (url, seen):
        server = McpServer(name="web", url=url, headers={"Authorization": "Bearer ${TOKEN}"})
        async with connect(server, environment={"TOKEN": "t-0123456789"}) as servers:
            hint = servers.report()["web"]["hint"]
    assert "HTTP 401" in hint
    assert "t-0123456789" not in hint
    assert b"authorization: bearer t-0123456789" in seen[0].lower()


@pytest.mark.parametrize("packed", [False, True])
async def test_an_endless_answer_is_given_up(packed: bool) -> None:
    chunk = gzip.compress(b" " * 100_000_000) if packed else b" " * 100_000
    sent = 0

    async def pour(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        encoding = b"content-encoding: gzip\r\n" if packed else b""
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + encoding + b"\r\n")
        while True:
            writer.write(chunk)
            sent += len(chunk)
            await writer.drain()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with (
        listening(pour) as (url, _),
        connect(McpServer(name="web", url=url), patience=ConnectionTimeouts()) as servers,
    ):
        assert "the response is longer than 8388608 bytes" in servers.report()["web"]["hint"]
    assert sent < 60_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 80_000


async def test_two_servers_of_one_name_are_refused(raw: Raw) -> None:
    with pytest.raises(BadRequest, match="two MCP servers are named 'raw'"):
        connect(raw.server(), raw.server())


async def test_a_worker_without_servers_has_no_tools_and_imports_no_library() -> None:
    program = (
        "import asyncio, sys\n"
        "from loom.activities.adapters.mcp.servers import McpServers\n"
        "async def main():\n"
        "    async with McpServers((), environment={}) as servers:\n"
        "        print(len(servers.tools), 'mcp' in sys.modules)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=TESTS.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "0 False\n"


@pytest.mark.slow
async def test_permission_patterns_are_held_against_every_text_among_the_arguments(raw: Raw) -> None:
    arguments: JsonObject = {"paths": ["a/b", "c"], "deep": {"x": "a/b", "n": 3}}
    async with connect(raw.server()) as servers:
        found = servers.tools["mcp__raw__say"]
    assert found.subjects(arguments, Path("/")) == [Subject(text="a/b"), Subject(text="c")]
    assert found.grants(arguments) == ("mcp__raw__say",)


@pytest.mark.slow
async def test_the_example_of_the_documentation_works() -> None:
    page = (TESTS.parent / "docs" / "mcp.md").read_text()
    example = page.partition("```toml\n")[2].partition("```")[0]
    tickets, clock = read_servers(tomllib.loads(example)["mcp"])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    async with connect(clock, environment={"PATH": path}, first_wait=30) as servers:
        assert servers.tools["mcp__time__get_current_time"].spec.effect is Effect.READ
        told = await call(servers, "mcp__time__get_current_time", timezone="UTC")
    assert json.loads(told.text)["timezone"] == "UTC"
    assert variables(tickets.headers) == ("TICKETS_TOKEN",)


@pytest.mark.slow
async def test_doctor_says_which_server_does_not_answer_and_what_to_do() -> None:
    echo = {"command": [*ECHO]}
    found = await checks.mcp(Settings(mcp={"echo": echo, "ghost": {"command": ["no-such-program-anywhere"]}}))
    assert (found["ok"], found["servers"]["echo"]["ok"]) == (False, True)
    assert found["note"].startswith("echo: ")
    assert found["note"].endswith(" tools; ghost: does not answer")
    assert found["hint"].startswith("the MCP server ghost is unavailable: ")
    assert found["hint"].endswith(". Start it, or correct the `mcp` setting")
    whole = await checks.mcp(Settings(mcp={"echo": echo}))
    assert (whole["ok"], "hint" in whole) == (True, False)


async def test_a_list_of_tools_says_which_server_has_not_answered(
    raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghost = '[mcp.ghost]\ncommand = ["no-such-program-anywhere"]\n'
    there = f"[mcp.raw]\ncommand = {json.dumps(list(raw.server().command))}\n"
    (tmp_path / "loom.toml").write_text(ghost + there)
    monkeypatch.chdir(tmp_path)
    shown = await asyncio.to_thread(CliRunner().invoke, tools.app, ["list", "--json"])
    found = json.loads(shown.stdout)
    assert "mcp__raw__say" in [each["name"] for each in found["tools"]]
    assert list(found["unavailable"]) == ["ghost"]
    told = (await asyncio.to_thread(CliRunner().invoke, tools.app, ["list"])).stderr
    assert "the MCP server ghost is unavailable: the program 'no-such-program-anywhere'" in told
