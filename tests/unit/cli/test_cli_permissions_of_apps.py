"""`loom permissions check` for the agents, hooks and interceptors of an app: what a run of them would get."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loom.activities.adapters.redaction.mask import SecretMask
from loom.activities.adapters.shell.parser import BashParser
from loom.activities.adapters.skills.requirements import noting
from loom.activities.plan_calls import CallPreparer, TurnContext
from loom.activities.toolbox.built_in.all_tools import built_in_tools
from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.activities.toolbox.built_in.skills import SkillTools
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.tool_sets import RunTools
from loom.cli.worker_preview import load_registry
from loom.composition.load_settings import read_settings
from loom.composition.logs import configure_logs
from loom.domain.agents.definitions import spec_of, tools_of
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import ToolCall
from loom.domain.core.tasks import Origin
from loom.exit_codes import USAGE
from tests.commands import Commands, commands_in
from tests.unit.cli.test_cli_permissions import Unused

APP_FILE = """
from dataclasses import replace

from loom import Ask, Deny, Instead, LoomApp, ToolCall

app = LoomApp()
app.create_agent(
    "clerk", tools=["read_file", "bash"], permissions={"bash": "ask", "bash(ls:*)": "allow"}, mode="accept-edits"
)
app.create_agent("reader", tools=["read_file"], mode="read-only")
app.create_agent("broken", hooks=["breaks"])
app.create_agent("changed", hooks=["chain"], permissions={"bash": "ask", "bash(ls:*)": "allow"})


@app.on_tool_call
def no_curl(call: ToolCall, run_id: str) -> Deny | Ask | None:
    if call.name != "bash":
        return None
    if "curl" in call.arguments["command"]:
        print("what a hook prints is not the command's answer")
        return Deny("nothing is fetched here")
    return Ask("somebody has to look") if "make" in call.arguments["command"] else None


@app.on_tool_call
def no_long_files(call: ToolCall, run_id: str) -> Deny | None:
    return Deny("too long") if call.name == "write_file" and len(call.arguments["content"]) > 9 else None


@app.on_tool_call(agents=[])
def breaks(call: ToolCall, run_id: str) -> None:
    raise RuntimeError("no")


class Chain:
    def before(self, task):
        command = task.parameters["arguments"]["command"]
        if command == "stop":
            return Deny("not today")
        if command == "known":
            return Instead("as ever")
        return replace(task, parameters={**task.parameters, "arguments": {"command": "ls"}})


