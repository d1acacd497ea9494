"""The `loom` command end to end: what a person or a script gets from each command, and with which exit code."""

import asyncio
import getpass
import json
import os
import shlex
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, hang, script, text
from loom.testing.waiting import PATIENCE, eventually
from loom.testing.worker_processes import environment
from tests.acceptance.conftest import BEGUN, Working
from tests.forked_commands import forked
from tests.skills import write_release_notes, write_skill

LOOM: Final = str(Path(sys.executable).parent / "loom")
WRITE: Final = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
ASKS: Final = ToolUse("ask_user", {"question": "Red or blue?"}, "q1")


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one value on standard output."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    """`loom` with the settings of a test's worker."""

    env: Mapping[str, str]

    async def begun(self, *words: str, stdin: int = DEVNULL) -> Process:
        """Begin a command."""
        process = await asyncio.create_subprocess_exec(
            *forked(*words), env=self.env, stdin=stdin, stdout=PIPE, stderr=PIPE
        )
        BEGUN.append(process)
        return process

    async def __call__(self, *words: str) -> Ran:
        """Run a command to its end."""
        process = await self.begun(*words)
        out, err = await process.communicate()
        return Ran(code=process.returncode or 0, out=out.decode(), err=err.decode())

    async def status(self, run_id: str) -> dict[str, Any]:
        """What `loom status --json` says."""
        return dict((await self("status", run_id, "--json")).json)


def command_line(loom: Harness, **changed: str) -> Cli:
    """The command as a user of this worker would have it."""
    return Cli(env={**environment(loom.settings, loom.workspace.parent), **changed})


async def said(stream: asyncio.StreamReader | None, words: str) -> str:
    """What a command says until it has said these words."""
    assert stream is not None
    return (await asyncio.wait_for(stream.readuntil(words.encode()), PATIENCE)).decode()


async def cut_off(cli: Cli, *words: str) -> tuple[int | None, bytes]:
    """How a command ends, and what it says, if nobody reads its output."""
    reader, writer = os.pipe()
    os.close(reader)
    process = await asyncio.create_subprocess_exec(LOOM, *words, env=cli.env, stdout=writer, stderr=PIPE)
    os.close(writer)
    BEGUN.append(process)
    _, told = await process.communicate()
    return process.returncode, told


def new_id() -> str:
    """A run's id that nobody has used."""
    return f"cli-{uuid4().hex[:8]}"


