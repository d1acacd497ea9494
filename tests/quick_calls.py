"""What a history says of quick reads: those that ran with a model call, and those that ran as local activities."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from temporalio.api.history.v1 import HistoryEvent


class QuickCall(NamedTuple):
    """A quick attempt at a tool call that has ended."""

    activity_id: str
    """The ID that an activity of its own would have had."""
    result: Any
    """None if it failed or took too long."""


def quick_calls(events: Iterable[HistoryEvent]) -> Iterator[QuickCall]:
    """Yield a run's quick attempts, in order."""
    scheduled: dict[int, str] = {}
    for event in events:
        if name := event.activity_task_scheduled_event_attributes.activity_id:
            scheduled[event.event_id] = name
        done = event.activity_task_completed_event_attributes
        turn, _, step = scheduled.get(done.scheduled_event_id, "").partition("-")
        if step.startswith("model"):
            yield from _with_model_call(turn, json.loads(done.result.payloads[0].data))
        marker = event.marker_recorded_event_attributes
        if marker.marker_name == "core_local_activity":
            yield from _in_local_activity(marker.details)


def _with_model_call(turn: str, reply: Any) -> Iterator[QuickCall]:
    calls = (reply.get("message") or {}).get("tool_calls", ())
    for call, plan in zip(calls, reply.get("plans", ()), strict=True):
        if plan.get("effect") == "quick-read":
            yield QuickCall(f"{turn}-{call['id']}", plan.get("result"))


def _in_local_activity(details: Any) -> Iterator[QuickCall]:
    data = json.loads(details["data"].payloads[0].data)
    if data["activity_type"] == "run_tool":
        result = json.loads(details["result"].payloads[0].data) if "result" in details else None
        yield QuickCall(data["activity_id"], result)
