"""What must hold of every run after a round: it ended as it should, and nothing was done or said twice."""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from temporalio.client import WorkflowHistory

from loom.domain.core.requests import RunResult, RunStatus
from loom.testing.harness import Harness
from loom.testing.stream import told
from tests.chaos.outside import ACCOUNT
from tests.chaos.stories import ANSWER, effects_of
from tests.quick_calls import quick_calls

_ATTEMPT: Final = re.compile(r"-\d+$")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A run and what there is of it after its end."""

    number: int
    run_id: str
    result: RunResult
    folder: Path
    results: Mapping[str, str]
    """What the model was told of each call, by call id."""
    histories: Mapping[str, Sequence[WorkflowHistory]] = field(default_factory=dict)
    """The executions of the run and of the runs below it, by run id."""


async def violations(loom: Harness, seen: Seen) -> list[str]:
    """Return everything that is not as it must be."""
    wrong = [*_of_end(seen), *_of_effects(seen), *_of_steps(seen.histories)]
    for run_id in seen.histories:
        wrong += [f"{run_id}: {what}" async for what in _of_stream(loom, run_id)]
    return [f"run {seen.number} ({seen.run_id}): {what}" for what in wrong]


def _of_end(seen: Seen) -> Iterator[str]:
    result = seen.result
    if (result.status, result.output) != (RunStatus.COMPLETED, ANSWER):
        yield f"ended {result.status} with {result.output[:80]!r}, {result.error}"


def _of_effects(seen: Seen) -> Iterator[str]:
    with closing(sqlite3.connect(seen.folder / ACCOUNT)) as account:
        booked = Counter(row[0] for row in account.execute("SELECT call FROM applied"))
    path = seen.folder / "effects"
    written = Counter(path.read_text().split() if path.exists() else ())
    for call, tool in effects_of(seen.number).items():
        times = (booked if tool == "credit" else written)[call]
        said = seen.results.get(call, "")
        is_unknown = tool == "bash" and "outcome is unknown" in said
        if times > 1:
            yield f"{call} ({tool}) took effect {times} times"
        if times == 0 and not is_unknown:
            yield f"{call} ({tool}) took no effect, and the model was told {said[:80]!r}"


def _of_steps(histories: Mapping[str, Sequence[WorkflowHistory]]) -> Iterator[str]:
    """Look for steps that were finished twice."""
    for run_id, executions in histories.items():
        finished: Counter[str] = Counter()
        for history in executions:
            finished.update(_finished(history))
        yield from (f"{run_id}: {step} was finished {times} times" for step, times in finished.items() if times > 1)


def step_of(activity_id: str) -> str:
    """Return the step that an activity is an attempt at."""
    return _ATTEMPT.sub("", activity_id)


def _finished(history: WorkflowHistory) -> Iterator[str]:
    names: dict[int, str] = {}
    for event in history.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            names[event.event_id] = event.activity_task_scheduled_event_attributes.activity_id
        elif event.HasField("activity_task_completed_event_attributes"):
            ended = event.activity_task_completed_event_attributes
            if _is_answer(ended.result.payloads):
                yield step_of(names[ended.scheduled_event_id])
    yield from (step_of(call.activity_id) for call in quick_calls(history.events) if call.result is not None)


def _is_answer(payloads: Sequence[Any]) -> bool:
    """Whether a step ended with what it was asked for: a worker may also ask for the whole conversation."""
    value = json.loads(payloads[0].data or b"null") if payloads else None
    return isinstance(value, dict) and bool(value.get("message") or value.get("content"))


async def _of_stream(loom: Harness, run_id: str) -> Any:
    events = await told(loom.client, run_id)
    offsets = [event.offset for event in events]
    if len(set(offsets)) != len(offsets) or offsets != sorted(offsets):
        yield "the stream has an offset twice"
    ids = Counter(event.task.task_id for event in events)
    if twice := [name for name, times in ids.items() if times > 1]:
        yield f"the stream says {len(twice)} tasks twice, such as {twice[0]}"
