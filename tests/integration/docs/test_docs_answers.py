"""The examples in docs/answers.md run, and its table of loops is true."""

import re
from pathlib import Path
from typing import Any

from loom.testing.model_server import script, text
from tests.integration.workflows.conftest import Working, working  # noqa: F401 - a fixture
from tests.unit.domain.test_loops import walked

PAGE = (Path(__file__).parents[3] / "docs" / "answers.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def ran(program: str) -> dict[str, Any]:
    """What a program of the page defines."""
    names: dict[str, Any] = {"__name__": "answers"}
    exec(compile(program, "docs/answers.md", "exec"), names)
    return names


async def test_the_invoice_comes_back_as_a_value_of_its_type(working: Working) -> None:  # noqa: F811 - the fixture
    page = ran(PROGRAMS[0])
    replies = [text('{"number": "17", "total": "many"}'), text('{"number": "RE-17", "total": 9.5}')]
    loom, server = await working(script(replies))

    invoice = await page["read_invoice"](loom.client)

    assert invoice == page["Invoice"](number="RE-17", total=9.5)
    assert "- `$.total`: 'many' is not of type 'number'" in server.requests[1].messages[-1]["content"]


def test_the_editor_reflects() -> None:
    editor = ran(PROGRAMS[1])["app"].get_agent("editor")

    assert (editor.pattern, editor.rounds) == ("reflect", 2)


def test_the_namer_branches() -> None:
    namer = ran(PROGRAMS[2])["app"].get_agent("namer")

    assert (namer.pattern, namer.branches, namer.rounds) == ("tree", 3, 2)


def test_the_table_of_loops_is_true() -> None:
    rows = re.findall(r"^\| `([^`]+)`[^|]*\| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for turns, *expected in rows:
        numbers = [None if number == "never" else int(number) for number in expected]
        assert list(walked([[step] for step in turns.split()])) == numbers
