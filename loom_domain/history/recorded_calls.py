"""The tool calls of a run, as its events tell them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Action, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """One tool call of a run."""

    turn: int
    call_id: str
    tool: str
    arguments: JsonObject
    attempts: int
    """How often it was begun: more than once if a worker was lost, 0 if the call never ran because it was denied."""
    status: str
    """The result's status, such as `success`, `error` or `denied`, or `running` if there is no result."""
    output: str
    """The beginning of the result."""

    def is_call_of(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether this is a call of the tool with at least these arguments."""
        return self.tool == tool and arguments.items() <= self.arguments.items()

    def __str__(self) -> str:
        told = ", ".join(f"{name}={json.dumps(value)}" for name, value in self.arguments.items())
        again = f", {self.attempts} attempts" if self.attempts > 1 else ""
        return f"t{self.turn} {self.tool}({told}) → {self.status}{again}: {_line(self.output)}"


def calls_of(events: Iterable[Task]) -> tuple[RecordedCall, ...]:
    """Return the tool calls in the events of one run, in the order in which they began."""
    begun: dict[tuple[int, str], list[Task]] = {}
    asked: dict[str, JsonObject] = {}
    for event in events:
        match event.action:
            case Action.TOOL_CALL | Action.TOOL_RESULT:
                begun.setdefault((event.parameters["turn"], event.parameters["call_id"]), []).append(event)
            case Action.APPROVAL_REQUESTED:
                asked[event.parameters["call_id"]] = event.parameters.get("arguments") or {}
            case _:
                pass
    return tuple(_call(events, asked.get(call_id, {})) for (_, call_id), events in begun.items())


def _call(events: Sequence[Task], asked: JsonObject) -> RecordedCall:
    """Return the call. If a person denied it, only the request for the approval has its arguments."""
    first, last = events[0], events[-1]
    begun = [each for each in events if each.action is Action.TOOL_CALL]
    has_ended = last.action is Action.TOOL_RESULT
    return RecordedCall(
        turn=first.parameters["turn"],
        call_id=first.parameters["call_id"],
        tool=first.parameters["tool"],
        arguments=begun[0].parameters["arguments"] if begun else asked,
        attempts=len({each.parameters["attempt"] for each in begun if each.status == "running"}),
        status=_status(last) if has_ended else "running",
        output=str((last.result or {}).get("content", "")) if has_ended else "",
    )


def _status(returned: Task) -> str:
    is_denied = ((returned.result or {}).get("metadata") or {}).get("error_type") == "permission"
    return "denied" if is_denied else returned.status


def _line(text: str) -> str:
    first, *rest = text.splitlines() or [""]
    return first[:100] + ("…" if rest or len(first) > 100 else "")
