"""Activity `call_model`: one attempt at one model call, streamed, with a plan for each tool call in the answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import structlog
from temporalio import activity

from activities.context_sources import ContextSource
from activities.failures import to_application_error
from activities.heartbeat import heartbeating
from activities.planning import Planner, tell_ask
from activities.ports import EventStream, ModelCall, Prices, Providers, ToolBox, TranscriptStore
from activities.stream_writer import StreamWriter, stream_writer
from loom_domain.agents import AgentSpec
from loom_domain.assembling import Assembled
from loom_domain.context import Sight, look
from loom_domain.dead_rules import offered
from loom_domain.errors import LLMContextLengthError, LoomError, ManifestChangedError
from loom_domain.messages import JsonObject, Message, Usage
from loom_domain.tasks import Action
from loom_domain.tool_calls import Verdict
from loom_domain.transcript import Transcript
from loom_domain.window import TooLong
from loom_domain.work import ModelReply, ModelRequest, model_segment

_log = structlog.get_logger("loom.model")

LEAST_OUTPUT = 256
"""Tokens that an answer may always have, however full the window is."""

RESEND = ModelReply()
"""The worker does not know the transcript or the spec by name: it needs them whole."""


class LanguageModel:
    """Calls models on behalf of runs."""

    def __init__(
        self,
        *,
        providers: Providers,
        tools: ToolBox,
        planner: Planner,
        transcripts: TranscriptStore,
        stream: EventStream,
        redact: Callable[[str], str],
        prices: Prices,
        refuse_changed_tools: bool,
        sources: Sequence[ContextSource] = (),
    ) -> None:
        self._providers = providers
        self._tools = tools
        self._planner = planner
        self._transcripts = transcripts
        self._stream = stream
        self._redact = redact
        self._prices = prices
        self._refuse_changed_tools = refuse_changed_tools
        self._sources = sources

    @activity.defn(name="call_model")
    async def call_model(self, request: ModelRequest) -> ModelReply:
        """Call the model; raises the LLM errors as application failures of the same name."""
        run_id = request.origin.run_id
        segment = model_segment(request.turn, request.attempt)
        with structlog.contextvars.bound_contextvars(run_id=run_id, turn=request.turn, attempt=request.attempt):
            async with heartbeating(), stream_writer(self._stream, request.origin, request.turn, segment) as writer:
                if request.attempt > 1:
                    # Only for the model: this tells clients to forget the turn's text, which a tool's retry must not.
                    writer.emit(Action.SEGMENT_RESET, key="reset", turn=request.turn, attempt=request.attempt)
                writer.notices(request.notices)
                spec = request.spec or await self._transcripts.load_spec(request.spec_digest)
                transcript = await self._transcripts.load(run_id, request.tail)
                if spec is None or transcript is None:
                    _log.info("transcript_unknown", count=request.tail.base.count)
                    return RESEND
                if request.spec is not None:
                    await self._transcripts.save_spec(spec)
                try:
                    self._check_manifest(spec)
                    return await self._answer(request, spec, transcript, writer)
                except LoomError as error:
                    self._tell_failure(writer, request, spec.model, error)
                    raise to_application_error(error, self._redact) from None

    def _check_manifest(self, spec: AgentSpec) -> None:
        """The run goes by the tools it was pinned to; that this worker's differ is said or refused, never silent."""
        changed = [
            tool.name
            for tool in spec.tools
            if not tool.source and (tool.name not in self._tools or self._tools[tool.name].spec != tool)
        ]
        if not changed:
            return
        if self._refuse_changed_tools:
            raise ManifestChangedError(
                f"this worker's tools are not those the run was started with: {', '.join(changed)}. Serve it with the"
                " version that started it, or set LOOM_ON_CHANGED_MANIFEST=keep",
                tools=changed,
            )
        _log.warning("manifest_changed", kept="pinned", tools=changed, manifest=spec.digest)

    async def _answer(
        self, request: ModelRequest, spec: AgentSpec, transcript: Transcript, writer: StreamWriter
    ) -> ModelReply:
        writer.emit(Action.TURN, key="turn", **_turn(request.turn))
        extra = [c for source in self._sources for c in await source.components(request, transcript.messages)]
        tools = offered(spec.tools, spec.permissions)
        sight = look(spec, transcript.messages, tools=tools, measures=request.measures, extra=extra)
        if request.compresses and sight.is_full:
            return await self._put_off(request, transcript, sight, TooLong(trigger="window", tokens=sight.tokens))
        try:
            reply = await self._ask(request, spec, transcript, sight.assembled(), writer)
        except LLMContextLengthError as error:
            if not request.compresses or request.refused:
                raise
            self._tell_failure(writer, request, spec.model, error)
            return await self._put_off(request, transcript, sight, _refused(error, sight))
        return replace(reply, collapsed=sight.collapsed, recalled=tuple(extra))

    async def _put_off(
        self, request: ModelRequest, transcript: Transcript, sight: Sight, too_long: TooLong
    ) -> ModelReply:
        """No answer: the run compresses the conversation first, which this worker keeps for that."""
        _log.info("context_full", trigger=too_long.trigger, tokens=too_long.tokens, window=sight.window)
        await self._transcripts.save(request.origin.run_id, request.tail, transcript)
        return ModelReply(too_long=too_long, collapsed=sight.collapsed)

    async def _ask(
        self, request: ModelRequest, spec: AgentSpec, transcript: Transcript, context: Assembled, writer: StreamWriter
    ) -> ModelReply:
        turn, attempt = request.turn, request.attempt
        provider, model = self._providers.resolve(spec.model)
        call = ModelCall(
            model=model,
            system=context.system,
            messages=context.messages,
            tools=offered(spec.tools, spec.permissions),
            max_output_tokens=_room_for_output(spec, request, context.tokens),
            temperature=spec.temperature,
        )
        started = perf_counter()
        answer = await provider.answer(
            call, lambda text: writer.emit(Action.THINKING, content=text, turn=turn, attempt=attempt)
        )
        message = _with_new_ids(answer.message, transcript.messages)
        plans = await self._planner.plans(message.tool_calls, spec, grants=request.grants, run_id=request.origin.run_id)
        cost = await self._prices.cost_micros(spec.model, answer.usage)
        facts = _facts(request, spec.model, answer.usage, cost, started)
        writer.emit(Action.MODEL_CALL, key="call", **facts)
        _log.info("model_replied", tool_calls=len(plans), stop=answer.stop, **facts)
        for c, made in zip(message.tool_calls, plans, strict=True):
            if made.verdict is Verdict.ASK and not made.error:
                tell_ask(writer, c, made, turn=turn, timeout=spec.approval_timeout)
        await self._transcripts.save(request.origin.run_id, request.tail, transcript.extended([message]))
        return ModelReply(
            message=message,
            plans=plans,
            stop=answer.stop,
            usage=answer.usage,
            cost_micros=cost,
            estimated=context.tokens,
        )

    def _tell_failure(self, writer: StreamWriter, request: ModelRequest, model: str, error: LoomError) -> None:
        _log.warning("model_failed", model=model, error=type(error).__name__, message=error.message)
        writer.emit(
            Action.MODEL_CALL,
            key="call",
            status="failed",
            model=model,
            turn=request.turn,
            attempt=request.attempt,
            error=type(error).__name__,
            message=self._redact(error.message),
        )


