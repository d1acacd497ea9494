"""A tool call through its six stages."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import structlog

from loom.activities.adapters.shell.parser import BashParser
from loom.activities.ports import Tool, ToolContext, ToolOutput
from loom.activities.toolbox.built_in.all_tools import built_in_tools
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.pipeline import execute, plan
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import ExecutionAbortedError, PermissionDeniedError, ToolExecutionError
from loom.domain.core.messages import JsonObject, Part, ToolCall, ask_digest
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import (
    EMPTY_OUTPUT,
    STAGES,
    Effect,
    PreparedCall,
    ToolResult,
    Verdict,
    tool_message,
)
from loom.domain.permissions.judge import Mode

BOX = built_in_tools(sandbox=None, shell_parser=BashParser(), tool_timeout=120, no_sandbox="install bubblewrap")


class Masked:
    """Takes one known word out."""

    def redact(self, text: str) -> str:
        return text.replace("hunter2", "[REDACTED]")

    def redact_json(self, value: JsonObject) -> JsonObject:
        return value


SANITIZER = OutputSanitizer(Masked(), None)


class Sandboxed:
    """Stands for a sandbox that nothing is run in."""

    async def run(self, *_: object, **__: object) -> object:
        raise AssertionError


FULL = built_in_tools(sandbox=Sandboxed(), shell_parser=BashParser(), tool_timeout=120)  # type: ignore[arg-type]


class Text(Arguments):
    text: str = ""


RUN = Origin(run_id="run", execution="e")


def tool(run: Callable[[Text, ToolContext], Awaitable[str | ToolOutput]], name: str = "say") -> dict[str, Tool]:
    return {
        name: FunctionTool(spec=tool_spec(name, "Says it.", Text, effect=Effect.READ), arguments=Text, function=run)
    }


def agent(
    place: Path,
    permissions: dict[str, str] | None = None,
    *,
    box: dict[str, Tool] | None = None,
    mode: Mode = Mode.DEFAULT,
) -> AgentSpec:
    specs = tuple(each.spec for each in (box or FULL).values())
    return AgentSpec(
        name="a", model="demo", tools=specs, permissions=permissions or {}, mode=mode, workspace=str(place)
    )


def planned(call: ToolCall, spec: AgentSpec, box: dict[str, Tool] | None = None, *grants: str) -> PreparedCall:
    return plan(call, box=box or FULL, spec=spec, grants=grants, origin=RUN, turn=3)


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=arguments)


async def run(
    made: ToolCall, box: dict[str, Tool], place: Path = Path("/"), seconds: float = 5, *, cancelled: bool = False
) -> ToolResult:
    context = ToolContext(workspace=place, run_id="run", call_id=made.id, idempotency_key="k", timeout=seconds)
    return await execute(made, box=box, context=context, sanitizer=SANITIZER, is_cancelled=lambda: cancelled)


def test_an_allowed_call_is_planned_with_its_limits(tmp_path: Path) -> None:
    assert planned(call("read_file", path="a"), agent(tmp_path)) == PreparedCall(
        verdict=Verdict.ALLOW,
        rule="built-in",
        effect=Effect.READ,
        parallel=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("made", "permissions", "may_be_quick", "is_quick"),
    [
        (ToolCall(id="c1", name="list_dir", arguments={}), {}, True, True),
        (ToolCall(id="c1", name="list_dir", arguments={}), {}, False, False),
        (ToolCall(id="c1", name="list_dir", arguments={}), {"list_dir": "ask"}, True, False),
        (ToolCall(id="c1", name="list_dir", arguments={}), {"list_dir": "deny"}, True, False),
        (ToolCall(id="c1", name="glob", arguments={"pattern": "*"}), {}, True, False),
    ],
)
def test_only_an_allowed_call_of_a_quick_tool_is_quick(
    tmp_path: Path, made: ToolCall, permissions: dict[str, str], may_be_quick: bool, is_quick: bool
) -> None:
    spec = agent(tmp_path, permissions)
    made_ready = plan(made, box=FULL, spec=spec, grants=(), origin=RUN, turn=3, may_be_quick=may_be_quick)
    assert made_ready.is_quick is is_quick


def test_an_ask_carries_digest_and_grants(tmp_path: Path) -> None:
    made = call("write_file", path="a", content="x")
    ask = planned(made, agent(tmp_path))
    digest = ask_digest("run", "e", 3, made, reset_at=0)
    assert (ask.verdict, ask.digest, ask.grants) == (Verdict.ASK, digest, ("write_file",))
    assert (ask.effect, ask.parallel) == (Effect.IDEMPOTENT, False)


def test_what_was_granted_for_the_run_is_not_asked_again(tmp_path: Path) -> None:
    made = call("write_file", path="a", content="x")
    for permissions in ({}, {"write_file": "ask"}, {"default": "ask"}):
        spec = agent(tmp_path, permissions)
        assert planned(made, spec, None, *planned(made, spec).grants).verdict is Verdict.ALLOW
    assert planned(made, agent(tmp_path, {"write_file": "deny"}), None, "write_file").verdict is Verdict.DENY


@pytest.mark.parametrize("command", ["ls -la", "git push", "echo a > b", "X=1 make && ls", "bash -c 'rm x'"])
@pytest.mark.parametrize("permissions", [{}, {"bash(git push:*)": "ask"}, {"bash(*)": "ask"}])
def test_granting_a_command_allows_it_next_time(tmp_path: Path, command: str, permissions: dict[str, str]) -> None:
    spec = agent(tmp_path, permissions)
    ask = planned(call("bash", command=command), spec)
    assert ask.verdict is Verdict.ASK
    assert ask.grants
    assert planned(call("bash", command=command), spec, None, *ask.grants).verdict is Verdict.ALLOW
    assert planned(call("bash", command=command + "; rm other"), spec, None, *ask.grants).verdict is Verdict.ASK


def test_granting_after_a_scoped_ask_is_no_wider_than_the_call(tmp_path: Path) -> None:
    spec = agent(tmp_path, {"write_file(secret/**)": "ask"})
    made = call("write_file", path="secret/a", content="x")
    ask = planned(made, spec)
    assert ask.grants == ("write_file(secret/a)",)
    assert planned(made, spec, None, *ask.grants).verdict is Verdict.ALLOW
    assert planned(call("write_file", path="secret/b", content="x"), spec, None, *ask.grants).verdict is Verdict.ASK


def test_a_deny_is_a_verdict_with_its_rule(tmp_path: Path) -> None:
    denied = planned(call("bash", command="ls; rm x"), agent(tmp_path, {"bash": "allow", "bash(rm:*)": "deny"}))
    assert (denied.verdict, denied.rule, denied.error) == (Verdict.DENY, "bash(rm:*)", "")


def test_done_is_always_allowed(tmp_path: Path) -> None:
    for spec in (
        agent(tmp_path, {"done": "deny"}),
        agent(tmp_path, {"default": "deny"}),
        agent(tmp_path, mode=Mode.READ_ONLY),
    ):
        assert planned(call("done", answer=42), spec).verdict is Verdict.ALLOW


def test_a_command_that_wants_longer_gets_longer(tmp_path: Path) -> None:
    spec = agent(tmp_path)
    assert planned(call("bash", command="ls"), spec).timeout == 130
    assert planned(call("bash", command="ls", timeout=500), spec).timeout == 510


@pytest.mark.parametrize(
    ("made", "error_type", "text"),
    [
        (call("red_file"), "not_found", "did you mean read_file"),
        (call("launch"), "not_found", "The tools are: ask_user, bash, delete_file, done, edit_file"),
        (call("read_file"), "validation", "`path` is missing: add it"),
        (call("read_file", path="../x"), "validation", "outside the workspace"),
        (call("read_file", path="\ud800"), "validation", "whole characters"),
        (
            ToolCall(id="c", name="read_file", malformed='{"path": '),
            "validation",
            "send one complete JSON object with path",
        ),
        (
            ToolCall(id="c", name="read_file", malformed='{"path": "a", "limit": -1e999}'),
            "validation",
            "-1e999 is too large for a number; send one complete JSON object with path, offset, limit",
        ),
        (ToolCall(id="c", name="read_file", malformed='{"path": 1}'), "validation", "send one complete JSON object"),
        (call("bash", command="ls", timeout="NaN"), "validation", "`timeout` must be a"),
        (call("bash", command="ls", timeout=float("inf")), "validation", "`timeout` contains NaN or an infinite"),
        (
            call("todo", items="[1"),
            "validation",
            "`items` must be a list, but it is a text that isn't valid JSON either",
        ),
    ],
)
def test_a_call_that_cannot_run_says_what_to_do(tmp_path: Path, made: ToolCall, error_type: str, text: str) -> None:
    failed = planned(made, agent(tmp_path))
    assert failed.error_type == error_type
    assert text in failed.error


def test_a_tool_that_the_agent_was_not_given_is_not_found(tmp_path: Path) -> None:
    spec = AgentSpec(name="a", model="demo", tools=(FULL["glob"].spec,), workspace=str(tmp_path))
    assert planned(call("bash", command="ls"), spec).error_type == "not_found"


def test_a_tool_that_cannot_work_here_says_what_is_missing(tmp_path: Path) -> None:
    failed = planned(call("bash", command="ls"), agent(tmp_path), BOX)
    assert (failed.error_type, failed.error) == ("unavailable", "bash cannot be used: install bubblewrap")


def test_a_tool_whose_own_checks_break_does_not_break_the_plan(tmp_path: Path) -> None:
    def broken(_arguments: Text, _workspace: Path) -> tuple[()]:
        raise KeyError("oops")

    box: dict[str, Tool] = {
        "say": FunctionTool(
            spec=tool_spec("say", "", Text, effect=Effect.READ), arguments=Text, function=_hello, touches=broken
        )
    }
    with structlog.testing.capture_logs() as logs:
        failed = planned(call("say"), agent(tmp_path, box=box), box)
    assert failed.error_type == "unknown"
    assert "KeyError" in failed.error
    assert logs[0]["event"] == "tool_plan_failed"


async def _hello(arguments: Text, _context: ToolContext) -> str:
    return f"hello {arguments.text}"


async def test_a_call_goes_through_six_stages() -> None:
    result = await run(call("say", text="you"), tool(_hello))
    assert (result.content, result.status, result.error_type) == ("hello you", "success", None)
    assert len(result.stage_ms) == len(STAGES)
    assert set(result.metadata["stage_breakdown"]) == set(STAGES)
    assert all(round(ms, 2) == ms for ms in result.stage_ms)


@pytest.mark.parametrize(
    ("made", "error_type", "stages"),
    [(call("sya"), "not_found", 1), (call("say", txt="x"), "validation", 2)],
)
async def test_a_call_that_fails_early_stops_at_its_stage(made: ToolCall, error_type: str, stages: int) -> None:
    result = await run(made, tool(_hello))
    assert (result.status, result.error_type, len(result.stage_ms)) == ("error", error_type, stages)
    assert result.metadata["recoverable"]


async def test_a_cancelled_run_starts_nothing() -> None:
    result = await run(call("say"), tool(_hello), cancelled=True)
    assert (result.error_type, len(result.stage_ms)) == ("aborted", 4)


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    async def slow(_arguments: Text, _context: ToolContext) -> str:
        await asyncio.sleep(60)
        return ""

    result = await run(call("say"), tool(slow), seconds=0.05)
    assert (result.error_type, len(result.stage_ms)) == ("timeout", 5)
    assert result.content.startswith("say was stopped after 0.05 s: do less")


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (ToolExecutionError("no"), "execution"),
        (PermissionDeniedError("no"), "permission"),
        (ExecutionAbortedError("no"), "aborted"),
        (TimeoutError("no"), "unknown"),
        (ZeroDivisionError("no"), "unknown"),
    ],
)
async def test_whatever_a_tool_raises_becomes_a_result(error: Exception, error_type: str) -> None:
    async def broken(_arguments: Text, _context: ToolContext) -> str:
        raise error

    with structlog.testing.capture_logs():
        result = await run(call("say"), tool(broken))
    assert (result.status, result.error_type, len(result.stage_ms)) == ("error", error_type, 5)
    assert "no" in result.content


async def test_cancellation_gets_out() -> None:
    async def cancelled(_arguments: Text, _context: ToolContext) -> str:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run(call("say"), tool(cancelled))


@pytest.mark.parametrize(
    ("output", "content"),
    [
        ("", EMPTY_OUTPUT),
        (" \n", EMPTY_OUTPUT),
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
        ("a\udcffb", "a\N{REPLACEMENT CHARACTER}b"),
        ("\ud83d\ude00", "😀"),
    ],
)
async def test_output_is_made_fit_for_reading_and_storing(output: str, content: str) -> None:
    async def say(_arguments: Text, _context: ToolContext) -> str:
        return output

    assert (await run(call("say"), tool(say))).content == content


async def test_long_output_keeps_head_and_tail() -> None:
    async def say(_arguments: Text, _context: ToolContext) -> str:
        return "begin" + "x" * 50_000 + "end"

    content = (await run(call("say"), tool(say))).content
    assert len(content) <= 10_000
    assert content.startswith("begin")
    assert content.endswith("end")
    assert "characters left out here" in content


async def test_no_secret_gets_out_of_a_tool_in_output_or_error() -> None:
    async def say(_arguments: Text, _context: ToolContext) -> str:
        return "password hunter2"

    async def fail(_arguments: Text, _context: ToolContext) -> str:
        raise ToolExecutionError("login with hunter2 failed")

    assert (await run(call("say"), tool(say))).content == "password [REDACTED]"
    assert (await run(call("say"), tool(fail))).content == "login with [REDACTED] failed"


async def test_no_secret_gets_out_by_way_of_a_note() -> None:
    context = ToolContext(workspace=Path("/"), run_id="r", call_id="c", idempotency_key="k", timeout=5)
    result = await execute(
        call("say", text="you"),
        box=tool(_hello),
        context=context,
        sanitizer=SANITIZER,
        is_cancelled=lambda: False,
        note="changed to hunter2",
    )
    assert result.content == "changed to [REDACTED]\nhello you"


async def test_a_tool_may_give_images_and_warn() -> None:
    picture = Part(type="image", media_type="image/png", data="aGk=")

    async def draw(_arguments: Text, _context: ToolContext) -> ToolOutput:
        return ToolOutput(text="half of it", parts=(picture,), is_warning=True)

    result = await run(call("say"), tool(draw))
    assert (result.content, result.parts, result.status) == ("half of it", (picture,), "warning")
    assert tool_message(call("say"), result).content == (Part(type="text", text="half of it"), picture)


async def test_a_note_stands_before_the_output() -> None:
    context = ToolContext(workspace=Path("/"), run_id="r", call_id="c", idempotency_key="k", timeout=5)
    result = await execute(
        call("say", text="you"),
        box=tool(_hello),
        context=context,
        sanitizer=SANITIZER,
        is_cancelled=lambda: False,
        note="changed by a person",
    )
    assert result.content == "changed by a person\nhello you"


def test_every_schema_is_json() -> None:
    for each in FULL.values():
        assert json.loads(json.dumps(each.spec.parameters))["type"] == "object"
