"""Compare what workflow code asks of Temporal during a replay with what the release asked that recorded the history.

The SDK's replayer compares only the kinds and ids of commands: a run that gives a tool another mode, or ends as
`completed` instead of `limit_reached`, passes. Here, the contents are compared, too: inputs, results, timers, search
attributes and cancellations. What a later release asks differently on purpose is listed in `differences.json`. After
such a change, run `python -m tests.replay.contents`, and review how the file has changed.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.workflow import Info, _Definition

from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER, WORKFLOWS
from loom.workflows.signing import SignedRequests

HISTORIES: Final = sorted(Path(__file__).parent.joinpath("histories").glob("*.json"))
DIFFERENCES: Final = Path(__file__).parent / "differences.json"

_OF_PATCHES: Final = "TemporalChangeVersion"
"""The search attribute that the SDK sets for `workflow.patched`. No command of the workflow's code asks for it."""
_LONGEST: Final = 100
"""Longer values are listed by their digest."""
_OPTIONS: Final = ("start_to_fire_timeout", "priority")
"""The options that depend on the run. `test_defaults.py` holds the others."""


@dataclass
class _RecordingRunner(WorkflowRunner):
    """Runs workflows as the worker does, and keeps their commands."""

    commands: list[WorkflowCommand] = field(default_factory=list)

    def prepare_workflow(self, defn: _Definition) -> None:
        WORKFLOW_RUNNER.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _RecordingInstance(WORKFLOW_RUNNER.create_instance(det), self.commands)


class _RecordingInstance(WorkflowInstance):
    def __init__(self, inner: WorkflowInstance, commands: list[WorkflowCommand]) -> None:
        self._inner = inner
        self._commands = commands

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        completion = self._inner.activate(act)
        self._commands.extend(completion.successful.commands)
        return completion

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._inner.get_info()


async def differences(history: WorkflowHistory) -> Sequence[str]:
    """Replay a history, and return what today's code asks differently.

    Raises the replayer's error if the code doesn't take the history's path.
    """
    runner = _RecordingRunner()
    replayer = Replayer(
        workflows=WORKFLOWS,
        workflow_runner=runner,
        data_converter=data_converter(),
        interceptors=[SignedRequests()],  # without a key: only the recorded public key may matter
    )
    run_id = history.events[0].workflow_execution_started_event_attributes.workflow_id
    await replayer.replay_workflow(replace(history, workflow_id=run_id))
    recorded, today = _by_name(_of_events(history.events)), _by_name(_of_commands(runner.commands))
    today = {name: asked for name, asked in today.items() if name in recorded or not _may_be_unrecorded(name)}
    return sorted(_differences("", recorded, today))


def _may_be_unrecorded(name: str) -> bool:
    """Whether a command may have no event: the run ended, or the awaited event came, in the same workflow task."""
    return name.startswith(("timer", "cancellation"))


def _of_commands(commands: Iterable[WorkflowCommand]) -> Iterator[tuple[str, Any]]:  # noqa: C901 - one case a command
    activities: dict[int, str] = {}
    for command in commands:
        kind = command.WhichOneof("variant") or ""
        asked = getattr(command, kind)
        match kind:
            case "schedule_activity":
                activities[asked.seq] = asked.activity_id
                yield _activity(asked.activity_id, asked.activity_type, asked.arguments, asked, command.user_metadata)
            case "request_cancel_activity":
                yield _cancellation(activities[asked.seq])
            case "start_timer":
                yield _timer(str(asked.seq), asked, command.user_metadata)
            case "start_child_workflow_execution":
                yield _child(asked.workflow_id, asked.workflow_type, asked.input, asked)
            case "signal_external_workflow_execution":
                to = asked.child_workflow_id or asked.workflow_execution.workflow_id
                yield _signal(asked.signal_name, to, asked.args)
            case "upsert_workflow_search_attributes":
                yield "search attributes", _mapped(asked.search_attributes.indexed_fields)
            case "schedule_local_activity":
                yield "local activity", asked.activity_type
            case "update_response" if asked.HasField("completed"):
                yield f"update {asked.protocol_instance_id}", _decoded([asked.completed])
            case "continue_as_new_workflow_execution":
                yield "continue-as-new", _decoded(asked.arguments)
            case "complete_workflow_execution":
                yield "result", _decoded([asked.result])
            case "fail_workflow_execution":
                yield "failure", _failure(asked.failure)


