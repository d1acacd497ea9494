"""What one plain run enters: few enough files that a reader can follow it, and those that the documentation names."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.reading_path import DOC, MARKS

MOST_FILES = 71
"""As many as today. It may only become smaller."""
ENTERED = """
import asyncio, json
from bench.reading_path import reading_path
print(json.dumps([file.path for file in asyncio.run(reading_path())]))
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def entered() -> list[str]:
    """The files that the run enters, in order. In this process, they would depend on what other tests left running."""
    done = subprocess.run([sys.executable, "-c", ENTERED], cwd=ROOT, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


@pytest.fixture(scope="module")
def page() -> str:
    """The documentation of the architecture."""
    return DOC.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_plain_run_with_one_tool_call_enters_few_files(entered: list[str]) -> None:
    assert len(entered) == len(set(entered))
    assert len(entered) <= MOST_FILES, "\n".join(entered)
    assert entered[0] == "client.py"


@pytest.mark.slow
def test_the_documentation_shows_the_files_that_a_run_enters(entered: list[str], page: str) -> None:
    shown = page.partition(MARKS[0])[2].partition(MARKS[1])[0]

    assert re.findall(r"^\| \d+ \| `([^`]+)`", shown, re.MULTILINE) == entered, (
        "run `python -m bench.reading_path --write`"
    )


def test_the_reading_path_names_at_most_twelve_files_and_a_run_enters_each(entered: list[str], page: str) -> None:
    named = re.findall(r"^\d+\. `([^`]+)`", page, re.MULTILINE)

    assert 0 < len(named) <= 12
    assert set(named) <= set(entered)


def test_every_file_that_the_documentation_names_is_there(page: str) -> None:
    named = set(re.findall(r"`((?:loom|loom_domain|workflows|activities|bench|tests)/[\w/]+(?:\.py|/))`", page))

    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
