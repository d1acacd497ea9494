"""The guide for operators: its links lead somewhere, and what it quotes and names exists."""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from loom.cli.main import COMMANDS
from tests.unit.house.deployed import variables

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = sorted(
    (ROOT / "docs/operations.md", *(ROOT / "docs/operations").glob("*.md"), *(ROOT / "deploy").rglob("README.md"))
)
INCIDENTS: Final = ROOT / "docs/operations/incidents.md"
SIZING: Final = (ROOT / "docs/operations/sizing.md").read_text(encoding="utf-8")
MEASURED: Final = (ROOT / "docs/measurements.md").read_text(encoding="utf-8")
OF_OTHERS: Final = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "LOOM_IMAGE"}
"""Variables that aren't settings of Loom's processes."""
OF_EARLIER_RELEASES: Final = {"a newer one has worked there"}
"""Errors that this release no longer has."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_page_and_a_heading_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@cache
def source() -> str:
    """The text of Loom's code, without the breaks between parts of a string."""
    files = (
        path for room in ("loom", "loom_domain", "activities", "workflows") for path in (ROOT / room).rglob("*.py")
    )
    text = "\n".join(path.read_text(encoding="utf-8") for path in (*files, ROOT / "worker.py", ROOT / "client.py"))
    return re.sub(r'"\s*\n\s*f?"', "", text)


def quoted() -> list[str]:
    rows = re.findall(r"^\| (.*?) \|", INCIDENTS.read_text(encoding="utf-8"), re.MULTILINE)
    texts = [text for row in rows for text in re.findall(r'"([^"]+)"', row.replace('`"stale": true`', ""))]
    return [text for text in texts if text not in OF_EARLIER_RELEASES]


@pytest.mark.parametrize("text", quoted())
def test_each_quoted_error_is_one_of_loom_s(text: str) -> None:
    for part in text.split("…"):
        assert part.strip() in source(), part


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_variable_and_each_command_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:LOOM|TEMPORAL_TLS|OTEL)_[A-Z_]+[A-Z]\b", text))
    assert named <= variables() | OF_OTHERS
    commands = set(re.findall(r"(?:`|^\$ |^)(?:LOOM_HOME=\S+ )?loom ([a-z][a-z-]*)", text, re.MULTILINE))
    assert commands <= {*COMMANDS, "serve", "init"}


# Sizing states what was measured


def test_the_sizes_of_the_stores_are_those_that_were_measured() -> None:
    section = MEASURED.partition("\n## Growth of the stores\n")[2].partition("\n## ")[0]
    measured = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([\d.]+ KB) \| ([\d.]+ KB) \|$", section, re.MULTILINE)
    stated = re.findall(r"^\| ([^|]+): ([^|]+) \| ([\d.]+ KB) \| ([\d.]+ KB) \|", SIZING, re.MULTILINE)
    assert len(measured) >= 7
    assert sorted((store.partition(" (")[0], *rest) for store, *rest in stated) == sorted(map(tuple, measured))
    for store in ("Postgres", "Redis"):
        sizes = sum(float(per_run.removesuffix(" KB")) for each, _, per_run, _ in measured if each == store)
        assert re.search(rf"about {sizes:.0f} MB( a day)? to\s{store}", SIZING), f"1,000 runs: {sizes:.0f} MB"


def test_the_memory_of_a_worker_is_what_was_measured() -> None:
    (measured,) = re.findall(
        r"^\| 1000 \| Loom \|[^|]+\| (\d+) → (\d+) MB \|[^|]+\| (\d+) MB \|", MEASURED, re.MULTILINE
    )
    pattern = r"(\d+) MB after its first run, (\d+) MB with 1,000 waiting runs, and up to (\d+) MB for the processes"
    assert re.findall(pattern, SIZING) == [measured]
    (spare,) = re.findall(
        r"needs about (\d+) MB less memory", (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    )
    assert f"a spare worker, which takes about {spare} MB more" in SIZING


def test_the_size_of_histories_is_what_was_measured() -> None:
    (per_turn,) = re.findall(r"\*\*(\d+) bytes per turn\*\*", MEASURED)
    assert f"histories of these runs have {int(per_turn) / 1000:.1f} KB per turn" in SIZING
