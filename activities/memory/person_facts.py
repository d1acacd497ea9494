"""Learn facts about people: by rule as soon as they have said something, and later with a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from loom.activities.memory.ports import DistillerUnavailable, PersonDistiller, PersonFactStore
from loom.domain.core.tasks import Task
from loom.domain.core.tenants import Owner
from loom.domain.memory.content import is_small_talk
from loom.domain.memory.people import distilled_facts, new_facts, rule_facts, said_by_person, task_owner

_log = structlog.get_logger("loom.memory")

MOST_COMPARED: Final = 200
"""Maximum number of facts that are compared in one pass. Each of them may need a model call."""
MOST_TEXTS: Final = 10
"""Maximum number of texts that the model reads in one call."""
LONGEST_BATCH: Final = 8_000
"""Maximum number of characters of these texts and what separates them, unless one text alone is longer. The distiller
reads no more.
"""
_BETWEEN: Final = "\n\n"
_AT_ONCE: Final = 20


async def learn_by_rule(store: PersonFactStore, tasks: Sequence[Task]) -> int:
    """Store the facts that the rule finds in what people have said, and return their number. Learning from a task again
    has no effect. Raises StoreUnavailable if the store isn't responding.
    """
    found = [fact for task in tasks for fact in new_facts(task, rule_facts(said_by_person(task)), "rule")]
    return await store.learn(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonFactKeeper:
    """Distills what people have said, and keeps vectors of the facts about them."""

    store: PersonFactStore
    distiller: PersonDistiller | None = None

    async def distill(self, tasks: Sequence[Task]) -> int:
        """Store the facts that a model finds in what people say in these tasks, and return their number. One call reads
        many short texts of a run. If the model is unavailable, the facts that the rule has found remain.
        """
        learned, distiller = 0, self.distiller
        if distiller is None:
            return learned
        for batch in _batches(tasks):
            try:
                lines = await distiller.about_person(_BETWEEN.join(map(said_by_person, batch)))
            except DistillerUnavailable as error:
                _log.warning("person_not_distilled", task_id=batch[-1].task_id, texts=len(batch), error=str(error))
                return learned
            learned += await self.store.learn(new_facts(batch[-1], distilled_facts(lines), "distilled"))
        return learned

    async def compare(self) -> int:
        """Let a model find the older facts that newer ones replace, and return how many facts were compared. Without a
        model, and while it is unavailable, only the rule has found some.
        """
        compared = 0
        while self.distiller is not None and compared < MOST_COMPARED:
            due = await self.store.due_for_comparison(_AT_ONCE)
            for each in due:
                older = [fact.content for fact in each.older]
                try:
                    found = await self.distiller.contradicted(each.new.content, older) if older else ()
                except DistillerUnavailable as error:
                    _log.warning("person_not_compared", fact=each.new.id, error=str(error))
                    return compared
                await self.store.supersede(each.new, [each.older[at].id for at in found])
                compared += 1
            if not due:
                break
        return compared


def _batches(tasks: Sequence[Task]) -> list[list[Task]]:
    """Return the tasks in which people say something, in batches of one person's run each. Two tenants may use the same
    id for their runs.
    """
    batches: list[list[Task]] = []
    for run in dict.fromkeys(map(_run_of, tasks)):
        length = LONGEST_BATCH
        for task in tasks:
            if _run_of(task) != run or is_small_talk(text := said_by_person(task)):
                continue
            if length + len(text) > LONGEST_BATCH or len(batches[-1]) == MOST_TEXTS:
                batches.append([])
                length = 0
            batches[-1].append(task)
            length += len(text) + len(_BETWEEN)
    return batches


def _run_of(task: Task) -> tuple[Owner, str]:
    return task_owner(task), task.run_id
