"""`loom crew` end to end: crews are listed, shown and validated. The example crews run in `test_examples.py`."""

import json
from pathlib import Path
from typing import Final

import pytest

from loom.testing.model_server import text
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import command_line, new_id
from tests.commands import commands_in
from tests.trees import by_task

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "crews"
STAFF: Final = "examples.crews.staff:app"


@pytest.mark.slow
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


def test_crews_of_files_and_apps_are_listed_shown_and_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "desk.yaml").write_text((EXAMPLES / "support.yaml").read_text().replace("name: support\n", ""))
    wrong = folder / "wrong.toml"
    with commands_in(tmp_path, monkeypatch, LOOM_APP=STAFF, LOOM_CREWS=str(folder)) as loom:
        assert [crew["name"] for crew in json.loads(loom("crew", "list", "--json").out)] == ["desk"]
        shown = loom("crew", "show", "desk")
        assert "member        engineer [scout]: Finds out what an error means" in shown.out
        assert loom("crew", "validate", str(folder / "desk.yaml")).code == 0
        assert loom("crew", "show", "dask").err.strip().endswith("did you mean 'desk'?")

        wrong.write_text('mode = "routed"\n[[members]]\nname = "a"\nagent = "nobody"\nretires = 2\n')
        refused = loom("crew", "validate", str(wrong))
        assert (refused.code, "there is no field members.0.retires: did you mean retries?" in refused.err) == (2, True)
        started = loom("crew", "run", str(wrong), "x")
        assert (started.code, "did you mean retries?" in started.err) == (2, True)
        schema = json.loads(loom("validate", "--schema", "crew").out)
        assert set(schema["required"]) == {"mode", "members"}
