"""The table of commands: complete, true to the commands themselves, and all that `loom --help` needs."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import loom.cli.commands
from loom.cli.main import COMMANDS, LazyCommand, build_app
from loom.exit_codes import UNREACHABLE
from tests.commands import commands_in

LISTED = "from loom.cli.main import build_app; import sys; build_app()(['--help'], standalone_mode=False)"
LOADED = "print(*[name for name in sys.modules if name.startswith(('loom.', 'temporalio', 'pydantic', 'structlog'))])"


def test_each_command_module_is_in_the_table() -> None:
    modules = {path.stem for path in Path(loom.cli.commands.__path__[0]).glob("[a-z]*.py")}
    assert {module for module, _ in COMMANDS.values()} == modules


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_commands_own_help_says(name: str) -> None:
    command = LazyCommand(name, *COMMANDS[name]).load()
    assert command.name == name
    assert command.help.partition("\n")[0] == COMMANDS[name][1]


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


@pytest.mark.parametrize("words", ["list", "inbox", "watch", "costs", "advise", "status a-run", "run hello"])
def test_without_a_stack_no_command_tries_a_server_that_may_be_a_strangers(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(address: str, **_: object) -> None:
        raise AssertionError(f"tried {address}")

    monkeypatch.setattr("temporalio.client.Client.connect", connect)
    with commands_in(tmp_path, monkeypatch) as command:
        ran = command(*words.split())

    assert (ran.code, ran.out) == (UNREACHABLE, "")
    assert ran.err.startswith(f"no Temporal server is configured, and {tmp_path}/.loom has no stack: run `loom up`")
