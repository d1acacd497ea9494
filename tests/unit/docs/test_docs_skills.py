"""What docs/skills.md measures still holds, and its examples are what Loom takes them for."""

import re

from bench.skills import COLLECTION, DOC, MARKS, WANTED, measured, report
from loom.domain.skills.catalog import BODY_TOKENS, LINE_TOKENS
from loom.domain.skills.scripts import tool_of

PAGE = DOC.read_text(encoding="utf-8")


async def test_a_real_collection_loads_and_its_catalog_saves_what_the_docs_say() -> None:
    figures = await measured(COLLECTION)
    assert len(figures.bodies) >= 10
    assert figures.saving >= WANTED
    assert figures.catalog / len(figures.bodies) <= LINE_TOKENS + 15
    assert "render" in figures.hint
    assert report(figures) in PAGE, f"run `make bench-skills`: {MARKS[0]}"


def test_the_limits_are_those_of_the_code() -> None:
    assert f"at most {LINE_TOKENS} tokens a skill" in PAGE
    assert f"at most {BODY_TOKENS:,} tokens" in PAGE


def test_the_example_of_a_script_is_a_tool() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    tool = tool_of(code, "skill__x__count", timeout=1)
    assert tool is not None
    assert tool.parameters["required"] == ["text"]
