"""Read what history records of a local activity: a marker with its id, its result or its failure, and its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

_MARKER: Final = "core_local_activity"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalActivity:
    """A local activity that has ended."""

    name: str
    activity_id: str
    ended: datetime
    result: Any = None
    failure: Failure | None = None


async def local_activity(
    converter: DataConverter, event: HistoryEvent, results: Mapping[str, type[Any]]
) -> LocalActivity | None:
    """Return the local activity that this event records, or None. `results` has the type of each activity's result;
    other local activities are left out.
    """
    marker = event.marker_recorded_event_attributes
    if marker.marker_name != _MARKER:
        return None
    (data,) = await converter.decode(list(marker.details["data"].payloads))
    if not isinstance(data, Mapping) or (kind := results.get(str(data.get("activity_type")))) is None:
        return None
    payloads = list(marker.details["result"].payloads) if "result" in marker.details else []
    (result,) = await converter.decode(payloads, [kind] * len(payloads)) or [None]
    return LocalActivity(
        name=str(data["activity_type"]),
        activity_id=str(data["activity_id"]),
        ended=_time(data.get("complete_time")) or event.event_time.ToDatetime(tzinfo=UTC),
        result=result,
        failure=marker.failure if marker.HasField("failure") else None,
    )


def _time(told: Any) -> datetime | None:
    if not isinstance(told, Mapping):
        return None
    return datetime.fromtimestamp(told["seconds"], UTC) + timedelta(microseconds=told["nanos"] // 1000)
