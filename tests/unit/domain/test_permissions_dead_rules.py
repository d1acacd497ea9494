"""Rules that can never do what they say, and tools that are not shown."""

import pytest

from loom.domain.core.tool_calls import ToolSpec
from loom.domain.permissions.dead_rules import dead_by_name, dead_rules, offered
from loom.domain.permissions.subjects import Place

PLACE = Place(workspace="/home/ann/work", home="/home/ann")


def spec(name: str, *arguments: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={"properties": {each: {} for each in arguments}})


TOOLS = (
    spec("bash", "command", "timeout"),
    spec("read_file", "path", "limit"),
    spec("write_file", "path", "content"),
    spec("http_fetch", "url", "raw"),
    spec("python", "code"),
    spec("deploy", "stage"),
    spec("done", "result"),
    spec("ask_user", "question"),
    spec("mcp__github__get_issue", "number"),
)


def complaints(rules: dict[str, str]) -> tuple[str, ...]:
    return dead_rules(rules, TOOLS, servers=("github", "away"), place=PLACE)


@pytest.mark.parametrize(
    ("rule", "verdict", "complaint"),
    [
        ("bsh", "deny", "'bsh' names no tool: did you mean bash?"),
        ("Bash(ls:*)", "allow", "names no tool: did you mean bash?"),
        ("x*", "deny", "names no tool: known are"),
        ("b*", "allow", "allows by a glob of tool names"),
        ("*", "allow", "allows by a glob of tool names"),
        ("mcp__*", "allow", "allows by a glob of tool names"),
        ("mcp__gitub", "ask", "names no MCP server: did you mean github?"),
        ("mcp__gitub__get_issue", "allow", "names no MCP server"),
        ("mcp__github__get_isue", "allow", "names no tool of the server github: did you mean mcp__github__get_issue?"),
        ("ba sh", "deny", "is not `tool` or `tool(pattern)`"),
        ("bash", "maybe", "must be allow, ask or deny"),
        ("bash( )", "deny", "has an empty pattern"),
        ("bash(command:ls)", "deny", "names `command`, which bash's own patterns match: write bash(ls *)"),
        ("http_fetch(url:x)", "deny", "write http_fetch(domain:HOST)"),
        ("bash(timeout:600)", "allow", "allows calls by their argument `timeout`"),
        ("mcp__github__get_issue(number:1)", "allow", "allows calls by their argument `number`"),
        ("deploy(prod)", "ask", "has nothing to match it against: only `param:value` can ask or deny (stage)"),
        ("deploy(stag:prod)", "ask", "has nothing to match it against"),
        ("python(import os)", "deny", "has nothing to match it against"),
        ("mcp__github__get_issue(x)", "deny", "has nothing to match it against"),
        ("read_file(domain:x.com)", "deny", "names a domain, but read_file is about files"),
        ("http_fetch(https://x.com/)", "allow", "is not about a host: write domain:example.com"),
        ("http_fetch(domain:https://x.com)", "allow", "write the bare host"),
        ("http_fetch(domain:)", "deny", "has no host"),
        ("http_fetch(domain:*)", "deny", "leave out the parentheses"),
        ("read_file(!src)", "allow", "cannot have exceptions"),
        ("read_file(../x)", "deny", "contains `..`"),
        ("read_file(//etc/**)", "allow", "outside the workspace /home/ann/work"),
        ("write_file(~/other/**)", "allow", "outside the workspace"),
        ("default(x)", "deny", "gives `default` a pattern"),
    ],
)
def test_a_rule_that_can_never_match_is_complained_of_once(rule: str, verdict: str, complaint: str) -> None:
    found = complaints({"bash(fine:*)": "allow", rule: verdict})
    assert len(found) == 1, found
    assert complaint in found[0]
    assert repr(rule) in found[0]


CAN_MATCH = [
    ("bash(npm test *)", "allow"),
    ("bash(timeout:600)", "deny"),
    ("bash(git diff:*)", "allow"),
    ("read_file(limit:5)", "ask"),
    ("read_file(src/**)", "allow"),
    ("read_file(//etc/**)", "deny"),
    ("read_file(//home/ann/**)", "allow"),
    ("read_file(~/work/**)", "allow"),
    ("http_fetch(domain:*.x.com)", "allow"),
    ("deploy(stage:prod)", "deny"),
    ("mcp__github", "allow"),
    ("mcp__away__anything", "allow"),
    ("mcp__*", "deny"),
    ("*_file", "deny"),
    ("todo", "ask"),
    ("delegate_task(writer)", "deny"),
    ("create_plan(agent:writer)", "ask"),
    ("default", "deny"),
]


@pytest.mark.parametrize(("rule", "verdict"), CAN_MATCH)
def test_a_rule_that_can_match_is_not_complained_of(rule: str, verdict: str) -> None:
    assert complaints({rule: verdict}) == ()


@pytest.mark.parametrize(
    "rule",
    [
        "bash( )",
        "bash(command:ls)",
        "default(x)",
        "http_fetch(domain:https://x.com)",
        "http_fetch(x.com)",
        "http_fetch(url:x)",
        "python(import os)",
        "read_file(!src)",
        "read_file(../x)",
        "read_file(domain:x.com)",
    ],
)
def test_no_worker_is_needed_to_complain_of_a_pattern_of_a_built_in_tool(rule: str) -> None:
    (said,) = dead_by_name({rule: "deny"})
    assert complaints({rule: "deny"})[0].startswith(said)


def test_without_the_arguments_of_tools_no_rule_that_can_match_is_complained_of() -> None:
    names, rules = [tool.name for tool in TOOLS if "mcp__" not in tool.name], dict(CAN_MATCH)
    assert dead_by_name(rules, names, ("github", "away"), workspace=PLACE.workspace) == dead_by_name(rules) == ()
    argument_of_unknown_tool = {"deploy(domain:x)": "deny", "http_fetch(raw:true)": "ask"}
    assert dead_by_name(argument_of_unknown_tool, names) == ()
    assert dead_by_name({"bsh": "deny", "deploy(prod)": "ask"}) == ()  # a worker may have these tools
    assert len(dead_by_name({"bsh": "deny", "deploy(prod)": "ask"}, names)) == 2


def test_an_allow_under_a_wider_rule_matches_and_loses_which_is_no_complaint() -> None:
    assert complaints({"bash": "deny", "bash(ls)": "allow", "*": "deny"}) == ()
    assert complaints({"mcp__github": "deny", "mcp__github__get_*": "allow"}) == ()
    assert complaints({"mcp__github": "ask", "mcp__github__get_issue": "allow"}) == ()


def test_where_servers_are_not_known_their_rules_are_left_alone() -> None:
    assert dead_rules({"mcp__any__thing": "allow"}, TOOLS) == ()


def test_a_tool_denied_by_name_or_glob_is_not_shown() -> None:
    def shown(rules: dict[str, str]) -> list[str]:
        return [tool.name for tool in offered(TOOLS, rules)]

    assert "bash" not in shown({"bash": "deny"})
    assert "bash" in shown({"bash(rm:*)": "deny", "bash": "ask"})
    assert shown({"*": "deny"}) == ["done", "ask_user"]
    assert "mcp__github__get_issue" not in shown({"mcp__*": "deny"})
    assert "mcp__github__get_issue" not in shown({"mcp__github": "deny"})
    assert shown({"default": "deny"}) == [tool.name for tool in TOOLS]
