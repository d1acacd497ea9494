"""The `compress_context` activity: make one attempt to shorten a conversation with a model's summary."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from time import perf_counter

import structlog
from temporalio import activity

from loom.activities.budget_reservation import GROWTH, LEAST_LAST_ANSWER, failure_of_call, worst_case
from loom.activities.call_model import load_conversation
from loom.activities.ports import ContextCompressor, EventStream, ModelCall, Prices, Providers, TranscriptStore
from loom.activities.publish import StreamWriter, heartbeating, stream_writer
from loom.activities.toolbox.hooks import answer_of, text_in
from loom.domain.agents.spec import AgentSpec
from loom.domain.context import summary_sections as sections
from loom.domain.context.compression import (
    LEAST_ROOM,
    WHOLE_SUMMARY,
    Compressing,
    compress,
    in_one_section,
    promising,
)
from loom.domain.context.model_context import Measures, ModelContext, build_context
from loom.domain.core.errors import HookFailedError, LoomError
from loom.domain.core.messages import Message, Tail, Transcript, Usage, user
from loom.domain.core.tokens import text_tokens, tokens_of
from loom.domain.permissions.dead_rules import offered
from loom.domain.run.activity_payloads import Compressed, CompressRequest
from loom.domain.run.stream_events import compression_segment, context_compressed, milliseconds, model_failed
from loom.domain.tools.tool_search import described
from loom.domain.tree.budget import Share

_log = structlog.get_logger("loom.compression")

RESEND = Compressed()
"""Requests the full transcript and spec, because the worker doesn't recognize one of their digests."""
PATIENCE = 60.0
"""The timeout of an app's own compressor in seconds."""
QUESTION_SHARE = 0.6
"""Maximum share of the context window that the messages to summarize may occupy."""


class Compressor:
    """Compresses conversations for runs."""

    def __init__(
        self,
        *,
        providers: Providers,
        transcripts: TranscriptStore,
        stream: EventStream,
        redact: Callable[[str], str],
        prices: Prices,
        own: ContextCompressor | None = None,
    ) -> None:
        """`own` is the app's compressor, which writes summaries in place of the model."""
        self._providers = providers
        self._transcripts = transcripts
        self._stream = stream
        self._redact = redact
        self._prices = prices
        self._own = own

    @activity.defn(name="compress_context")
    async def compress_context(self, request: CompressRequest) -> Compressed:
        """Compress the conversation. If the model call fails, raise the LLM error as an application failure."""
        segment = compression_segment(request.turn, request.attempt)
        with structlog.contextvars.bound_contextvars(**request.origin.log_ids, turn=request.turn):
            async with heartbeating(), stream_writer(self._stream, request.origin, request.turn, segment) as writer:
                writer.notices(request.notices)
                if (known := await load_conversation(self._transcripts, request)) is None:
                    return RESEND
                return await self._compressed(request, *known, writer)

    async def _compressed(
        self, request: CompressRequest, spec: AgentSpec, transcript: Transcript, writer: StreamWriter
    ) -> Compressed:
        started = perf_counter()
        work, measures = _work(request, spec, transcript.messages)
        room = int(QUESTION_SHARE * measures.window(spec) / measures.ratio)
        purse = None if request.allowance is None else await self._purse(request.allowance, request, spec, measures)
        summing = _Summing(self._providers, spec, work, request=request, room=room, purse=purse)
        error, written = "", await self._by_app(self._own, work) if self._own is not None else {}
        if written:
            work = in_one_section(work)
        else:
            error = await self._summed(summing, request, writer)
            written = summing.sections or sections.without_model(work.spoken, work.earlier)
        # In a thread, because a long conversation takes seconds, and a worker must not miss its heartbeats.
        shorter = await asyncio.to_thread(compress, work, written)
        after = _context(spec, shorter.transcript.messages, replace(measures, collapsed=0)).tokens
        cost = await self._prices.cost_micros(spec.model, summing.usage) if summing.usage.model_calls else 0
        ms = milliseconds(perf_counter() - started)
        event = context_compressed(
            spec.model,
            request,
            tokens=after,
            usage=summing.usage,
            cost_micros=cost,
            ms=ms,
            success=not error,
            error=error,
        )
        writer.emit(event)
        _log.info("context_compressed", **event.parameters)
        # Store it under its own digest, like a new conversation.
        await self._transcripts.save(request.origin.run_id, Tail(), shorter.transcript)
        return Compressed(
            summary=shorter.summary, kept=shorter.kept, tokens=after, usage=summing.usage, cost_micros=cost
        )

    async def _by_app(self, own: ContextCompressor, work: Compressing) -> Mapping[str, str]:
        """Return the summary of the app's own compressor, or nothing if it fails."""
        limit = in_one_section(work).section_limit
        try:
            summary = text_in(await answer_of("compressor", own.compress, work.messages, limit, patience=PATIENCE))
        except HookFailedError as error:
            _log.warning("compressor_failed", error=self._redact(error.message))
            return {}
        if not summary.strip():
            _log.warning("compressor_failed", error="it returned an empty text")
            return {}
        return {WHOLE_SUMMARY: self._redact(summary)}

    async def _purse(self, allowance: Share, request: CompressRequest, spec: AgentSpec, measures: Measures) -> "_Purse":
        """Return the budget for the summary. A final answer must still fit afterward, even if the summary doesn't save
        any tokens.
        """
        after = int(GROWTH * request.tokens)
        follows = await worst_case(
            self._prices, spec.model, prompt=after, output=LEAST_LAST_ANSWER, allowance=allowance
        )
        return _Purse(self._prices, spec.model, allowance.minus(follows), measures.ratio)

    async def _summed(self, summing: "_Summing", request: CompressRequest, writer: StreamWriter) -> str:
        """Ask the model to write the sections. If it writes none, return the reason, and otherwise an empty string."""
        if request.plain:
            return "the model could not be used"
        if not promising(summing.work):
            return "nearly all of the conversation must be kept"
        try:
            await summing.write()
        except _Uncovered as error:
            return str(error)
        except LoomError as error:
            message = self._redact(error.message)
            _log.warning("compression_failed", error=type(error).__name__, message=message)
            kind, model = type(error).__name__, summing.spec.model
            writer.emit(model_failed(model, request, error=kind, message=message, purpose="compression"))
            failure = await failure_of_call(error, prices=self._prices, model=model, redact=self._redact)
            raise failure from None
        return "" if summing.sections else "the model's answer contains none of the sections"


