"""The table of commands: complete, true to the commands themselves, and all that `loom --help` needs."""

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import loom.cli.commands
from loom import cli
from loom.activities.adapters.signing.approval_key_files import read_approval_key, read_approval_keys
from loom.cli.main import COMMANDS, LazyCommand, build_app
from loom.domain.core.errors import LoomError
from loom.exit_codes import UNREACHABLE, USAGE, code_of
from tests.commands import commands_in


def each_command() -> dict[str, Any]:
    """The commands that end by themselves, with the commands of groups, by name."""
    found: dict[str, Any] = {}
    waiting = [(name, LazyCommand(name, *entry).load()) for name, entry in COMMANDS.items()]
    for name, command in waiting:
        children = getattr(command, "commands", {})
        waiting += [(f"{name} {child}", each) for child, each in children.items()]
        if not children or command.invoke_without_command:
            found[name] = command
    return {name: command for name, command in found.items() if name not in {"up", "worker", "serve", "mcp serve"}}


LISTED = "from loom.cli.main import build_app; import sys; build_app()(['--help'], standalone_mode=False)"
LOADED = "print(*[name for name in sys.modules if name.startswith(('loom.', 'temporalio', 'pydantic', 'structlog'))])"

ESCAPE = "\x1b"
EACH = each_command()
LOCAL = {
    *(
        "agents list",
        "agents show",
        "crew list",
        "crew show",
        "crew validate",
        "tools list",
        "tools show",
        "tools call",
    ),
    *(
        "skills list",
        "skills show",
        "skills validate",
        "skills add",
        "validate",
        "permissions check",
        "permissions test",
    ),
    *(
        "init",
        "down",
        "doctor",
        "health",
        "logs",
        "notify test",
        "mcp login",
        "diff",
        "restore",
        "move",
        "providers",
        "backup",
    ),
    *("keys new", "keys approval", "keys rotate", "keys rewrap", "keys list", "tenants forget"),
}
"""Commands that don't need a server, or that need something else first."""
OF_STORES = {name for name in EACH if name.startswith(("tokens ", "audit ", "memory ", "knowledge "))}
"""Commands that need Postgres instead of Temporal."""
VALUES = {
    **dict.fromkeys(["run_id", "runs", "a", "b"], "run-1"),
    **dict.fromkeys(["task", "message", "text", "query", "reason"], "hello"),
    **dict.fromkeys(["name", "tool", "token_id", "deployment", "build", "artifact", "path"], "some"),
    **dict.fromkeys(["memory_id", "fact_id"], "7"),
    "arguments": "{}",
    "cron": "0 6 * * *",
}
"""A value for each argument, by its name."""
OPTIONS = {"--role": "viewer", "--turn": "1", "--name": "notes", "--older-than": "30", "--from": "elsewhere"}
MORE = {
    "fork": ["--message", "x"],
    "what-if": ["--model", "demo"],
    "memory list": ["--user", "u"],
    "memory edit": ["--user", "u"],
    "memory add": ["--session", "s"],
    "memory export": ["--session", "s"],
    "memory forget": ["--session", "s", "--yes"],
    "eval": ["--yes"],
}
"""Options without which a command refuses its words."""


