"""Convert an agent's model options to the fields of each provider. An option that a provider doesn't have is refused by
name, and never ignored.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from loom.activities.adapters.models.wire import reasoning_of
from loom.activities.ports import ModelCall
from loom.domain.core.errors import LLMConfigurationError
from loom.domain.core.model_options import LEAST_THINKING
from loom.domain.core.requests import ModelOptions

_EVERYWHERE: Final = ("reasoning_effort", "top_p", "parallel_tool_calls", "extra_body", "extra_headers")
CHAT: Final = frozenset((*_EVERYWHERE, "seed", "stop"))
"""The options of OpenAI's chat completions."""
MESSAGES: Final = frozenset((*_EVERYWHERE, "thinking_budget", "stop"))
"""The options of Anthropic's messages."""

RESPONSES: Final = frozenset(_EVERYWHERE)
"""The options of OpenAI's responses."""

_EFFORTS_OF_MESSAGES: Final = ("low", "medium", "high", "xhigh", "max")
_INSTEAD: Final = {"thinking_budget": "set `reasoning_effort` instead, or the server's own field in `extra_body`"}


def problem_of(options: ModelOptions, supported: Collection[str], model: str) -> str:
    """Return why a model can't be called with these options, or an empty text."""
    # `accepts` tells Loom what to send, so it applies to every provider.
    unknown = next((name for name in options.given if name not in (*supported, "accepts")), None)
    if unknown is not None:
        known = ", ".join(sorted(supported)) or "none"
        way_out = _INSTEAD.get(unknown, "remove it, or use another model")
        return f"{model} doesn't support `{unknown}`: {way_out} (supported options: {known})"
    if supported is MESSAGES and options.reasoning_effort not in (None, *_EFFORTS_OF_MESSAGES):
        known = ", ".join(_EFFORTS_OF_MESSAGES)
        return f"{model} doesn't support the reasoning_effort {options.reasoning_effort!r}: use one of {known}"
    return ""


def refuse_unsupported(call: ModelCall, supported: Collection[str]) -> None:
    """Raise LLMConfigurationError if the call has an option that its provider doesn't have. A person may have chosen
    another model for a run that had begun.
    """
    if problem := problem_of(call.options, supported, call.model):
        raise LLMConfigurationError(problem, model=call.model)


def chat_fields(call: ModelCall) -> dict[str, Any]:
    """Return the options as fields of a chat completion."""
    options = call.options
    given = {
        "reasoning_effort": options.reasoning_effort,
        "top_p": options.top_p,
        "seed": options.seed,
        "stop": list(options.stop) or None,
        # Servers reject it in a request without tools.
        "parallel_tool_calls": options.parallel_tool_calls if call.tools and call.may_call else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def message_fields(call: ModelCall) -> dict[str, Any]:
    """Return the options as fields of an Anthropic message."""
    options = call.options
    body: dict[str, Any] = {}
    if options.reasoning_effort is not None:
        body["output_config"] = {"effort": options.reasoning_effort}
    if thinking := _thinking_tokens(call):
        body["thinking"] = {"type": "enabled", "budget_tokens": thinking}
    if options.top_p is not None:
        body["top_p"] = options.top_p
    if options.stop:
        body["stop_sequences"] = list(options.stop)
    if options.parallel_tool_calls is not None and call.tools and call.may_call:
        body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": not options.parallel_tool_calls}
    return body


def _thinking_tokens(call: ModelCall) -> int:
    """Return the number of tokens for thinking, or 0 if this call must do without."""
    budget = call.options.thinking_budget or 0
    last = next((message for message in reversed(call.messages) if message.role in ("assistant", "user")), None)
    # After calls without thinking, which another model may have made, the API accepts none.
    if last is not None and last.tool_calls and not reasoning_of(last, call.model):
        return 0
    # The budget or the window may have shortened the answer. The API counts thinking as a part of it.
    fits = min(budget, call.max_output_tokens - 1)
    return fits if fits >= LEAST_THINKING else 0


def merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with extra fields. Objects are merged, and other values replaced."""
    return {
        **body,
        **{
            name: merged(body[name], value)
            if isinstance(value, Mapping) and isinstance(body.get(name), Mapping)
            else value
            for name, value in extra.items()
        },
    }
