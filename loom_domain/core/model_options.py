"""Read the options of model calls from an agent or a request, and refuse invalid ones."""

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final, get_args

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import ModelOptions, ReasoningEffort
from loom.domain.core.suggestions import nearest

EFFORTS: Final = get_args(ReasoningEffort)
LEAST_THINKING: Final = 1024
MOST_STOPS: Final = 16
ACCEPTABLE: Final = ("text", "image", "pdf", "audio")
"""What `accepts` may contain."""

_SET_BY_LOOM: Final[Mapping[str, str]] = {
    **dict.fromkeys(("messages", "input", "system", "instructions"), "Loom sends the conversation"),
    **dict.fromkeys(
        ("tools", "tool_choice", "functions", "function_call"), "tools run under the rules of the agent's permissions"
    ),
    **dict.fromkeys(
        ("stream", "stream_options", "n", "background", "store", "previous_response_id", "conversation", "include"),
        "Loom streams one answer and keeps the conversation itself",
    ),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_output_tokens"), "set the agent's `max_output_tokens`"
    ),
    "model": "set `model`",
    "temperature": "set the agent's `temperature`",
    **{name: f"set `{name}` instead" for name in ("reasoning_effort", "top_p", "seed", "stop", "parallel_tool_calls")},
    "stop_sequences": "set `stop` instead",
}
"""The fields of a body that `extra_body` can't set, with the reason or with the setting to use instead."""

_HEADERS_OF_LOOM: Final = frozenset(
    (
        *("authorization", "x-api-key", "anthropic-version", "host", "connection", "transfer-encoding"),
        *("content-type", "content-length", "content-encoding", "accept", "accept-encoding"),
    )
)
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,4000}[\x21-\x7e])?")


KNOWN: Final = tuple(ModelOptions.__dataclass_fields__)


def read_model_options(given: JsonObject, where: str) -> ModelOptions:
    """Return the options in an object. Raises BadRequest if one is invalid. The message names it and a way out."""
    told = {name: value for name, value in given.items() if value is not None}
    for name, problem in _problems(told):
        raise BadRequest(f"{where}.{name} {problem}", field=f"{where}.{name}")
    if "stop" in told:
        told["stop"] = (told["stop"],) if isinstance(told["stop"], str) else tuple(told["stop"])
    if "accepts" in told:
        told["accepts"] = tuple(told["accepts"])
    return ModelOptions(**told)


def _problems(told: JsonObject) -> Iterator[tuple[str, str]]:
    for name, value in told.items():
        if name not in KNOWN:
            hint = nearest(str(name), KNOWN, f"the options are {', '.join(KNOWN)}")
            yield name, f"is not an option: {hint}; put other fields of a request into extra_body"
        elif problem := _problem(name, value):
            yield name, problem


def _problem(name: str, value: Any) -> str:  # noqa: C901 - one case an option
    match name:
        case "reasoning_effort":
            return "" if value in EFFORTS else f"must be one of {', '.join(EFFORTS)}, not {value!r}"
        case "thinking_budget":
            return "" if _is_integer(value) and value >= LEAST_THINKING else f"must be at least {LEAST_THINKING} tokens"
        case "top_p":
            is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
            return "" if is_share else f"must be a number above 0 and up to 1, not {value!r}"
        case "seed":
            is_seed = _is_integer(value) and -(2**63) <= value < 2**63
            return "" if is_seed else f"must be a whole number of up to 64 bits, not {value!r}"
        case "stop":
            texts = [value] if isinstance(value, str) else value
            is_fine = isinstance(texts, list | tuple) and all(isinstance(text, str) and text for text in texts)
            return "" if is_fine and 0 < len(texts) <= MOST_STOPS else f"must be a list of 1 to {MOST_STOPS} strings"
        case "accepts":
            return _problem_of_kinds(value)
        case "parallel_tool_calls":
            return "" if isinstance(value, bool) else f"must be true or false, not {value!r}"
        case "extra_body":
            return _problem_of_body(value)
        case _:
            return _problem_of_headers(value)


def _problem_of_kinds(value: Any) -> str:
    is_fine = isinstance(value, list | tuple) and value and all(kind in ACCEPTABLE for kind in value)
    return "" if is_fine else f"must be a list with some of {', '.join(ACCEPTABLE)}, not {value!r}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _problem_of_body(value: Any) -> str:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return "must be an object"
    if (name := next((name for name in value if name in _SET_BY_LOOM), None)) is not None:
        return f"must not contain `{name}`: {_SET_BY_LOOM[name]}"
    return "" if _is_json(value) else "must contain only JSON values"


def _is_json(value: Any) -> bool:
    match value:
        case None | bool() | int() | str():
            return True
        case float():
            return isfinite(value)
        case Mapping():
            return all(isinstance(name, str) and _is_json(each) for name, each in value.items())
        case list() | tuple():
            return all(map(_is_json, value))
        case _:
            return False


def _problem_of_headers(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "must be an object of header names and texts"
    for name, text in value.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            return f"contains {name!r}, which is not a valid header name"
        if name.lower() in _HEADERS_OF_LOOM:
            return f"must not contain {name}: Loom sets it"
        if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):  # the value may be a secret
            return f"must have a string for {name}: one line of ASCII text"
    return ""