def _of_events(events: Iterable[HistoryEvent]) -> Iterator[tuple[str, Any]]:  # noqa: C901 - one case an event
    activities: dict[int, str] = {}
    for event in events:
        kind = (event.WhichOneof("attributes") or "").removesuffix("_event_attributes")
        asked = getattr(event, f"{kind}_event_attributes")
        match kind:
            case "activity_task_scheduled":
                activities[event.event_id] = asked.activity_id
                name, arguments = asked.activity_type.name, asked.input.payloads
                yield _activity(asked.activity_id, name, arguments, asked, event.user_metadata)
            case "activity_task_cancel_requested":
                yield _cancellation(activities[asked.scheduled_event_id])
            case "timer_started":
                yield _timer(asked.timer_id, asked, event.user_metadata)
            case "start_child_workflow_execution_initiated":
                yield _child(asked.workflow_id, asked.workflow_type.name, asked.input.payloads, asked)
            case "signal_external_workflow_execution_initiated":
                yield _signal(asked.signal_name, asked.workflow_execution.workflow_id, asked.input.payloads)
            case "upsert_workflow_search_attributes" if _OF_PATCHES not in asked.search_attributes.indexed_fields:
                yield "search attributes", _mapped(asked.search_attributes.indexed_fields)
            case "marker_recorded" if asked.marker_name == "core_local_activity":
                yield "local activity", json.loads(asked.details["data"].payloads[0].data)["activity_type"]
            case "workflow_execution_update_completed" if asked.outcome.HasField("success"):
                yield f"update {asked.meta.update_id}", _decoded(asked.outcome.success.payloads)
            case "workflow_execution_continued_as_new":
                yield "continue-as-new", _decoded(asked.input.payloads)
            case "workflow_execution_completed":
                yield "result", _decoded(asked.result.payloads)
            case "workflow_execution_failed":
                yield "failure", _failure(asked.failure)


def _activity(
    name: str, kind: str, arguments: Iterable[Payload], options: Message, told: UserMetadata
) -> tuple[str, Any]:
    content = {"type": kind, "input": _decoded(arguments), "summary": _decoded([told.summary]), **_options(options)}
    return f"activity {name}", content


def _cancellation(activity: str) -> tuple[str, Any]:
    return f"cancellation of {activity}", {}


def _timer(name: str, options: Message, told: UserMetadata) -> tuple[str, Any]:
    return f"timer {name}", {"summary": _decoded([told.summary]), **_options(options)}


def _child(name: str, kind: str, arguments: Iterable[Payload], options: Any) -> tuple[str, Any]:
    policy = int(options.parent_close_policy)
    return f"child {name}", {"type": kind, "input": _decoded(arguments), "if closed": policy, **_options(options)}


def _signal(name: str, to: str, arguments: Iterable[Payload]) -> tuple[str, Any]:
    return f"signal {name} to {to}", _decoded(arguments)


def _failure(failure: Failure) -> Any:
    known = failure.application_failure_info
    return {"message": failure.message, "type": known.type, "details": _decoded(known.details.payloads)}


def _options(message: Message) -> Mapping[str, Any]:
    """Return the options that are set."""
    found = MessageToDict(message, preserving_proto_field_name=True)
    return {name: found[name] for name in _OPTIONS if name in found}


def _mapped(fields: Mapping[str, Payload]) -> Mapping[str, Any]:
    return {name: _decoded([payload]) for name, payload in fields.items()}


def _decoded(payloads: Iterable[Payload]) -> Sequence[Any]:
    return [json.loads(payload.data or b"null") for payload in payloads]


def _by_name(asked: Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
    """Return what is asked by name. If a name comes again, it is numbered."""
    seen: Counter[str] = Counter()
    found = {}
    for name, content in asked:
        seen[name] += 1
        found[f"{name} {seen[name]}" if seen[name] > 1 else name] = content
    return found


def _differences(place: str, recorded: Any, today: Any) -> Iterator[str]:
    if recorded == today:
        return
    if isinstance(recorded, Mapping) and isinstance(today, Mapping):
        for name in {**recorded, **today}:
            yield from _differences(f"{place}/{name}", recorded.get(name), today.get(name))
    elif isinstance(recorded, list) and isinstance(today, list) and len(recorded) == len(today):
        for number, pair in enumerate(zip(recorded, today, strict=True)):
            yield from _differences(f"{place}/{number}", *pair)
    else:
        yield f"{place}: {_shown(recorded)} → {_shown(today)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _LONGEST else f"sha256 {sha256(text.encode()).hexdigest()[:16]}"


async def _write() -> None:
    found = {path.stem: await differences(WorkflowHistory.from_json(path.stem, path.read_text())) for path in HISTORIES}
    kept = {name: lines for name, lines in found.items() if lines}
    DIFFERENCES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(_write())
