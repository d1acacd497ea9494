"""Code that the providers share. It converts error responses to typed errors, and argument text to tool calls.

`LoomError.message` shows people the provider's own message with all keys removed. The SDK's exception isn't kept as the
cause, because it contains the request.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from loom.activities.ports import ModelCall
from loom.domain.core.errors import (
    LLMBadResponseError,
    LLMConfigurationError,
    LLMContextLengthError,
    LLMRateLimitError,
    LLMRefusedError,
    LLMUnavailableError,
    LoomError,
)
from loom.domain.core.messages import JsonObject, Message, ToolCall, Usage
from loom.domain.core.tokens import text_tokens
from loom.domain.core.whole_characters import whole_characters, with_whole_characters

CONNECT_TIMEOUT: Final = 10.0
READ_TIMEOUT: Final = 120.0
"""Maximum number of seconds between two chunks of a reply."""

_LONGEST_QUOTE: Final = 400
_SHORTEST_SECRET: Final = 8
"""Shorter values of headers and fields are too common to mask."""

_TOO_LONG = re.compile(
    r"maximum context length|context length is only|prompt is too long|exceeds? the (?:available |model'?s? )?context"
    r"|exceed context limit|context window|input tokens exceed|context_length_exceeded|exceed_context_size",
    re.IGNORECASE,
)
_OVER = re.compile(r"([\d,]+) tokens? > ([\d,]+)")
_SUM_OVER = re.compile(r"([\d,]+) \+ ([\d,]+) > ([\d,]+)")
_LIMIT = re.compile(
    r"(?:context length|context size|context window|configured limit|token limit)[^\d]{0,24}([\d,]+)", re.IGNORECASE
)
_TOKENS = re.compile(r"(?:resulted in|requested|passed|request \(|prompt contains)\s*([\d,]+)", re.IGNORECASE)

_MOST_TOKENS: Final = 10**12
"""Larger counts are mistakes of the server."""

MAX_DEPTH: Final = 100
"""Maximum nesting depth of a tool call's arguments. Arguments with deeper nesting count as malformed."""


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
    """The error's machine-readable words: its code and type."""
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


def error_response_of(body: object, status: int, headers: Mapping[str, str], otherwise: str) -> ErrorResponse:
    """Parse an error body. It can be `{"error": {...}}`, the inner object alone, a list of these, or plain text."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, Mapping):
        body = body.get("error") or body
    if not isinstance(body, Mapping):
        text = body if isinstance(body, str) and body.strip() else otherwise
        return ErrorResponse(status=status, code="", message=text, headers=headers)
    code = " ".join(str(body[key]) for key in ("code", "type") if body.get(key))
    return ErrorResponse(status=status, code=code, message=str(body.get("message") or otherwise), headers=headers)


def error_of(error_response: ErrorResponse, server: Server, model: str) -> LoomError:
    """Return the typed error for an error response."""
    said = quote(error_response.message, server)
    passing = error_response.status in (408, 409) or error_response.status >= 500
    broken_stream = error_response.status < 300 and "invalid_request" not in error_response.code
    if about := _about_account(error_response, server, model) or _about_request(error_response, server, model):
        return about
    if passing or broken_stream:
        return LLMUnavailableError(f"{server.name} failed ({error_response.status}): {said}", model=model)
    return LLMConfigurationError(f"{server.name} rejected the request ({error_response.status}): {said}", model=model)


def _about_account(error_response: ErrorResponse, server: Server, model: str) -> LoomError | None:
    """Return the error for an account problem: quota, rate limit, wrong key or missing model access. Return None for
    other problems.
    """
    status, code, said = error_response.status, error_response.code, quote(error_response.message, server)
    if "insufficient_quota" in code or "billing" in code or status == 402:
        return LLMConfigurationError(
            f"{server.name}: the account of {server.key_name} has no quota left: {said}", model=model
        )
    if status == 429 or "rate_limit" in code:
        wait = retry_after(error_response.headers)
        return LLMRateLimitError(f"{server.name} reports too many requests: {said}", model=model, retry_after=wait)
    if status in (401, 403) or "authentication" in code or "permission" in code:
        text = f"{server.name} rejected the key ({status}): check {server.key_name} and whether it may use {model}"
        return LLMConfigurationError(text, model=model)
    if status == 404 or "model_not_found" in code:
        text = f"{server.name} at {server.url} does not know the model {model!r}: check its name and {server.url_name}"
        return LLMConfigurationError(text, model=model)
    return None


def _about_request(error_response: ErrorResponse, server: Server, model: str) -> LoomError | None:
    """Return the error for a problem with the conversation's length or content, or None for other problems."""
    code, said = error_response.code, quote(error_response.message, server)
    if error_response.status == 413 or _TOO_LONG.search(f"{code} {error_response.message}"):
        text = f"the conversation is too long for {model}: {said}"
        return LLMContextLengthError(text, model=model, **context_numbers(error_response.message))
    if "content_filter" in code or "content_policy" in code:
        return LLMRefusedError(f"{server.name} declined the request: {said}", model=model)
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


class PartialReply(Protocol):
    """A reply that is still being received."""

    @property
    def counted(self) -> Usage:
        """The provider's last count. It is incomplete, or zero, until the reply is complete."""
        ...

    @property
    def said(self) -> str:
        """All that the model has written so far."""
        ...


