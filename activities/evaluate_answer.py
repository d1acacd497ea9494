"""The `evaluate_answer` activity: rate a run's final answer with one call to the agent's model."""

from collections.abc import Callable
from math import ceil
from time import perf_counter

import structlog
from temporalio import activity

from loom.activities.budget_reservation import failure_of_call, worst_case
from loom.activities.call_model import load_conversation
from loom.activities.ports import EventStream, ModelCall, Prices, Providers, TranscriptStore
from loom.activities.publish import heartbeating, stream_writer
from loom.domain.agents.spec import AgentSpec
from loom.domain.context.answer_rating import OUTPUT_TOKENS, SYSTEM, question, read_ratings
from loom.domain.core.errors import LoomError
from loom.domain.core.json_text import NotJson
from loom.domain.core.messages import Transcript, user
from loom.domain.core.tokens import text_tokens
from loom.domain.run.activity_payloads import Evaluated, EvaluateRequest
from loom.domain.run.stream_events import answer_evaluated, evaluation_segment, milliseconds

_log = structlog.get_logger("loom.evaluation")

RESEND = Evaluated(resend=True)
"""Requests the full transcript and spec, because the worker doesn't recognize one of their digests."""


class Evaluator:
    """Evaluates answers for runs."""

    def __init__(
        self,
        *,
        providers: Providers,
        transcripts: TranscriptStore,
        stream: EventStream,
        redact: Callable[[str], str],
        prices: Prices,
    ) -> None:
        self._providers = providers
        self._transcripts = transcripts
        self._stream = stream
        self._redact = redact
        self._prices = prices

    @activity.defn(name="evaluate_answer")
    async def evaluate_answer(self, request: EvaluateRequest) -> Evaluated:
        """Rate the answer. If the model call fails, raise the LLM error as an application failure."""
        segment = evaluation_segment(request.turn, request.attempt)
        with structlog.contextvars.bound_contextvars(**request.origin.log_ids, turn=request.turn):
            async with heartbeating(), stream_writer(self._stream, request.origin, request.turn, segment) as writer:
                writer.notices(request.notices)
                if (known := await load_conversation(self._transcripts, request)) is None:
                    return RESEND
                spec, transcript = known
                started = perf_counter()
                try:
                    evaluated = await self._rated(request, spec, transcript)
                except LoomError as error:
                    _log.warning("evaluation_failed", error=type(error).__name__, message=self._redact(error.message))
                    failure = await failure_of_call(error, prices=self._prices, model=spec.model, redact=self._redact)
                    raise failure from None
                if evaluated.uncovered is not None:
                    _log.info("budget_short", purpose="evaluation", need=evaluated.uncovered.named)
                    return evaluated
                rated = answer_evaluated(spec.model, request, evaluated, ms=milliseconds(perf_counter() - started))
                writer.emit(rated)
                _log.info("answer_evaluated", **rated.parameters)
                return evaluated

    async def _rated(self, request: EvaluateRequest, spec: AgentSpec, transcript: Transcript) -> Evaluated:
        provider, model = self._providers.resolve(spec.model)
        asked = question(transcript.messages, request.answer)
        output = min(spec.max_output_tokens, OUTPUT_TOKENS)
        if request.allowance is not None:
            prompt = ceil(request.ratio * (text_tokens(SYSTEM) + text_tokens(asked)))
            allowance = request.allowance
            need = await worst_case(self._prices, spec.model, prompt=prompt, output=output, allowance=allowance)
            if allowance.shortfall(need):
                return Evaluated(uncovered=need)
        call = ModelCall(
            model=model,
            system=SYSTEM,
            messages=(user(asked),),
            max_output_tokens=output,
            temperature=spec.temperature,
            options=spec.model_options.for_short_answers,
            origin=request.origin,
            rpm=spec.rpm,
            tpm=spec.tpm,
            timeout=spec.model_timeout,
        )
        answer = await provider.answer(call, lambda _text: None)
        cost = await self._prices.cost_micros(spec.model, answer.usage)
        try:
            metrics = read_ratings(answer.message.text)
        except NotJson as error:
            return Evaluated(why=str(error), usage=answer.usage, cost_micros=cost)
        return Evaluated(metrics=metrics, usage=answer.usage, cost_micros=cost)
