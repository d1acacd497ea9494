"""Tools on demand: an agent with a hundred tools finds them, and the beginning of its prompts never changes."""

import json
from pathlib import Path
from typing import Any

from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.requests import RunStatus
from loom.domain.core.tokens import tokens_of
from loom.domain.history.past_turns import ToolAttempt
from loom.domain.run.activity_payloads import Prepared
from loom.domain.tools.tool_search import described
from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.activities.test_mcp import Raw
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_mcp_runs import read_by_model, working_with

NOUNS = (
    *("issue", "pull_request", "branch", "release", "label", "milestone", "comment", "review", "workflow", "gist"),
    *("wiki_page", "project", "team", "member", "webhook", "deployment", "environment"),
)
VERBS = ("create", "list", "update", "delete", "search", "archive")
MOST_TOKENS = 2_000
"""What the default agent's tools may cost in each prompt."""


def tools_of_a_forge() -> list[dict[str, Any]]:
    """102 tools, each as long as those of real servers."""
    return [
        {
            "name": f"{verb}_{noun}",
            "description": f"{verb.capitalize()} a {noun.replace('_', ' ')} in a repository of the forge. The caller "
            "needs access to the repository, and the result contains the number of the entry, its author and state.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "owner": {"type": "string", "description": "The account that owns the repository"},
                    "repo": {"type": "string", "description": "The name of the repository"},
                    "title": {"type": "string", "description": f"The title of the {noun.replace('_', ' ')}"},
                },
                "required": ["owner", "repo"],
            },
        }
        for noun in NOUNS
        for verb in VERBS
    ]


def through(tool: str, call: str = "", **arguments: Any) -> ToolUse:
    return ToolUse("call_tool", {"name": tool, "arguments": arguments}, call or None)


def shared_prefix(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether the second request begins with the whole first one: its tools, and then its messages."""
    length = len(first["messages"])
    return bool(first["tools"] == second["tools"] and first["messages"] == second["messages"][:length])


async def pinned(loom: Harness, run_id: str) -> AgentSpec:
    records = await TemporalPasts(loom.client.temporal).records(run_id)
    return next(record.spec for record in records if isinstance(record, Prepared))


async def tool_attempts(loom: Harness, run_id: str) -> list[str]:
    records = await TemporalPasts(loom.client.temporal).records(run_id)
    return [record.request.tool for record in records if isinstance(record, ToolAttempt)]


async def test_a_hundred_tools_are_found_called_and_cost_the_prompt_nothing(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    raw = Raw(tmp_path)
    raw.list(*tools_of_a_forge())
    answers = script(
        [
            calls(ToolUse("search_tools", {"query": "create an issue", "limit": 3})),
            calls(through("mcp__forge__create_issue", owner="ann", repo="tea", title="Too hot")),
            calls(through("mcp__forge__create_issue", owner="ann", title="no repo")),
            calls(ToolUse("search_tools", {"query": "zzz"})),
            calls(ToolUse("mcp__forge__list_issue", {"owner": "ann", "repo": "tea"})),
            text("done"),
        ]
    )
    rules = {"mcp__forge": "allow", "mcp__forge__delete_issue": "deny"}
    async with working_with(addresses, workspace, answers, raw.server("forge")) as (loom, model):
        result = await loom.run(permissions=rules)
        spec = await pinned(loom, loom.started[0])
        attempts = await tool_attempts(loom, loom.started[0])

    assert (result.status, result.tool_calls) == (RunStatus.COMPLETED, 3)  # two failed before they ran
    assert tokens_of(spec.tools) > 14_000
    assert tokens_of(described(spec.tools, spec.on_demand)) <= MOST_TOKENS
    bodies = [request.body for request in model.requests]
    assert all(map(shared_prefix, bodies, bodies[1:]))
    assert {tool["function"]["name"] for tool in bodies[0]["tools"]} >= {"search_tools", "call_tool", "read_file"}
    assert "mcp__forge (101 tools)" in json.dumps(bodies[0]["tools"])

    found = [json.loads(line) for line in read_by_model(model, 1)[0].splitlines()]
    assert found[0]["name"] == "mcp__forge__create_issue"
    assert len(found) == 3
    assert "mcp__forge__delete_issue" not in [tool["name"] for tool in found]
    assert json.loads(read_by_model(model, 2)[1]) == {"owner": "ann", "repo": "tea", "title": "Too hot"}
    assert "repo" in read_by_model(model, 3)[2]
    assert "was not run because its arguments are wrong" in read_by_model(model, 3)[2]
    assert read_by_model(model, 4)[3].startswith("No tool fits 'zzz'. Use other words")
    # Loom's own records have the tools themselves, whatever form the provider needs.
    assert attempts == [
        "search_tools", "mcp__forge__create_issue", "mcp__forge__list_issue"
    ]  # fmt: skip


async def test_the_default_agents_tools_cost_at_most_2000_tokens(working: Working) -> None:
    loom, model = await working(script([text("done")]), memory="on")
    await loom.run()
    spec = await pinned(loom, loom.started[0])

    assert tokens_of(described(spec.tools, spec.on_demand)) <= MOST_TOKENS
    shown = {tool["function"]["name"] for tool in model.requests[0].body["tools"]}
    assert {"search_memory", "read_memory", "write_memory", "search_tools", "call_tool", "python", "bash"} <= shown
    assert {"query_l1_memory", "query_sibling_insights"} <= {tool.name for tool in spec.tools} - shown


async def test_tools_on_demand_are_called_by_their_old_names_and_a_person_is_asked_as_before(working: Working) -> None:
    steps = [
        calls(ToolUse("query_recent_events", {"top_k": 1}, "q1"), through("query_l1_memory", "q2", query="tea")),
        calls(through("publish_memory", "q3", id="a", content="b")),
        text("done"),
    ]
    loom, _ = await working(script(steps), memory="on")
    run_id = await loom.start()
    asked = (await loom.asked(run_id))["pending_approvals"][0]
    assert (asked["tool"], asked["arguments"]["id"]) == ("publish_memory", "a")
    await loom.client.deny(run_id, asked["call_id"], reason="no")
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "done")
    assert await tool_attempts(loom, run_id) == ["query_recent_events", "query_l1_memory"]


async def test_an_agent_without_search_is_shown_everything(working: Working) -> None:
    loom, model = await working(script([text("done")]), memory="on")
    await loom.run(permissions={"search_tools": "deny"})
    shown = {tool["function"]["name"] for tool in model.requests[0].body["tools"]}
    assert "query_l1_memory" in shown
    assert not {"search_tools", "call_tool"} & shown
