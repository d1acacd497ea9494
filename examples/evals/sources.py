"""Rules for the answers of the desk."""

import re
from pathlib import Path

from loom import EvalRun


def names_its_source(run: EvalRun) -> None:
    """An answer names the page that it comes from, and the page exists."""
    named = re.findall(r"\b(\w+\.md)\b", run.output)
    assert named, "the answer names no page of the handbook"
    missing = [page for page in named if not (Path(run.workspace) / page).is_file()]
    assert not missing, f"there is no page {missing[0]}"
