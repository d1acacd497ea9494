"""Reconstruct a run from its history, turn by turn: each model call's context and reply, and the tool results.

The history stores each part of a conversation once, under a digest. `turns_of` reassembles the conversation from the
inputs and results of the run's activities, in the order in which they were recorded. This requires neither a worker nor
a live run.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from loom.domain.agents.spec import AgentSpec
from loom.domain.context.assembler import ContextPart
from loom.domain.context.compression import transcript_after
from loom.domain.context.model_context import context_parts, person_part
from loom.domain.core.messages import (
    Message,
    ResultRef,
    Tail,
    ToolCall,
    Transcript,
    TranscriptRef,
    message_digest,
    transcript_of,
)
from loom.domain.core.requests import RunRequest, RunResult
from loom.domain.core.tasks import Action, Notice, Published
from loom.domain.core.tool_calls import ToolResult, tool_message
from loom.domain.history.task_rebuilding import Mask
from loom.domain.machine.delegation import call_of, child_answer
from loom.domain.machine.tool_results import settled_by_plan
from loom.domain.permissions.dead_rules import offered
from loom.domain.run.activity_payloads import (
    Compressed,
    CompressRequest,
    ModelReply,
    ModelRequest,
    Prepared,
    ToolRequest,
)
from loom.domain.run.state import RunState
from loom.domain.tools.tool_search import described
from loom.domain.tree.lineage import Lineage


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAttempt:
    """One attempt at a model call."""

    request: ModelRequest
    reply: ModelReply | None = None
    error: str = ""
    """The reason why there is no reply. Empty while the attempt is running."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolAttempt:
    """One attempt at a tool call."""

    request: ToolRequest
    result: ToolResult | None = None
    error: str = ""

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self.request.call_id


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionAttempt:
    """One attempt to compress the context."""

    request: CompressRequest
    done: Compressed | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildRun:
    """A child run that has ended."""

    run_id: str
    lineage: Lineage
    result: RunResult

    @property
    def call_id(self) -> str:
        """The id of the call that started the child run."""
        return call_of(self.lineage)

    @property
    def answer(self) -> ToolResult:
        """The result of the call that started the child run."""
        result, told = self.result, self.lineage.description
        return child_answer(told, self.run_id, status=result.status, output=result.output, error=result.error)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallNotRun:
    """A tool call that got its result without running, such as one with wrong arguments or one that was denied."""

    call: ToolCall
    content: str
    is_error: bool = True

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self.call.id

    @property
    def result(self) -> ToolResult:
        """What the model reads instead of a tool's result."""
        return ToolResult(content=self.content, status="error" if self.is_error else "success")


Record: TypeAlias = (
    RunRequest | Prepared | RunState | ModelAttempt | ToolAttempt | CompressionAttempt | ChildRun | Published
)
"""A record in a run's history. The first record is the request. A `RunState` record is the state that one execution
passed to the next.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beginning:
    """The start of a run's last execution, as recorded in its history."""

    given: tuple[Any, ...] = ()
    """The execution's input as plain JSON: the request, and any data passed on by an earlier execution or a parent."""
    goes_on: bool = False
    """Whether an earlier execution passed on the run's state."""
    prepared: Prepared | None = None
    """The prepared run. None if the run hasn't been prepared yet or was prepared in an earlier execution."""
    untouched: bool = False
    """Whether nothing has happened since the execution began, except that a worker may have looked at it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastCall:
    """An attempt at a model call, with its context."""

    attempt: ModelAttempt
    spec: AgentSpec | None
    messages: tuple[Message, ...] | None
    """The conversation before the call, or None if the history doesn't go back far enough."""

    @property
    def context(self) -> tuple[ContextPart, ...] | None:
        """The components of the model's context, or None if they are no longer known."""
        if self.spec is None or self.messages is None:
            return None
        reply = self.attempt.reply or ModelReply(collapsed=self.attempt.request.measures.collapsed)
        measures = replace(self.attempt.request.measures, collapsed=reply.collapsed)
        tools = described(offered(self.spec.tools, self.spec.permissions), self.spec.on_demand)
        parts = context_parts(self.spec, (*self.messages, *reply.recalled), tools=tools, measures=measures)
        return (*parts, _about_person(reply)) if reply.person_facts else parts


