"""`loom crew` end to end, with the example crews and the demo model."""

import json
from pathlib import Path
from typing import Final

from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import command_line, new_id
from tests.model_server import script, text
from tests.trees import by_task

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "crews"
STAFF: Final = "examples.crews.staff:app"
TASK: Final = "Review the code in this folder and write the report to report.md."


async def test_the_research_crew_works_with_the_demo_model(working: Working, workspace: Path) -> None:
    (workspace / "shop.py").write_text("def price(n):\n    try:\n        return 100 / n\n    except:\n        pass\n")
    loom, _ = await working(script([]), app=STAFF, model="demo")
    cli, run_id = command_line(loom, LOOM_APP=STAFF), new_id()

    went = await cli(
        *("crew", "run", str(EXAMPLES / "research.yaml"), TASK, "--workspace", str(workspace), "--id", run_id),
        *("--permissions", '{"write_file": "ask"}', "--yes", "--json"),
    )

    assert (went.code, went.json["status"]) == (0, "completed"), went.err
    assert [child["agent"] for child in went.json["children"]] == ["scout", "writer"]
    assert "shop.py" in (workspace / "report.md").read_text()
    assert "demo model" in went.json["output"]
    listed = (await cli("list", "--json")).json
    assert next(each["agent"] for each in listed if each["run_id"] == run_id) == "research"
    steps = await cli("show", run_id)
    assert "Step 2 of 2: writer" in steps.out


async def test_the_support_desk_says_who_got_the_task_and_why(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([text("It was the tax."), text("Good day!")]), app=STAFF)
    cli = command_line(loom, LOOM_APP=STAFF)
    desk, where = str(EXAMPLES / "support.yaml"), ("--workspace", str(workspace))

    invoice, other = new_id(), new_id()
    assert (await cli("crew", "run", desk, "My invoice is wrong.", *where, "--id", invoice, "--json")).code == 0
    assert (await cli("crew", "run", desk, "Hello.", *where, "--id", other, "--json")).json["output"] == "Good day!"

    assert "To clerk (rules: the task says 'invoice')" in (await cli("show", invoice)).out
    assert "To reception (fallback: nobody fits)" in (await cli("show", other)).out


async def test_people_see_which_branch_of_a_tree_was_chosen_and_why(working: Working, workspace: Path) -> None:
    scores = {f"answer_{n}": {"reason": f"reason {n}", "score": n / 4} for n in (1, 2)}
    judge = "Several agents have done the same task"
    branches = {f"You are branch {n} of 2.": [text(f"answer of {n}")] for n in (1, 2)}
    loom, _ = await working(by_task({**branches, judge: [text(json.dumps(scores))]}))
    cli, run_id = command_line(loom), new_id()
    tree = json.dumps({"loom": {"pattern": "tree", "branches": 2}})

    went = await cli("run", "Answer.", "--workspace", str(workspace), "--id", run_id, "--metadata", tree, "--json")

    assert (went.code, went.json["output"]) == (0, "answer of 2"), went.err
    shown = (await cli("show", run_id)).out
    assert "⇒ branch-2 (score: 0.50: reason 2)" in shown
    assert "0.25 branch-1: reason 1" in shown
    assert "Level 1 of 1: score 2 answers" in shown


async def test_crews_of_files_and_apps_are_listed_shown_and_validated(working: Working, tmp_path: Path) -> None:
    loom, _ = await working(script([]))
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "desk.yaml").write_text((EXAMPLES / "support.yaml").read_text().replace("name: support\n", ""))
    wrong = folder / "wrong.toml"
    cli = command_line(loom, LOOM_APP=STAFF, LOOM_CREWS=str(folder))

    assert [crew["name"] for crew in (await cli("crew", "list", "--json")).json] == ["desk"]
    shown = await cli("crew", "show", "desk")
    assert "member        engineer [scout]: Finds the cause" in shown.out
    assert (await cli("crew", "validate", str(folder / "desk.yaml"))).code == 0
    assert (await cli("crew", "show", "dask")).err.strip().endswith("did you mean 'desk'?")

    wrong.write_text('mode = "routed"\n[[members]]\nname = "a"\nagent = "nobody"\nretires = 2\n')
    refused = await cli("crew", "validate", str(wrong))
    assert (refused.code, "there is no field members.0.retires: did you mean retries?" in refused.err) == (2, True)
    started = await cli("crew", "run", str(wrong), "x")
    assert (started.code, "did you mean retries?" in started.err) == (2, True)
    schema = (await cli("validate", "--schema", "crew")).json
    assert set(schema["required"]) == {"mode", "members"}
