"""A run as an AG-UI stream.

AG-UI counts differently: each of its runs is one request of a conversation, its thread. A thread is a Loom session.
When a run of Loom waits for a person, the AG-UI run ends with interrupts. The thread's next AG-UI run brings the
answers, and continues the same run of Loom. An interrupt's ID says which one, so that any instance can continue it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, Final, Literal, TypeAlias

from ag_ui.core import (
    AssistantMessage,
    AudioPart,
    BaseEvent,
    CustomEvent,
    DataSource,
    DocumentPart,
    FunctionCall,
    ImagePart,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TextPart,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
    UrlSource,
    UserMessage,
    VideoPart,
)
from ag_ui.encoder import EventEncoder
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json, to_jsonable_python

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import Action, Task
from loom.serve.access.roles import Operation
from loom.serve.caller_runs import CallerRuns
from loom.serve.faces.following import NO_ANSWER, Decision, Ended, Waits, about_call, decide, follow
from loom.serve.problems import ANTICIPATED, name_and_detail
from loom.watching import Streamed, closing

PROTOCOL: Final = "1.0"
RUN: Final = "loom.run"
"""The custom event that names Loom's run: `{"run_id": …}`."""
CONTEXT: Final = "Context from the application:"
"""The line of a task before the application's context."""
IGNORED: Final = "loom.ignored"
"""The custom event that names the fields of the input that had no effect."""

FilePart: TypeAlias = ImagePart | AudioPart | VideoPart | DocumentPart

