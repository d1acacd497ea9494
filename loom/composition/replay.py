"""Replay the histories of runs to find out whether this code can continue the runs.

Temporal restores a run by executing its workflow again with the results that history recorded. If the code of the
workflow has changed so that it takes another path, the run stops making progress. A replay finds this before the code
is deployed. It uses the same workflows, runner and converter as a worker, and it has no effect on the runs.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.json_format import ParseError
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecution, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Interceptor, Replayer
from temporalio.workflow import _Definition

from loom.activities.adapters.postgres.payloads import UNAVAILABLE
from loom.activities.adapters.temporal.errors import NO_STORAGE, answered
from loom.activities.adapters.temporal.run_history import executions
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.workflows.runner import WORKFLOW_RUNNER, WORKFLOWS
from loom.workflows.signing import SignedRequests

RUNNING: Final = "ExecutionStatus = 'Running'"
_TYPES: Final = tuple(str(_Definition.must_from_class(workflow).name) for workflow in WORKFLOWS)
_MESSAGE: Final = re.compile(r'message: "((?:[^"\\]|\\.)+)"')
_KIND: Final = re.compile(r'r#type: "([^"]+)"')
"""Matches the message and the type of the error in the SDK's description of a failed workflow task."""
_AHEAD: Final = 8
"""Maximum number of histories that are fetched at once, or wait to be replayed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """The outcome of one replay."""

    run_id: str
    execution: str
    workflow: str
    events: int
    error: str | None
    """Why the history can't be replayed, or None if it can."""


async def replay(histories: AsyncIterator[WorkflowHistory], converter: DataConverter) -> AsyncGenerator[Replay, None]:
    """Replay histories one after another. Yield an outcome for each. Executions that haven't begun come last."""
    waiting: list[WorkflowHistory] = []

    async def begun() -> AsyncIterator[WorkflowHistory]:
        async for history in histories:
            if has_begun(history):
                yield history
            else:
                waiting.append(history)

    async with replayer(converter).workflow_replay_iterator(begun()) as outcomes:
        async for outcome in outcomes:
            failure = outcome.replay_failure
            yield _outcome(outcome.history, None if failure is None else _reason(failure))
    for history in waiting:
        yield _outcome(history, None)


async def replay_error(history: WorkflowHistory, converter: DataConverter) -> str | None:
    """Return why this code can't replay a history, or None if it can."""
    outcome = await replayer(converter).replay_workflow(history, raise_on_replay_failure=False)
    return None if outcome.replay_failure is None else _reason(outcome.replay_failure)


def has_begun(history: WorkflowHistory) -> bool:
    """Return whether the execution has a workflow task, and so something to replay.

    A chat of an earlier build that rests has none. The SDK's replayer would wait for its first one forever.
    """
    return any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED for event in history.events)


def _outcome(history: WorkflowHistory, error: str | None) -> Replay:
    return Replay(
        run_id=history.workflow_id,
        execution=history.run_id,
        workflow=workflow_type(history),
        events=len(history.events),
        error=error,
    )


def replayer(converter: DataConverter, *interceptors: Interceptor) -> Replayer:
    """Return a replayer of Loom's workflows."""
    return Replayer(
        workflows=WORKFLOWS,
        workflow_runner=WORKFLOW_RUNNER,
        data_converter=converter,
        # Without a key: signatures that a run sends have no effect on the run.
        interceptors=[SignedRequests(), *interceptors],
        runtime=Runtime(telemetry=TelemetryConfig(logging=None)),  # it would log failures to standard output
    )


def _reason(failure: Exception) -> str:
    """Return the message in the SDK's description of a failed workflow task.

    Raises UnreachableError if the history refers to a payload in a store that doesn't respond or isn't known.
    """
    text = str(failure)
    messages, kinds = _MESSAGE.findall(text), _KIND.findall(text)  # a cause's message comes later, its type earlier
    told = ": ".join((*kinds[-1:], *messages[:1])).replace('\\"', '"') or text
    if UNAVAILABLE in text or NO_STORAGE in text:
        raise UnreachableError(f"a payload in Postgres can't be read, see LOOM_DATABASE_URL: {told}")
    return told


def workflow_type(history: WorkflowHistory) -> str:
    """Return the type of the workflow that the history belongs to."""
    return history.events[0].workflow_execution_started_event_attributes.workflow_type.name


async def histories_of(client: Client, run_id: str) -> AsyncIterator[WorkflowHistory]:
    """Yield the history of each execution of a run, newest first.

    Raises RunNotFoundError if there is no such run, and BadRequest if the workflow isn't one of Loom's.
    """
    with answered(run_id):
        async for history in executions(client, run_id):
            yield _loom_s(history, f"run {run_id!r}")


async def histories_matching(client: Client, query: str) -> AsyncIterator[WorkflowHistory]:
    """Yield the history of each execution of Loom's workflows that matches a List Filter, newest first.

    Histories that the server has deleted meanwhile are omitted. Raises BadRequest if the filter is invalid.
    """
    loom_s = f"WorkflowType IN ({', '.join(map(repr, _TYPES))}) AND ({query})"
    fetching: deque[asyncio.Task[WorkflowHistory | None]] = deque()
    try:
        async for execution in TemporalRuns(client).found(loom_s):
            fetching.append(asyncio.create_task(_fetched(client, execution)))
            if len(fetching) == _AHEAD and (history := await fetching.popleft()):
                yield history
        while fetching:
            if history := await fetching.popleft():
                yield history
    finally:
        for task in fetching:
            task.cancel()


async def histories_in(files: Iterable[Path]) -> AsyncIterator[WorkflowHistory]:
    """Yield the history in each file. The Web UI and `temporal workflow show --output json` write such files.

    Raises BadRequest if a file doesn't contain the history of one of Loom's workflows.
    """
    for path in files:
        try:
            history = WorkflowHistory.from_json(path.stem, path.read_text(encoding="utf-8"))
            started = history.events[0].workflow_execution_started_event_attributes
        except OSError as error:
            raise BadRequest(f"{path} cannot be read: {error.strerror}", field="--file") from error
        except (ValueError, LookupError, TypeError, AttributeError, ParseError) as error:
            raise BadRequest(
                f"{path} is not a workflow's history: download it as JSON in the Web UI, or use"
                f" `temporal workflow show --output json` ({type(error).__name__}: {error})",
                field="--file",
            ) from error
        yield _loom_s(WorkflowHistory(started.workflow_id or path.stem, history.events), str(path))


async def _fetched(client: Client, execution: WorkflowExecution) -> WorkflowHistory | None:
    with answered(execution.id):
        try:
            return await client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None


def _loom_s(history: WorkflowHistory, where: str) -> WorkflowHistory:
    if (found := workflow_type(history)) not in _TYPES:
        raise BadRequest(
            f"{where} is not the history of a workflow of Loom's ({', '.join(_TYPES)})"
            + (f", but of {found!r}: replay it with your own worker's code" if found else ""),
            field="RUN",
        )
    return history
