"""What docs/permissions.md shows is so: its rules are read, its commands are run, their output is compared."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from loom.cli.arguments import read_object
from loom.cli.commands import permissions
from loom.domain.permissions.dead_rules import dead_rules
from loom.domain.permissions.rules import parse_rules

PAGE = Path(__file__).parents[1] / "docs" / "permissions.md"
BLOCKS = re.findall(r"^```([^\n]*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
RULES = [text for kind, text in BLOCKS if kind == "json rules"]
SESSIONS = [text for kind, text in BLOCKS if kind == "console"]
APP = typer.Typer()
APP.add_typer(permissions.app)


def steps(session: str) -> list[tuple[str, str]]:
    """Each command with what it printed."""
    return [(command, output) for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE)]


def test_the_page_has_examples_of_both_kinds() -> None:
    assert (len(RULES) >= 3, len(SESSIONS) >= 3) == (True, True)
    assert {kind for kind, _ in BLOCKS} == {"json rules", "console", "python"}


@pytest.mark.parametrize("text", RULES)
def test_every_rule_of_the_page_can_be_read_and_can_match(text: str) -> None:
    rules = read_object(text, "rules")
    tools = [tool.spec for tool in permissions.worker_tools("bash")[0].values()]
    assert parse_rules(rules)
    assert dead_rules(rules, tools) == ()


@pytest.mark.parametrize(("command", "output"), [step for session in SESSIONS for step in steps(session)])
def test_every_command_of_the_page_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    result = CliRunner().invoke(APP, words)
    assert program == "loom"
    if result.exception is not None:
        assert f"loom: {getattr(result.exception, 'message', result.exception)}\n" == output
    else:
        assert result.stdout == output


def test_the_python_of_the_page_runs() -> None:
    programs = [text for kind, text in BLOCKS if kind == "python"]
    assert all("\nassert " in program for program in programs)
    for program in programs:
        exec(program, {})
