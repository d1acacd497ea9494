"""Check the run's history and live stream, and find promises of the demo that were broken."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from temporalio.api.history.v1 import HistoryEvent

from loom import LoomClient
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import Action, Task
from loom.domain.run.stream_events import NOT_RUN

TOOL: Final = "run_tool"
MODEL: Final = "call_model"
QUICK: Final = "quick-read"
"""The effect of a tool call that has run in the activity that called the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """An activity in the history, or a tool call that was part of one."""

    kind: str
    name: str
    """The activity's id, which contains the turn and the call. If a step ran twice, its id would appear twice."""
    decided_in: int
    """The workflow task that scheduled the step. Steps with the same task run in parallel."""
    worker: int
    """The process id of the worker that ran the step."""
    attempt: int
    completed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The data that the checks use."""

    result: RunResult
    steps: tuple[Step, ...]
    history_events: int
    stream: tuple[Task, ...]
    report: Path
    approved: str
    """The approved text."""
    workers: tuple[int, ...]
    """The process ids of the killed worker and the next worker."""

    @property
    def tools(self) -> tuple[Step, ...]:
        """The tool calls."""
        return tuple(step for step in self.steps if step.kind == TOOL)

    @property
    def group(self) -> int:
        """The size of the largest group of tool calls that started in parallel."""
        return max(Counter(step.decided_in for step in self.tools).values(), default=0)

    @property
    def decisions(self) -> list[str]:
        """The approved tools and the people who approved them."""
        decided = [task.parameters for task in self.stream if task.action is Action.APPROVAL_DECIDED]
        return [f"{said.get('tool')}, by {said.get('by')}" for said in decided if said.get("approved")]

    def done_by(self, worker: int) -> int:
        """Return the number of steps that a worker ran."""
        return sum(step.worker == worker for step in self.steps)


async def history_of(loom: LoomClient, run_id: str) -> tuple[tuple[Step, ...], int]:
    """Return a run's steps in order, and the number of events in its history."""
    history = await loom.temporal.get_workflow_handle(run_id).fetch_history()
    return tuple(_steps(history.events)), len(history.events)


def _steps(events: Sequence[HistoryEvent]) -> Iterator[Step]:
    started = {s.scheduled_event_id: s for e in events if (s := e.activity_task_started_event_attributes).identity}
    completed = {c.scheduled_event_id: c for e in events if (c := e.activity_task_completed_event_attributes).identity}
    for event in events:
        scheduled = event.activity_task_scheduled_event_attributes
        begun = started.get(event.event_id)
        if not scheduled.activity_id or begun is None:
            continue
        done = completed.get(event.event_id)
        step = Step(
            kind=scheduled.activity_type.name.removesuffix("_in_clone"),
            name=scheduled.activity_id,
            decided_in=scheduled.workflow_task_completed_event_id,
            worker=_process(begun.identity),
            attempt=begun.attempt,
            completed=done is not None,
        )
        yield step
        if step.kind == MODEL and done is not None:
            reply = json.loads(done.result.payloads[0].data)
            turn = step.name.partition("-")[0]
            yield from (replace(step, kind=TOOL, name=f"{turn}-{call_id}") for call_id in _quick_calls(reply))


def _quick_calls(reply: Mapping[str, Any]) -> Iterator[str]:
    """Yield the IDs of the model's calls whose results came with its reply."""
    calls = (reply.get("message") or {}).get("tool_calls", ())
    for call, plan in zip(calls, reply.get("plans", ()), strict=True):
        if plan.get("effect") == QUICK and plan.get("result") is not None:
            yield str(call["id"])


def _process(identity: str) -> int:
    return int(identity.partition("@")[0])


def broken_promises(seen: Evidence) -> list[str]:
    """Return a description of each broken promise. The demo succeeds if there are none."""
    result, calls = seen.result, _count(seen.stream, Action.TOOL_CALL)
    # The run itself answers the call of `done`.
    results = _count([task for task in seen.stream if task.parameters.get("attempt") != NOT_RUN], Action.TOOL_RESULT)
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