Answer: TypeAlias = Annotated[str, Field(min_length=1)]
"""The payload that answers the interrupt of a question."""
_ANSWER: Final = TypeAdapter(Answer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What an interrupt asks. Its ID is this value, encoded."""

    run_id: str
    after: int
    """The offset of the last event before the interrupt."""
    call_id: str | None
    """The pending call. None: the agent's question."""
    digest: str | None
    shown_as: str | None
    """The ID under which the stream has shown the call."""

    @property
    def id(self) -> str:
        """The interrupt's ID."""
        return urlsafe_b64encode(to_json(self)).decode()


_ASKED: Final = TypeAdapter(Asked)


def asked_by(entry: ResumeEntry) -> Asked:
    """Return what the interrupt asked that this entry answers. Raises BadRequest."""
    try:
        return _ASKED.validate_python(from_json(urlsafe_b64decode(entry.interrupt_id.encode())))
    except ValueError:
        raise BadRequest("resume: `interruptId` must be the `id` of an interrupt, unchanged", field="resume") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A run of Loom, and where an AG-UI run begins in it."""

    run_id: str
    after: int = 0
    shown: frozenset[str] = frozenset()
    """The calls that an earlier AG-UI run has shown."""
    has_answer: bool = False
    """Whether the agent's question was answered."""


async def begin(runs: CallerRuns, agent: str, given: RunAgentInput) -> Position:
    """Start a run of Loom with the thread's last message, or answer the interrupts of one. Raises BadRequest, and the
    errors of `CallerRuns`.
    """
    runs.require(Operation.START)  # before anything is said about the input
    if given.resume:
        return await _resume(runs, given.resume)
    run_id = await runs.start({**_task(given), "agent": agent, "session_id": given.thread_id})
    return Position(run_id=run_id)


async def _resume(runs: CallerRuns, entries: Sequence[ResumeEntry]) -> Position:
    asked = [asked_by(entry) for entry in entries]
    decisions = [_decision(each, entry) for each, entry in zip(asked, entries, strict=True)]
    if len({each.run_id for each in asked}) > 1:
        raise BadRequest("resume: answer the interrupts of one run at a time", field="resume")
    for each, decision in zip(asked, decisions, strict=True):
        match decision:
            case str():
                await runs.send(each.run_id, decision)
            case Decision():
                await decide(runs, each.run_id, decision, call_id=str(each.call_id), digest=each.digest)
    shown = frozenset(each.shown_as for each in asked if each.shown_as)
    return Position(
        run_id=asked[0].run_id,
        after=min(each.after for each in asked),
        shown=shown,
        has_answer=any(each.call_id is None for each in asked),
    )


def _decision(asked: Asked, entry: ResumeEntry) -> Decision | str:
    if entry.status == "cancelled":
        return Decision(approved=False, reason=NO_ANSWER) if asked.call_id else NO_ANSWER
    try:
        return Decision.model_validate(entry.payload) if asked.call_id else _ANSWER.validate_python(entry.payload)
    except ValidationError as error:
        wanted = '{"approved": true} or {"approved": false, "reason": "…"}' if asked.call_id else "a text"
        raise BadRequest(f"resume.payload: must be {wanted} ({error.errors()[0]['msg']})", field="resume") from None


def _task(given: RunAgentInput) -> JsonObject:
    """Return the fields `task` and `parts` of a request, from the last message and the application's context."""
    last = given.messages[-1] if given.messages else None
    if not isinstance(last, UserMessage):
        raise BadRequest("messages: the last one must have the role `user`; it is the run's task", field="messages")
    content = [TextPart(text=last.content)] if isinstance(last.content, str) else last.content
    texts = [part.text for part in content if isinstance(part, TextPart)]
    files = [_file(part) for part in content if not isinstance(part, TextPart)]
    if given.context:
        texts += ["", CONTEXT, *(f"- {each.description}: {each.value}" for each in given.context)]
    return {"task": "\n".join(texts), **({"parts": files} if files else {})}


def _file(part: FilePart) -> JsonObject:
    told = part.metadata.get("filename") if isinstance(part.metadata, dict) else None
    name = {"name": told} if isinstance(told, str) else {}
    match part.source:
        case DataSource(value=value):
            return {"data": value, **name}
        case UrlSource(value=value):
            return {"url": value, **name}
        case _:
            raise BadRequest("messages: a file's source must be `data` or `url`", field="messages")


async def encoded(runs: CallerRuns, at: Position, given: RunAgentInput) -> AsyncIterator[bytes]:
    """Yield the AG-UI events of a run from a position on, as server-sent events."""
    encoder = EventEncoder()
    async with closing(events(runs, at, given)) as all_events:
        async for event in all_events:
            yield encoder.encode(event).encode("utf-8", "replace")


async def events(runs: CallerRuns, at: Position, given: RunAgentInput) -> AsyncIterator[BaseEvent]:
    """Yield the AG-UI events of a run from a position on. The last one is RUN_FINISHED or RUN_ERROR."""
    yield RunStartedEvent(thread_id=given.thread_id, run_id=given.run_id, protocol_version=PROTOCOL)
    yield CustomEvent(name=RUN, value={"run_id": at.run_id})
    unused = ("tools", "state", "forwarded_props", *(("context",) if given.resume else ()))
    if ignored := [name for name in unused if getattr(given, name)]:
        yield CustomEvent(name=IGNORED, value={"fields": ignored})
    translation = Translation(at, given)
    try:
        async with closing(follow(runs, at.run_id, after=at.after, knows_waits=at.has_answer)) as followed:
            async for each in followed:
                for event in translation.of(each):
                    yield event
    except ANTICIPATED as error:
        name, detail = name_and_detail(error)
        for event in translation.close_text():
            yield event
        yield RunErrorEvent(message=detail, code=name)


class Translation:
    """Translates the events of one run. It remembers which message is open, and which messages the client has."""

    def __init__(self, at: Position, given: RunAgentInput) -> None:
        self._run_id = at.run_id
        self._thread_id, self._agui_run_id = given.thread_id, given.run_id
        self._after = at.after
        self._messages: list[Message] = list(given.messages)
        self._shown = set(at.shown)
        self._numbers = count(1)
        self._open: Literal["text", "reasoning"] | None = None
        self._id = ""
        self._text = ""
        self._last_text = ""

    def of(self, followed: Streamed | Waits | Ended) -> Iterator[BaseEvent]:
        """Return the events for a value of `follow`."""
        match followed:
            case Streamed(offset=offset, task=task):
                self._after = offset
                if task.run_id == self._run_id:
                    yield from self._of_task(task)
            case Waits():
                yield from self._interrupt(followed)
            case Ended(result=result):
                yield from self._end(result)

    def _of_task(self, task: Task) -> Iterator[BaseEvent]:
        said, result = task.parameters, task.result or {}
        match task.action:
            case Action.THINKING:
                yield from self._fragment("text", said["content"])
            case Action.REASONING:
                yield from self._fragment("reasoning", said["content"])
            case Action.SEGMENT_RESET:
                yield from self._reset()
            case Action.MODEL_CALL if task.status == "completed" and "purpose" not in said:
                if not self._text and (text := result.get("content")):  # the live stream had no fragments
                    yield from self._fragment("text", text)
                yield from self.close_text()
            case Action.TOOL_CALL | Action.APPROVAL_REQUESTED:
                yield from self._call(said)
            case Action.TOOL_RESULT if "call_id" in said:
                yield from self._call(said)
                content = str(result.get("content", ""))
                message = ToolMessage(id=f"{said['call_id']}-result", tool_call_id=said["call_id"], content=content)
                self._messages.append(message)
                yield ToolCallResultEvent(message_id=message.id, tool_call_id=message.tool_call_id, content=content)

    def _fragment(self, kind: Literal["text", "reasoning"], text: str) -> Iterator[BaseEvent]:
        if not text:
            return
        if self._open != kind:
            yield from self.close_text()
            self._open, self._id, self._text = kind, f"{self._run_id}-{self._after}-{next(self._numbers)}", ""
            if kind == "text":
                yield TextMessageStartEvent(message_id=self._id, role="assistant")
            else:
                yield ReasoningStartEvent(message_id=self._id)
                yield ReasoningMessageStartEvent(message_id=self._id, role="reasoning")
        self._text += text if kind == "text" else ""
        of_kind = TextMessageContentEvent if kind == "text" else ReasoningMessageContentEvent
        yield of_kind(message_id=self._id, delta=text)

    def close_text(self) -> Iterator[BaseEvent]:
        """Return the events that close the open message."""
        match self._open:
            case "text":
                yield TextMessageEndEvent(message_id=self._id)
                self._messages.append(AssistantMessage(id=self._id, content=self._text))
                self._last_text = self._text
            case "reasoning":
                yield ReasoningMessageEndEvent(message_id=self._id)
                yield ReasoningEndEvent(message_id=self._id)
            case None:
                pass
        self._open, self._text = None, ""

    def _reset(self) -> Iterator[BaseEvent]:
        """Take back the text of a model call that is being retried. Only a snapshot of all messages can do that."""
        if self._open != "text":
            yield from self.close_text()
            return
        yield from self.close_text()
        self._messages.pop()
        self._last_text = ""
        yield MessagesSnapshotEvent(messages=list(self._messages))

    def _call(self, said: JsonObject) -> Iterator[BaseEvent]:
        call_id, tool = str(said["call_id"]), str(said.get("tool", ""))
        if call_id in self._shown:
            return
        yield from self.close_text()
        self._shown.add(call_id)
        arguments = to_json(said.get("arguments") or {}).decode()
        call = ToolCall(id=call_id, function=FunctionCall(name=tool, arguments=arguments))
        self._messages.append(AssistantMessage(id=f"{call_id}-call", tool_calls=[call]))
        yield ToolCallStartEvent(tool_call_id=call_id, tool_call_name=tool, parent_message_id=f"{call_id}-call")
        yield ToolCallArgsEvent(tool_call_id=call_id, delta=arguments)
        yield ToolCallEndEvent(tool_call_id=call_id)

    def _interrupt(self, waits: Waits) -> Iterator[BaseEvent]:
        yield from self.close_text()
        for call in waits.calls:
            yield from self._call(call)
        interrupts = [self._about_call(call) for call in waits.calls]
        if waits.question:
            asked = Asked(run_id=self._run_id, after=self._after, call_id=None, digest=None, shown_as=None)
            schema = _ANSWER.json_schema()
            interrupts.append(
                Interrupt(id=asked.id, reason="input_required", message=waits.question, response_schema=schema)
            )
        yield self._finished(outcome=RunFinishedInterruptOutcome(interrupts=interrupts))

    def _about_call(self, call: JsonObject) -> Interrupt:
        call_id = str(call["call_id"])
        asked = Asked(
            run_id=self._run_id, after=self._after, call_id=call_id, digest=call.get("digest"), shown_as=call_id
        )
        return Interrupt(
            id=asked.id,
            reason="tool_call",
            message=about_call(call),
            tool_call_id=call_id,
            response_schema=Decision.model_json_schema(),
            expires_at=call.get("expires_at"),
            metadata={"loom": dict(call)},
        )

    def _end(self, result: RunResult) -> Iterator[BaseEvent]:
        yield from self.close_text()
        if result.status is RunStatus.FAILED:
            error = result.error
            message = error.message if error else "the run failed"
            yield RunErrorEvent(message=message, code=error.type if error else None)
            return
        if result.status is RunStatus.ABORTED:
            yield self._finished(outcome=RunFinishedCancelledOutcome())
            return
        if result.output and result.output.strip() != self._last_text.strip():  # given to the tool that finishes a run
            yield from self._fragment("text", result.output)
            yield from self.close_text()
        yield self._finished(result=to_jsonable_python(result))

    def _finished(self, **what: Any) -> RunFinishedEvent:
        return RunFinishedEvent(thread_id=self._thread_id, run_id=self._agui_run_id, **what)
