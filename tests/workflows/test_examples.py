"""The example of a tree of sub-agents, with the demo model: what examples/README.md tells people to run."""

from pathlib import Path

from loom_domain.requests import RunStatus
from tests.model_server import script
from tests.workflows.conftest import Working

EXAMPLES = Path(__file__).parents[2] / "examples"
TASK = "Delegate a review of each folder to a sub-agent, then sum up"


async def test_a_tree_of_sub_agents_reviews_each_folder(working: Working) -> None:
    assert TASK in (EXAMPLES / "README.md").read_text()
    loom, _ = await working(script([]), model="demo")

    result = await loom.run(TASK, workspace=str(EXAMPLES))

    folders = sorted(
        entry.name for entry in EXAMPLES.iterdir() if entry.is_dir() and not entry.name.startswith(("_", "."))
    )
    assert result.status is RunStatus.COMPLETED
    assert sorted(child["description"] for child in result.children) == [f"review {name}" for name in folders]
    assert all(f"## review {name}: completed" in result.output for name in folders)
    assert "# Audit of" in result.output