def _turn(turn: int) -> dict[str, Any]:
    return {"from": turn - 1, "to": turn, "depth": 0}


def _room_for_output(spec: AgentSpec, request: ModelRequest, tokens: int) -> int:
    """What the answer may have, since a provider counts it with the prompt."""
    left = request.measures.window(spec) - round(tokens * request.measures.ratio)
    return max(LEAST_OUTPUT, min(spec.max_output_tokens, left))


def _refused(error: LLMContextLengthError, sight: Sight) -> TooLong:
    told = (error.context.get(name) for name in ("tokens", "limit"))
    tokens, limit = (value if isinstance(value, int) and value > 0 else 0 for value in told)
    return TooLong(trigger="provider", tokens=tokens or sight.tokens, limit=limit)


def _facts(request: ModelRequest, model: str, usage: Usage, cost: int | None, started: float) -> JsonObject:
    return {
        "model": model,
        "turn": request.turn,
        "attempt": request.attempt,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost": None if cost is None else cost / 1_000_000,
        "ms": round((perf_counter() - started) * 1000, 1),
    }


def _with_new_ids(message: Message, earlier: Sequence[Message]) -> Message:
    """The answer with call ids that no earlier call of the run has: an approval must name exactly one call."""
    if not message.tool_calls:
        return message
    taken = {call.id for m in earlier for call in m.tool_calls}
    calls = []
    for call in message.tool_calls:
        name, number = call.id, 2
        while name in taken:
            name, number = f"{call.id}-{number}", number + 1
        taken.add(name)
        calls.append(call if name == call.id else replace(call, id=name))
    return replace(message, tool_calls=tuple(calls))
