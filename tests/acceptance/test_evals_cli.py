"""`loom eval` end to end: the example, a comparison, an eval that is killed, judges, budgets and approvals."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from loom.app.forms.eval_case import read_eval_cases
from loom.cli.evals.checks import rules_of
from loom.cli.evals.eval_runs import EvalOptions, EvalRuns
from loom.cli.evals.planned_runs import planned_runs
from loom.cli.evals.total_budget import TotalBudget
from loom.cli.evals.what_if_rules import Changes, decided_again, rules_view
from loom.domain.core.errors import BadRequest
from loom.domain.evals.report import EvalReport
from loom.testing.harness import Harness
from loom.testing.model_replies import Reply, SeenRequest
from loom.testing.model_server import ToolUse, calls, text
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import command_line, new_id, said
from tests.trees import by_task

DESK: Final = Path(__file__).parents[2] / "examples" / "evals" / "desk.yaml"
WRITE: Final = ToolUse("write_file", {"path": "report.md", "content": "# Findings\n"})
KNOWS_THE_HANDBOOK: Final = by_task({
    "error E12": [calls(ToolUse("grep", {"pattern": "E12"})), text("There is no paper in it, says errors.md.")],
    "invoice": [text("It is corrected within 3 days: payments.md.")],
    "Saturday": [text("Until noon, as invented.md says: until noon.")],
    "dress code": [text("The handbook says nothing about it.")],
    "Audit": [calls(WRITE), text("The report is written.")],
})  # fmt: skip


def data_set(loom: Harness, *cases: Mapping[str, Any]) -> Path:
    """A file with these cases, one on each line."""
    path = loom.workspace / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, cases)))
    return path


async def evaluated(
    loom: Harness, file: Path, name: str, *, repeats: int = 1, total: Mapping[str, Any] | None = None, **changes: Any
) -> EvalReport:
    """What the command does with this file, without the start of another process."""
    cases = read_eval_cases(file)
    copies = loom.workspace / "copies"
    runs = planned_runs(cases, name=name, repeats=repeats, changes=changes, workspaces=copies)
    options = EvalOptions(
        name=name,
        at_once=4,
        rules=rules_of(cases, file.parent),
        judge_model=None,
        approves=False,
        told=lambda _checked: None,
    )
    return await EvalRuns(loom.client, options).report(cases, runs, TotalBudget(total or {}, runs))


def passes(report: EvalReport) -> dict[str, tuple[int, int]]:
    """How many runs of each case passed, of how many."""
    return {case.name: (case.tally.passed, case.tally.runs) for case in report.cases}


async def test_the_example_runs_with_the_demo_model_and_another_is_compared_with_it(working: Working) -> None:
    loom, _ = await working(KNOWS_THE_HANDBOOK)
    other = await evaluated(loom, DESK, "scripted", model="openai:scripted")

    copies = ("--workspaces", str(loom.workspace / "copies"))
    demo = await command_line(loom)(
        "eval", str(DESK), "--model", "demo", "--against", "scripted", "--min-pass", "1", "--json", *copies
    )

    assert demo.code == 0, demo.out + demo.err
    assert (demo.json["total"]["passed"], demo.json["total"]["pass_rate"]) == (5, 1.0)
    against = demo.json["against"]
    assert (against["eval"], against["cases"], against["better"], against["worse"]) == ("scripted", 5, ["saturday"], [])
    assert (round(against["difference"], 3), against["p"]) == (0.2, 1.0)
    assert against["interval"][0] < 0.2 < against["interval"][1]
    assert passes(other) == {
        "printer-error": (1, 1),
        "invoice": (1, 1),
        "saturday": (0, 1),
        "not-in-the-handbook": (1, 1),
        "audit-report": (1, 1),
    }
    (failed,) = other.cases[2].runs
    assert failed.failures == ("rule: sources.py:names_its_source: there is no page invented.md",)
    assert not (DESK.parents[1] / "audit" / "sources" / "report.md").exists()


async def test_an_eval_that_is_killed_goes_on_without_repeating_what_has_ended(working: Working) -> None:
    loom, model = await working(
        by_task({"first": [text("one")], "second": [text("two", delay=1.0)], "third": [text("three")]})
    )
    first, second = (
        {"task": task, "checks": [{"exact": said}]} for task, said in (("first", "one"), ("second", "two"))
    )
    file = data_set(loom, first, second)

    killed = await command_line(loom).begun("eval", str(file), "--name", "night", "--repeat", "2", "--at-once", "1")
    await said(killed.stderr, "2/4 case-1 (2): passed")
    killed.kill()
    await killed.communicate()
    again = await evaluated(loom, file, "night", repeats=2)

    assert passes(again) == {"case-1": (2, 2), "case-2": (2, 2)}
    assert [_task(seen) for seen in model.requests] == ["first", "first", "second", "second"]

    data_set(loom, {"task": "third", "checks": [{"exact": "three"}], "name": "case-1"}, second)
    changed = await evaluated(loom, file, "night", repeats=2)

    assert passes(changed) == {"case-1": (2, 2), "case-2": (2, 2)}
    assert [_task(seen) for seen in model.requests][4:] == ["third", "third"]


async def test_a_judge_scores_answers_once_and_calls_that_need_approval_are_denied(working: Working) -> None:
    judged = {"reason": "It is polite.", "score": 0.9}
    loom, model = await working(
        by_task(
            {
                "<rubric>\nThe answer is polite.": [text("Good."), text(json.dumps(judged))],
                "<rubric>\nThe answer is long.": [text('{"reason": "Two words.", "score": 0.1}')],
                "remove it": [calls(ToolUse("bash", {"command": "rm x"})), text("I may not, sorry.")],
            }
        )
    )
    checks = [
        {"judge": "The answer is polite."},
        {"judge": "The answer is long.", "min_score": 0.5},
        {"called": "bash", "arguments": {"command": "rm x"}, "status": "denied"},
    ]
    file = data_set(loom, {"task": "remove it", "checks": checks})

    first = await evaluated(loom, file, "manners")
    asked = len(model.requests)
    second = await evaluated(loom, file, "manners")

    (run,) = first.cases[0].runs
    told = [(check.passed, check.score, check.reason) for check in run.checks]
    assert told == [
        (True, 0.9, "It is polite."),
        (False, 0.1, "0.10 is below 0.50: Two words."),
        (True, None, ""),
    ]
    assert (run.passed, first.totals.tokens - run.run.tokens) == (False, 45)
    assert (second, len(model.requests)) == (first, asked)


async def test_a_total_budget_starts_only_the_runs_that_it_covers(working: Working) -> None:
    loom, model = await working(by_task({"count": [text("1")]}))
    file = data_set(loom, *({"task": f"count {number}", "checks": [{"exact": "1"}]} for number in range(4)))

    report = await evaluated(loom, file, "dear", budget={"tokens": 100_000}, total={"tokens": 100_020})

    # Each run uses 15 tokens of the 100,000 that it reserves, so a second one fits and a third one doesn't.
    assert (report.totals.runs, report.not_run, len(model.requests)) == (2, 2, 2)


async def test_an_eval_that_is_not_there_is_an_error(working: Working) -> None:
    loom, model = await working(by_task({"": [text("1")]}))
    cases = read_eval_cases(data_set(loom, {"task": "count", "checks": [{"exact": "1"}]}))
    options = EvalOptions(name="x", at_once=1, rules={}, judge_model=None, approves=False, told=lambda _checked: None)

    with pytest.raises(BadRequest, match="--against: the eval 'gone' has no runs of these cases that have ended"):
        await EvalRuns(loom.client, options).recorded(cases, "gone")

    assert not model.requests


async def test_recorded_calls_are_decided_again_with_other_rules_and_nothing_runs(working: Working) -> None:
    look, push = ToolUse("bash", {"command": "ls"}, "c1"), ToolUse("bash", {"command": "git push"}, "c2")
    read, gone = ToolUse("read_file", {"path": "a.txt"}, "c3"), ToolUse("no_such_tool", {}, "c4")
    loom, model = await working(by_task({"look": [calls(look), calls(push, read, gone), text("done")]}))
    run_id = await loom.start("look", permissions={"bash": "ask"})
    for call_id in ("c1", "c2"):
        await loom.asked(run_id)
        await loom.client.approve(run_id, call_id, scope="run" if call_id == "c1" else "once")
    await loom.client.result(run_id)
    asked = len(model.requests)

    async def again(rules: Mapping[str, str]) -> Any:
        decided = await decided_again(loom.client, [run_id], Changes(permissions=rules), app=None)
        return rules_view(decided)["runs"][0]

    stricter = await again({"bash": "allow", "bash(git push:*)": "deny"})
    same = await again({"bash": "ask"})

    differences = [
        (each["tool"], each["arguments"], each["recorded"]["verdict"], each["new"]["verdict"], each["new"]["rule"])
        for each in stricter["differences"]
    ]
    assert differences == [
        ("bash", {"command": "ls"}, "ask", "allow", "bash"),
        ("bash", {"command": "git push"}, "ask", "deny", "bash(git push:*)"),
    ]
    assert same == {"run_id": run_id, "calls": 3, "differences": []}
    with pytest.raises(BadRequest, match="--permissions: permission rule 'bsh' names no tool"):
        await again({"bsh": "ask"})
    assert len(model.requests) == asked


SHOP: Final = """
from pathlib import Path

