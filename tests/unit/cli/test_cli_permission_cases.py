"""`loom permissions test`: a file of calls with the verdicts that a team expects, checked in one process."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from loom.composition.logs import configure_logs
from loom.domain.permissions.judge import Mode
from loom.exit_codes import COMPLETED, FAILED, USAGE
from tests.commands import Commands, Ran, commands_in
from tests.unit.cli.test_cli_permissions_of_apps import APP_FILE

VERDICTS = ("allow", "ask", "deny")
CALLS = some.sampled_from([
    ("bash", {"command": "ls && git push"}),
    ("bash", {"command": "cat .env > x"}),
    ("bash", {"command": "git reset --hard"}),
    ("bash", {"command": "curl x"}),
    ("bash", {"command": "make"}),
    ("write_file", {"path": "src/a"}),
    ("read_file", {"path": ".env"}),
    ("http_fetch", {"url": "https://a.example.com"}),
])  # fmt: skip
RULES = some.dictionaries(
    some.sampled_from(["bash", "bash(ls:*)", "bash(git:*)", "read_file(.env)", "write_file(src/**)", "default"]),
    some.sampled_from(VERDICTS),
)
AGENTS = some.sampled_from(["default", "clerk", "reader", "changed"])


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command line, in a folder with an app that it isn't told about."""
    (tmp_path / "mine.py").write_text(APP_FILE)
    with commands_in(tmp_path.resolve(), monkeypatch) as commands:
        configure_logs("WARNING", "console")
        yield commands


def report_on(loom: Commands, *cases: Mapping[str, Any] | str, words: tuple[str, ...] = ()) -> Ran:
    """What the command says to these cases, one on each line."""
    lines = [case if isinstance(case, str) else json.dumps(case) for case in cases]
    (loom.folder / "cases.jsonl").write_text("\n".join(lines))
    return loom("permissions", "test", "cases.jsonl", *words)


def case(command: str, expect: str | list[str], **more: Any) -> dict[str, Any]:
    return {"tool": "bash", "arguments": {"command": command}, "expect": expect, **more}


def test_a_file_without_differences_says_how_many_cases_it_has(loom: Commands) -> None:
    ran = report_on(loom, case("ls", "ask"), case("ls", ["deny", "allow"], permissions={"bash(ls:*)": "allow"}))
    assert (ran.code, ran.out) == (COMPLETED, "2 cases, 0 differences\n")


def test_programs_read_each_difference_with_its_line(loom: Commands) -> None:
    cases = (case("ls", "ask"), "", case("ls", ["allow", "ask"], name="no ls", permissions={"bash": "deny"}))
    ran = report_on(loom, *cases, words=("--json",))
    difference = {"line": 3, "name": "no ls", "expected": ["allow", "ask"]}
    difference |= {"verdict": "deny", "rule": "bash", "reason": "denied by the rule bash"}
    assert (ran.code, json.loads(ran.out)) == (FAILED, {"cases": 2, "differences": [difference]})


def test_people_read_where_a_case_is_and_which_rule_decided(loom: Commands) -> None:
    ran = report_on(loom, case("git push", "allow", name="push\x1b[2J", permissions={"bash(git push:*)": "ask"}))
    assert (ran.code, ran.out.splitlines()) == (
        FAILED,
        [
            "cases.jsonl:1: expected allow, got ask: bash(git push:*) (push\\x1b[2J)",
            "  the rule bash(git push:*) requires a person's approval",
            "1 case, 1 difference",
        ],
    )