app.intercept(Chain(), name="chain", agents=[])
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command line beside an app with agents, hooks and an interceptor."""
    folder = tmp_path.resolve()
    (folder / "mine.py").write_text(APP_FILE)
    with commands_in(folder, monkeypatch, LOOM_APP="mine.py:app") as commands:
        configure_logs("WARNING", "console")
        yield commands


def checked(app: Commands, tool: str, given: dict[str, str], *words: str) -> tuple[str, str, str]:
    """Verdict, rule and reason."""
    ran = app("permissions", "check", tool, json.dumps(given), *words, "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    return told["verdict"], told["rule"], told["reason"]


def test_hooks_have_a_say_as_in_a_run_and_only_a_stricter_one(app: Commands) -> None:
    allowed = ("--permissions", '{"bash": "allow"}')
    assert checked(app, "bash", {"command": "curl x"}, *allowed) == ("deny", "hook no_curl", "nothing is fetched here")
    assert checked(app, "bash", {"command": "make"}, *allowed) == ("ask", "hook no_curl", "somebody has to look")
    assert checked(app, "bash", {"command": "ls"}, *allowed)[:2] == ("allow", "bash")
    denied = ("--permissions", '{"bash": "deny"}')
    assert checked(app, "bash", {"command": "curl x"}, *denied)[:2] == ("deny", "bash")
    assert checked(app, "bash", {"command": "make"}, "--mode", "bypass")[:2] == ("ask", "hook no_curl")
    assert "for the run" not in app("permissions", "check", "bash", '{"command": "make"}', *allowed).out


def test_hooks_see_what_was_left_out_as_if_it_were_empty(app: Commands) -> None:
    assert checked(app, "write_file", {"path": "a"})[:2] == ("ask", "built-in")
    assert checked(app, "write_file", {"path": "a", "content": "x" * 10})[:2] == ("deny", "hook no_long_files")


def test_a_hook_that_breaks_denies_and_only_for_the_agents_that_have_it(app: Commands) -> None:
    verdict, rule, reason = checked(app, "read_file", {"path": "a"}, "--agent", "broken")
    assert (verdict, rule) == ("deny", "hook breaks")
    assert "it failed with RuntimeError: no" in reason
    assert checked(app, "read_file", {"path": "a"})[0] == "allow"


def test_an_agent_s_rules_and_mode_are_its_own_with_the_request_s_laid_over_them(app: Commands) -> None:
    clerk = ("--agent", "clerk")
    assert checked(app, "bash", {"command": "ls"}, *clerk)[:2] == ("allow", "bash(ls:*)")
    assert checked(app, "bash", {"command": "pwd"}, *clerk)[:2] == ("ask", "bash")
    over = (*clerk, "--permissions", '{"bash": "deny"}')
    assert checked(app, "bash", {"command": "ls"}, *over)[:2] == ("deny", "bash")
    over = (*clerk, "--permissions", '{"bash(ls:*)": "ask"}')
    assert checked(app, "bash", {"command": "ls"}, *over)[:2] == ("ask", "bash(ls:*)")
    said = app("permissions", "check", "bash", '{"command": "ls"}', *clerk).out.splitlines()
    assert said[2:] == ["  matches bash: ask", "  matches bash(ls:*): allow"]
    assert checked(app, "bash", {"command": "ls"}, *clerk, "--mode", "read-only")[:2] == ("deny", "mode read-only")
    assert checked(app, "read_file", {"path": "a"}, "--agent", "reader")[0] == "allow"


def test_a_tool_that_an_agent_does_not_have_is_denied_to_it(app: Commands) -> None:
    told = checked(app, "write_file", {"path": "a"}, "--agent", "reader")
    assert told == ("deny", "tools", "agent reader does not have the write_file tool")
    ran = app("permissions", "check", "read_file", '{"path": "a"}', "--agent", "raeder")
    assert (ran.code, ran.err) == (USAGE, "--agent: there is no agent 'raeder': did you mean 'reader'?")


def test_interceptors_come_first_as_in_a_run(app: Commands) -> None:
    changed = ("--agent", "changed")
    assert checked(app, "bash", {"command": "stop"}, *changed) == ("deny", "interceptor chain", "not today")
    assert checked(app, "bash", {"command": "known"}, *changed)[:2] == ("allow", "interceptor chain")
    verdict, rule, reason = checked(app, "bash", {"command": "curl x"}, *changed)
    assert (verdict, rule) == ("allow", "bash(ls:*)")
    assert reason.endswith("; the interceptor chain changes the arguments")


def test_planner_and_check_say_the_same_of_calls_that_hooks_and_agents_are_about(app: Commands) -> None:
    registry = load_registry(read_settings())
    box = built_in_tools(sandbox=Unused(), shell_parser=BashParser(), tool_timeout=120)  # type: ignore[arg-type]
    own = RunTools(
        made=MadeTools(sandbox=None),
        skills=SkillTools(sandbox=None, missing="", timeout=1, note_of_missing=noting(None)),
    )
    sanitizer = OutputSanitizer(SecretMask(frozenset()), None)
    planner = CallPreparer(tools=box, own=own, sanitizer=sanitizer, registered=registry.hooks_for)
    every = tuple(tool.spec for tool in box.values())
    for name in ("clerk", "changed", "reader"):
        agent = registry.agents[name]
        spec = replace(
            spec_of(agent, AgentSpec(name=name, model="")), tools=tools_of(agent, every), workspace=str(app.folder)
        )
        for command in ("ls", "make", "curl x", "stop", "known"):
            call = ToolCall(id="check", name="bash", arguments={"command": command})
            context = TurnContext(spec=spec, grants=(), origin=Origin(run_id="r"), turn=1)
            [planned] = asyncio.run(planner.plans([call], context))
            verdict, rule, _ = checked(app, "bash", {"command": command}, "--agent", name)
            if planned.error:
                assert (verdict, rule, name) == ("deny", "tools", "reader")
            elif planned.stopped or planned.answer is not None:
                assert rule == f"interceptor {planned.interceptor}"
            else:
                assert (verdict, rule) == (planned.verdict, planned.rule)