from loom import LoomApp

app = LoomApp()
app.create_agent("desk", system_prompt="You are kind.", permissions={"refund": "allow", "find_order": "allow"})


@app.tool(effect="read")
def find_order(number: int) -> str:
    "Find an order."
    return f"order {number}: 12.50 EUR"


@app.tool
def refund(number: int) -> str:
    "Pay an order back."
    with Path(__file__).with_name("refunds.txt").open("a") as book:
        book.write(f"{number}\\n")
    return f"order {number} is paid back"


@app.on_complete
def tell(result, run):
    with Path(__file__).with_name("refunds.txt").open("a") as book:
        book.write("told\\n")
"""


def shopkeeper(seen: SeenRequest) -> Reply:
    """Refund order 7, or as another model refund an order that wasn't in the recorded run."""
    find, pay = ToolUse("find_order", {"number": 7}), ToolUse("refund", {"number": 7})
    is_recorded = seen.body["model"] == "scripted"
    results = [str(message["content"]) for message in seen.messages if message["role"] == "tool"]
    second = pay if is_recorded else ToolUse("refund", {"number": 8})
    return [calls(find), calls(second)][seen.turn] if seen.turn < 2 else text(f"Done: {results[0]}")


async def test_a_recorded_run_is_rerun_with_another_model_and_prompt_and_no_tool_runs(
    working: Working, tmp_path: Path
) -> None:
    shop, book = tmp_path / "shop.py", tmp_path / "refunds.txt"
    shop.write_text(SHOP)
    loom, model = await working(shopkeeper, app=f"{shop}:app")
    run_id = await loom.start("Refund order 7", agent="desk")
    await loom.client.result(run_id)
    assert book.read_text() == "7\ntold\n"
    prompt = tmp_path / "strict.md"
    prompt.write_text("You are strict.")

    ran = await command_line(loom)(
        "what-if", run_id, "--model", "openai:other", "--prompt", str(prompt), "--name", new_id(), "--json"
    )

    assert ran.code == 0, ran.err
    (told,) = ran.json["runs"]
    assert (told["status"], told["error"], told["answered"], told["not_recorded"]) == ("completed", "", 1, 1)
    assert told["parting"]["recorded"]["calls"] == ['refund {"number":7}']
    assert told["parting"]["new"]["calls"] == ['refund {"number":8}']
    assert told["output"]["new"] == "Done: order 7: 12.50 EUR"
    last = model.requests[-1]
    assert (last.body["model"], "You are strict." in str(last.messages[0]["content"])) == ("other", True)
    assert "was not made in the recorded run" in str(last.messages[-1]["content"])
    # No tool and no hook around a run was called again.
    assert book.read_text() == "7\ntold\n"


@pytest.mark.slow
async def test_other_changes_under_the_same_name_are_another_what_if(working: Working, tmp_path: Path) -> None:
    shop = tmp_path / "shop.py"
    shop.write_text(SHOP)
    loom, model = await working(shopkeeper, app=f"{shop}:app")
    run_id = await loom.start("Refund order 7", agent="desk")
    await loom.client.result(run_id)
    prompt = tmp_path / "strict.md"
    prompt.write_text("You are strict.")
    name = new_id()

    async def rerun(*changes: str) -> str:
        ran = await command_line(loom)("what-if", run_id, *changes, "--name", name, "--json")
        assert ran.code == 0, ran.err
        (told,) = ran.json["runs"]
        return str(told["new_run_id"])

    first = await rerun("--model", "openai:other")
    second = await rerun("--model", "openai:other", "--prompt", str(prompt))
    assert "You are strict." in str(model.requests[-1].messages[0]["content"])
    asked = len(model.requests)
    assert await rerun("--model", "openai:other") == first
    assert len(model.requests) == asked  # the first run has ended, and the same command shows it again
    assert second != first


def _task(seen: SeenRequest) -> str:
    return str(next(message["content"] for message in seen.messages if message["role"] == "user"))