@settings(max_examples=settings().max_examples // 10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=CALLS, rules=RULES, agent=AGENTS, mode=some.sampled_from([None, *Mode]))
def test_a_case_gets_what_check_says_and_check_says_what_a_run_gets(
    loom: Commands, call: tuple[str, dict[str, Any]], rules: dict[str, str], agent: str, mode: Mode | None
) -> None:
    tool, arguments = call
    words = ("--app", "mine.py:app", "--json")
    given = ("--permissions", json.dumps(rules), "--agent", agent, *(("--mode", mode) if mode else ()))
    said = json.loads(loom("permissions", "check", tool, json.dumps(arguments), *given, *words).out)
    wrong = [verdict for verdict in VERDICTS if verdict != said["verdict"]]
    entry = {"tool": tool, "arguments": arguments, "permissions": rules, "agent": agent, "mode": mode}
    ran = report_on(loom, {**entry, "expect": wrong}, {**entry, "expect": said["verdict"]}, words=words)
    [difference] = json.loads(ran.out)["differences"]
    assert {key: difference[key] for key in said} == said
    assert (ran.code, difference["line"]) == (FAILED, 1)


def test_a_yaml_list_says_the_same_as_lines_of_json(loom: Commands) -> None:
    cases = [case(f"ls {n}", "deny", name=f"case {n}") for n in range(5)]
    lines = json.loads(report_on(loom, *cases, words=("--json",)).out)
    text = yaml.safe_dump(cases, sort_keys=False)
    (loom.folder / "cases.yaml").write_text(f"# the team's policy\n{text}")
    ran = loom("permissions", "test", "cases.yaml", "--json")
    starts = [number for number, line in enumerate(text.splitlines(), start=2) if line.startswith("- ")]
    assert [each.pop("line") for each in lines["differences"]] == [1, 2, 3, 4, 5]
    listed = json.loads(ran.out)
    assert [each.pop("line") for each in listed["differences"]] == starts
    assert (ran.code, listed) == (FAILED, lines)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{", ":2: not valid JSON: "),
        ("[]", ":2: must be an object with fields such as `tool`, not []"),
        ('{"tool": "bash", "tool": "grep"}', "the key 'tool' occurs twice"),
        ("[" * 100_000, "nested too deeply"),
        ({"tool": "bash", "arguments": {"command": "ls"}}, ":2: expect is missing"),
        (case("ls", "alow"), ":2: expect: 'alow' is invalid: it must be allow, ask or deny, or a list of these"),
        (case("ls", []), ":2: expect: [] is invalid: it must be allow, ask or deny, or a list of these"),
        (case("ls", "ask", permisions={}), ":2: there is no field permisions: did you mean permissions?"),
        (case("ls", "ask", mode="brave"), ":2: mode 'brave' must be one of"),
        (case("ls", "ask", agent="clerc"), ":2: agent: there is no agent 'clerc'"),
        ({**case("ls", "ask"), "tool": "bsh"}, ":2: tool: there is no tool 'bsh': did you mean 'bash'?"),
        (case("ls", "ask", permissions={"bash": "yes"}), ":2: permissions: rule 'bash' must be allow, ask or deny"),
        (case("ls", "ask", permissions={"b*": "allow"}), ":2: permissions: permission rule 'b*' allows by a glob"),
        (case("ls", "ask", permissions={"bsh": "deny"}), ":2: permissions: permission rule 'bsh' names no tool"),
        ({"tool": "bash", "arguments": {}, "expect": "ask"}, "`command` is missing"),
        ({"tool": "bash", "arguments": "ls", "expect": "ask"}, ":2: arguments: 'ls' is invalid"),
        ({"tool": "read_file", "arguments": {"path": "../x"}, "expect": "deny"}, "outside the workspace"),
    ],
)
def test_a_malformed_case_is_wrong_usage_and_its_line_and_field_are_named(
    loom: Commands, entry: dict[str, Any] | str, message: str
) -> None:
    ran = report_on(loom, case("ls", "deny"), entry, words=("--json",))
    assert (ran.code, ran.out) == (USAGE, "")
    assert message in ran.err


def test_all_malformed_cases_are_named_at_once(loom: Commands) -> None:
    ran = report_on(loom, *(case("ls", "ask", agent=name) for name in ("a", "default", "b")))
    said = [line.split(": there")[0] for line in ran.err.splitlines()]
    assert said == ["cases.jsonl:1: agent", "cases.jsonl:3: agent"]


@pytest.mark.parametrize(("name", "text", "message"), [
    ("cases.yaml", "tool: bash\n", "cases.yaml:1: must be a list"),
    ("cases.yaml", "- tool: bash\n  tool: grep\n", "line 2: the key 'tool' occurs twice"),
    ("cases.yaml", "- [", "not valid YAML: line "),
    ("cases.yaml", "- {tool: bash, arguments: {command: 2026-01-01}, expect: ask}", ":1: arguments.command: "),
    ("cases.jsonl", "\n\n", "cases.jsonl: is empty"),
    ("cases.yaml", "", "cases.yaml: is empty"),
])  # fmt: skip
def test_a_file_that_cannot_be_read_as_cases_is_wrong_usage(loom: Commands, name: str, text: str, message: str) -> None:
    (loom.folder / name).write_text(text)
    ran = loom("permissions", "test", name)
    assert (ran.code, ran.out) == (USAGE, "")
    assert message in ran.err


def test_a_missing_file_or_workspace_is_wrong_usage(loom: Commands) -> None:
    assert loom("permissions", "test", "none.jsonl").err == "none.jsonl: there is no such file"
    assert "is not a folder" in report_on(loom, case("ls", "ask"), words=("--workspace", "/nowhere/at/all")).err


@pytest.mark.slow
def test_thousands_of_cases_are_checked_at_500_a_second(loom: Commands) -> None:
    rules = {"bash(git diff:*)": "allow", "bash(head:*)": "allow", "bash(rm:*)": "deny", "write_file(src/**)": "allow"}
    calls = (
        lambda n: {"tool": "bash", "arguments": {"command": f"git diff HEAD~{n} | head -{n}"}},
        lambda n: {"tool": "bash", "arguments": {"command": f"for f in a{n} b; do grep x $f; done > {n} && rm {n}"}},
        lambda n: {"tool": "write_file", "arguments": {"path": f"src/{n % 50}/{n}.py"}},
        lambda n: {"tool": "read_file", "arguments": {"path": f"docs/{n}.md"}},
        lambda n: {"tool": "http_fetch", "arguments": {"url": f"https://{n}.example.com"}},
    )
    cases = [{**calls[n % len(calls)](n), "permissions": rules, "expect": "allow"} for n in range(5_000)]
    begun = process_time()  # what others do on this machine is not counted
    ran = report_on(loom, *cases, words=("--json",))
    spent = process_time() - begun
    said = json.loads(ran.out)
    assert (ran.code, said["cases"], len(said["differences"])) == (FAILED, 5_000, 2_000)
    assert spent < 10, f"{5_000 / spent:.0f} cases a second"