def test_each_command_module_is_in_the_table() -> None:
    modules = {path.stem for path in Path(loom.cli.commands.__path__[0]).glob("[a-z]*.py")}
    assert {module for module, _ in COMMANDS.values()} == modules


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_commands_own_help_says(name: str) -> None:
    command = LazyCommand(name, *COMMANDS[name]).load()
    assert command.name == name
    assert command.help.partition("\n")[0] == COMMANDS[name][1]


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_break_no_command(closed: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "TEMPORAL_"))}
    words = ["bash", "-c", f'"$0" -m loom list {closed}', sys.executable]
    ran = subprocess.run(
        words, env={**env, "LOOM_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, "Traceback" in ran.stderr) == (UNREACHABLE, False)


def test_help_imports_no_command_and_no_library_behind_one() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"{LISTED}; {LOADED}"], check=True, capture_output=True, text=True, timeout=60
    )
    *_, loaded = ran.stdout.splitlines()
    assert "validate     Check files that define agents, crews or permissions." in ran.stdout
    assert {name for name in loaded.split() if not name.startswith(("loom.domain.", "loom.stack"))} == {
        "loom.cli",
        "loom.cli.main",
        "loom.domain",
        "loom.exit_codes",
        "loom.extras",
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("loom st", ["status"]),
        ("loom memory re", ["reembed", "retain"]),
        ("loom status --j", ["--json"]),
        ("loom memory search --li", ["--limit"]),
    ],
)
def test_shells_complete_commands_and_options(words: str, expected: list[str]) -> None:
    completing = {"_LOOM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    ran = CliRunner().invoke(build_app(), env=completing, prog_name="loom")
    assert sorted(ran.stdout.split()) == expected


def test_an_unknown_command_is_answered_with_the_one_that_was_meant() -> None:
    ran = CliRunner().invoke(build_app(), ["statsu"])
    assert ran.exit_code == 2
    assert "Did you mean 'status'" in ran.stderr


@pytest.mark.parametrize("name", EACH)
def test_without_a_stack_no_command_tries_a_server_that_may_be_a_strangers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(address: str, **_: object) -> None:
        raise AssertionError(f"tried {address}")

    monkeypatch.setattr("temporalio.client.Client.connect", connect)
    with commands_in(tmp_path, monkeypatch) as command:
        ran = command(*words_for(name, tmp_path))

    assert ESCAPE not in ran.out + ran.err
    if name in LOCAL:
        return
    assert (ran.code, ran.out) == (UNREACHABLE, "")
    assert "`loom up`" in ran.err
    if name not in OF_STORES:
        assert ran.err.startswith(f"no Temporal server is configured, and {tmp_path}/.loom has no stack: run `loom up`")


@pytest.mark.parametrize("name", [name for name in EACH if name not in LOCAL])
def test_where_no_server_answers_each_command_names_it_with_code_5(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loom.activities.adapters.postgres.database._CONNECT_SECONDS", 0.01)
    servers = {
        "TEMPORAL_ADDRESS": "127.0.0.1:9",
        "LOOM_DATABASE_URL": "postgresql://loom:s3cret@127.0.0.1:9/loom",
        "LOOM_REDIS_URL": "redis://:s3cret@127.0.0.1:9/0",
    }
    with commands_in(tmp_path, monkeypatch, **servers):
        ran = CliRunner().invoke(build_app(), words_for(name, tmp_path))

    error = ran.exception
    assert isinstance(error, LoomError)
    assert (code_of(error), ran.stdout) == (UNREACHABLE, "")
    assert re.match("no Temporal server answers at 127.0.0.1:9: |.* does not respond.*port 9 |.*Redis", error.message)
    assert "s3cret" not in ran.stderr + error.message
    assert not re.search(r"\[(warning|error) ", ran.stderr)  # the error says it all


def test_a_home_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr("loom.composition.load_settings.os.scandir", refuse)
    with commands_in(tmp_path, monkeypatch) as command:
        ran = command("down")
    assert (ran.code, ran.err) == (USAGE, f"LOOM_HOME: {tmp_path}/.loom can't be read: Permission denied")


def test_a_command_says_what_it_waits_for_if_the_server_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(address: str, **_: object) -> None:
        await asyncio.sleep(0.01)
        raise RuntimeError(f"Failed client connect: {address} doesn't answer")

    monkeypatch.setattr("loom.cli.connection.SILENT", 0)
    monkeypatch.setattr("temporalio.client.Client.connect", connect)
    with commands_in(tmp_path, monkeypatch, TEMPORAL_ADDRESS="127.0.0.1:9"):
        ran = CliRunner().invoke(build_app(), ["list"])
    assert ran.stderr == "waiting for the server to answer: 127.0.0.1:9 (TEMPORAL_ADDRESS)\n"


def words_for(name: str, folder: Path) -> list[str]:
    """The words of a command with a value for each argument and option that it requires."""
    crew = folder / "crew.yaml"
    crew.write_text("mode: sequential\nmembers: [{name: scout, task: Look.}]\n")
    cases = folder / "cases.yaml"
    cases.write_text("- {task: hello, checks: [{contains: hello}]}\n")
    values = VALUES | {"crew": str(crew), "files": str(crew), "file": str(cases), "folder": str(folder)}
    words = name.split()
    for parameter in EACH[name].params:
        if parameter.param_type_name == "argument" and (parameter.required or parameter.name in {"run_id", "message"}):
            words.append(values[str(parameter.name)])
        elif parameter.required:
            words += [parameter.opts[0], OPTIONS[parameter.opts[0]]]
    has_json = any("--json" in parameter.opts for parameter in EACH[name].params)
    return [*words, *MORE.get(name, ()), *(["--json"] if has_json else [])]


def test_every_command_that_starts_runs_says_who_starts_them() -> None:
    """The audit log and approval policies need the name."""
    starts = {"loom.start", "loom.start_crew", "loom.fork", "loom.schedules.add"}
    found = [
        (ast.unparse(node.func), "by" in {keyword.arg for keyword in node.keywords})
        for module in Path(cli.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in starts
    ]
    assert {name for name, _ in found} == starts
    assert all(says_who for _, says_who in found)


def test_a_key_that_proves_approvals_is_created_once_with_its_public_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commands_in(tmp_path, monkeypatch) as command:
        made = command("keys", "approval", "--file", "approval.key", "--json")
        again = command("keys", "approval", "--file", "approval.key")
    told = json.loads(made.out)
    assert read_approval_key(tmp_path / "approval.key").id == told["key"]
    assert read_approval_keys(Path(told["public"])).ids == (told["key"],)
    assert (again.code, "exists already" in again.err) == (USAGE, True)
