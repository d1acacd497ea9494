"""The app in docs/delegation.md does what the page says."""

import re
from pathlib import Path

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import calls, text
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

PAGE = (Path(__file__).parents[3] / "docs" / "delegation.md").read_text()


async def test_the_reviewer_of_the_page_reviews(working: Working, workspace: Path, tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    app = tmp_path / "review_of_the_page.py"
    app.write_text(program)
    two = [delegate(f"review {name}.py", f"REVIEW {name}.py", name, agent="reviewer") for name in ("a", "b")]
    loom, model = await working(
        by_task({"Have every": [calls(*two), text("three flaws")], "REVIEW": [text("it crashes")]}), app=f"{app}:app"
    )

    result = await loom.run("Have every file in src/ reviewed.")

    assert (result.status, result.output) == (RunStatus.COMPLETED, "three flaws")
    assert [(child["agent"], child["status"]) for child in result.children] == [("reviewer", "completed")] * 2
    assert "You review Python." in model.requests[1].messages[0]["content"]
