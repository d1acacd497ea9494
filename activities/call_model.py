"""The `call_model` activity: make one attempt at a streamed model call, and prepare each tool call in the reply."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TypeAlias

import structlog
from temporalio import activity

from loom.activities.budget_reservation import LEAST_LAST_ANSWER, Covered, Uncovered, covered, failure_of_call
from loom.activities.leases import Leases, is_stopped, outlasting
from loom.activities.manifest import Manifests
from loom.activities.output_schema import checked
from loom.activities.plan_calls import CallPreparer, FilesHere, TurnContext
from loom.activities.ports import (
    Claim,
    EventStream,
    ModelCall,
    Prices,
    Providers,
    StoreUnavailable,
    StreamRedactor,
    TranscriptStore,
)
from loom.activities.publish import StreamWriter, heartbeating, stream_writer
from loom.activities.quick_reads import QuickReads, TurnReads
from loom.activities.recall import PersonMemory, RecallSource, recalled
from loom.activities.run_workspaces import away
from loom.activities.sent_arguments import with_decoded_arguments
from loom.activities.shorter_contexts import first_that_fits, halves, may_be_too_long, too_long_in
from loom.domain.agents.reflection import approves
from loom.domain.agents.spec import AgentSpec
from loom.domain.context.assembler import Assembled
from loom.domain.context.model_context import ModelContext, Outline, build_context, outline_of
from loom.domain.context.recall import last_question
from loom.domain.core.errors import LLMConfigurationError, LLMContextLengthError, LoomError, UnreachableError
from loom.domain.core.messages import LEFT_OUT, Message, Transcript, left_out, with_left_out
from loom.domain.core.repositories import IN_CLONE
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import PreparedCall, ToolSpec
from loom.domain.machine.activity_requests import model_key
from loom.domain.memory.people import RecalledFacts
from loom.domain.permissions.dead_rules import offered
from loom.domain.run.activity_payloads import CompressRequest, EvaluateRequest, ModelReply, ModelRequest
from loom.domain.run.conversation import TooLong
from loom.domain.run.stream_events import (
    StreamEvent,
    milliseconds,
    model_failed,
    model_replied,
    model_said,
    model_segment,
    model_thought,
    segment_reset,
    turn_began,
)
from loom.domain.tools.meant_names import with_meant_names
from loom.domain.tools.tool_search import CALL_TOOL_SPEC, divided
from loom.domain.tree.budget import Spend

_log = structlog.get_logger("loom.model")

ConversationRequest: TypeAlias = ModelRequest | CompressRequest | EvaluateRequest
"""The requests that contain digests of a spec and of a conversation."""

LEAST_OUTPUT = 256
"""Minimum number of tokens available for a reply, even if the context window is full."""

RESEND = ModelReply()
"""Requests the full transcript and spec, because the worker doesn't recognize one of their digests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attempt:
    """An attempt at a model call."""

    request: ModelRequest
    spec: AgentSpec
    writer: StreamWriter
    quick: TurnReads | None
    """Runs the quick reads that the model asks for. None if activities make all calls."""


