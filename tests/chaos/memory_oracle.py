"""Which tasks a run must have in memory, read off Temporal's raw history without Loom's code for it."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from loom.domain.core.messages import short_digest
from tests.quick_calls import QuickCall, quick_calls

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


def expected(run_id: str, events: Sequence[HistoryEvent]) -> Expected:
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
    quick = tuple(quick_calls(events))
    certain.update(f"{base}/{task}" for task in _quick_tasks(quick))
    for scheduled, is_answer in ended.items():
        certain.update(f"{base}/{task}" for task in _tasks(names[scheduled]) if is_answer)
    broken_off = [names[scheduled] for scheduled in sorted(began - ended.keys())]
    broken_off += [call.activity_id for call in quick if call.result is None]
    # A quick read whose worker dies may leave no mark in history. Another worker repeats it, and may see other content.
    made_again = [f"{_where(call.activity_id)}/result-" for call in quick]
    lost = tuple(f"{base}/{told}" for told in (*(f"{_where(each)}/" for each in broken_off), *made_again))
    return Expected(certain=frozenset(certain), lost=lost)


def _quick_tasks(calls: Iterable[QuickCall]) -> Iterator[str]:
    for call in calls:
        if call.result is not None:
            yield f"{_where(call.activity_id)}/call/node.tool_call"
            yield f"{_where(call.activity_id)}/result-{short_digest(call.result['content'])}/node.tool_result"


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
