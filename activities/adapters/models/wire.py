"""Code that the providers share. It converts argument text to tool calls, and adds to errors what a call has used."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from loom.activities.ports import ModelCall
from loom.domain.core.errors import LoomError
from loom.domain.core.json_text import NotJson, read_arguments
from loom.domain.core.messages import JsonObject, Message, ToolCall, Usage
from loom.domain.core.tokens import text_tokens
from loom.domain.core.whole_characters import whole_characters, with_whole_characters

CONNECT_TIMEOUT: Final = 10.0
READ_TIMEOUT: Final = 120.0
"""Maximum number of seconds between two chunks of a reply."""

_SHORTEST_SECRET: Final = 8
"""Shorter values of headers and fields are too common to mask."""
_MOST_TOKENS: Final = 10**12
"""Larger counts are mistakes of the server."""


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


def read_call(call_id: str, name: str, text: str) -> ToolCall:
    """Parse a tool call's argument text. Text that can't be read is kept unchanged."""
    if not text.strip():
        return ToolCall(id=call_id, name=name)
    try:
        return ToolCall(id=call_id, name=name, arguments=read_arguments(text))
    except NotJson:
        return ToolCall(id=call_id, name=name, malformed=text)


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