class LanguageModel:
    """Calls models for runs."""

    def __init__(
        self,
        *,
        providers: Providers,
        planner: CallPreparer,
        transcripts: TranscriptStore,
        stream: EventStream,
        redact: Callable[[str], str],
        masked: Callable[[], StreamRedactor],
        prices: Prices,
        manifests: Manifests,
        sources: Sequence[RecallSource] = (),
        app_sources: Sequence[RecallSource] = (),
        people: PersonMemory | None = None,
        leases: Leases[ModelReply] | None = None,
        quick_reads: QuickReads | None = None,
    ) -> None:
        """`leases` and `quick_reads` are None if the worker has no ledger."""
        self._providers = providers
        self._planner = planner
        self._transcripts = transcripts
        self._stream = stream
        self._redact = redact
        self._masked = masked
        self._prices = prices
        self._manifests = manifests
        self._sources = (*sources, *app_sources)
        self._asks_always = bool(app_sources)
        self._people = people
        self._leases = leases
        self._quick_reads = quick_reads

    @activity.defn(name="call_model")
    async def call_model(self, request: ModelRequest) -> ModelReply:
        """Call the model. If the call fails, raise the LLM error as an application failure of the same name."""
        with structlog.contextvars.bound_contextvars(
            **request.origin.log_ids,
            span_id=request.origin.span_id(model_segment(request.turn, request.attempt)),
            turn=request.turn,
            attempt=request.attempt,
        ):
            async with heartbeating():
                if self._leases is None or not request.origin.execution:
                    reply = await self._attempted(request)
                else:
                    reply = await self._shared(self._leases, request)
                # Only after the ledger has the reply: another attempt that finds it there tells the same calls.
                await self._tell_not_run(request, reply)
                return reply

    @activity.defn(name=f"call_model{IN_CLONE}")
    async def call_model_in_clone(self, request: ModelRequest) -> ModelReply:
        """The same for a run that works in a clone."""
        return await self.call_model(request)

    async def _tell_not_run(self, request: ModelRequest, reply: ModelReply) -> None:
        try:
            await self._planner.tell_not_run(self._stream, request, reply)
        except Exception as error:  # noqa: BLE001 - the reply is paid for, and the stream shows it only
            _log.error("calls_not_told", exc_info=error)

    async def _shared(self, leases: Leases[ModelReply], request: ModelRequest) -> ModelReply:
        """Return the reply of an earlier attempt that its worker has finished, or call the model."""
        claim = Claim(key=model_key(request), run_id=request.origin.run_id, attempt=request.attempt)
        try:
            if request.begun:
                await leases.earlier_ended(claim)
                if (found := await leases.found(claim)) is not None:
                    return await self._told(request, found)
        except StoreUnavailable:
            return await self._attempted(request)
        work = leases.recorded(claim, lambda: self._attempted(request), is_final=_is_answer, is_recorded=request.begun)
        return await outlasting(work)

    async def _told(self, request: ModelRequest, reply: ModelReply) -> ModelReply:
        """Write the notices that come with the call. The attempt that has the reply has told the rest of the call."""
        async with stream_writer(self._stream, request.origin, request.turn) as writer:
            writer.notices(request.notices)
        return reply

    async def _attempted(self, request: ModelRequest) -> ModelReply:
        segment = model_segment(request.turn, request.attempt)
        async with stream_writer(self._stream, request.origin, request.turn, segment) as writer:
            if request.attempt > 1:
                # Emit this only for the model, because it makes clients discard the turn's text. A tool retry must
                # not do that.
                writer.emit(segment_reset(request))
            writer.notices(request.notices)
            if (known := await load_conversation(self._transcripts, request)) is None:
                _log.info("transcript_unknown", count=request.tail.base.count)
                return RESEND
            spec, transcript = known
            try:
                self._manifests.check(spec, request.origin.run_id, writer)
                reads = self._quick_reads if request.quick_read_execution else None
                quick = None if reads is None else reads.of_turn(request, spec, writer)
                attempt = _Attempt(request=request, spec=spec, writer=writer, quick=quick)
                reply = await self._answer(attempt, transcript)
            except LoomError as error:
                if error.context.get("has_run") is not False:  # a call that waits for a permit was not sent
                    self._tell_failure(writer, request, spec.model, error)
                failure = await failure_of_call(error, prices=self._prices, model=spec.model, redact=self._redact)
                raise failure from None
            return reply if attempt.quick is None else await attempt.quick.with_results(reply)

    async def _answer(self, attempt: _Attempt, before: Transcript) -> ModelReply:
        request, spec, writer = attempt.request, attempt.spec, attempt.writer
        writer.emit(turn_began(request.origin, request.turn, request.stage))
        # Without a session there are no memories to recall. Without knowledge bases there are no passages.
        recalls = spec.knowledge or request.origin.session_id or self._asks_always
        found = await recalled(self._sources, before.messages, request.origin, spec) if recalls else ()
        transcript = before.extended(found)
        tools, deferred = _tools(spec, request)
        person = await self._about_person(before, request.origin)
        told = (*tools, CALL_TOOL_SPEC) if deferred else tools
        in_window = partial(
            build_context,
            spec,
            transcript.messages,
            tools=told,
            outline=outline_of(transcript),
            person=person.text if person else "",
        )
        context = in_window(measures=request.measures)
        if request.compresses and context.is_full:
            return await self._put_off(request, before, context, TooLong(trigger="window", tokens=context.tokens))
        ask = partial(self._ask_within_budget, attempt, transcript)
        try:
            reply = await ask(context)
        except (LLMContextLengthError, LLMConfigurationError) as error:
            if request.compresses and not request.refused and may_be_too_long(error, context):
                # A history says only that the conversation was too long.
                self._tell_failure(writer, request, spec.model, LLMContextLengthError(error.message))
                return await self._put_off(request, before, context, too_long_in(error, context))
            if not isinstance(error, LLMContextLengthError) or error.used is not None:  # a later attempt is charged
                raise
            windows = (in_window(measures=replace(request.measures, size=size)) for size in halves(context.tokens))
            context, reply = await first_that_fits(ask, context, windows, error)
        return replace(reply, collapsed=context.collapsed, recalled=found, person_facts=person.ids if person else ())

    async def _about_person(self, before: Transcript, origin: Origin) -> RecalledFacts | None:
        """Return what this call is told of the person that the run works for, or None if the run works for nobody."""
        if self._people is None or not (origin.user_id or origin.tenant):
            return None
        return await self._people.about(last_question(before.messages), origin)

    async def _put_off(
        self, request: ModelRequest, transcript: Transcript, context: ModelContext, too_long: TooLong
    ) -> ModelReply:
        """Return no reply, so that the run compresses the conversation first. This worker caches the conversation for
        that step.
        """
        _log.info("context_full", trigger=too_long.trigger, tokens=too_long.tokens, window=context.window)
        await self._transcripts.save(request.origin.run_id, request.tail, transcript)
        return ModelReply(too_long=too_long, collapsed=context.collapsed)

    async def _ask_within_budget(
        self, attempt: _Attempt, transcript: Transcript, context: ModelContext, *, too_long: str = ""
    ) -> ModelReply:
        """Call the model with this context, if the budget covers the call. `too_long` is the provider's message about a
        longer context.
        """
        request, spec = attempt.request, attempt.spec
        assembled = _assembled(context, request)
        most = _room_for_output(spec, request, assembled.tokens)
        bound = await self._bounded(request, spec, assembled, most)
        if isinstance(bound, Uncovered):
            _log.info("budget_short", need=bound.need.named)
            return ModelReply(uncovered=bound.need)
        return await self._ask(attempt, transcript, assembled=assembled, bound=bound, too_long=too_long)

    async def _bounded(
        self, request: ModelRequest, spec: AgentSpec, assembled: Assembled, most: int
    ) -> Covered | Uncovered:
        """Return the longest reply that fits into the context window and the remaining budget."""
        if request.allowance is None:
            return Covered(output=most, reserved=Spend())
        prompt = round(assembled.tokens * request.measures.ratio)
        return await covered(
            self._prices, spec.model, prompt=prompt, most=most, allowance=request.allowance, last=request.wrap_up
        )

    async def _ask(
        self, attempt: _Attempt, transcript: Transcript, *, assembled: Assembled, bound: Covered, too_long: str
    ) -> ModelReply:
        request, spec, writer = attempt.request, attempt.spec, attempt.writer
        provider, model = self._providers.resolve(spec.model)
        said_so_far = Streamed(writer.emit, request, self._masked(), model_said)
        thought = Streamed(writer.emit, request, self._masked(), model_thought)
        said_so_far.other, thought.other = thought, said_so_far
        call = replace(
            _call(request, spec, model, assembled, bound),
            is_text=outline_of(transcript).is_text,
            has_refusals=outline_of(transcript).has_refusals,
            is_shortened=request.refused or bool(too_long),
            called=frozenset(outline_of(transcript).called),
            on_thinking=thought.add,
            on_taken_back=said_so_far.take_back,
        )
        # Before the model is asked: its reply is paid for, and must not be lost while the files are made.
        here = await self._files_here(request) if call.may_call else FilesHere()
        started = perf_counter()
        try:
            answer = await provider.answer(call, said_so_far.add)
        except asyncio.CancelledError:
            thought.end()
            said_so_far.end()
            shown = said_so_far.shown
            if not is_stopped() or not shown.strip() or request.stage == "critique":
                raise
            return ModelReply(broken_off=shown)
        thought.end()
        said_so_far.end()
        # A quick read can't tell the agent about the files, nor have them made.
        quick = attempt.quick if here == FilesHere() and not self._planner.is_hooked(spec) else None
        if quick is not None:
            await quick.expect(answer.message.tool_calls)
        message = self._message(answer.message, call, spec, request, outline_of(transcript), too_long=too_long)
        context = TurnContext(
            spec=spec,
            grants=request.grants,
            origin=request.origin,
            turn=request.turn,
            missing=here.missing,
        )
        plans = await self._planner.plans(message.tool_calls, context, may_be_quick=quick is not None)
        if answer.stop == "length" and plans:
            plans = (*plans[:-1], _cut_off(plans[-1], bound.output))
        cost = await self._prices.cost_micros(spec.model, answer.usage)
        took = milliseconds(perf_counter() - started)
        replied = model_replied(spec.model, request, answer.usage, cost, ms=took, message=message)
        writer.emit(replied)
        _log.info("model_replied", tool_calls=len(plans), stop=answer.stop, **replied.parameters)
        self._planner.tell_asks(writer, message.tool_calls, plans, spec, turn=request.turn)
        await self._transcripts.save(request.origin.run_id, request.tail, transcript.extended([message]))
        return ModelReply(
            message=message,
            plans=plans,
            stop=answer.stop,
            usage=answer.usage,
            cost_micros=cost,
            estimated=assembled.tokens,
            reserved=bound.reserved if request.allowance is not None else None,
            checked=checked(spec, transcript.messages, message, plans, stop=answer.stop, pieces=request.pieces)
            if spec.output_schema is not None and call.may_call
            else None,
            approves=request.stage == "critique" and approves(message.text),
        )

    async def _files_here(self, request: ModelRequest) -> FilesHere:
        """Have the files here that rules look at when calls are prepared."""
        try:
            return await self._planner.files_here(request.origin, request.checkout)
        except (StoreUnavailable, UnreachableError) as error:
            raise away(error) from None

    def _message(
        self, said: Message, call: ModelCall, spec: AgentSpec, request: ModelRequest, earlier: Outline, *, too_long: str
    ) -> Message:
        """Return the reply as the run keeps it, with the calls that the model means."""
        # Some servers return tool calls even if the request offers no tools.
        said = with_meant_names(said, spec.tools) if call.may_call else replace(said, tool_calls=())
        said = with_left_out(said, call.model, ("length",), because=too_long) if too_long else said
        message = _with_new_ids(self._without_secrets(said), earlier, request.turn)
        if not message.tool_calls:
            return message
        return replace(message, tool_calls=with_decoded_arguments(message.tool_calls, spec.tools))

    def _without_secrets(self, message: Message) -> Message:
        """Return the reply with secrets redacted in its text. The arguments of its calls stay as they are, because the
        tools need them. They are redacted wherever they are shown.
        """
        if (note := left_out(message)) is not None:
            cleaned = {**note, "because": self._redact(str(note.get("because", "")))}
            message = replace(message, metadata={**message.metadata, LEFT_OUT: cleaned})
        if isinstance(message.content, str):
            return replace(message, content=self._redact(message.content))
        parts = (replace(part, text=self._redact(part.text)) for part in message.content)
        return replace(message, content=tuple(parts))

    def _tell_failure(self, writer: StreamWriter, request: ModelRequest, model: str, error: LoomError) -> None:
        _log.warning("model_failed", model=model, error=type(error).__name__, message=error.message)
        writer.emit(model_failed(model, request, error=type(error).__name__, message=self._redact(error.message)))


