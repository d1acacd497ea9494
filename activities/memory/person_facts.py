"""Learn facts about people: by rule as soon as they have said something, and later from long texts with a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from loom.activities.memory.ports import DistillerUnavailable, PersonDistiller, PersonFactStore
from loom.domain.core.tasks import Task
from loom.domain.core.tokens import text_tokens
from loom.domain.memory.people import distilled_facts, new_facts, rule_facts, said_by_person

_log = structlog.get_logger("loom.memory")

MOST_COMPARED: Final = 200
"""Maximum number of facts that are compared in one pass. Each of them may need a model call."""
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

    async def distill(self, task: Task, over: int) -> int:
        """Store the facts that a model finds in a text of more than `over` tokens, and return their number. If the
        model is unavailable, the facts that the rule has found remain.
        """
        text = said_by_person(task)
        if self.distiller is None or text_tokens(text) <= over:
            return 0
        try:
            lines = await self.distiller.about_person(text)
        except DistillerUnavailable as error:
            _log.warning("person_not_distilled", task_id=task.task_id, error=str(error))
            return 0
        return await self.store.learn(new_facts(task, distilled_facts(lines), "distilled"))

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
