"""What a run did, according to its events, and assertions that show the complete run if they fail."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loom.client import LoomClient
from loom.domain.core.tasks import SHOWN_ONLY, Action, Task
from loom.domain.history.recorded_calls import RecordedCall, calls_of


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """The events of one run, without those of its sub-agents."""

    run_id: str
    events: tuple[Task, ...]

    @classmethod
    async def of(cls, client: LoomClient, run_id: str) -> "RecordedRun":
        """Read the events that a run has had so far. Raises StreamUnavailable if the stream can't be read."""
        events = [each.task async for each in client.events(run_id)]
        return cls(run_id=run_id, events=tuple(event for event in events if event.run_id == run_id))

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """All tool calls, in the order in which they began."""
        return calls_of(self.events)

    def assert_called(self, tool: str, arguments: Mapping[str, Any] | None = None, *, times: int | None = None) -> None:
        """Fail unless the run called this tool, with these arguments if you pass any, and `times` times if you set it.

        `arguments` may omit those that don't matter.
        """
        given = dict(arguments or {})
        found = [each for each in self.calls if each.is_call_of(tool, given)]
        told = f"{tool}({', '.join(f'{name}={json.dumps(value)}' for name, value in given.items())})"
        if times is not None and len(found) != times:
            raise AssertionError(f"{told} was called {len(found)} times instead of {times}\n{self}")
        if times is None and not found:
            raise AssertionError(f"{told} was not called\n{self}")

    def assert_not_called(self, tool: str) -> None:
        """Fail if the run called this tool, whether or not the call was allowed."""
        self.assert_called(tool, times=0)

    def assert_calls(self, *tools: str) -> None:
        """Fail unless the run called exactly these tools, in this order."""
        called = [each.tool for each in self.calls]
        if called != list(tools):
            raise AssertionError(f"the calls are {called}\n       instead of {list(tools)}\n{self}")

    def assert_events(self, *actions: str) -> None:
        """Fail unless these events occurred in this order. Others may have occurred between them."""
        at = 0
        for action in actions:
            rest = [event.action.value for event in self.events[at:]]
            if action not in rest:
                raise AssertionError(f"no {action} after {at} events, expected {' → '.join(actions)}\n{self}")
            at += rest.index(action) + 1

    def __str__(self) -> str:
        calls = iter(self.calls)
        seen: set[tuple[int, str]] = set()
        lines = [f"run {self.run_id}:"]
        for event in self.events:
            if event.action in SHOWN_ONLY:
                continue
            if event.action not in (Action.TOOL_CALL, Action.TOOL_RESULT):
                lines.append(f"  {event.action.value} {event.status}")
            elif (call := (event.parameters["turn"], event.parameters["call_id"])) not in seen:
                seen.add(call)
                lines.append(f"  {next(calls)}")
        return "\n".join(lines)
