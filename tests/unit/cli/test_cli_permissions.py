"""`loom permissions check`: the same answer that a run would get, for people and for programs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from loom.activities.adapters.shell.parser import BashParser
from loom.activities.toolbox.built_in.all_tools import built_in_tools
from loom.activities.toolbox.pipeline import plan
from loom.cli.call_checks import Checked, opened_checker
from loom.cli.commands import permissions
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import ToolCall
from loom.domain.core.tasks import Origin
from loom.domain.permissions.judge import Mode
from loom.exit_codes import USAGE, code_of

APP = typer.Typer()
APP.add_typer(permissions.app)


def check(*words: str) -> Result:
    return CliRunner().invoke(APP, ["permissions", "check", *words])


def refusal(*words: str) -> str:
    result = check(*words)
    assert isinstance(result.exception, BadRequest)
    assert code_of(result.exception) == USAGE
    assert result.stdout == ""
    return result.exception.message


def test_programs_read_verdict_rule_and_reason(tmp_path: Path) -> None:
    rules = '{"bash": "ask", "bash(git diff:*)": "allow"}'
    result = check(
        "bash", '{"command": "git diff | cat"}', "--permissions", rules, "--workspace", str(tmp_path), "--json"
    )
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"verdict": "ask", "rule": "bash", "reason": "the rule bash says ask"}


def test_a_deny_has_no_exceptions(tmp_path: Path) -> None:
    rules = '{"bash": "deny", "bash(git diff:*)": "allow"}'
    result = check("bash", '{"command": "git diff"}', "--permissions", rules, "--workspace", str(tmp_path), "--json")
    assert (result.exit_code, json.loads(result.stdout)["verdict"], json.loads(result.stdout)["rule"]) == (
        0,
        "deny",
        "bash",
    )


def test_people_also_read_what_matched_and_what_an_approval_would_add(tmp_path: Path) -> None:
    rules = '{"bash": "ask", "bash(git push:*)": "ask", "bash(ls:*)": "allow"}'
    result = check("bash", '{"command": "ls && git push"}', "--permissions", rules, "--workspace", str(tmp_path))
    assert result.stdout.splitlines() == [
        "ask: bash(git push:*)",
        "  the rule bash(git push:*) requires a person's approval",
        "  matches bash: ask",
        "  matches bash(git push:*): ask",
        "  matches bash(ls:*): allow",
        "  for the run: bash(ls)",
        "  for the run: bash(git push)",
    ]


def test_rules_may_stand_in_a_file_and_a_mode_may_be_given(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[permissions]\nwrite_file = "allow"\n')
    words = ("write_file", '{"path": "a", "content": ""}', "--permissions", str(file), "--workspace", str(tmp_path))
    assert check(*words).stdout.startswith("allow: write_file\n")
    assert check(*words, "--mode", "read-only").stdout.startswith("deny: mode read-only\n")


def test_tools_that_need_a_database_are_judged_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOM_DATABASE_URL", raising=False)
    assert check("search_memory", '{"query": "x"}').stdout.startswith("allow: declared\n")
    assert check("publish_memory", '{"id": "a", "content": "b"}').stdout.startswith("ask: declared\n")
    denied = check("search_memory", '{"query": "x"}', "--permissions", '{"search_memory": "deny"}')
    assert denied.stdout.startswith("deny: search_memory\n")


@pytest.mark.parametrize(
    ("tool", "given", "whole"),
    [
        ("write_file", {"path": "a.txt"}, {"content": "hello"}),
        ("edit_file", {"path": ".env"}, {"old_string": "a", "new_string": "b"}),
        ("delegate_task", {"agent": "clerk"}, {"description": "look", "prompt": "look around"}),
        ("share_artifact", {}, {"name": "notes", "content": "text"}),
        ("todo", {}, {"items": []}),
    ],
)
def test_what_no_rule_is_about_may_be_left_out(
    tmp_path: Path, tool: str, given: dict[str, Any], whole: dict[str, Any]
) -> None:
    rules = '{"write_file": "ask", "write_file(a.txt)": "deny", "delegate_task(clerk)": "allow", "todo": "ask"}'
    words = ("--permissions", rules, "--workspace", str(tmp_path))
    short = check(tool, json.dumps(given), *words)
    assert short.exit_code == 0
    assert short.stdout == check(tool, json.dumps({**given, **whole}), *words).stdout


def test_what_would_steer_a_terminal_is_spelled_out(tmp_path: Path) -> None:
    result = check("bash", json.dumps({"command": "ls '\x1b[2J'"}), "--workspace", str(tmp_path))
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bash", "{"), "JSON: not valid JSON"),
        (("bash", "[]"), "JSON: must be a JSON object"),
        (("bsh", '{"command": "ls"}'), "TOOL: there is no tool 'bsh': did you mean 'bash'?"),
        (("mcp__gone__tool", "{}"), "TOOL: there is no tool 'mcp__gone__tool': `loom tools list` shows all tools"),
        (("bash", "{}"), "`command` is missing"),
        (("write_file", '{"content": "a"}'), "`path` is missing"),
        (("write_file", '{"path": 7}'), "`path` must be text, got 7"),
        (("write_file", '{"path": "a", "contents": ""}'), "did you mean `content`?"),
        (("create_plan", '{"goal": "all of it"}'), "`steps` is missing"),
        (("read_file", '{"path": "../x"}'), "outside the workspace"),
        (("bash", '{"command": "ls"}', "--permissions", '{"bash": "maybe"}'), "must be allow, ask or deny"),
        (("bash", '{"command": "ls"}', "--permissions", '{"bsh": "deny"}'), "'bsh' names no tool: did you mean bash?"),
        (("bash", '{"command": "ls"}', "--permissions", '{"b*": "allow"}'), "allows by a glob"),
        (("bash", '{"command": "ls"}', "--permissions", "missing.json"), "neither a JSON object nor an existing file"),
        (("bash", '{"command": "ls"}', "--workspace", "/nowhere/at/all"), "is not a folder"),
    ],
)
def test_what_cannot_be_checked_is_refused_with_what_is_wrong(words: tuple[str, ...], message: str) -> None:
    assert message in refusal(*words)


def test_loom_s_own_state_is_refused_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "var/state"))
    said = refusal("read_file", '{"path": "var/state/stack.json"}', "--workspace", str(tmp_path))
    assert "var/state/stack.json is Loom's own state" in said


def test_an_unknown_mode_is_wrong_usage() -> None:
    assert check("bash", "{}", "--mode", "brave").exit_code == USAGE


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("command", ["ls", "git reset --hard", "cat .env > x", "rm -rf /", "eval x", "npm test; ls"])
def test_a_run_gets_the_very_same_answer(tmp_path: Path, command: str, mode: Mode) -> None:
    rules = {"bash(ls:*)": "allow", "bash(npm test)": "ask", "read_file(.env)": "deny", "default": "allow"}
    call = ToolCall(id="c", name="bash", arguments={"command": command})
    box = built_in_tools(sandbox=Unused(), shell_parser=BashParser(), tool_timeout=120)  # type: ignore[arg-type]
    specs = tuple(tool.spec for tool in box.values())
    agent = AgentSpec(name="a", model="demo", tools=specs, permissions=rules, mode=mode, workspace=str(tmp_path))
    planned = plan(call, box=box, spec=agent, grants=(), origin=Origin(run_id="r"), turn=1)

    async def checked() -> Checked:
        async with opened_checker(["bash"], [], workspace=str(tmp_path)) as checker:
            return await checker.checked(call, rules=rules, mode=mode)

    found = asyncio.run(checked())
    assert (found.judgement.verdict, found.judgement.rule) == (planned.verdict, planned.rule)
    assert tuple(found.for_run) == planned.grants


class Unused:
    """A sandbox in which nothing is run."""
