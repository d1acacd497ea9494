"""Convert the error responses of model servers to typed errors.

`LoomError.message` shows people the provider's own message with all keys removed. The SDK's exception isn't kept as the
cause, because it contains the request.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loom.activities.adapters.models.context_overflow import context_numbers, is_too_long
from loom.activities.adapters.models.refusals import is_busy, is_of_content, is_vague
from loom.activities.adapters.models.retry_waits import header_wait, retry_after
from loom.domain.core.errors import (
    LLMBadResponseError,
    LLMConfigurationError,
    LLMContextLengthError,
    LLMRateLimitError,
    LLMRefusedError,
    LLMUnavailableError,
    LoomError,
)

_LONGEST_QUOTE: Final = 400
_REFUSALS: Final = (400, 413, 422)
"""Status codes of a server that doesn't accept the content of a request."""

_OF_ACCOUNT: Final = (401, 402, 403, 404)
_STATUS = re.compile(r"[45]\d\d", re.ASCII)

_MOST_PARTS: Final = 200
"""Larger error bodies are read only in part."""
_LONGEST_CODE: Final = 200
_LARGEST_CODE: Final = 10**9
_LONGEST_JSON: Final = 100_000

_TEXTS: Final = ("message", "msg", "error", "detail", "details", "errors", "error_message", "error_msg", "raw")
_INSIDE: Final = (*("error", "errors", "detail", "details", "message", "metadata", "raw"), "innererror", "inner_error")
_CODES: Final = (
    *("code", "type", "status", "reason", "error_type", "error_code", "err_code", "errorCode"),
    *("status_code", "statusCode"),
)

_OF_RATE = re.compile(r"rate_?limit|resource_exhausted|too_?many_?requests|throttl")
_OF_SERVER = re.compile(
    r"server_?error|internal|unavailable|overloaded|time_?(?:d_)?out|api_?error|connection|gateway|capacity"
)
_OF_REQUEST = re.compile(
    # A gateway also says so of the response that it got.
    r"invalid(?!_?(?:json_?)?(?:response|upstream))|bad_?request|unsupported_|image_|failed_to_download|unprocessable"
    r"|validation_?(?:error|exception)"
)
"""Codes that stand for a status of 4xx. Codes of rates and of failing servers are looked for first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """The server that received a request. Error messages use these values to tell the user what to do."""

    name: str
    key_name: str
    """The environment variable that contains the key."""
    url_name: str
    url: str
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorResponse:
    """An error that the server sent, either as an HTTP response or within a stream (status 200)."""

    status: int
    code: str
    """The error's machine-readable words: its codes and types, in lower case."""
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Sequence[Mapping[Any, Any]] = ()
    """The error's objects, from the outside in."""

    @property
    def meant(self) -> int:
        """The status that the error has. Within a stream, its code may name a status."""
        if self.status >= 300:
            return self.status
        if named := next(filter(_STATUS.fullmatch, self.code.split()), None):
            return int(named)
        is_other = _OF_RATE.search(self.code) or _OF_SERVER.search(self.code)
        return 400 if not is_other and _OF_REQUEST.search(self.code) else self.status

    @property
    def is_limited(self) -> bool:
        """Whether the error is a rate limit."""
        return self.meant == 429 or _OF_RATE.search(self.code) is not None

    @property
    def params(self) -> Sequence[str]:
        """The parts of the request that the server names in fields of their own."""
        return [param for part in self.fields if isinstance(param := part.get("param"), str) and param]


def error_response_of(body: object, status: int, headers: Mapping[str, str], otherwise: str) -> ErrorResponse:
    """Parse an error body of any shape: an object with or without an `error` inside, a list, JSON within a text, or a
    plain text. `otherwise` is the message of an error that contains none.
    """
    parts = _parts(body)
    fields = tuple(part for part in parts if isinstance(part, Mapping))
    plain = (part for part in parts if isinstance(part, str))
    said = [*plain] if not fields else [text for part in fields for text in _texts_of(part, _TEXTS)]
    said = said or [text for part in fields for text in _texts_of(part, [*part]) if text.lower() not in _codes_of(part)]
    message = ": ".join(dict.fromkeys(text.strip() for text in said if text.strip()))
    code = " ".join(dict.fromkeys(code for part in fields for code in _codes_of(part)))
    return ErrorResponse(status=status, code=code, message=message or otherwise, headers=headers, fields=fields)


def _parts(body: object) -> list[object]:
    """Return the objects and texts that an error consists of, from the outside in."""
    parts: list[object] = []
    waiting = deque([_decoded(body)])
    while waiting and len(parts) < _MOST_PARTS:
        part = waiting.popleft()
        parts.append(part)
        inside = [part.get(name) for name in _INSIDE] if isinstance(part, Mapping) else part
        waiting += [_decoded(each) for each in inside[:_MOST_PARTS]] if isinstance(inside, list) else ()
    return parts


