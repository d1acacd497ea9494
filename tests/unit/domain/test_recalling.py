"""What a run is reminded of: each thing once, and nothing so long that it drives out the rest."""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from loom.domain.context.recall import NOTICE, remembered
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tokens import text_tokens
from loom.domain.memory.layers import Hit, Layer, Memory

AT = datetime(2026, 1, 1, tzinfo=UTC)
_serial = count(1)


def hit(content: str, layer: Layer, task_id: str = "", task: Task | None = None) -> Hit:
    number = next(_serial)
    memory = Memory(
        id=number,
        layer=layer,
        content=content,
        session_id="s",
        run_id="r",
        task_id=task_id or f"t{number}",
        turn=0,
        ordinal=number,
        node="default",
        action=Action.MESSAGE,
        importance=0.9,
        created_at=AT + timedelta(minutes=number),
        task=task,
    )
    return Hit(memory=memory, layer=layer, score=1.0)


def said(text: str, **given: Any) -> Hit:
    words = {"text": text, "by": "eva"}
    task = Task(
        task_id=text,
        run_id="r",
        root_run_id="r",
        session_id="s",
        action=Action.MESSAGE,
        created_at=AT,
        parameters=words,
    )
    return hit(text, Layer.L1, task_id=text, task=task, **given)


def facts(text: str) -> list[str]:
    """The remembered facts, without where they come from."""
    _, _, told = text.partition("Remembered of this session:\n")
    return [line.removeprefix("- ").partition(" (default")[0] for line in told.splitlines()]


def test_a_task_that_is_there_whole_is_not_told_again_as_its_summary() -> None:
    whole = hit("We agreed on PostgreSQL. It has what we need.", Layer.L2, task_id="agreed")
    summaries = [hit("We agreed on PostgreSQL.", Layer.L3, task_id="agreed"), hit("Staging is pg-7.", Layer.L4)]
    assert facts(remembered([], [whole], summaries, 4_000)) == [
        "We agreed on PostgreSQL. It has what we need.",
        "Staging is pg-7.",
    ]


def test_what_stands_in_the_conversation_is_not_remembered_as_well() -> None:
    shown = remembered([said("hello")], [hit("hello", Layer.L2, task_id="hello")], [], 4_000)
    assert shown == f"{NOTICE}\n\nEarlier in this session:\nuser: hello"


def test_one_long_memory_does_not_drive_out_the_others() -> None:
    found = [hit("word " * 8_000, Layer.L2), hit("Staging is pg-7.", Layer.L2), hit("Ship on Monday.", Layer.L2)]
    shown = remembered([], found, [], 4_000)
    assert facts(shown)[1:] == ["Staging is pg-7.", "Ship on Monday."]
    assert 900 < text_tokens(shown) < 1_100


def test_one_long_answer_does_not_drive_out_what_was_said_before_it() -> None:
    shown = remembered([said("my name is Eva"), said("word " * 8_000)], [], [], 4_000)
    assert "user: my name is Eva\nuser: word word" in shown


def test_all_together_stays_within_what_was_asked_for() -> None:
    many = [hit(f"fact {number} " + "word " * 300, Layer.L2) for number in range(40)]
    shown = remembered([said(f"said {number} " + "word " * 300) for number in range(40)], many, many, 1_000)
    assert 800 < text_tokens(shown) <= 1_000
    assert "said 39" in shown
    assert "said 0" not in shown