def _is_answer(reply: ModelReply) -> bool:
    return reply.message is not None


class Streamed:
    """Reports the model's text or its thinking on the live stream, with secrets redacted."""

    def __init__(
        self,
        emit: Callable[[StreamEvent], None],
        request: ModelRequest,
        masked: StreamRedactor,
        event: Callable[[ModelRequest, str], StreamEvent],
    ) -> None:
        self.other: Streamed | None = None
        """The thinking if this is the text, and the other way round."""
        self._emit = emit
        self._request = request
        self._masked = masked
        self._event = event
        self._shown: list[str] = []

    @property
    def shown(self) -> str:
        """The text that has been reported."""
        return "".join(self._shown)

    def add(self, piece: str) -> None:
        """Report the text so far, except for the part that may be the start of a secret. What was held back of the
        other one comes before it, because the model made it before.
        """
        if piece and self.other is not None:
            self.other.pause()
        self._show(self._masked.feed(piece))

    def pause(self) -> None:
        """Report the text that was held back, except for the part that may be the start of a secret."""
        self._show(self._masked.pause())

    def take_back(self) -> None:
        """Let readers discard the text so far."""
        self._masked.flush()
        if self._shown:
            self._shown.clear()
            self._emit(segment_reset(self._request, key="taken back"))

    def end(self) -> None:
        """Report the text that was held back."""
        self._show(self._masked.flush())

    def _show(self, text: str) -> None:
        if text:
            self._shown.append(text)
            self._emit(self._event(self._request, text))


