"""MCP servers that ask during a call: a person through an approval, and the model within the run's budget."""

import json
from pathlib import Path

import pytest

from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunStatus
from loom.domain.tools.mcp_servers import McpServer
from loom.inbox import PendingCall
from loom.testing.harness import Addresses, Harness
from loom.testing.model_replies import Reply, Script
from loom.testing.model_server import SeenRequest, ToolUse, calls, script, text
from tests.integration.activities.test_mcp import ECHO, Raw
from tests.integration.workflows.test_mcp_runs import read_by_model, working_with

BOOK = "mcp__raw__book"
ALLOWED = {"default": "allow"}


def echo(diary: Path) -> McpServer:
    """A server of the protocol 2026-07-28."""
    return McpServer(name="echo", command=(*ECHO, "--diary", str(diary)), sampling=True)


def once_then(answer: str, call: ToolUse) -> Script:
    """One call in every conversation, and then an answer."""
    return lambda request: text(answer) if request.turn else calls(call)


async def the_ask(loom: Harness, run_id: str) -> JsonObject:
    """The only open ask."""
    ask: JsonObject = (await loom.asked(run_id))["pending_approvals"][0]
    return ask


@pytest.mark.parametrize("protocol", ["2025-11-25", "2026-07-28"])
async def test_a_persons_answer_to_a_servers_question_reaches_the_server(
    addresses: Addresses, workspace: Path, tmp_path: Path, protocol: str
) -> None:
    raw, diary = Raw(tmp_path), tmp_path / "echo"
    server = raw.server() if protocol == "2025-11-25" else echo(diary)
    tool = f"mcp__{server.name}__book"
    answers = script([calls(ToolUse(tool, {"city": "Oslo"})), text("Booked.")])
    async with working_with(addresses, workspace, answers, server) as (loom, model):
        run_id = await loom.start(permissions=ALLOWED)
        asked = await the_ask(loom, run_id)
        told = f"The MCP server {server.name} asks: Which room in Oslo?"
        assert (asked["tool"], asked["question"]) == (tool, told)
        assert asked["schema"]["required"] == ["room"]
        (waits,) = await loom.client.pending_in(run_id)
        assert isinstance(waits, PendingCall)
        assert (waits.question, waits.schema) == (told, asked["schema"])
        with pytest.raises(Exception, match="the form needs room"):
            await loom.client.approve(run_id, asked["call_id"], digest=asked["digest"])
        given = {"room": "quiet"}
        await loom.client.approve(run_id, asked["call_id"], digest=asked["digest"], arguments=given)
        result = await loom.client.result(run_id)

    assert (result.status, result.tool_calls) == (RunStatus.COMPLETED, 1)
    read = read_by_model(model, 1)[0]
    if protocol == "2025-11-25":
        assert json.loads(read) == {"action": "accept", "content": given}
        assert raw.diary.read_text().splitlines().count("book begun") == 1
    else:
        assert read == "booked quiet in Oslo for 1"
        assert diary.read_text().splitlines() == ["booked Oslo quiet 1"]


async def test_a_person_who_declines_lets_the_server_go_on(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    raw = Raw(tmp_path)
    answers = script([calls(ToolUse(BOOK, {"city": "Oslo"})), text("Not booked.")])
    async with working_with(addresses, workspace, answers, raw.server()) as (loom, model):
        run_id = await loom.start(permissions=ALLOWED)
        asked = await the_ask(loom, run_id)
        await loom.client.deny(run_id, asked["call_id"], reason="too dear")
        result = await loom.client.result(run_id)

    assert result.status is RunStatus.COMPLETED
    assert json.loads(read_by_model(model, 1)[0]) == {"action": "decline"}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["2025-11-25", "2026-07-28"])
async def test_a_question_outlives_its_worker_and_a_call_that_runs_once_is_not_made_twice(
    addresses: Addresses, workspace: Path, tmp_path: Path, protocol: str
) -> None:
    """The server of the older protocol dies with its worker, so nobody knows what its call has done."""
    raw, diary = Raw(tmp_path), tmp_path / "echo"
    server = raw.server() if protocol == "2025-11-25" else echo(diary)
    answers = once_then("Done.", ToolUse(f"mcp__{server.name}__book", {"city": "Oslo"}))
    async with working_with(addresses, workspace, answers, server, replay=False) as (first, _):
        run_id = await first.start(permissions=ALLOWED)
        asked = await the_ask(first, run_id)
        queue = first.settings.task_queue
    async with working_with(addresses, workspace, answers, server, task_queue=queue) as (loom, again):
        loom.started.append(run_id)
        still = await the_ask(loom, run_id)
        assert still["digest"] == asked["digest"]
        await loom.client.approve(run_id, asked["call_id"], digest=asked["digest"], arguments={"room": "bright"})
        result = await loom.client.result(run_id)

    assert result.status is RunStatus.COMPLETED
    read = read_by_model(again, 0)[0]
    if protocol == "2025-11-25":
        assert "was lost while book waited for input: the outcome is unknown" in read
        assert raw.diary.read_text().splitlines().count("book begun") == 1
    else:
        assert diary.read_text().splitlines() == ["booked Oslo bright 1"]


async def test_an_abort_reaches_a_server_that_waits_for_an_answer(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    raw = Raw(tmp_path)
    answers = script([calls(ToolUse(BOOK, {"city": "Oslo"}))])
    async with working_with(addresses, workspace, answers, raw.server()) as (loom, _):
        run_id = await loom.start(permissions=ALLOWED)
        await loom.asked(run_id)
        await loom.client.abort(run_id)
        assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
        assert await raw.heard("notifications/cancelled")


def sums_up(request: SeenRequest) -> Reply:
    """The run calls the tool; the server's own call has no tools and another system prompt."""
    if any(message["content"] == "Sum up: a long story" for message in request.messages):
        return text("short")
    if any(message["role"] == "tool" for message in request.messages):
        return text("Summed up.")
    return calls(ToolUse("mcp__echo__summarize", {"text": "a long story"}))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["allow", "ask", "deny"])
async def test_a_server_calls_the_runs_model_if_a_rule_says_so(
    addresses: Addresses, workspace: Path, tmp_path: Path, rule: str
) -> None:
    async with working_with(addresses, workspace, sums_up, echo(tmp_path / "echo")) as (loom, model):
        run_id = await loom.start(permissions={"default": "allow", "mcp_sampling(echo)": rule})
        if rule == "ask":
            asked = await the_ask(loom, run_id)
            told = "The MCP server echo asks to call the model, with at most 50 tokens:\n"
            assert asked["question"].startswith(told)
            assert "user: Sum up: a long story" in asked["question"]
            await loom.client.approve(run_id, asked["call_id"], digest=asked["digest"])
        result = await loom.client.result(run_id)

    sampled = [each for each in model.requests if each.messages[-1]["content"] == "Sum up: a long story"]
    assert result.status is RunStatus.COMPLETED
    read = read_by_model(model, -1)[0]
    if rule == "deny":
        assert "`mcp_sampling(echo)` is denied" in read
        assert (len(sampled), result.usage["model_calls"]) == (0, 2)
    else:
        assert read == "12 characters: short"
        assert (len(sampled), result.usage["model_calls"]) == (1, 3)
