"""What the rules look for in a request."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from loom.testing.model_replies import Json
from tests.refusing.asked import Asked, Content


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The numbers in a server's rules."""

    conversation: int = 1 << 40
    """The number of bytes of a conversation."""
    text: int = 1 << 40
    """The number of characters of one text."""
    pictures: int = 2
    picture: int = 60_000
    """The number of a picture's bytes in base64."""
    side: int = 2_000
    """Pixels."""
    pages: int = 5
    state: Mapping[str, Collection[str]] = field(default_factory=dict)
    """What the server has put beside the calls of each id. An id can come twice."""


def no_match(pattern: str, texts: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, text) is None for text in texts)


def names_in(asked: Asked) -> list[str]:
    return [*(call.name for call in asked.calls), *(name for name, _ in asked.tools)]


def ids_in(asked: Asked) -> list[str]:
    return [*(call.id for call in asked.calls), *(result.id for result in asked.results)]


def any_content(found: Callable[[Asked], Sequence[Content]], holds: Callable[[Content, Limits], bool]) -> Any:
    return lambda asked, limits: any(holds(each, limits) for each in found(asked))


def pictures_in(asked: Asked) -> Sequence[Content]:
    return asked.pictures


def documents_in(asked: Asked) -> Sequence[Content]:
    return asked.documents


def some_text(holds: Callable[[str], bool]) -> Callable[[Asked, Limits], bool]:
    return lambda asked, _: any(holds(text) for text in asked.strings)


def has_control(text: str) -> bool:
    return any(unicodedata.category(character) == "Cc" and character not in "\n\r\t" for character in text)


def has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def has_noncharacter(text: str) -> bool:
    return any(ord(c) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(c) <= 0xFDEF for c in text)


def has_invisible(text: str) -> bool:
    return any(unicodedata.category(character) in ("Cf", "Co", "Cn") for character in text)


def some_schema(holds: Callable[[Json], bool]) -> Callable[[Asked, Limits], bool]:
    return lambda asked, _: any(holds(schema) for schema in asked.schemas)


def is_of(schema: Json, kind: str) -> bool:
    return schema.get("type") == kind or (isinstance(schema.get("type"), list) and kind in schema["type"])


def _groups(asked: Asked) -> Iterator[tuple[list[str], list[str]]]:
    """The ids of each message's calls, and those of the results directly after it."""
    for at, message in enumerate(asked.messages):
        if message["role"] == "assistant":
            after = at + 1
            while asked.api == "openai" and after < len(asked.messages) and asked.messages[after]["role"] == "tool":
                after += 1
            span = range(at + 1, after if asked.api == "openai" else at + 2)
            yield [c.id for c in asked.calls if c.at == at], [r.id for r in asked.results if r.at in span]


def lacks_results(asked: Asked, _: Limits) -> bool:
    return any(set(calls) - set(results) for calls, results in _groups(asked))


def has_stray_results(asked: Asked, _: Limits) -> bool:
    groups = list(_groups(asked))
    placed = sum(len(results) for _, results in groups)
    return placed < len(asked.results) or any(Counter(results) - Counter(calls) for calls, results in groups)


def repeats_ids(asked: Asked, _: Limits) -> bool:
    return max(Counter(call.id for call in asked.calls).values(), default=0) > 1


def is_empty(message: Json) -> bool:
    return not message.get("content") and not message.get("tool_calls")


def has_blank_text(asked: Asked, _: Limits) -> bool:
    return any(not text.strip() for text in asked.texts)


def has_blank_part(asked: Asked, _: Limits) -> bool:
    """A text of a list of parts. A message that is one text may be empty."""
    return any(
        isinstance(message.get("content"), list) and any(part.get("text", "x") == "" for part in message["content"])
        for message in asked.messages
    )


def ends_in_space(asked: Asked, _: Limits) -> bool:
    last = asked.messages[-1]
    texts = [block["text"] for at, block in asked.blocks if at == len(asked.messages) - 1 and block["type"] == "text"]
    return last["role"] == "assistant" and bool(texts) and texts[-1] != texts[-1].rstrip()


def repeats_roles(asked: Asked, _: Limits) -> bool:
    return any(one["role"] == other["role"] != "tool" for one, other in pairwise(asked.messages))


def lacks_state(asked: Asked, limits: Limits) -> bool:
    """A call without what the server has put beside it, byte for byte."""
    if asked.api == "anthropic":
        return any(_lacks_thinking(message, limits) for message in asked.messages)
    return any(
        call["id"] in limits.state and _signature(call) not in limits.state[call["id"]]
        for message in asked.messages
        for call in message.get("tool_calls") or ()
    )


def _signature(call: Json) -> str | None:
    return ((call.get("extra_content") or {}).get("google") or {}).get("thought_signature")


def _lacks_thinking(message: Json, limits: Limits) -> bool:
    blocks = message["content"] if isinstance(message["content"], list) else []
    signatures = {block.get("signature") for block in blocks if block["type"] == "thinking"}
    ids = [block["id"] for block in blocks if block["type"] == "tool_use" and block["id"] in limits.state]
    return any(signatures.isdisjoint(limits.state[each]) for each in ids)


_FIELDS: Final = {"role", "content", "name", "tool_calls", "tool_call_id"}


def has_unknown_field(asked: Asked, _: Limits) -> bool:
    return any(set(message) - _FIELDS for message in asked.messages)