class _Uncovered(Exception):
    """The call might exceed the remaining budget."""


@dataclass(slots=True)
class _Purse:
    """The remaining budget for the calls of one compression."""

    prices: Prices
    model: str
    left: Share
    ratio: float

    async def pay(self, call: ModelCall) -> None:
        """Reserve the call's maximum usage. Raises _Uncovered if the budget doesn't cover it."""
        prompt = ceil(self.ratio * (text_tokens(call.system) + tokens_of(call.messages)))
        output = call.max_output_tokens
        need = await worst_case(self.prices, self.model, prompt=prompt, output=output, allowance=self.left)
        if self.left.shortfall(need):
            raise _Uncovered("the remaining budget may not cover the call")
        self.left = self.left.minus(need)


class _Summing:
    """Asks a model to write the sections of a summary. If some are too long, asks once more for shorter ones."""

    def __init__(
        self,
        providers: Providers,
        spec: AgentSpec,
        work: Compressing,
        *,
        request: CompressRequest,
        room: int,
        purse: _Purse | None,
    ) -> None:
        self.spec = spec
        self.work = work
        self.sections: Mapping[str, str] = {}
        self.usage = Usage()
        self._providers = providers
        self._request = request
        self._room = room
        self._purse = purse

    async def write(self) -> None:
        """Ask the model. Raises an LLM error if a call fails."""
        limit = self.work.section_limit
        work = self.work
        asked = sections.question(
            work.spoken, earlier=work.earlier, room=self._room, section_tokens=limit, names=work.sections
        )
        self.sections = await self._ask(asked)
        if long := {name: text for name, text in self.sections.items() if text_tokens(text) > limit}:
            try:
                shortened = await self._ask(sections.shorten(long, section_tokens=limit))
            except (LoomError, _Uncovered) as error:  # sections that are too long are truncated anyway
                if isinstance(error, LoomError) and error.used is not None:
                    self.usage += error.used
                _log.warning("sections_not_shortened", error=type(error).__name__, message=str(error))
                return
            self.sections = {**self.sections, **{name: text for name, text in shortened.items() if name in long}}

    async def _ask(self, question: str) -> dict[str, str]:
        provider, model = self._providers.resolve(self.spec.model)
        call = ModelCall(
            model=model,
            system=sections.SYSTEM,
            messages=(user(question),),
            max_output_tokens=min(self.spec.max_output_tokens, 2 * len(self.work.sections) * self.work.section_limit),
            temperature=self.spec.temperature,
            options=self.spec.model_options.for_short_answers,
            origin=self._request.origin,
            rpm=self.spec.rpm,
            tpm=self.spec.tpm,
            timeout=self.spec.model_timeout,
            insists=self._request.insists,
        )
        if self._purse is not None:
            await self._purse.pay(call)
        answer = await provider.answer(call, lambda _: None)
        self.usage += answer.usage
        return sections.read_sections(answer.message.text)


def _work(request: CompressRequest, spec: AgentSpec, messages: Sequence[Message]) -> tuple[Compressing, Measures]:
    """Return the compression to perform, together with the token measures for it."""
    measures = request.measures
    whole = _context(spec, messages, measures).tokens
    if request.tokens > whole:  # the provider counted more tokens than Loom estimated
        measures = replace(measures, ratio=measures.ratio * request.tokens / whole)
    target = spec.compress_target * min(request.tokens, measures.window(spec))

    def count(these: Sequence[Message]) -> int:
        return _context(spec, these, replace(measures, collapsed=0)).estimated - around

    around = _context(spec, (), measures).estimated
    work = Compressing(
        messages=tuple(messages),
        tools=spec.tools,
        facts=request.facts,
        room=max(LEAST_ROOM, int(target / measures.ratio) - around),
        section_tokens=max(1, int(spec.section_tokens / measures.ratio)),
        sections=tuple(name for name in sections.SECTIONS if not spec.sections or name in spec.sections),
        keep_turns=spec.keep_turns,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        turn=request.turn,
        count=count,
    )
    return work, measures


def _context(spec: AgentSpec, messages: Sequence[Message], measures: Measures) -> ModelContext:
    tools = described(offered(spec.tools, spec.permissions), spec.on_demand)
    return build_context(spec, messages, tools=tools, measures=measures, fixed=True)
