"""Which tasks a run must have in memory, read off Temporal's raw history without any of Loom's code for it."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

_ATTEMPT: Final = re.compile(r"^(t\d+)-(model|.+?)(?:-(\d+))?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The ids of a run's tasks."""

    certain: frozenset[str]
    """What ended: each of these must be there."""
    lost: tuple[str, ...]
    """Beginnings of ids of attempts that were broken off: what they told before is there as well, if it got out."""

    def wrong(self, stored: Iterable[str]) -> list[str]:
        """What is missing, or is there without a reason."""
        there = set(stored)
        surplus = {task_id for task_id in there - self.certain if not task_id.startswith(self.lost)}
        return [f"missing {one}" for one in sorted(self.certain - there)] + [
            f"surplus {one}" for one in sorted(surplus)
        ]


def expected(run_id: str, events: Iterable[HistoryEvent]) -> Expected:
    """By what the activities of a run without people in it are known to tell."""
    names: dict[int, str] = {}
    began: set[int] = set()
    ended: dict[int, bool] = {}
    base = run_id
    for event in events:
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                names[event.event_id] = event.activity_task_scheduled_event_attributes.activity_id
            case EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                began.add(event.activity_task_started_event_attributes.scheduled_event_id)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                done = event.activity_task_completed_event_attributes
                said = json.loads(done.result.payloads[0].data)
                ended[done.scheduled_event_id] = _is_answer(said)
                if names[done.scheduled_event_id] == "prepare":
                    base = f"{run_id}/{said['execution']}"
    certain = {f"{base}/end/node.complete"}
    for scheduled, is_answer in ended.items():
        certain.update(f"{base}/{task}" for task in _tasks(names[scheduled]) if is_answer)
    lost = tuple(f"{base}/{_where(names[scheduled])}/" for scheduled in sorted(began - ended.keys()))
    return Expected(certain=frozenset(certain), lost=lost)


def _is_answer(said: Mapping[str, Any]) -> bool:
    """Whether it is more than the wish to have everything sent again."""
    return bool(said.get("message") or said.get("content") or said.get("spec")) and not said.get("resend")


def _tasks(activity: str) -> Iterator[str]:
    if activity == "prepare":
        yield "t0/start/node.start"
    elif "-model" in activity:
        yield f"{_where(activity)}/turn/node.turn"
        yield f"{_where(activity)}/call/node.model_call"
    else:
        yield f"{_where(activity)}/call/node.tool_call"
        yield f"{_where(activity)}/result/node.tool_result"


def _where(activity: str) -> str:
    """`t2-model-3` is attempt 3 of the segment `t2-model`; calls of these runs have no dash in their ids."""
    found = _ATTEMPT.match(activity)
    if found is None:
        return activity
    turn, name, attempt = found.groups()
    return f"{turn}-{name if name == 'model' else f'call-{name}'}.{attempt or 1}"
