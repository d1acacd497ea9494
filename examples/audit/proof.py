"""What history and live stream say about the run afterwards, and where that falls short of what the demo promises."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from temporalio.api.history.v1 import HistoryEvent

from loom import LoomClient
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import Action, Task

TOOL: Final = "run_tool"
MODEL: Final = "call_model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """An activity, as history has it."""

    kind: str
    name: str
    """Its id: turn and call, so that a step done again would be there twice."""
    decided_in: int
    """The workflow task that scheduled it; steps of one task run side by side."""
    worker: int
    """Process id of the worker that did it."""
    attempt: int
    completed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that the checks look at."""

    result: RunResult
    steps: tuple[Step, ...]
    history_events: int
    stream: tuple[Task, ...]
    report: Path
    approved: str
    """The text that was approved."""
    workers: tuple[int, ...]
    """Process ids: the worker that was killed, and the one after it."""

    @property
    def tools(self) -> tuple[Step, ...]:
        """The tool calls."""
        return tuple(step for step in self.steps if step.kind == TOOL)

    @property
    def group(self) -> int:
        """Most tool calls that were started side by side."""
        return max(Counter(step.decided_in for step in self.tools).values(), default=0)

    @property
    def decisions(self) -> list[str]:
        """Who approved what."""
        decided = [task.parameters for task in self.stream if task.action is Action.APPROVAL_DECIDED]
        return [f"{said.get('tool')}, by {said.get('by')}" for said in decided if said.get("approved")]

    def done_by(self, worker: int) -> int:
        """Steps of one worker."""
        return sum(step.worker == worker for step in self.steps)


async def history_of(loom: LoomClient, run_id: str) -> tuple[tuple[Step, ...], int]:
    """The steps of a run in their order, and the number of events in its history."""
    history = await loom.temporal.get_workflow_handle(run_id).fetch_history()
    return tuple(_steps(history.events)), len(history.events)


def _steps(events: Sequence[HistoryEvent]) -> Iterator[Step]:
    started = {s.scheduled_event_id: s for e in events if (s := e.activity_task_started_event_attributes).identity}
    completed = {e.activity_task_completed_event_attributes.scheduled_event_id for e in events}
    for event in events:
        scheduled = event.activity_task_scheduled_event_attributes
        begun = started.get(event.event_id)
        if not scheduled.activity_id or begun is None:
            continue
        yield Step(
            kind=scheduled.activity_type.name,
            name=scheduled.activity_id,
            decided_in=scheduled.workflow_task_completed_event_id,
            worker=int(begun.identity.partition("@")[0]),
            attempt=begun.attempt,
            completed=event.event_id in completed,
        )


def broken_promises(seen: Evidence) -> list[str]:
    """Each promise that was not kept, in words; an empty list is the demo's whole point."""
    result, calls = seen.result, _count(seen.stream, Action.TOOL_CALL)
    results = _count(seen.stream, Action.TOOL_RESULT)
    before, after = seen.workers
    written = seen.report.read_text(encoding="utf-8") if seen.report.is_file() else ""
    promises = {
        f"the run completes, but it is {result.status}": result.status is RunStatus.COMPLETED,
        f"at least four turns, but there were {result.turns}": result.turns >= 4,
        f"calls side by side, but the largest group was {seen.group}": seen.group >= 2,
        f"one approval, but there were {seen.decisions}": len(seen.decisions) == 1,
        "a written report, but there is none": bool(written.strip()),
        "the report is what was approved, but it is another text": written == seen.approved,
        "each tool call runs once, but the live stream says otherwise": set(calls.values()) == {1} and calls == results,
        f"{result.tool_calls} tool calls, but the stream has {len(calls)}": len(calls) == result.tool_calls,
        f"{result.tool_calls} tool calls, but history has {len(seen.tools)}": len(seen.tools) == result.tool_calls,
        "no step is done twice, but history says otherwise": _all_once(seen.steps),
        "one model call a turn, but there were more": sum(s.kind == MODEL for s in seen.steps) == result.turns,
        "the second worker goes on, but one of the two did nothing": all(map(seen.done_by, (before, after))),
        "nobody else does a step": {step.worker for step in seen.steps} <= {before, after},
    }
    return [promise for promise, kept in promises.items() if not kept]


def _count(stream: Sequence[Task], action: Action) -> Counter[str]:
    return Counter(str(task.parameters["call_id"]) for task in stream if task.action is action)


def _all_once(steps: Sequence[Step]) -> bool:
    names = Counter(step.name for step in steps)
    return all(names[step.name] == 1 and step.attempt == 1 and step.completed for step in steps)