def _call(request: ModelRequest, spec: AgentSpec, model: str, assembled: Assembled, bound: Covered) -> ModelCall:
    tools, deferred = _tools(spec, request)
    return ModelCall(
        model=model,
        system=assembled.system,
        messages=assembled.messages,
        tools=tools,
        deferred=deferred,
        may_call=not request.wrap_up and request.stage != "critique",
        max_output_tokens=bound.output,
        temperature=spec.temperature,
        options=spec.model_options,
        origin=request.origin,
        prompt_tokens=round(assembled.tokens * request.measures.ratio),
        rpm=spec.rpm,
        tpm=spec.tpm,
        timeout=spec.model_timeout,
        insists=request.insists,
    )


def _room_for_output(spec: AgentSpec, request: ModelRequest, tokens: int) -> int:
    """Return the maximum number of reply tokens. Providers count the reply and the prompt together."""
    left = request.measures.window(spec) - round(tokens * request.measures.ratio)
    return min(spec.max_output_tokens, max(LEAST_OUTPUT, left))


def _tools(spec: AgentSpec, request: ModelRequest) -> tuple[Sequence[ToolSpec], Sequence[ToolSpec]]:
    """Return the tools that the model is shown, and the tools on demand. For a final answer, include only the tool
    names, because some providers require the names of the tools in earlier calls.
    """
    tools = offered(spec.tools, spec.permissions) if spec.permissions else spec.tools
    shown, deferred = divided(tools, spec.on_demand) if spec.on_demand else (tools, ())
    if not request.wrap_up:
        return shown, deferred
    return [replace(tool, description="", parameters={"type": "object"}) for tool in shown], deferred


