"""What docs/permissions.md shows is so: its rules are read, its commands are run, their output is compared."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from loom.cli.arguments import read_object
from loom.cli.commands import permissions
from loom.cli.worker_preview import load_registry
from loom.composition.load_settings import read_settings
from loom.domain.core.errors import LoomError
from loom.domain.permissions.dead_rules import dead_rules
from loom.domain.permissions.rules import parse_rules

PAGE = Path(__file__).parents[3] / "docs" / "permissions.md"
BLOCKS = re.findall(r"^```([^\n]*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
RULES = [text for kind, text in BLOCKS if kind == "json { .rules }"]
SESSIONS = [text for kind, text in BLOCKS if kind == "console"]
CASES = "tests/permissions.yaml"
APP = typer.Typer()
APP.add_typer(permissions.app)


def steps(session: str) -> list[tuple[str, str]]:
    """Each command with what it printed."""
    return [(command, output) for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE)]


def write_cases(folder: Path) -> None:
    """The page's file of cases, where its commands expect it."""
    [text] = [text for kind, text in BLOCKS if kind == f'yaml title="{CASES}"']
    (folder / CASES).parent.mkdir()
    (folder / CASES).write_text(text)


def test_the_page_has_examples_of_both_kinds() -> None:
    assert (len(RULES) >= 3, len(SESSIONS) >= 3) == (True, True)
    assert {kind for kind, _ in BLOCKS} == {
        "json { .rules }",
        "console",
        "python",
        f'yaml title="{CASES}"',
        "yaml { .ci }",
    }


@pytest.mark.parametrize("text", RULES)
def test_every_rule_of_the_page_can_be_read_and_can_match(text: str) -> None:
    rules = read_object(text, "rules")
    tools = [tool.spec for tool in load_registry(read_settings()).tools.values()]
    assert parse_rules(rules)
    assert dead_rules(rules, tools) == ()


@pytest.mark.parametrize(("command", "output"), [step for session in SESSIONS for step in steps(session)])
def test_every_command_of_the_page_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cases(tmp_path)
    program, *words = shlex.split(command)
    result = CliRunner().invoke(APP, words)
    assert program == "loom"
    if isinstance(result.exception, LoomError):
        assert f"loom: {result.exception.message}\n" == output
    else:
        assert result.stdout == output


def test_the_python_of_the_page_runs() -> None:
    programs = [text for kind, text in BLOCKS if kind == "python"]
    assert all("\nassert " in program for program in programs)
    for program in programs:
        exec(program, {})


def test_the_page_s_step_for_ci_fails_when_a_verdict_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [step] = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml { .ci }"]
    program, *words = shlex.split(step[-1]["run"])
    monkeypatch.chdir(tmp_path)
    write_cases(tmp_path)
    assert (program, CliRunner().invoke(APP, words).exit_code) == ("loom", 1)
    cases = tmp_path / CASES
    cases.write_text(cases.read_text().replace("expect: deny # a mistake", "expect: [ask, deny]"))
    assert CliRunner().invoke(APP, words).exit_code == 0
