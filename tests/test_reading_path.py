"""What one plain run enters: few enough files that a reader can follow it, and those that the documentation names."""

import re
from pathlib import Path

import pytest

from bench.reading_path import DOC, MARKS, Entered, reading_path

MOST_FILES = 50
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
async def entered() -> tuple[Entered, ...]:
    """The files that the run enters, in order."""
    return await reading_path()


@pytest.fixture(scope="module")
def page() -> str:
    """The documentation of the architecture."""
    return DOC.read_text(encoding="utf-8")


def test_a_plain_run_with_one_tool_call_enters_few_files(entered: tuple[Entered, ...]) -> None:
    paths = [file.path for file in entered]

    assert len(paths) == len(set(paths))
    assert len(paths) <= MOST_FILES, "\n".join(paths)
    assert paths[0] == "client.py"


def test_the_documentation_shows_the_files_that_a_run_enters(entered: tuple[Entered, ...], page: str) -> None:
    shown = page.partition(MARKS[0])[2].partition(MARKS[1])[0]

    assert re.findall(r"^\| \d+ \| `([^`]+)`", shown, re.MULTILINE) == [file.path for file in entered], (
        "run `python -m bench.reading_path --write`"
    )


def test_the_reading_path_names_at_most_twelve_files_and_a_run_enters_each(
    entered: tuple[Entered, ...], page: str
) -> None:
    named = re.findall(r"^\d+\. `([^`]+)`", page, re.MULTILINE)

    assert 0 < len(named) <= 12
    assert set(named) <= {file.path for file in entered}


def test_every_file_that_the_documentation_names_is_there(page: str) -> None:
    named = set(re.findall(r"`((?:loom|loom_domain|workflows|activities|bench|tests)/[\w/]+(?:\.py|/))`", page))

    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
