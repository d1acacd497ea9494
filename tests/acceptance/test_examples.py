"""The commands of examples/README.md as it has them: with the demo model, and the same with `--model` changed."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any, Final

import pytest

from loom.testing.harness import Harness
from loom.testing.model_server import Script, ToolUse, calls, script, text
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import Cli, Ran, command_line, new_id
from tests.trees import by_task, delegate

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
STAFF: Final = "examples.crews.staff:app"


def commands() -> list[list[str]]:
    """The README's runs, each as the words after `loom`."""
    lines = (EXAMPLES / "README.md").read_text().partition("## The other examples")[2].replace("\\\n", " ").splitlines()
    found = [shlex.split(line) for line in lines if line.startswith("    .venv/bin/loom ")]
    return [words[1:] for words in found if "--model" in words]


REVIEW, RESEARCH, INVOICE, ERROR, VISIT = commands()


@dataclass(frozen=True)
class Reader:
    """Somebody who follows the README in a folder with the examples in it."""

    cli: Cli
    folder: Path

    async def runs(self, command: Sequence[str], *more: str, model: str = "demo") -> Ran:
        """The command with another model, and nothing else changed; `more` only says how its outcome is told."""
        words = [model if before == "--model" else word for before, word in zip(["", *command], command, strict=False)]
        # `loom` takes paths as they stand in the folder that it is called in.
        given = [str(self.folder / word) if (self.folder / word).exists() else word for word in words]
        return await self.cli(*given, "--yes", "--json", *more)

    async def says_why(self, command: Sequence[str], **given: Any) -> tuple[str, str]:
        """Who of the desk got the request and why, and what came of it."""
        run_id = new_id()
        ran = await self.runs(command, "--id", run_id, **given)
        assert (ran.code, ran.json["status"]) == (0, "completed"), ran.err
        shown = (await self.cli("show", run_id)).out
        return next(line.strip() for line in shown.splitlines() if "To " in line), ran.json["output"]


def reader(loom: Harness, folder: Path) -> Reader:
    """The README's folder: the examples, and the copy of the code that it makes."""
    copytree(EXAMPLES, folder / "examples", ignore=ignore_patterns("__pycache__"))
    copytree(EXAMPLES / "audit" / "sources", folder / "parcels", ignore=ignore_patterns("__pycache__"))
    return Reader(cli=command_line(loom, LOOM_APP=STAFF), folder=folder)


def folders(where: Path) -> list[str]:
    """Those that the tree reviews."""
    return sorted(each.name for each in where.iterdir() if each.is_dir() and not each.name.startswith(("_", ".")))


@pytest.mark.slow
async def test_a_tree_of_sub_agents_reviews_each_folder(working: Working, tmp_path: Path) -> None:
    loom, _ = await working(script([]), app=STAFF)
    readme = reader(loom, tmp_path)

    ran = await readme.runs(REVIEW)

    names = folders(tmp_path / "examples")
    assert (ran.code, ran.json["status"]) == (0, "completed"), ran.err
    assert sorted(child["description"] for child in ran.json["children"]) == [f"review {name}" for name in names]
    assert all(f"## review {name}: completed" in ran.json["output"] for name in names)
    assert "looks like a hard-coded secret" in ran.json["output"]


@pytest.mark.slow
async def test_the_research_crew_writes_a_report_that_checks_what_the_scout_found(
    working: Working, tmp_path: Path
) -> None:
    loom, _ = await working(script([]), app=STAFF)
    readme = reader(loom, tmp_path)

    ran = await readme.runs(RESEARCH)

    assert (ran.code, ran.json["status"]) == (0, "completed"), ran.err
    assert [child["agent"] for child in ran.json["children"]] == ["scout", "writer"]
    assert "The report is in report.md (read back and complete)" in ran.json["output"]
    report = (tmp_path / "parcels" / "report.md").read_text()
    assert "## Task\n\n> Review the code in this folder and write the report to report.md.\n\n## Files" in report
    found = [line for line in report.splitlines() if line.startswith("- **")]
    assert any("looks like a hard-coded secret" in line for line in found)
    assert f"{len(found)} of the {len(found)} reported findings were also found here." in report


@pytest.mark.slow
async def test_the_desk_sends_each_request_to_who_fits_it_and_the_rest_to_the_reception(
    working: Working, tmp_path: Path
) -> None:
    loom, _ = await working(script([]), app=STAFF)
    readme = reader(loom, tmp_path)

    asked = [await readme.says_why(command) for command in (INVOICE, ERROR, VISIT)]

    (to_clerk, refunded), (to_engineer, mended), (to_reception, told) = asked
    assert "To clerk (rules: the task says 'invoice', 'charge')" in to_clerk
    assert "payments.md:3:- An invoice that was charged twice is corrected" in refunded
    assert "To engineer (rules: the task says 'error')" in to_engineer
    assert "errors.md:3:- Error E12" in mended
    assert "To reception (fallback: nobody fits)" in to_reception
    assert "visits.md:3:- The counter is open from 8 to 18, on Saturday until noon." in told


MEMBERS: Final[Script] = by_task(
    {
        "You are 'scout'": [text("parcels/store.py:1 is too long.")],
        "You are 'writer'": [
            calls(ToolUse("write_file", {"path": "report.md", "content": "# Too long\n"}, "w1")),
            text("The report is written."),
        ],
        "You are 'clerk'": [text("You get it back.")],
        "You are 'engineer'": [text("Add paper.")],
        "You are 'reception'": [text("Until noon.")],
        "Delegate a review": [
            calls(delegate("review audit", "Review audit."), delegate("review tools", "Review tools.")),
            text("Both are fine."),
        ],
        "Review audit.": [text("Fine.")],
        "Review tools.": [text("Fine.")],
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_with_another_flag_a_real_provider_does_the_same(working: Working, tmp_path: Path, provider: str) -> None:
    loom, model = await working(MEMBERS, app=STAFF, model="demo")
    readme, named = reader(loom, tmp_path), f"{provider}:scripted"

    review = await readme.runs(REVIEW, model=named)
    research = await readme.runs(RESEARCH, model=named)
    asked = [await readme.says_why(command, model=named) for command in (INVOICE, ERROR, VISIT)]

    assert (review.json["output"], len(review.json["children"])) == ("Both are fine.", 2)
    assert research.json["output"] == "The report is written."
    assert (tmp_path / "parcels" / "report.md").read_text() == "# Too long\n"
    assert [answer for _, answer in asked] == ["You get it back.", "Add paper.", "Until noon."]
    assert [why.partition("To ")[2].partition(" ")[0] for why, _ in asked] == ["clerk", "engineer", "reception"]
    assert {(seen.provider, seen.body["model"]) for seen in model.requests} == {(provider, "scripted")}


def test_the_readme_starts_the_stack_with_the_agents_that_its_crews_name() -> None:
    assert f".venv/bin/loom up --detach --app {STAFF}" in (EXAMPLES / "README.md").read_text()
    assert "    cp -r examples/audit/sources parcels\n" in (EXAMPLES / "README.md").read_text()
