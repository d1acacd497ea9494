"""What commands say of the worker that runs, and what is refused because no running worker has it."""

import json
import re
from pathlib import Path

import pytest

from loom.chat_session import ChatSession
from loom.composition.live_workers import live_reports
from loom.domain.core.errors import BadRequest, RunNotFoundError
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Killable, Working
from tests.acceptance.test_command_line import command_line, new_id, said
from tests.skills import write_release_notes

SHOP = "examples.tools.shop:app"
DESK = """
from loom import LoomApp

app = LoomApp()
app.create_agent("clerk", description="Sorts letters.")
app.create_crew("desk", mode="sequential", members=[{"name": "first", "agent": "clerk"}])


@app.tool
def weigh(parcel: str) -> str:
    \"\"\"Weigh a parcel.\"\"\"
    return parcel
"""
WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--agent", "defualt"), "unknown agent 'defualt'; did you mean 'default'?"),
        (("--model", "opnai:gpt-5"), "no such model: 'opnai:gpt-5'; did you mean 'openai:gpt-5'?"),
        (("--model", "gpt-5"), "no such model: 'gpt-5'; write one of openai:gpt-5, "),
        (("--skills", "release-note"), "there is no skill 'release-note': did you mean 'release-notes'?"),
        (("--workspace", "/no/such/folder"), "workspace '/no/such/folder' is not a folder on the worker; create it"),
        (("--mode", "bypas"), "mode must be one of default, read-only, accept-edits, bypass; did you mean 'bypass'?"),
        (("--model-options", '{"sed": 1}'), "model_options.sed is not an option: did you mean 'seed'?"),
    ],
)
async def test_wrong_input_is_refused_before_a_run_starts(
    working: Working, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    write_release_notes(tmp_path / ".agents/skills")
    loom, _ = await working(script([text("never")]), skills_home=tmp_path)
    cli, run_id = command_line(loom), new_id()

    ran = await cli("run", "x", "--id", run_id, "--json", *words)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert (await cli("status", run_id)).code == 2  # there is no such run


async def test_the_client_refuses_what_no_worker_has(working: Working, workspace: Path, tmp_path: Path) -> None:
    write_release_notes(tmp_path / ".agents/skills")
    (tmp_path / "desk.py").write_text(DESK)
    loom, _ = await working(
        script([text("done")], repeat_last=True),
        max_mode="default",
        workspaces=(workspace,),
        skills_home=tmp_path,
        app=f"{tmp_path / 'desk.py'}:app",
    )
    await eventually(lambda: _reported(loom))
    with pytest.raises(BadRequest, match="unknown agent 'nobody'; known: clerk, default"):
        await loom.start(agent="nobody")
    with pytest.raises(BadRequest, match="unknown agent 'defualt'; did you mean 'default'"):
        await loom.start(agent="defualt")
    with pytest.raises(BadRequest, match="there is no crew 'dsek': did you mean 'desk'"):
        await loom.client.start_crew("dsek", "work")
    letters = {"mode": "parallel", "members": [{"name": "a", "agent": "clrek"}, {"name": "b", "agent": "clerk"}]}
    with pytest.raises(BadRequest, match="members with unknown agents: 'clrek': did you mean 'clerk'"):
        await loom.client.start_crew({"name": "letters", **letters}, "work")
    one = {"mode": "parallel", "members": [{"name": "a", "tools": ["weihg"]}]}
    with pytest.raises(BadRequest, match="members with unknown tools: 'weihg': did you mean 'weigh'"):
        await loom.client.start_crew({"name": "one", **one}, "work")
    with pytest.raises(BadRequest, match="permission rule 'bsh' names no tool: did you mean bash"):
        await loom.client.start_crew(
            {"name": "two", "mode": "parallel", "members": [{"name": "a"}], "permissions": {"bsh": "deny"}}, "work"
        )
    with pytest.raises(BadRequest, match="no such model: 'opnai:gpt-5'; did you mean 'openai:gpt-5'"):
        await loom.start(model="opnai:gpt-5")
    with pytest.raises(BadRequest, match="there is no skill 'release-note': did you mean 'release-notes'"):
        await loom.start(skills=["release-note"])
    for folder in (workspace / "nowhere", workspace / "a\0b", workspace / ("x" * 5000), "~nobody-has-this-name"):
        with pytest.raises(BadRequest, match="is not a folder on the worker; create it"):
            await loom.start(workspace=str(folder))
    for rule, meant in (("bsh", "bash"), ("Bash(git diff:*)", "bash"), ("weihg", "weigh"), ("read_fil", "read_file")):
        with pytest.raises(BadRequest, match=rf"{re.escape(rule)}' names no tool: did you mean {meant}\?"):
            await loom.start(permissions={rule: "deny"})
        with pytest.raises(BadRequest, match=rf"{re.escape(rule)}' names no tool: did you mean {meant}\?"):
            await loom.client.set_permissions("no-run", {rule: "deny"})
    with pytest.raises(RunNotFoundError):  # the rules are right
        await loom.client.set_permissions("no-run", {"mcp__*": "deny", "write_*": "ask", "bash(rm *)": "deny"})
    with pytest.raises(BadRequest, match="unknown agent 'defualt'; did you mean 'default'"):
        await loom.client.estimate("defualt")
    with pytest.raises(BadRequest, match="no such model: 'opnai:gpt-5'; did you mean 'openai:gpt-5'"):
        await loom.client.estimate(model="opnai:gpt-5")
    with pytest.raises(BadRequest, match="'mcp__nope__x' names no MCP server: known are none"):
        await loom.start(permissions={"mcp__nope__x": "deny"})
    with pytest.raises(BadRequest, match="output_schema: its schema is not a valid JSON Schema: 'strng'"):
        await loom.start(output_schema={"type": "strng"})
    with pytest.raises(BadRequest, match="metadata.loom has an unknown option 'pattren'; did you mean 'pattern'?"):
        await loom.start(metadata={"loom": {"pattren": "reflexion"}})
    with pytest.raises(BadRequest, match="'bsh' names no tool: did you mean bash"):
        await loom.client.schedules.add("0 9 * * *", "work", name=loom.settings.task_queue, permissions={"bsh": "deny"})
    with pytest.raises(BadRequest, match="there is no schedule"):
        await loom.client.schedules.remove(loom.settings.task_queue)
    with pytest.raises(BadRequest, match=r"'weigh\(heavy\)' has a pattern, but weigh has nothing to match it against"):
        await loom.start(permissions={"weigh(heavy)": "deny"})
    with pytest.raises(BadRequest, match="user_id is empty"):
        await loom.start(user_id="  ")
    for unstorable in (float("nan"), "\ud800"):
        with pytest.raises(BadRequest, match="metadata must be JSON without NaN, Infinity or unpaired surrogates"):
            await loom.start(metadata={"a": unstorable})
    for strange, says in (
        ("@last", "begins with @"),
        ("a\nb", "contains"),
        ("\udce9", "contains"),
        ("x" * 901, "too long"),
    ):
        with pytest.raises(BadRequest, match=says):
            await loom.client.start("work", run_id=strange)
    ran = await command_line(loom)("crew", "run", "dsek", "work")
    assert (ran.code, ran.out) == (2, "")
    assert "there is no crew 'dsek': did you mean 'desk'?" in ran.err
    ran = await command_line(loom)("inbox", "--agent", "defualt", "--json")
    assert (ran.code, ran.json) == (0, [])
    assert "nothing waits in runs of the agent 'defualt'; `loom agents list` shows the agents' names" in ran.err
    with pytest.raises(BadRequest, match="is outside the folders that this worker serves"):
        await loom.start(workspace=str(workspace.parent))
    with pytest.raises(BadRequest, match="permits more than this worker does"):
        await loom.start(mode="accept-edits")
    assert (await loom.run(model="anthropic:other")).output == "done"
    assert loom.started[1:] == []


async def test_a_chat_with_an_unknown_agent_does_not_begin(working: Working) -> None:
    loom, _ = await working(script([]))
    await eventually(lambda: _reported(loom))
    chat = ChatSession(loom.client, session=new_id(), agent="defualt")

    with pytest.raises(BadRequest, match="unknown agent 'defualt'; did you mean 'default'?"):
        await chat.send("hello")

    with pytest.raises(RunNotFoundError):
        await chat.status()


async def test_nothing_is_refused_while_no_worker_runs(killable: Killable) -> None:
    loom, _, _ = await killable(script([]))

    run_id = await loom.start(agent="of-a-worker-to-come")

    assert (await loom.client.status(run_id))["status"] == "running"
    waiting = await command_line(loom).begun("result", run_id)
    assert "the run waits. Start one with `loom worker` or `loom up`\n" in await said(waiting.stderr, "`loom up`\n")
    waiting.terminate()
    await waiting.communicate()
    await loom.client.temporal.get_workflow_handle(run_id).terminate()


async def test_doctor_and_tools_speak_of_the_worker_that_runs(killable: Killable) -> None:
    loom, _, workers = await killable(script([]))
    process = await workers.start(LOOM_APP=SHOP)

    other = command_line(loom, LOOM_MODEL="demo", OPENAI_API_KEY="sk-other")
    told = (await other("doctor", "--json")).json["parts"]
    shown = (await other("doctor")).out
    listed = (await other("tools", "list", "--json")).json["tools"]
    here = (await other("tools", "list", "--json", "--app", "tests.clock_app:app")).json["tools"]

    assert (told["model"]["model"], told["worker"]["model"]) == ("openai:scripted", "openai:scripted")
    assert (told["worker"]["app"], told["worker"]["pids"]) == (SHOP, [process.pid])
    assert told["worker"]["version"]
    assert told["worker"]["differs"] == [
        "LOOM_MODEL is demo here, but openai:scripted in the worker",
        "OPENAI_API_KEY here differs from the worker's",
    ]
    assert "LOOM_MODEL is demo here, but openai:scripted in the worker" in shown
    assert f"server: {loom.settings.temporal_address}" in shown
    assert "sk-" not in json.dumps(told) + shown
    assert {tool["name"] for tool in listed} > {tool["name"] for tool in here}

    await workers.kill(process)
    assert await live_reports(loom.settings) == []


async def test_lists_speak_of_the_worker_that_runs(killable: Killable, tmp_path: Path) -> None:
    loom, _, workers = await killable(script([]), skills_home=tmp_path)
    cli = command_line(loom)

    async def names(*words: str) -> tuple[set[str], str]:
        ran = await cli(*words, "--json")
        shown = ran.json
        items = shown if isinstance(shown, list) else shown[words[0]]
        return {str(item["name"]) for item in items}, ran.err

    (tmp_path / "desk.py").write_text(DESK)
    write_release_notes(tmp_path / "skills/.agents/skills")
    worker = await workers.start(LOOM_APP=f"{tmp_path / 'desk.py'}:app", LOOM_SKILLS_HOME=str(tmp_path / "skills"))
    whose = f"of the running worker (process {worker.pid}, app {tmp_path / 'desk.py'}:app)\n"
    assert await names("agents", "list") == ({"default", "clerk"}, f"the agents {whose}")
    assert await names("crew", "list") == ({"desk"}, f"the crews {whose}")
    assert await names("skills", "list") == ({"release-notes"}, f"the skills {whose}")
    shown = await cli("tools", "show", "weigh", "--json")
    assert shown.json["parameters"]["required"] == ["parcel"]
    assert shown.err == f"the tools {whose}"
    assert (await cli("tools", "show", "wiegh")).err.endswith("did you mean 'weigh'?\n")

    other = f"the running worker (process {worker.pid}, app {tmp_path / 'desk.py'}:app) may have another\n"
    preview = "this is the agent that a worker started in this folder would have"
    assert (await cli("agents", "show", "default")).err == f"{preview}; {other}"

    await workers.kill(worker)
    assert (await cli("agents", "show", "default")).err == f"found no running worker: {preview}\n"
    here = "found no running worker: these are the agents that a worker started in this folder would have\n"
    assert await names("agents", "list") == ({"default"}, here)


async def test_runs_are_listed_by_their_start(working: Working) -> None:
    loom, _ = await working(lambda seen: text("done") if seen.messages[-1]["role"] == "tool" else calls(WRITE))
    session = new_id()
    ids = [await loom.start(session_id=session) for _ in range(3)]
    for run_id in ids:
        await loom.asked(run_id)
    for run_id in (ids[2], ids[0]):  # the oldest run ends last
        await loom.client.deny(run_id)
        await loom.client.result(run_id)

    async def listed(limit: int) -> list[str]:
        return [run.run_id for run in await loom.client.list(session=session, limit=limit)]

    async def shows_both_ends() -> bool:
        return [run.closed_at is None for run in await loom.client.list(session=session)].count(True) == 1

    await eventually(shows_both_ends)
    assert await listed(50) == ids[::-1]
    assert await listed(2) == ids[:0:-1]
    await loom.client.abort(ids[1])


async def test_an_unknown_run_says_which_server_does_not_know_it(working: Working) -> None:
    loom, _ = await working(script([]))
    cli = command_line(loom)

    quiet, verbose = await cli("status", "nobody"), await cli("--verbose", "status", "nobody", "--json")

    where = f"{loom.settings.temporal_address}, namespace {loom.settings.temporal_namespace}"
    server = f"server: {where} (TEMPORAL_ADDRESS)\n"
    assert (quiet.code, quiet.err.endswith(f"loom: {server}")) == (2, True)
    assert (verbose.out, verbose.err.startswith(server)) == ("", True)


async def _reported(loom: Harness) -> bool:
    return bool(await live_reports(loom.settings))
