"""A long run in a small window: what was planted in it is in the next prompt, and found by search, in the run's own
history and in memory.
"""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.adapters.temporal.history_facts import TemporalHistories
from loom.activities.memory.backfill import CatchUp
from loom.activities.memory.upkeep import promote
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.client import LoomClient
from loom.composition.secret_mask import secret_mask
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import MemorySettings, Query, View
from loom.testing.model_replies import Reply, SeenRequest
from loom.testing.model_server import ToolUse, calls, text
from loom.testing.stream import assert_whole, told
from tests.acceptance.conftest import Working
from tests.integration.workflows.test_compression import compressions, is_about_compressing
from tests.planted_facts import Fact, missing, planted_facts, planted_turns

TURNS: Final = 120
AT_ONCE: Final = 6
"""The number of searches in one turn."""
SEED: Final = 2026
FACTS: Final = planted_facts(SEED)


class Planting:
    """A model that says the planted texts, reads the planted files, and then searches for each fact."""

    def __init__(self, facts: tuple[Fact, ...]) -> None:
        self.turns = planted_turns(facts, TURNS, SEED)
        self.made = 0
        self.prompt = ""
        """What the model saw after all turns."""
        self.due: asyncio.Queue[str] = asyncio.Queue()
        self._facts = facts

    def __call__(self, request: SeenRequest) -> Reply:
        if is_about_compressing(request):
            return text("I can't say.")
        at, self.made = self.made, self.made + 1
        if at < TURNS:
            if self.turns[at].person:
                self.due.put_nowait(self.turns[at].person)
            return calls(ToolUse("read_file", {"path": f"{at}.txt"}, f"call_{at}"), text=self.turns[at].model)
        if at == TURNS:
            self.prompt = str(request.messages) + str(request.body.get("system", ""))
        asked = self._facts[AT_ONCE * (at - TURNS) :][:AT_ONCE]
        searches = [ToolUse("search_history", {"query": fact.question}) for fact in asked]
        return calls(*searches) if searches else text("done")


async def remembered(memory: PostgresMemory, session: str) -> dict[str, str]:
    """What a search in memory finds for each fact, by its question."""
    results = {}
    for fact in FACTS:
        hits = await memory.recall(Query(text=fact.question, view=View(session_id=session, owner=Owner())))
        results[fact.question] = "\n".join(hit.memory.content for hit in hits)
    return results


async def found(client: LoomClient, run_id: str) -> dict[str, str]:
    """What each search found, by its query."""
    results: dict[str, str] = {}
    for turn in await client.turns(run_id):
        said = {attempt.request.call_id: attempt.result.content for attempt in turn.tools if attempt.result}
        for call in turn.answer.tool_calls if turn.answer else ():
            if call.name == "search_history":
                results[call.arguments["query"]] = said[call.id]
    return results


@pytest.mark.slow
async def test_planted_facts_are_in_the_next_prompt_and_found_by_search(
    working: Working, workspace: Path, database: Database
) -> None:
    model = Planting(FACTS)
    for number, turn in enumerate(model.turns):
        (workspace / f"{number}.txt").write_text(turn.tool)
    loom, _ = await working(model, context_window=32_000, collapse_at=1.0)

    run_id = await loom.start("Read everything and report what you find.", max_turns=TURNS + 20)
    for _ in range(sum(bool(turn.person) for turn in model.turns)):
        await loom.client.send(run_id, await model.due.get(), by="ann")
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "done")
    events = await told(loom.client, run_id)
    assert_whole(events)
    assert len(compressions(events)) >= 2
    lost = list(missing(FACTS, model.prompt))
    results = await found(loom.client, run_id)
    unfound = [fact for fact in FACTS if fact.value not in results[fact.question]]
    print(f"in the prompt {1 - len(lost) / len(FACTS):.3f}, found {1 - len(unfound) / len(FACTS):.3f}")
    assert len(lost) <= 0.1 * len(FACTS), lost
    assert len(unfound) <= 0.05 * len(FACTS), unfound
    texts = [
        str((event.task.result or {}).get("content")) for event in events if event.task.action is Action.MODEL_CALL
    ]
    assert [fact for fact in FACTS if fact.by == "model" and not any(fact.sentence in each for each in texts)] == []
    memory, upkeep = PostgresMemory(database), PostgresMemoryUpkeep(database)
    histories, mask = TemporalHistories(loom.client.temporal, loom.settings.task_queue), secret_mask(loom.settings)
    await CatchUp(histories, memory, OutputSanitizer(mask, None)).until(datetime.now(UTC))
    fresh = await remembered(memory, run_id)
    while await promote(upkeep, None, MemorySettings()):
        pass
    await upkeep.expire()
    kept = await remembered(memory, run_id)
    spoken = [fact for fact in FACTS if fact.by != "tool"]
    forgotten = [fact for fact in spoken if fact.value not in kept[fact.question]]
    unread = [fact for fact in FACTS if fact.value not in fresh[fact.question]]
    print(f"in memory {1 - len(unread) / len(FACTS):.3f}, of what was said {1 - len(forgotten) / len(spoken):.3f}")
    assert len(unread) <= 0.05 * len(FACTS), unread
    assert len(forgotten) <= 0.05 * len(spoken), forgotten
