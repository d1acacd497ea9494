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
from loom.activities.adapters.models.retry_waits import retry_after
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
_LONGEST_TEXT: Final = 8000

_TEXTS: Final = ("message", "msg", "error", "detail", "details", "errors", "error_message", "error_msg", "raw")
_INSIDE: Final = (*("error", "errors", "detail", "details", "message", "metadata", "raw"), "innererror", "inner_error")
_CODES: Final = ("code", "type", "status", "reason", "error_type", "error_code", "err_code", "errorCode")

_CONTENT = re.compile(
    r"^\W*(?:body\W+)?(?:messages?|input|contents?|tools|functions|system|prompt)\b(?:[\[./]|$)"
    r"|\b(?:messages|input|contents|tools)(?:\[\d|\.\[?\d)"
    r"|\b(?:images?|image_url|pictures?|pdfs?|documents?|audio|videos?|files?)\b",
    re.IGNORECASE,
)
_KEY_OR_MODEL = re.compile(
    r"api[ _-]?key|\bcredit|billing|good standing|arrearage|unauthori[sz]ed|access denied|invalid (?:access )?token"
    r"|\bmodel\b[^.]{0,80}(?:\bnot (?:found|exist|supported|available)|doesn't exist|is (?:invalid|unknown))"
    r"|(?:unknown|invalid|unsupported|no such|not a valid) model|does not support (?:tools|function|chat)"
    r"|模型(?:不存在|代码|编码|未找到)|密钥|欠费",
    re.IGNORECASE,
)
_SETTING = re.compile(
    r"\bmax_?(?:\w{1,20}_)?tokens|maxoutputtokens|budget_tokens|\btemperature\b|\btop_?[pk]\b|\bn(?:um)?_predict\b"
    r"|reasoning_effort|reasoning\.effort|stream_options|(?:presence|frequency)_penalty|logit_bias|stop_sequences"
    r"|service_tier|response_format|tool_choice|parallel_tool_calls"
    r"|(?:unknown|unsupported|unrecognized|unexpected) (?:request )?(?:parameter|argument|field|keyword|option)",
    re.IGNORECASE,
)


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
        named = (int(code) for code in self.code.split() if _STATUS.fullmatch(code))
        return next(named, 400 if "invalid_request" in self.code else self.status)


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
    return str(value) if type(value) is int and abs(value) < _LARGEST_CODE else ""


def error_of(error_response: ErrorResponse, server: Server, model: str) -> LoomError:
    """Return the typed error for an error response.

    An LLMConfigurationError whose `context` contains `refused`, a status, says that the server doesn't accept what this
    request contains. The key, the model and the settings may be right.
    """
    said = quote(error_response.message, server)
    about = _about_request(error_response, server, model, said)
    if about := about or _about_account(error_response, server, model, said):
        return about
    status, shown = error_response.meant, error_response.status
    if status in (408, 409) or status >= 500 or status < 300:
        wait = retry_after(error_response.headers, error_response.message, error_response.fields, is_limited=False)
        waits = {} if wait is None else {"retry_after": wait}
        return LLMUnavailableError(f"{server.name} failed ({shown}): {said}", model=model, **waits)
    refused = {"refused": status} if status in _REFUSALS and _is_about_content(error_response) else {}
    return LLMConfigurationError(f"{server.name} rejected the request ({shown}): {said}", model=model, **refused)


def _about_request(error_response: ErrorResponse, server: Server, model: str, said: str) -> LoomError | None:
    """Return the error for a problem with the conversation's length or content, or None for other problems."""
    code = error_response.code
    if error_response.meant in _OF_ACCOUNT:
        return None
    if "content_filter" in code or "content_policy" in code:
        return LLMRefusedError(f"{server.name} declined the request: {said}", model=model)
    if is_too_long(f"{code.replace(' ', '. ')}. {error_response.message}", error_response.meant):
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
    if status == 429 or "rate_limit" in code or "resource_exhausted" in code:
        wait = retry_after(error_response.headers, error_response.message, error_response.fields)
        return LLMRateLimitError(f"{server.name} reports too many requests: {said}", model=model, retry_after=wait)
    if status in (401, 403) or "authentication" in code or "permission" in code:
        text = f"{server.name} rejected the key ({status}): check {server.key_name} and whether it may use {model}"
        return LLMConfigurationError(text, model=model)
    if status == 404 or "model_not_found" in code:
        text = f"{server.name} at {server.url} does not know the model {model!r}: check its name and {server.url_name}"
        return LLMConfigurationError(text, model=model)
    return None


def _is_about_content(error_response: ErrorResponse) -> bool:
    """Whether the server refused what the request contains, and not its key, its model or one of its settings."""
    message = error_response.message[:_LONGEST_TEXT]
    params = [param for part in error_response.fields if isinstance(param := part.get("param"), str) and param]
    if any(_CONTENT.search(text) for text in (*params, message)):
        return True
    return not params and not _KEY_OR_MODEL.search(f"{error_response.code} {message}") and not _SETTING.search(message)


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
