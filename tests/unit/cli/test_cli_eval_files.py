"""Data sets of `loom eval` that are wrong: each error names its line and field, and nothing runs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from loom.app.forms.eval_case import read_eval_cases
from loom.cli.evals.planned_runs import planned_runs
from loom.exit_codes import UNREACHABLE, USAGE
from tests.commands import Commands, Ran, commands_in

GOOD: Mapping[str, Any] = {"task": "do it", "checks": [{"contains": "done"}]}


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command line in a folder without a stack."""
    with commands_in(tmp_path.resolve(), monkeypatch) as commands:
        yield commands


def evaluated(loom: Commands, *cases: Mapping[str, Any], words: tuple[str, ...] = ()) -> Ran:
    """What the command says to these cases, one on each line."""
    (loom.folder / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    return loom("eval", "cases.jsonl", *words)


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        ({"checks": [{"contains": "x"}]}, "task is missing"),
        ({**GOOD, "agnet": "desk"}, "there is no field agnet: did you mean agent?"),
        ({**GOOD, "name": "a b"}, "name: 'a b' must have 1 to 60 letters, digits, hyphens and underscores"),
        ({**GOOD, "checks": []}, "checks [] must have at least 1"),
        ({**GOOD, "checks": [{"contians": "x"}]}, "checks.0: a check has one of file, called, not_called, judge,"),
        ({**GOOD, "checks": [{"contains": "x", "ignore_case": True}]}, "there is no field checks.0.ignore_case"),
        ({**GOOD, "checks": [{"regex": "("}]}, "checks.0.regex: is not a regular expression: missing ),"),
        ({**GOOD, "checks": [{"judge": "ok", "min_score": 2}]}, "checks.0.min_score 2 must be at most 1"),
        ({**GOOD, "checks": [{"schema": {"type": "no"}}]}, "checks.0.schema: its schema is not a valid JSON Schema"),
        ({**GOOD, "checks": [{"file": "a.md"}]}, "checks.0.file: the case needs a `workspace`"),
        ({**GOOD, "workspace": ".", "checks": [{"file": "../a"}]}, "checks.0.file: '../a' must be a path inside"),
        ({**GOOD, "workspace": "gone"}, "workspace: there is no folder gone"),
        ({**GOOD, "workspace": "."}, "eval-workspaces, where its copies go: choose another folder with --workspaces"),
        ({**GOOD, "permissions": {"bash": "maybe"}}, "rule 'bash' must be allow, ask or deny, not 'maybe'"),
        ({**GOOD, "budget": {"tokns": 3}}, "unknown field 'budget.tokns', did you mean 'budget.tokens'?"),
        ({**GOOD, "attach": ["gone.png"]}, "attach: gone.png cannot be read: No such file or directory"),
        ({**GOOD, "checks": [{"rule": "checks"}]}, "rule 'checks': write `package.module:function`"),
        ({**GOOD, "checks": [{"rule": "gone.py:f"}]}, "rule 'gone.py:f': there is no file"),
    ],
)
def test_an_error_names_the_line_and_the_field(loom: Commands, case: dict[str, Any], complaint: str) -> None:
    ran = evaluated(loom, GOOD, case)
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.err.startswith("cases.jsonl:2: ")
    assert complaint in ran.err


def test_all_errors_are_listed_at_once(loom: Commands) -> None:
    ran = evaluated(loom, {**GOOD, "name": "x"}, {"task": 1, "checks": [{"exact": 2}]}, {**GOOD, "name": "x"})
    assert ran.err.splitlines() == [
        "cases.jsonl:2: task: 1 is invalid: it must be text; put it in quotes",
        "cases.jsonl:2: checks.0.exact: 2 is invalid: it must be text; put it in quotes",
        "cases.jsonl:3: name: 'x' is also in cases.jsonl:1: rename one of them",
    ]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--name", "a.b"), "--name: 'a.b' must have 1 to 60 letters"),
        (("--mode", "fast"), "cases.jsonl:1: the run's input is wrong: mode"),
        (("--total-budget", '{"turns": 3}'), "--total-budget: there is no limit 'turns'"),
        (("--total-budget", '{"tokens": 3}'), "cases.jsonl:1: a total budget needs a limit for each run"),
    ],
)
def test_a_wrong_option_names_itself(loom: Commands, words: tuple[str, ...], complaint: str) -> None:
    ran = evaluated(loom, GOOD, words=words)
    assert (ran.code, ran.out) == (USAGE, "")
    assert complaint in ran.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "pass at least one of --permissions, --mode, --model and --prompt"),
        (("--mode", "fast"), "--mode: 'fast' is not one of default, read-only,"),
        (("--prompt", "gone.md"), "--prompt: gone.md cannot be read: [Errno 2]"),
    ],
)
def test_a_what_if_without_a_valid_change_is_refused(loom: Commands, words: tuple[str, ...], complaint: str) -> None:
    ran = loom("what-if", "run-1", *words)
    assert (ran.code, ran.out) == (USAGE, "")
    assert complaint in ran.err


def test_a_file_and_a_link_with_the_same_text_are_different_cases(tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text(json.dumps({**GOOD, "workspace": "work"}))
    made = tmp_path / "work" / "a"
    made.parent.mkdir()

    def run_id() -> str:
        (case,) = read_eval_cases(tmp_path / "cases.jsonl")
        (run,) = planned_runs([case], name="e", repeats=1, changes={}, workspaces=tmp_path / "copies")
        return run.run_id

    made.write_text("b")
    of_file = run_id()
    made.unlink()
    made.symlink_to("b")
    assert run_id() != of_file


def test_without_a_server_nothing_runs(loom: Commands) -> None:
    assert evaluated(loom, GOOD).code == UNREACHABLE