@contextmanager
def usage_in_errors(call: ModelCall, reply: PartialReply) -> Iterator[None]:
    """If the reply breaks off, add to the error what the call has used. Missing counts are estimated.

    A server may repeat the call's own headers and fields in its message, so their values are masked.
    """
    try:
        yield
    except LoomError as error:
        error.message = whole_characters(_masked(error.message, call))
        counted = reply.counted
        if reply.said or counted.total_tokens:
            prompt, output = counted.input_tokens or call.expected_prompt, text_tokens(reply.said)
            error.used = replace(counted, input_tokens=prompt, output_tokens=max(counted.output_tokens, output))
        raise


def _masked(text: str, call: ModelCall) -> str:
    for value in (*call.options.extra_headers.values(), *_texts(call.options.extra_body)):
        text = text.replace(value, "***") if len(value) >= _SHORTEST_SECRET else text
    return text


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _texts(each)


def quote(text: str, server: Server) -> str:
    """Return a server's message, shortened to one line and without the key."""
    line = " ".join(text.split())
    if len(server.secret) >= 4:
        line = line.replace(server.secret, "***")
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 1] + "…"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the number of seconds to wait. `retry-after-ms` takes precedence over `retry-after`, which contains
    seconds or a date.
    """
    millis = _number(headers.get("retry-after-ms", ""))
    if millis is not None:
        return millis / 1000
    text = headers.get("retry-after", "")
    seconds = _number(text)
    if seconds is not None:
        return seconds
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, round((at - datetime.now(UTC)).total_seconds(), 3))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


def context_numbers(text: str) -> dict[str, int]:
    """Return the `tokens` and `limit` numbers that a server's message contains."""
    if both := _OVER.search(text):
        return {"tokens": _integer(both[1]), "limit": _integer(both[2])}
    if parts := _SUM_OVER.search(text):
        return {"tokens": _integer(parts[1]) + _integer(parts[2]), "limit": _integer(parts[3])}
    found = {"tokens": _TOKENS.search(text), "limit": _LIMIT.search(text)}
    return {name: _integer(match[1]) for name, match in found.items() if match}


def _integer(text: str) -> int:
    return int(text.replace(",", "") or 0)


def _is_deeper(value: object, depth: int) -> bool:
    """Whether lists and objects are nested more than `depth` levels deep. Values with deeper nesting can't be
    serialized.
    """
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inside) and (depth == 0 or any(_is_deeper(each, depth - 1) for each in inside))


def _decoded(text: str) -> object:
    """Return the value of a JSON text, or None if the text isn't JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_call(call_id: str, name: str, text: str) -> ToolCall:
    """Parse a tool call's argument text. Some servers encode the object twice. Text that isn't a JSON object is kept
    unchanged.
    """
    if not text.strip():
        return ToolCall(id=call_id, name=name)
    arguments = _decoded(text)
    if isinstance(arguments, str):
        arguments = _decoded(arguments)
    if not isinstance(arguments, dict) or _is_deeper(arguments, MAX_DEPTH):
        return ToolCall(id=call_id, name=name, malformed=text)
    return ToolCall(id=call_id, name=name, arguments=arguments)


def arguments_of(call: ToolCall) -> JsonObject:
    """Return a call's arguments as an object. Servers parse them, so even malformed text must be sent as JSON."""
    return call.arguments if call.malformed is None else {"malformed_arguments": call.malformed}


def distinct_ids(ids: Sequence[str], messages: Sequence[Message]) -> list[str]:
    """Return ids that are unique in the conversation. Missing and repeated ids are replaced with `call_<index>`, which
    is the same on every attempt.
    """
    taken = {call.id for message in messages for call in message.tool_calls}
    index = len(taken)
    distinct: list[str] = []
    for given in ids:
        name = given
        while not name or name in taken:
            name = f"call_{index}"
            index += 1
        taken.add(name)
        distinct.append(name)
    return distinct


def read_calls(made: Sequence[tuple[str, str, str]], messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Parse calls from their ids, names and argument texts. The result consists of whole characters."""
    ids = distinct_ids([whole_characters(call_id) for call_id, _, _ in made], messages) if made else []
    calls = (read_call(call_id, *map(whole_characters, said)) for call_id, (_, *said) in zip(ids, made, strict=True))
    return tuple(replace(call, arguments=with_whole_characters(call.arguments)) for call in calls)


def reasoning_note(model: str, content: Any) -> JsonObject:
    """Return metadata with a model's reasoning. Some models require their reasoning to be returned unchanged with the
    tool results.
    """
    return {"reasoning": {"model": model, "content": with_whole_characters(content)}} if content else {}


def reasoning_of(message: Message, model: str) -> Any:
    """Return the reasoning that the same model returned with this message, or None."""
    note = message.metadata.get("reasoning")
    return note.get("content") if isinstance(note, Mapping) and note.get("model") == model else None


def token_count(sent: object, name: str) -> int:
    """Return a token count from a usage object, or zero if the value is missing or invalid."""
    value = sent.get(name) if isinstance(sent, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0
    try:
        count = int(float(value))
    except (ValueError, OverflowError):
        return 0
    return count if 0 < count <= _MOST_TOKENS else 0


def cause_of(error: BaseException) -> str:
    """Return the type of the exception that caused a connection error. Its text is omitted, because it could contain a
    header.
    """
    return type(error.__cause__ or error).__name__


def shown(url: str) -> str:
    """Return the URL without the user name and password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")