def _assembled(context: ModelContext, request: ModelRequest) -> Assembled:
    """Return the messages for the model. For a final answer, return only as many as the token budget allows."""
    if not request.wrap_up or request.allowance is None or request.allowance.tokens is None:
        return context.assembled()
    fits = int((request.allowance.tokens - LEAST_LAST_ANSWER) / request.measures.ratio)
    return replace(context, budget=max(1, min(context.budget, fits))).assembled()


def _cut_off(plan: PreparedCall, output: int) -> PreparedCall:
    """Return the plan of a call that isn't whole, because the reply was cut at its limit. The call can't run."""
    error = (
        f"not run: your reply was cut at the limit of {output:,} output tokens, so that this call may be incomplete."
        " Make the call again with less text, or do the work in several calls."
    )
    return PreparedCall(error=error, error_type="validation", effect=plan.effect, parallel=plan.parallel)


def _with_new_ids(message: Message, earlier: Outline, turn: int) -> Message:
    """Return the reply with call ids that are unique within the run. An approval must identify exactly one call."""
    if not message.tool_calls:
        return message
    # Compression may have dropped earlier calls. A provider that restarts its count would reuse the ids of those calls.
    mark = f"-t{turn}" if earlier.summaries else ""
    taken: set[str] = set()
    calls = []
    for call in message.tool_calls:
        own = f"{call.id}{mark}"
        name, number = own, 2
        while name in taken or name in earlier.grouping.callers:
            name, number = f"{own}-{number}", number + 1
        taken.add(name)
        calls.append(call if name == call.id else replace(call, id=name))
    return replace(message, tool_calls=tuple(calls))


async def load_conversation(
    transcripts: TranscriptStore, request: ConversationRequest
) -> tuple[AgentSpec, Transcript] | None:
    """Return the spec and the transcript, or None if either is missing on this worker.

    If the result is None, the activity asks the workflow to send both in full. A spec that was sent in full is stored
    for later calls.
    """
    spec = request.spec or await transcripts.load_spec(request.spec_digest)
    transcript = await transcripts.load(request.origin.run_id, request.tail)
    if spec is None or transcript is None:
        return None
    if request.spec is not None:
        await transcripts.save_spec(spec)
    return spec, transcript
