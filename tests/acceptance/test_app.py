"""A user's app from end to end: the command line runs its tools, a worker serves it, `up` passes it on."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from loom.domain.core.tool_calls import STAGES
from loom.stack import state
from loom.stack import up_down as stack
from loom.stack.plan import Plan
from loom.testing.model_server import ModelServer, ToolUse, calls, script, text
from tests.acceptance.conftest import Killable, Working
from tests.acceptance.test_stack import POLLING_WORKER, QUEUE, SERVICES
from tests.commands import Commands, commands_in

SHOP = "examples.tools.shop:app"
LOOM = (sys.executable, "-P", "-c", "from loom.cli.main import main; main()")
MINE = """
from loom import LoomApp

app = LoomApp()


@app.tool(effect="read")
def double(number: int) -> int:
    "Twice the number."
    return number * 2
"""


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command line of somebody who has the example's tools."""
    with commands_in(tmp_path.resolve(), monkeypatch, LOOM_APP=SHOP) as commands:
        yield commands


def call(loom: Commands, tool: str, **arguments: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and result of `loom tools call --json`."""
    ran = loom("tools", "call", tool, json.dumps(arguments), "--workspace", str(loom.folder), "--json")
    return ran.code, dict(json.loads(ran.out))


def test_a_tool_is_run_without_model_or_server_and_tells_its_result(loom: Commands) -> None:
    (loom.folder / "a.txt").write_text("b a b")
    code, result = call(loom, "count_words", path="a.txt", at_least=2)
    metadata = result.pop("metadata")
    assert (code, result) == (0, {"tool_call_id": "call-1", "content": '{"b":2}', "status": "success"})
    assert tuple(metadata["stage_breakdown"]) == STAGES
    assert {key: metadata[key] for key in ("error_type", "recoverable", "empty_response")} == {
        "error_type": None,
        "recoverable": True,
        "empty_response": False,
    }
    assert call(loom, "bash", command="echo hello > b.txt; cat b.txt")[1]["content"].startswith("hello")


@pytest.mark.parametrize(
    ("tool", "arguments", "error", "says"),
    [
        ("order_label", {"to": {"town": "Atlantis", "street": "1"}, "size": "small"}, "permission", "no post office"),
        ("rate", {"weight": -1, "size": "small"}, "validation", "`weight` must be more than 0"),
        ("raet", {}, "not_found", "did you mean rate"),
        ("count_words", {"path": "/etc/passwd"}, "validation", "outside the workspace"),
    ],
)
def test_a_call_that_fails_is_a_result_with_exit_code_1(
    loom: Commands, tool: str, arguments: dict[str, Any], error: str, says: str
) -> None:
    code, result = call(loom, tool, **arguments)
    assert (code, result["status"], result["metadata"]["error_type"]) == (1, "error", error)
    assert says in result["content"]
    assert not list(loom.folder.glob("label-*"))


def test_what_a_person_sees_of_a_call(loom: Commands) -> None:
    # A hook that asks is answered by whoever typed the command.
    asked = loom("tools", "call", "order_label", '{"to": {"town": "Avalon", "street": "1"}, "size": "large"}')
    assert (asked.code, asked.out) == (0, "The label is in label-avalon.json.\n")
    assert "label for Avalon ordered" in asked.err
    assert json.loads((loom.folder / "label-avalon.json").read_text())["size"] == "large"
    drawn = loom("tools", "call", "chart", '{"values": [101]}')
    assert (drawn.code, "(image bars.png," in drawn.out, "chart: warning" in drawn.err) == (0, True, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("call", "rate", "[]"), "must be a JSON object"),
        (("show", "raet"), "did you mean 'rate'"),
        (("list", "--app", "nowhere:app"), "there is no module 'nowhere'"),
        (("call", "rate", "{}", "--workspace", "/no/such/folder"), "/no/such/folder"),
    ],
)
def test_wrong_usage_is_code_2(loom: Commands, words: tuple[str, ...], says: str) -> None:
    ran = loom("tools", *words)
    assert (ran.code, ran.out, says in ran.err) == (2, "", True)


def install(folder: Path, name: str, code: str) -> None:
    """A package with tools, as an installer leaves it."""
    facts = folder / f"{name}-1.5.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\nSummary: Doubles\n")
    (facts / "entry_points.txt").write_text(f"[loom.tools]\nmain = {name}:app\n")
    (folder / f"{name}.py").write_text(code)


def test_tools_are_listed_with_where_they_come_from(loom: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = loom.folder / "mine.py"
    mine.write_text(MINE)
    tools = {
        tool["name"]: tool for tool in json.loads(loom("tools", "list", "--json", "--app", str(mine)).out)["tools"]
    }
    assert tools["double"] == {
        "name": "double",
        "description": "Twice the number.",
        "effect": "read",
        "permission": "allow",
        "scope": "sandboxed",
        "origin": f"app {mine}: mine.double ({mine}:7)",
        "missing": None,
    }
    assert (tools["bash"]["origin"], tools["bash"]["permission"]) == ("built-in", "ask")
    facts = json.loads(loom("tools", "show", "rate", "--json").out)
    assert (facts["timeout"], facts["parameters"]["required"]) == (10, ["weight", "size"])

    install(loom.folder / "site", "acme_double", MINE)
    monkeypatch.syspath_prepend(str(loom.folder / "site"))
    everything = json.loads(loom("tools", "list", "--all", "--json").out)
    (package,) = (each for each in everything["packages"] if each["name"] == "acme_double")
    assert (package["version"], package["summary"], package["enabled"]) == ("1.5", "Doubles", False)
    assert "double" not in {tool["name"] for tool in everything["tools"]}
    monkeypatch.setenv("LOOM_PACKAGES", "acme-double")
    origins = {tool["name"]: tool["origin"] for tool in json.loads(loom("tools", "list", "--json").out)["tools"]}
    assert origins["double"].startswith("package acme_double 1.5: acme_double.double ")
    assert "rate" in origins
    sys.modules.pop("acme_double")


def test_the_command_itself_ends_with_the_result_s_code_and_one_line_of_json(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    words = ("tools", "call", "rate", '{"weight": 1, "size": "huge"}', "--json", "--app", SHOP)
    ran = subprocess.run([*LOOM, *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert json.loads(ran.stdout)["metadata"]["error_type"] == "validation"


@pytest.mark.parametrize(
    "program",
    [
        [*LOOM, "up"],
        pytest.param([*LOOM, "worker"], marks=pytest.mark.slow),
        pytest.param([sys.executable, "-m", "loom._worker"], marks=pytest.mark.slow),
    ],
)
def test_a_wrong_setting_is_named_by_whatever_would_start_a_worker(program: list[str], tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    ran = subprocess.run(
        program, env={**env, "LOOM_MAX_TURNS": "0"}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.endswith("LOOM_MAX_TURNS: must be at least 1\n")


def turn(*uses: ToolUse) -> Any:
    """A model that makes these calls and then is done."""
    return script([calls(*uses), text("done")])


def results(model: ModelServer) -> dict[str, str]:
    """What the model read of each call."""
    return {m["tool_call_id"]: m["content"] for m in model.requests[-1].messages if m["role"] == "tool"}


async def test_a_run_uses_the_app_s_tools_and_its_pictures_reach_the_model(working: Working, workspace: Path) -> None:
    (workspace / "a.txt").write_text("b a b")
    uses = (
        ToolUse("count_words", {"path": "a.txt"}, "c1"),
        ToolUse("track", {"parcel": "P1"}, "c2"),
        ToolUse("chart", {"values": [3, 1]}, "c3"),
        ToolUse("order_label", {"to": {"town": "Atlantis", "street": "1"}, "size": "small"}, "c4"),
        ToolUse("read_file", {"path": "../secret"}, "c5"),
    )
    loom, model = await working(turn(*uses), app=SHOP)
    result = await loom.run()
    assert (result.status, result.output) == ("completed", "done")
    told = results(model)
    assert told["c1"] == '{"b":2,"a":1}'
    assert told["c2"] == "P1: accepted\nP1: in Frankfurt\nP1: delivered\n"
    assert told["c3"] == "2 bars."
    assert "Atlantis has no post office" in told["c4"]
    last = model.requests[-1].messages[-1]
    assert (last["role"], last["content"][0]["type"]) == ("user", "image_url")
    assert last["content"][0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert not list(workspace.glob("label-*"))


async def test_a_hook_that_asks_waits_for_a_person_even_in_a_run_that_bypasses_the_rules(
    working: Working, workspace: Path
) -> None:
    use = ToolUse("order_label", {"to": {"town": "Avalon", "street": "1"}, "size": "small"}, "c1")
    loom, model = await working(turn(use), app=SHOP, max_mode="bypass")
    run_id = await loom.start(mode="bypass")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    assert ask["reason"] == f"run {run_id} sends to Avalon"
    await loom.client.approve(run_id, "c1")
    assert (await loom.client.result(run_id)).status == "completed"
    assert results(model) == {"c1": "The label is in label-avalon.json."}
    assert (workspace / "label-avalon.json").exists()


async def test_an_agent_has_the_tools_and_rules_that_it_was_given(working: Working, workspace: Path) -> None:
    (workspace / "private").mkdir()
    (workspace / "private" / "a.txt").write_text("secret")
    uses = (
        ToolUse("read_file", {"path": "private/a.txt"}, "c1"),
        ToolUse("bash", {"command": "cat private/a.txt"}, "c2"),
        ToolUse("weather", {"town": "Ulm"}, "c3"),
    )
    loom, model = await working(turn(*uses), app=SHOP)
    assert (await loom.run(agent="clerk")).status == "completed"
    offered = [tool["function"]["name"] for tool in model.requests[0].body["tools"]]
    assert offered == ["done", "rate", "read_file", "track", "weather"]
    assert "You answer questions about parcels." in model.requests[0].messages[0]["content"]
    told = results(model)
    assert "read_file(private/**)" in told["c1"]
    assert "there is no tool 'bash'" in told["c2"]
    assert told["c3"] == "In Ulm it rains."


@pytest.mark.slow
async def test_a_worker_process_loads_the_app_that_its_command_names(killable: Killable) -> None:
    loom, model, workers = await killable(turn(ToolUse("double", {"number": 21}, "c1")))
    (workers.folder / "mine.py").write_text(MINE)
    await workers.start((*LOOM[1:], "worker", "--app", "mine.py:app"))
    assert (await loom.run()).status == "completed"
    assert results(model) == {"c1": "42"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home for the stack of the tests that follow; it is ended after them."""
    home = tmp_path_factory.mktemp("up") / ".loom"
    yield home
    stack.down(home)


@pytest.mark.slow
def test_up_passes_the_app_on_and_starts_the_worker_anew_for_another_one(home: Path) -> None:
    def up(app: str | None) -> tuple[dict[str, int], str | None, str | None]:
        """The processes, what is written down, and what the worker was told."""
        up = stack.up_detached(Plan(home=home, worker=POLLING_WORKER, task_queue=QUEUE, app=app))
        pids = {name: part.pid for name, part in state.read(home).living().items()}
        return pids, up.app, psutil.Process(pids["worker"]).environ().get("LOOM_APP")

    first, *told = up("one:app")
    assert told == ["one:app", "one:app"]
    assert up("one:app") == (first, "one:app", "one:app")
    assert up(None) == (first, "one:app", "one:app")
    second, *told = up("two:app")
    assert told == ["two:app", "two:app"]
    assert second["worker"] != first["worker"]
    assert {name: second[name] for name in SERVICES} == {name: first[name] for name in SERVICES}


@pytest.mark.slow
def test_up_passes_workspace_roots_on_and_starts_the_worker_anew_for_others(home: Path) -> None:
    def up(*workspaces: str) -> tuple[int, tuple[str, ...], str | None]:
        """The worker, what is written down, and what the worker was told."""
        plan = Plan(home=home, worker=POLLING_WORKER, task_queue=QUEUE, workspaces=workspaces)
        up = stack.up_detached(plan)
        pid = state.read(home).living()["worker"].pid
        return pid, up.workspaces, psutil.Process(pid).environ().get("LOOM_WORKSPACES")

    first, *told = up("/one")
    assert told == [("/one",), "/one"]
    assert up("/one") == up() == (first, ("/one",), "/one")
    second, *told = up("/one", "/two")
    assert (second != first, told) == (True, [("/one", "/two"), "/one:/two"])


@pytest.mark.slow
def test_doctor_says_whether_mcp_servers_answer_and_prints_nothing_but_json(tmp_path: Path) -> None:
    server = [sys.executable, "-m", "mcp_server_time"]
    (tmp_path / "loom.toml").write_text(
        f"[mcp.clock]\ncommand = {json.dumps(server)}\n[mcp.gone]\ncommand = ['nobody']\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    said = subprocess.run(
        [*LOOM, "doctor", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    servers = json.loads(said.stdout)["parts"]["mcp"]["servers"]
    assert (servers["clock"]["ok"], servers["clock"]["tools"], servers["gone"]["ok"]) == (True, 2, False)


def test_permissions_are_checked_with_the_tools_of_the_app(loom: Commands) -> None:
    ran = loom("permissions", "check", "count_words", '{"path": "a.txt"}', "--json")
    assert json.loads(ran.out)["verdict"] == "allow"