def _decoded(value: object) -> object:
    """Return the value of a JSON text, and other values unchanged."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not isinstance(text, str) or len(text) > _LONGEST_JSON or not text.lstrip().startswith(("{", "[", '"')):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _texts_of(part: Mapping[Any, Any], names: Sequence[Any]) -> Iterator[str]:
    """Yield what an object says in words. A web framework names the place of what it refuses beside the words."""
    place = part.get("loc")
    where = ".".join(map(_code, place[:9])) + ": " if isinstance(place, list) and place else ""
    for name in names:
        value = _decoded(part.get(name))
        for each in value[:_MOST_PARTS] if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield f"{where}{each}"


def _codes_of(part: Mapping[Any, Any]) -> list[str]:
    return [code for name in _CODES if (code := _code(part.get(name)))]


def _code(value: object) -> str:
    if isinstance(value, str):
        return value[:_LONGEST_CODE].lower()
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST_CODE:
        return ""
    return str(int(value)) if value == int(value) else ""


def error_of(error_response: ErrorResponse, server: Server, model: str) -> LoomError:
    """Return the typed error for an error response.

    An LLMConfigurationError whose `context` contains `refused`, a status, says that the server doesn't accept what this
    request contains. The key, the model and the settings may be right. `is_vague` says that the server gives no reason.
    """
    said = quote(error_response.message, server)
    about = _about_request(error_response, server, model, said)
    if about := about or _about_account(error_response, server, model, said):
        return about
    status, shown = error_response.meant, error_response.status
    words = error_response.message, error_response.code, error_response.params
    is_refusal = status in _REFUSALS
    if status in (408, 409) or status >= 500 or status < 300 or (is_refusal and is_busy(*words)):
        wait = retry_after(error_response.headers, error_response.message, error_response.fields, is_limited=False)
        waits = {} if wait is None else {"retry_after": wait}
        return LLMUnavailableError(f"{server.name} failed ({shown}): {said}", model=model, **waits)
    refused: dict[str, int] = {"refused": status} if is_refusal and is_of_content(*words) else {}
    if refused and is_vague(*words):
        refused["is_vague"] = True
    return LLMConfigurationError(f"{server.name} rejected the request ({shown}): {said}", model=model, **refused)


def _about_request(error_response: ErrorResponse, server: Server, model: str, said: str) -> LoomError | None:
    """Return the error for a problem with the conversation's length or content, or None for other problems."""
    code = error_response.code
    if error_response.meant in _OF_ACCOUNT:
        return None
    if "content_filter" in code or "content_policy" in code:
        return LLMRefusedError(f"{server.name} declined the request: {said}", model=model)
    is_limited = error_response.is_limited and error_response.meant != 413
    if is_limited and header_wait(error_response.headers) is not None:
        return None
    words = f"{code.replace(' ', '. ')}. {error_response.message}"
    if is_too_long(words, 429 if is_limited else error_response.meant):
        text = f"the conversation is too long for {model}: {said}"
        numbers = context_numbers(error_response.message, error_response.fields)
        return LLMContextLengthError(text, model=model, **numbers)
    return None


def _about_account(error_response: ErrorResponse, server: Server, model: str, said: str) -> LoomError | None:
    """Return the error for an account problem: quota, rate limit, wrong key or missing model access. Return None for
    other problems.
    """
    status, code = error_response.meant, error_response.code
    if "insufficient_quota" in code or "billing" in code or status == 402:
        return LLMConfigurationError(
            f"{server.name}: the account of {server.key_name} has no quota left: {said}", model=model
        )
    if error_response.is_limited:
        wait = retry_after(error_response.headers, error_response.message, error_response.fields)
        return LLMRateLimitError(f"{server.name} reports too many requests: {said}", model=model, retry_after=wait)
    if status in (401, 403) or "authentication" in code or "permission" in code:
        text = f"{server.name} rejected the key ({status}): check {server.key_name} and whether it may use {model}"
        return LLMConfigurationError(text, model=model)
    if status == 404 or "model_not_found" in code:
        text = f"{server.name} at {server.url} does not know the model {model!r}: check its name and {server.url_name}"
        return LLMConfigurationError(text, model=model)
    return None


def unreachable(server: Server, model: str, why: str) -> LLMUnavailableError:
    """Return the error for a connection that couldn't be opened, timed out or was lost."""
    return LLMUnavailableError(f"{server.name} at {server.url}: {why}", model=model)


def unreadable(server: Server, model: str, what: str) -> LLMBadResponseError:
    """Return the error for a response that isn't a model reply."""
    return LLMBadResponseError(
        f"{server.name} at {server.url} returned something that is not a model's reply ({what})", model=model
    )


def ended_early(server: Server, model: str, content_type: str, *, heard: bool) -> LoomError:
    """Return the error for a stream that ended before the reply was complete."""
    if not heard and "event-stream" not in content_type:
        return unreadable(server, model, content_type or "no content type")
    return unreachable(server, model, "the stream ended before the reply was complete")


def quote(text: str, server: Server) -> str:
    """Return a server's message, shortened to one line of printable characters and without the key."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = " ".join("".join(letter if letter.isprintable() else " " for letter in line).split())
    if len(server.secret) >= 4:
        line = line.replace(server.secret, "***")
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 1] + "…"
