"""The `sample_model` activity: call the run's model for an MCP server, which calls this sampling."""

from collections.abc import Callable, Sequence
from math import ceil
from time import perf_counter

import structlog
from temporalio import activity

from loom.activities.budget_reservation import failure_of_call, worst_case
from loom.activities.ports import EventStream, ModelCall, Prices, Providers
from loom.activities.publish import heartbeating, stream_writer
from loom.domain.core.errors import LoomError
from loom.domain.core.messages import Message, user
from loom.domain.core.tokens import text_tokens, tokens_of
from loom.domain.run.activity_payloads import Sampled, SampleRequest
from loom.domain.run.stream_events import milliseconds, model_sampled, sampling_segment

_log = structlog.get_logger("loom.model")


class Sampler:
    """Calls models for MCP servers, with the run's model and within the run's budget."""

    def __init__(
        self, *, providers: Providers, stream: EventStream, redact: Callable[[str], str], prices: Prices
    ) -> None:
        self._providers = providers
        self._stream = stream
        self._redact = redact
        self._prices = prices

    @activity.defn(name="sample_model")
    async def sample_model(self, request: SampleRequest) -> Sampled:
        """Call the model. If the call fails, raise the LLM error as an application failure."""
        segment = sampling_segment(request.turn, request.call_id, request.attempt)
        with structlog.contextvars.bound_contextvars(**request.origin.log_ids, turn=request.turn, tool=request.tool):
            async with heartbeating(), stream_writer(self._stream, request.origin, request.turn, segment) as writer:
                writer.notices(request.notices)
                started = perf_counter()
                try:
                    sampled = await self._sampled(request)
                except LoomError as error:
                    _log.warning("sampling_failed", error=type(error).__name__, message=self._redact(error.message))
                    failure = await failure_of_call(
                        error, prices=self._prices, model=request.model, redact=self._redact
                    )
                    raise failure from None
                if sampled.uncovered is not None:
                    _log.info("budget_short", purpose="sampling", need=sampled.uncovered.named)
                    return sampled
                told = model_sampled(request, sampled, ms=milliseconds(perf_counter() - started))
                writer.emit(told)
                _log.info("model_sampled", **told.parameters)
                return sampled

    async def _sampled(self, request: SampleRequest) -> Sampled:
        provider, model = self._providers.resolve(request.model)
        system, messages = str(request.call.get("system", "")), _messages(request)
        output = min(request.max_output_tokens, int(request.call["max_tokens"]))
        if (allowance := request.allowance) is not None:
            prompt = ceil(request.ratio * (text_tokens(system) + tokens_of(messages)))
            need = await worst_case(self._prices, request.model, prompt=prompt, output=output, allowance=allowance)
            if allowance.shortfall(need):
                return Sampled(uncovered=need)
        call = ModelCall(
            model=model,
            system=system,
            messages=messages,
            may_call=False,
            max_output_tokens=output,
            temperature=request.call.get("temperature"),
            options=request.options.for_short_answers,
            origin=request.origin,
            rpm=request.rpm,
            tpm=request.tpm,
            timeout=request.timeout,
        )
        answer = await provider.answer(call, lambda _text: None)
        cost = await self._prices.cost_micros(request.model, answer.usage)
        text = self._redact(answer.message.text)
        return Sampled(text=text, stop=answer.stop, usage=answer.usage, cost_micros=cost)


def _messages(request: SampleRequest) -> Sequence[Message]:
    given = request.call["messages"]
    return [
        user(each["text"]) if each["role"] == "user" else Message(role="assistant", content=each["text"])
        for each in given
    ]
