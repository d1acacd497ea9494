"""`loom replay` without a server: what it reports about the history in a file, and about a file that has none."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import WorkflowHistory

from loom.composition.replay import histories_in, replay, workflow_type
from loom.domain.core.errors import BadRequest
from loom.exit_codes import USAGE
from loom.workflows.payload_converter import data_converter
from tests.commands import Commands, commands_in

HISTORIES: Final = Path(__file__).parents[2] / "replay" / "histories"
PLAIN: Final = HISTORIES / "0.3.0-reading-path-0.json"


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    with commands_in(tmp_path, monkeypatch) as commands:
        yield commands


def test_the_report_says_of_each_history_which_run_it_is_of(loom: Commands) -> None:
    moved = [HISTORIES / f"0.4.0-upgraded-{number}.json" for number in (0, 1)]
    upkeep = HISTORIES / "0.3.0-upkeep-0.json"

    ran = loom("replay", *(word for path in (*moved, upkeep) for word in ("--file", str(path))), "--json")

    told = json.loads(ran.out)
    first, second, other = told["histories"]
    assert (ran.code, told["replayed"], told["failed"]) == (0, 3, 0)
    assert (first["run_id"], first["workflow"], first["error"]) == (second["run_id"], "AgentRun", None)
    assert first["execution"] != second["execution"]
    assert other["workflow"] == "MemoryUpkeep"


@pytest.mark.parametrize("words", [[], ["run", "--all"], ["--all", "--file", str(PLAIN)], ["run", "--query", "x = 1"]])
def test_one_choice_of_histories_is_needed(words: list[str], loom: Commands) -> None:
    ran = loom("replay", *words)
    assert (ran.code, ran.out) == (USAGE, "")
    assert "give one of" in ran.err


def test_a_history_of_another_workflow_or_no_history_is_a_wrong_file(loom: Commands) -> None:
    (loom.folder / "other.json").write_text(PLAIN.read_text().replace('"AgentRun"', '"Nightly"'))
    (loom.folder / "cut.json").write_text(PLAIN.read_text()[:5000])
    for name, says in (
        ("other.json", "of 'Nightly': replay it with your own worker's code"),
        ("cut.json", "is not a workflow's history"),
        ("missing.json", "cannot be read: No such file"),
    ):
        ran = loom("replay", "--file", name)
        assert (ran.code, ran.out) == (USAGE, "")
        assert says in ran.err


@given(at=st.integers(0, 30_000), cut=st.integers(0, 400), junk=st.sampled_from(["", "{}", "null", '"', "[]", "1"]))
def test_a_damaged_file_is_a_history_or_a_wrong_file(
    at: int, cut: int, junk: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = PLAIN.read_text()
    damaged = tmp_path_factory.getbasetemp() / "damaged.json"
    damaged.write_text(text[:at] + junk + text[at + cut :])

    async def read() -> list[WorkflowHistory]:
        return [history async for history in histories_in([damaged])]

    with suppress(BadRequest):
        [history] = asyncio.run(read())
        assert workflow_type(history) == "AgentRun"


@pytest.mark.parametrize("events", [1, 2])
async def test_an_execution_that_has_just_begun_or_still_waits_can_be_replayed(events: int) -> None:
    """A chat that waits on the server alone has one event. Its first workflow task is the second."""
    whole = WorkflowHistory.from_json("chat-1", PLAIN.read_text(encoding="utf-8"))

    async def both() -> AsyncIterator[WorkflowHistory]:
        yield WorkflowHistory("chat-1", whole.events[:events])
        yield whole

    async with asyncio.timeout(30):
        outcomes = [each async for each in replay(both(), data_converter())]
    assert {each.events: each.error for each in outcomes} == {events: None, len(whole.events): None}
