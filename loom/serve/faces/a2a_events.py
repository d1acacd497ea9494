"""What runs say to A2A clients: the events, states and artifacts of the protocol."""

from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, TypeAlias

from a2a.helpers import new_data_part, new_text_part
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic_core import to_json, to_jsonable_python

from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import FINAL_ACTIONS, SHOWN_ONLY, Action
from loom.domain.core.tasks import Task as LoomTask
from loom.domain.core.whole_characters import accepted_text
from loom.serve.faces.following import Ended, Followed, Waits, about_call, progress
from loom.watching import Streamed

RESULT: Final = "result"
"""The ID of the artifact with the agent's answer."""

Event: TypeAlias = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class Translation:
    """Translates the events of one run into the protocol's. The artifact always contains the agent's newest text: each
    model call replaces it, and at the end, the result does.
    """

    def __init__(self, task: Task, *, silent_until: int = 0) -> None:
        """Events up to the offset `silent_until` only contribute to the text so far, and aren't sent."""
        self._task_id, self._context_id = task.id, task.context_id
        self._silent_until = silent_until
        self._text = ""

    def of(self, followed: Followed) -> Iterator[Event]:
        """Yield the protocol's events for a value of `follow`."""
        match followed:
            case Streamed(offset=offset, task=said) if offset < self._silent_until:
                deque(self._of_event(said), maxlen=0)
            case Streamed(offset=offset, task=said) if offset == self._silent_until:
                deque(self._of_event(said), maxlen=0)
                if self._text:
                    yield self._chunk(self._text, append=False)
            case Streamed(task=said):
                yield from self._of_event(said)
            case Waits():
                yield self._status(asking(self._task_id, followed))
            case Ended(result=result):
                for artifact in artifacts_of(result):
                    yield self._artifact(artifact, last_chunk=True)
                yield self._status(ended(self._task_id, result))

    def _of_event(self, said: LoomTask) -> Iterator[Event]:
        if said.run_id != self._task_id:
            return
        match said.action:
            case Action.THINKING:
                fragment = str(said.parameters["content"])
                yield self._chunk(fragment, append=bool(self._text))
                self._text += fragment
            case Action.SEGMENT_RESET:
                self._text = ""
                yield self._chunk("", append=False)
            case action if action not in SHOWN_ONLY and action not in FINAL_ACTIONS:
                if action is Action.MODEL_CALL:
                    self._text = ""
                yield self._status(_working(self._task_id, said))

    def _status(self, status: TaskStatus) -> Event:
        return TaskStatusUpdateEvent(task_id=self._task_id, context_id=self._context_id, status=status)

    def _chunk(self, text: str, *, append: bool) -> Event:
        return self._artifact(Artifact(artifact_id=RESULT, name=RESULT, parts=[_text_part(text)]), append=append)

    def _artifact(self, artifact: Artifact, *, append: bool = False, last_chunk: bool = False) -> Event:
        return TaskArtifactUpdateEvent(
            task_id=self._task_id,
            context_id=self._context_id,
            artifact=artifact,
            append=append,
            last_chunk=last_chunk,
        )


def _working(run_id: str, said: LoomTask) -> TaskStatus:
    at = Timestamp()
    at.FromDatetime(said.created_at)
    message = _message(run_id, said.task_id, [_text_part(progress(said))])
    return TaskStatus(state=TaskState.TASK_STATE_WORKING, message=message, timestamp=at)


def asking(run_id: str, waits: Waits) -> TaskStatus:
    """Return the status of a run that waits. The message has a line for people, and a data part for each call."""
    lines = [about_call(call) for call in waits.calls]
    if len(waits.calls) == 1 and not waits.question:
        lines.append("Answer `approve`, or `deny: REASON`.")
    parts = [_text_part("\n".join([*lines, waits.question]).strip())]
    parts += [new_data_part(to_jsonable_python(call)) for call in waits.calls]
    asked = blake2b(to_json([waits.calls, waits.question]), digest_size=8).hexdigest()
    return TaskStatus(
        state=TaskState.TASK_STATE_INPUT_REQUIRED, message=_message(run_id, f"{run_id}-ask-{asked}", parts)
    )


def ended(run_id: str, result: RunResult) -> TaskStatus:
    match result.status:
        case RunStatus.COMPLETED:
            return TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
        case RunStatus.ABORTED:
            state = TaskState.TASK_STATE_CANCELED
        case _:
            state = TaskState.TASK_STATE_FAILED
    error = result.error
    why = f"{error.type}: {error.message}" if error else f"the run ended with the status {result.status}"
    return TaskStatus(state=state, message=_message(run_id, f"{run_id}-{result.end_key}", [_text_part(why)]))


def artifacts_of(result: RunResult) -> list[Artifact]:
    """Return the answer: its text, and the structured output if there is one."""
    parts = [_text_part(result.output)] if result.output else []
    if result.structured_output is not None:
        parts.append(new_data_part(to_jsonable_python(result.structured_output)))
    return [Artifact(artifact_id=RESULT, name=RESULT, parts=parts)] if parts else []


def _message(run_id: str, message_id: str, parts: list[Part]) -> Message:
    return Message(message_id=message_id, task_id=run_id, role=Role.ROLE_AGENT, parts=parts)


def _text_part(text: str) -> Part:
    return new_text_part(accepted_text(text))
