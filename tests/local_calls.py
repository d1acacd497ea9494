"""What a history says of the tool calls that ran as local activities."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from temporalio.api.history.v1 import HistoryEvent


class LocalCall(NamedTuple):
    """A local tool call that has ended."""

    activity_id: str
    summary: str
    result: Any
    """None if it failed or took too long."""


def local_calls(events: Iterable[HistoryEvent]) -> Iterator[LocalCall]:
    """Yield a run's local tool calls, in order."""
    for event in events:
        marker = event.marker_recorded_event_attributes
        if marker.marker_name != "core_local_activity":
            continue
        data = json.loads(marker.details["data"].payloads[0].data)
        if data["activity_type"] == "run_tool":
            summary = json.loads(event.user_metadata.summary.data)
            has_result = "result" in marker.details
            result = json.loads(marker.details["result"].payloads[0].data) if has_result else None
            yield LocalCall(data["activity_id"], summary, result)