async def test_a_run_is_started_approved_and_read(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    cli, run_id = command_line(loom), new_id()

    started = await cli("run", "write it", "--id", run_id, "--workspace", str(workspace), "--detach", "--json")
    assert started.json == {"run_id": run_id}
    assert await loom.client.started_by(run_id) == getpass.getuser()
    watching = asyncio.create_task(cli("watch", run_id, "--json"))
    await loom.asked(run_id)
    assert (await cli("approve", run_id, "w1", "--json")).json["accepted"]
    result = await cli("result", run_id, "--json")
    assert (result.code, result.json["status"], result.json["output"]) == (0, "completed", "written")
    watched = await watching
    events = [json.loads(line) for line in watched.out.splitlines()]
    assert (watched.code, events[0]["action"], events[-1]["action"]) == (0, "node.start", "node.complete")
    ended = await cli.status(run_id)
    assert (ended["task"], ended["started_at"] < ended["closed_at"]) == ("write it", True)
    lines = (await cli("status", run_id)).out.splitlines()
    assert (lines[:2], " · took " in lines[2]) == ([f"{run_id} · completed", "write it"], True)
    assert f"✓ write_file (approved by {getpass.getuser()}): " in (await cli("show", run_id)).out
    assert await cut_off(cli, "list") == (128 + signal.SIGPIPE, b"")


async def test_a_decision_says_which_call_it_is_about(working: Working) -> None:
    other = ToolUse("write_file", {"path": "other.txt", "content": "hello"}, "w2")
    loom, _ = await working(script([calls(WRITE), calls(other), text("done")]))
    cli, run_id = command_line(loom), await loom.start()
    await loom.asked(run_id)

    approved = await cli("approve", run_id)
    await loom.until(run_id, lambda status: [ask["call_id"] for ask in status["pending_approvals"]] == ["w2"])
    denied = await cli("deny", run_id, "w")

    assert (approved.out, denied.out) == ("approved write_file (w1)\n", "denied write_file (w2)\n")


@pytest.mark.slow
async def test_a_run_is_asked_about_and_its_events_are_read_from_anywhere(working: Working) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    cli, run_id = command_line(loom), await loom.start()

    await loom.asked(run_id)
    assert (await cli.status(run_id))["status"] == "waiting_for_approval"

    async def listed() -> bool:  # the list follows the run a moment later
        return run_id in (await cli("list", "--status", "waiting_for_approval", "--json")).out

    await eventually(listed)
    await loom.client.approve(run_id)
    await loom.client.result(run_id)
    events = [json.loads(line) for line in (await cli("events", run_id, "--json")).out.splitlines()]
    assert (events[0]["action"], events[-1]["action"]) == ("node.start", "node.complete")
    half = events[len(events) // 2]["offset"]
    rest = [json.loads(line) for line in (await cli("events", run_id, "--from", str(half), "--json")).out.splitlines()]
    assert rest == [event for event in events if event["offset"] > half]
    assert (await cli("show", run_id)).code == 0


async def test_show_redacts_the_arguments_of_calls(working: Working) -> None:
    secret = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    ran = ToolUse("read_file", {"path": secret}, "r1")
    not_run = ToolUse("fetch", {"headers": {"Authorization": f"Bearer {secret}"}}, "f1")
    loom, _ = await working(script([calls(ran, not_run), text("done")]))
    await loom.run()
    cli, run_id = command_line(loom), loom.started[0]

    shown = await asyncio.gather(
        cli("show", run_id), cli("show", run_id, "--json"), cli("show", run_id, "--turn", "2", "--context")
    )

    for each in shown:
        assert each.code == 0
        assert "[REDACTED]" in each.out
        assert secret not in each.out


@pytest.mark.slow
async def test_yes_approves_every_ask_of_the_run_and_says_so(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))

    ran = await command_line(loom)("run", "write it", "--workspace", str(workspace), "--yes", "--json")

    assert (ran.code, ran.json["status"]) == (0, "completed")
    assert "approv" in ran.err
    assert (workspace / "out.txt").read_text() == "hello"


@pytest.mark.slow
async def test_an_approval_for_the_run_says_when_it_is_for_one_call_only(working: Working) -> None:
    guarded, plain = ToolUse("bash", {"command": "rmdir /"}, "b1"), ToolUse("bash", {"command": "ls"}, "b2")
    loom, _ = await working(script([calls(guarded), calls(plain), text("no")]))
    cli, run_id = command_line(loom), await loom.start()
    await loom.asked(run_id)

    first = await cli("approve", run_id, "b1", "--for-run")
    await loom.until(run_id, lambda status: [ask["call_id"] for ask in status["pending_approvals"]] == ["b2"])
    second = await cli("approve", run_id, "b2", "--for-run", "--json")

    assert first.out == "approved bash (b1), only this call: the guard against rmdir of / asks each time\n"
    assert second.json["scope"] == "run"
    await loom.client.result(run_id)
    events = [json.loads(line) for line in (await cli("events", run_id, "--json")).out.splitlines()]
    decided = [event["parameters"] for event in events if event["action"] == "node.approval_decided"]
    assert [said["scope"] for said in decided] == ["once", "run"]


@pytest.mark.slow
async def test_a_question_says_how_to_answer_it_wherever_a_run_is_looked_at(working: Working) -> None:
    loom, model = await working(script([calls(ASKS), text("blue it is")]))
    cli, run_id = command_line(loom), new_id()
    hint = f'answer with `loom send {run_id} "your answer"`'

    running = await cli.begun("run", "paint", "--id", run_id, "--yes", "--json")
    told = await said(running.stderr, hint)
    watching = await cli.begun("watch", run_id)
    shown = await said(watching.stdout, hint)
    status = (await cli("status", run_id)).out
    assert (await cli("send", run_id, "blue")).code == 0
    (result, _), _ = await asyncio.gather(running.communicate(), watching.communicate())

    notice = f'waiting for an answer to "Red or blue?"; {hint}'
    assert told.endswith(notice)
    assert shown.endswith(notice)
    assert status.splitlines()[-2:] == ["waiting on answer: Red or blue?", f"  {hint}"]
    assert json.loads(result)["output"] == "blue it is"
    assert str(model.requests[1].messages[-1]["content"]).endswith("answers: blue")


async def test_a_question_is_answered_at_the_terminal_that_watches(working: Working) -> None:
    loom, model = await working(script([calls(ASKS), text("blue it is")]))
    at_terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    command, env = [sys.executable, "-c", at_terminal, LOOM, "run", "paint"], command_line(loom, TERM="xterm").env

    running = await asyncio.create_subprocess_exec(*command, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    asked = await said(running.stdout, "Red or blue? (Enter sends)")
    out, _ = await running.communicate(b"blue\n")

    assert "loom send" not in asked + out.decode()
    assert (running.returncode, "blue it is" in out.decode()) == (0, True)
    assert str(model.requests[1].messages[-1]["content"]).endswith("answers: blue")


@pytest.mark.parametrize(
    ("given", "code", "status"),
    [
        (("--max-turns", "2"), 4, "limit_reached"),
        pytest.param(("--budget", '{"tokens": 20}'), 4, "budget_exhausted", marks=pytest.mark.slow),
        (("--model", "nonsense:x"), 2, "failed"),
    ],
)
async def test_the_exit_code_says_how_the_run_ended(
    working: Working, workspace: Path, given: tuple[str, ...], code: int, status: str
) -> None:
    loom, _ = await working(lambda _: calls(ToolUse("list_dir", {"path": "."})))

    ran = await command_line(loom)("run", "x", *given, "--workspace", str(workspace), "--json")

    assert ran.code == code
    if status == "failed":
        assert "no such model: 'nonsense:x'" in ran.err
    else:
        assert ran.json["status"] == status


async def test_the_result_of_an_aborted_run_has_code_3(working: Working) -> None:
    loom, _ = await working(script([calls(WRITE)]))
    run_id = await loom.start()
    await loom.asked(run_id)
    await loom.client.abort(run_id)

    assert (await command_line(loom)("result", run_id, "--json")).code == 3


@pytest.mark.slow
async def test_an_aborted_run_ends_its_watchers_with_code_3(working: Working) -> None:
    loom, model = await working(lambda _: hang())
    cli = command_line(loom)
    run_id = await loom.start("x")
    watching = asyncio.create_task(cli("watch", run_id, "--json"))

    async def hangs() -> bool | None:
        return bool(model.requests) or None

    await eventually(hangs)
    assert (await cli("abort", run_id, "--reason", "enough")).code == 0

    watched = await watching
    assert watched.code == 3
    assert json.loads(watched.out.splitlines()[-1])["action"] == "node.complete", watched
    assert (await cli("result", run_id, "--json")).code == 3


@pytest.mark.parametrize(
    "wrong",
    [
        [("run x --max-turns 0", "max"), ("run x --id {run_id}", "exists"), ("nonsense", "nonsense")],
        pytest.param(
            [
                ("run ''", "an argument is empty"),
                ('run x --permissions \'{{"bash": "maybe"}}\'', "maybe"),
                ("run x --permissions /no/such/file", "/no/such/file"),
                ("status no-such-run", "no-such-run"),
                ("approve {run_id}", "ended"),
                ("list --status nonsense", "nonsense"),
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["short", "long"],
)
async def test_wrong_usage_is_code_2_and_says_what_was_wrong(working: Working, wrong: list[tuple[str, str]]) -> None:
    loom, _ = await working(script([text("ok")]))
    cli, run_id = command_line(loom), await loom.start("x")
    await loom.client.result(run_id)

    for line, named in wrong:
        ran = await cli(*shlex.split(line.format(run_id=run_id)))
        assert (ran.code, named in ran.err, ran.out) == (2, True, ""), (line, ran)


@pytest.mark.parametrize("words", [("list", "--json"), pytest.param(("worker", "--fail-fast"), marks=pytest.mark.slow)])
async def test_no_server_is_code_5_with_the_way_out(working: Working, words: tuple[str, ...]) -> None:
    loom, _ = await working(script([text("never")]))

    ran = await command_line(loom, TEMPORAL_ADDRESS="127.0.0.1:9")(*words)

    assert (ran.code, ran.out) == (5, "")
    assert ran.err == "loom: no Temporal server answers at 127.0.0.1:9: run `loom up`, or set TEMPORAL_ADDRESS\n"


@pytest.mark.slow
async def test_a_worker_says_which_setting_is_wrong(working: Working) -> None:
    loom, _ = await working(script([text("never")]))

    ran = await command_line(loom, LOOM_MAX_TURNS="many")("worker")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("loom: LOOM_MAX_TURNS: ")


@pytest.mark.slow
async def test_of_a_server_that_is_none_of_temporal_s_only_what_helps_is_told(working: Working) -> None:
    loom, _ = await working(script([text("never")]))

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        ran = await command_line(loom, TEMPORAL_ADDRESS=f"127.0.0.1:{port}")("list")

    assert (ran.code, ran.out) == (5, "")
    assert ran.err.startswith(f"loom: no Temporal server answers at 127.0.0.1:{port} (")
    assert ran.err.endswith("): run `loom up`, or set TEMPORAL_ADDRESS\n")
    assert not any(internal in ran.err for internal in ("tonic", "Failed client connect", "{"))


@pytest.mark.slow
async def test_the_command_line_takes_a_schema_from_a_file(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([text('{"city": "Berlin"}')], repeat_last=True))
    cli, schema = command_line(loom), '{"type": "object", "required": ["city"]}'
    (workspace / "schema.json").write_text(schema)

    from_file = await cli("run", "Which?", "--output-schema", str(workspace / "schema.json"), "--json")
    given = await cli("run", "Which?", "--output-schema", schema, "--json")
    missing = await cli("run", "Which?", "--output-schema", "nowhere.json", "--json")

    assert (from_file.code, from_file.json["structured_output"]) == (0, {"city": "Berlin"})
    assert given.json["structured_output"] == {"city": "Berlin"}
    assert missing.code == 2
    assert "neither a JSON object nor an existing file" in missing.err


@pytest.mark.slow
async def test_skills_that_a_run_is_given_are_active_from_the_start(working: Working, tmp_path: Path) -> None:
    write_release_notes(tmp_path / ".agents/skills")
    write_skill(tmp_path / ".agents/skills", "other")
    loom, model = await working(script([text("written")]), skills_home=tmp_path)
    cli = command_line(loom)

    ran = await cli("run", "x", "--skills", "release-notes", "--skills", "other", "--json")
    wrong = await cli("run", "x", "--skills", "release-note", "--json")

    assert (ran.code, ran.json["status"]) == (0, "completed")
    prompt = model.requests[0].messages[0]["content"]
    assert '<skill_content name="release-notes">' in prompt
    assert '<skill_content name="other">' in prompt
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("loom: there is no skill 'release-note': did you mean 'release-notes'?")


@pytest.mark.slow
async def test_a_reader_that_goes_away_ends_a_command_without_a_word(working: Working) -> None:
    loom, _ = await working(script([text("Four.")]))
    cli, name = command_line(loom), new_id()
    await cli("run", "two and two", "--id", name, "--workspace", str(loom.workspace), "--json")
    for words in (("watch", name), ("watch", name, "--json"), ("events", name), ("show", name), ("list",)):
        reading, writing = os.pipe()
        os.close(reading)
        ended = await asyncio.to_thread(
            subprocess.run, forked(*words), env=cli.env, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
        )
        os.close(writing)
        assert ended.stderr == "", words
