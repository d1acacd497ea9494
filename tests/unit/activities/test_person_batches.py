"""The texts of people that a model reads together fit into what it reads."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from loom.activities.memory import distiller, person_facts
from loom.domain.core.tasks import Action, Task
from loom.domain.memory.people import said_by_person


def said(number: int, length: int) -> Task:
    words = ("I prefer tabs over spaces in code " * (length // 34 + 1))[:length].strip()
    return Task(
        task_id=f"t{number}",
        run_id="r",
        root_run_id="r",
        session_id="s",
        action=Action.MESSAGE,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        parameters={"text": words, "by": "ann"},
        metadata={"user_id": "ann"},
    )


@given(st.lists(st.integers(34, person_facts.LONGEST_BATCH), max_size=8))
def test_no_text_of_a_batch_is_cut(lengths: list[int]) -> None:
    tasks = [said(number, length) for number, length in enumerate(lengths)]
    batches = person_facts._batches(tasks)
    assert [task for batch in batches for task in batch] == tasks
    for batch in batches:
        text = person_facts._BETWEEN.join(map(said_by_person, batch))
        assert len(text) <= person_facts.LONGEST_BATCH <= distiller._LONGEST