def _about_person(reply: ModelReply) -> ContextPart:
    """Return the part with facts about the person, without their text, which histories don't record."""
    ids = ", ".join(map(str, reply.person_facts))
    return ContextPart(component=person_part("", f"the person's memory: facts {ids}; text not recorded"), tokens=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PastTurn:
    """A turn of a run."""

    number: int
    """The number of the turn, from 1."""
    calls: tuple[PastCall, ...] = ()
    """All attempts at model calls, in order."""
    compressions: tuple[CompressionAttempt, ...] = ()
    """All attempts to compress the conversation."""
    tools: tuple[ToolAttempt, ...] = ()
    """All attempts at tool calls, in order."""
    children: tuple[ChildRun, ...] = ()
    """The child runs that received work in this turn and have ended."""
    not_run: tuple[CallNotRun, ...] = ()
    """The calls that got their result without running."""

    @property
    def answer(self) -> Message | None:
        """The model's final text, or None if there is none yet."""
        answers = (call.attempt.reply.message for call in reversed(self.calls) if call.attempt.reply is not None)
        return next((message for message in answers if message is not None), None)

    @property
    def outcomes(self) -> tuple[ToolAttempt | CallNotRun | ChildRun, ...]:
        """What became of the calls, in the order in which the model made them, with all attempts at each."""
        places = {call.id: place for place, call in enumerate(self.answer.tool_calls)} if self.answer else {}
        found: tuple[ToolAttempt | CallNotRun | ChildRun, ...] = (*self.tools, *self.not_run, *self.children)
        return tuple(sorted(found, key=lambda each: places.get(each.call_id, len(places))))


def arguments_masked(message: Message, mask: Mask) -> Message:
    """Return the message with the secrets in its calls' arguments redacted. Its text is redacted before it is stored,
    but a tool needs its arguments as the model wrote them.
    """
    return replace(message, tool_calls=tuple(_masked(call, mask) for call in message.tool_calls))


def without_secrets(turn: PastTurn, mask: Mask) -> PastTurn:
    """Return the turn with the secrets in the arguments of all its calls redacted."""
    calls = tuple(replace(call, attempt=_attempt_masked(call.attempt, mask)) for call in turn.calls)
    not_run = tuple(replace(left, call=_masked(left.call, mask)) for left in turn.not_run)
    return replace(turn, calls=calls, not_run=not_run)


def _attempt_masked(attempt: ModelAttempt, mask: Mask) -> ModelAttempt:
    if attempt.reply is None or attempt.reply.message is None:
        return attempt
    return replace(attempt, reply=replace(attempt.reply, message=arguments_masked(attempt.reply.message, mask)))


def _masked(call: ToolCall, mask: Mask) -> ToolCall:
    malformed = None if call.malformed is None else mask.clean(call.malformed)
    return replace(call, arguments=mask.clean_arguments(call.arguments), malformed=malformed)


def turns_of(records: Iterable[Record]) -> tuple[PastTurn, ...]:
    """Return the turns in these records, in order."""
    past = _Past()
    turns: dict[int, PastTurn] = {}
    children: list[ChildRun] = []
    told: dict[str, Notice] = {}
    for record in records:
        past = _learned(past, record)
        told |= {str(each.parameters["call_id"]): each for each in _ends_told(record)}
        if isinstance(record, ChildRun):
            children.append(record)
        if isinstance(record, ModelAttempt | ToolAttempt | CompressionAttempt):
            number = record.request.turn
            turns[number] = _with(turns.get(number, PastTurn(number=number)), record, past)
    in_order = [_with_children(turn, children) for _, turn in sorted(turns.items())]
    following = [*in_order, PastTurn(number=0)][1:]
    return tuple(_with_calls_not_run(turn, after, told) for turn, after in zip(in_order, following, strict=True))


def _ends_told(record: Record) -> Iterator[Notice]:
    """Return the notices of calls that have come to their end, in the request of an activity."""
    told: tuple[Notice, ...] = ()
    match record:
        case Published(notices=notices):
            told = notices
        case ModelAttempt() | ToolAttempt() | CompressionAttempt():
            told = record.request.notices
        case _:
            pass
    return (notice for notice in told if notice.action is Action.TOOL_RESULT)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Past:
    """The values whose digests are known at one point in a history."""

    specs: Mapping[str, AgentSpec] = field(default_factory=dict)
    last_spec: AgentSpec | None = None
    transcripts: Mapping[TranscriptRef, Transcript] = field(default_factory=dict)
    results: Mapping[ResultRef, Message] = field(default_factory=dict)

    def conversation(self, tail: Tail) -> Transcript | None:
        """Return the conversation that a request refers to."""
        base = Transcript() if tail.base == TranscriptRef() else self.transcripts.get(tail.base)
        items = [self.results.get(item) if isinstance(item, ResultRef) else item for item in tail.items]
        if base is None or None in items:
            return None
        return base.extended(item for item in items if item is not None)

    def with_transcripts(self, *transcripts: Transcript) -> "_Past":
        """Return the same values with these conversations added."""
        # Keep only the last conversations. A request refers to the previous one, or to one from a state.
        recent = dict([*self.transcripts.items()][-3:])
        return replace(self, transcripts={**recent, **{each.ref: each for each in transcripts}})

    def with_spec(self, digest: str, spec: AgentSpec) -> "_Past":
        """Return the same values with one more spec."""
        return replace(self, specs={**self.specs, digest: spec}, last_spec=spec)


def _learned(past: _Past, record: Record) -> _Past:
    match record:
        case RunRequest() | ChildRun() | Published():
            return past
        case Prepared(spec=spec, earlier=earlier):
            past = past if earlier is None else past.with_transcripts(transcript_of(earlier.messages))
            return past.with_spec(spec.digest, spec)
        case RunState():
            known = transcript_of(record.transcript.messages[: record.conversation.known.count])
            past = past.with_transcripts(known, record.transcript)
            return past.with_spec(record.conversation.spec_digest, record.spec) if record.spec else past
        case ToolAttempt(request=request, result=result):
            return past if result is None else _with_result(past, request, result)
        case ModelAttempt(request=request, reply=reply):
            return _after_model(_with_spec(past, request), request, reply)
        case CompressionAttempt(request=request, done=done):
            return _after_compression(_with_spec(past, request), request, done)


def _with_spec(past: _Past, request: ModelRequest | CompressRequest) -> _Past:
    return past.with_spec(request.spec_digest, request.spec) if request.spec else past


def _with_result(past: _Past, request: ToolRequest, result: ToolResult) -> _Past:
    message = tool_message(ToolCall(id=request.call_id, name=request.tool), result)
    ref = ResultRef(call_id=request.call_id, digest=message_digest(message))
    # One turn's results are enough, because later requests refer to the conversation that includes older results.
    recent = dict([*past.results.items()][-_RESULTS:])
    return replace(past, results={**recent, ref: message})


_RESULTS = 200


def _after_model(past: _Past, request: ModelRequest, reply: ModelReply | None) -> _Past:
    before = past.conversation(request.tail)
    if before is None or reply is None:
        return past
    if reply.message is not None:
        return past.with_transcripts(before, before.extended([*reply.recalled, reply.message]))
    return past.with_transcripts(before)


def _after_compression(past: _Past, request: CompressRequest, done: Compressed | None) -> _Past:
    before = past.conversation(request.tail)
    if before is None or done is None or done.summary is None:
        return past
    return past.with_transcripts(transcript_after(before.messages, done.summary, done.kept))


def _with_children(turn: PastTurn, children: Iterable[ChildRun]) -> PastTurn:
    asked = {call.id for call in turn.answer.tool_calls} if turn.answer else set()
    return replace(turn, children=tuple(child for child in children if child.call_id in asked))


def _with_calls_not_run(turn: PastTurn, following: PastTurn, told: Mapping[str, Notice]) -> PastTurn:
    """Return the turn with the calls that no activity and no child run has worked on.

    If the model has read their results in the following turn, these are known. Otherwise, the results are known of
    calls that were ruled out when they were prepared, and of those whose ends the stream was told.
    """
    reply = next((c.attempt.reply for c in reversed(turn.calls) if c.attempt.reply and c.attempt.reply.message), None)
    if reply is None or reply.message is None:
        return turn
    worked_on = {tool.request.call_id for tool in turn.tools} | {child.call_id for child in turn.children}
    planned = zip(reply.message.tool_calls, reply.plans, strict=False)
    left = {call.id: (call, plan) for call, plan in planned if call.id not in worked_on}
    if not left:
        return turn
    messages = (message for past in following.calls for message in past.messages or ())
    read = {message.tool_call_id: message for message in messages if message.tool_call_id in left}
    known: list[CallNotRun] = []
    for call, plan in left.values():
        if (message := read.get(call.id)) is not None:
            known.append(CallNotRun(call=call, content=message.text, is_error=message.is_error))
        elif (result := settled_by_plan(plan)) is not None:
            known.append(CallNotRun(call=call, content=result.content, is_error=result.status == "error"))
        elif (notice := told.get(call.id)) is not None:
            content = str((notice.result or {}).get("content", ""))
            known.append(CallNotRun(call=call, content=content, is_error=notice.status == "error"))
    return replace(turn, not_run=tuple(known))


def _with(turn: PastTurn, record: ModelAttempt | ToolAttempt | CompressionAttempt, past: _Past) -> PastTurn:
    match record:
        case ToolAttempt():
            return replace(turn, tools=(*turn.tools, record))
        case CompressionAttempt():
            return replace(turn, compressions=(*turn.compressions, record))
        case ModelAttempt(request=request):
            before = past.conversation(request.tail)
            spec = past.specs.get(request.spec_digest, past.last_spec)
            call = PastCall(attempt=record, spec=spec, messages=before.messages if before else None)
            return replace(turn, calls=(*turn.calls, call))
