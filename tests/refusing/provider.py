"""The server: a scripted model behind real HTTP that tests each request against the rules of its conversation."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from loom.domain.context.summary_sections import SECTIONS
from loom.testing.model_replies import Json, Reply, SeenRequest, status
from loom.testing.model_server import ModelServer
from loom.testing.model_wire import events_of
from tests.refusing.asked import Asked
from tests.refusing.checks import Limits
from tests.refusing.conversations import Conversation, Enabled, Said
from tests.refusing.rules import ALWAYS, Rule
from tests.refusing.words import Words

SUMMARY: Final = "\n".join(f"<{name}>what matters of {name}</{name}>" for name in SECTIONS)
_SSE: Final = {"content-type": "text/event-stream"}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A request that was refused."""

    rule: str
    request: int
    words: Words


@dataclass(kw_only=True)
class Heard:
    """What the server has heard of one conversation."""

    bodies: list[Json] = field(default_factory=list)
    """All requests, in order."""
    refusals: list[Refusal] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    repeated: list[int] = field(default_factory=list)
    """The numbers of the requests that had been refused before, unchanged."""
    said: list[Said] = field(default_factory=list)
    """The replies so far."""
    summaries: int = 0
    """How often the model could call nothing, and was asked for a text."""
    state: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """What was sent beside the calls of each id."""


class RefusingProvider(ModelServer):
    """Serves any number of conversations at once, each under the name of its model."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        super().__init__(lambda _: status(418), record=False)
        self._conversations = {each.name: each for each in conversations}
        self.heard: dict[str, Heard] = {each.name: Heard() for each in conversations}

    async def reply_to(self, request: SeenRequest) -> Reply:
        """Refuse the request, or say what comes next, whatever the request contains."""
        talk, heard = self._conversations[request.body["model"]], self.heard[request.body["model"]]
        asked, number, digest = Asked(request.provider, request.body), len(heard.bodies), _digest(request.body)
        heard.bodies.append(request.body)
        if digest in heard.refused:
            heard.repeated.append(number)
        if (broken := _broken(asked, talk, heard)) is not None:
            heard.refused.add(digest)
            heard.refusals.append(Refusal(rule=broken.rule.name, request=number, words=broken.words))
            return _refusing(broken.words)
        if not asked.may_call:  # a summary was asked for, or a last answer
            heard.summaries += 1
            return Reply(text=SUMMARY)
        said = talk.said[min(len(heard.said), len(talk.said) - 1)]
        heard.said.append(said)
        return self._spoken(request, talk, heard, said)

    def _spoken(self, request: SeenRequest, talk: Conversation, heard: Heard, said: Said) -> Reply:
        """The reply as it goes over the wire, with what compatible servers put beside calls."""
        events = [_read(event) for event in events_of(request, said.reply)]
        signature = f"sig-{len(heard.said)}-{talk.name}" if "state that was lost" in talk.rules else ""
        if signature:
            for call_id in _signed(events, signature):
                heard.state[call_id].add(signature)
        if request.provider == "openai":
            events = _reasoned(events, said.reasoning)
        elif signature:
            events = _thought(events, said.reasoning or "I look.", signature)
        return Reply(raw=b"".join(map(_written, events)), headers=_SSE)


def _broken(asked: Asked, talk: Conversation, heard: Heard) -> Enabled | None:
    """The first rule that the request breaks."""
    limits = _limits(talk, heard)
    number = len(heard.bodies) - 1
    for each in talk.enabled:
        if each.since <= number and each.rule.is_broken(asked, limits):
            return each
    return next((_always(rule) for rule in ALWAYS if talk.api in rule.apis and rule.is_broken(asked, limits)), None)


def _always(rule: Rule) -> Enabled:
    return Enabled(rule=rule, since=0, words=rule.words[0])


def _limits(talk: Conversation, heard: Heard) -> Limits:
    """More than what the first request had, so that an answer is always possible."""
    first = Asked(talk.api, heard.bodies[0])
    longest = max(map(len, first.texts), default=0)
    return Limits(conversation=first.length + talk.room, text=longest + talk.room // 2, state=heard.state)


def _refusing(words: Words) -> Reply:
    return Reply(status=words.status, headers={"content-type": words.content_type}, raw=words.body)


def _digest(body: Json) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


Event = tuple[str, Any]
"""The name of an event, which is empty in OpenAI's protocol, and its data."""


def _read(event: bytes) -> Event:
    head, _, data = event.decode().partition("data: ")
    return head.removeprefix("event: ").strip(), json.loads(data) if data.startswith("{") else data.strip()


def _written(event: Event) -> bytes:
    name, data = event
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def _signed(events: Sequence[Event], signature: str) -> Iterator[str]:
    """Put the signature beside each call, as Gemini does. Yield the calls' ids."""
    for _, data in events:
        for call in _opened_calls(data):
            if call.get("id"):
                call["extra_content"] = {"google": {"thought_signature": signature}}
                yield call["id"]
        block = data.get("content_block") if isinstance(data, dict) else None
        if block and block["type"] == "tool_use" and block["id"]:
            yield block["id"]


def _opened_calls(data: Any) -> Iterator[Json]:
    for choice in data.get("choices", ()) if isinstance(data, Mapping) else ():
        yield from choice["delta"].get("tool_calls") or ()


def _reasoned(events: Sequence[Event], reasoning: str) -> list[Event]:
    """OpenAI's stream with reasoning in a field of its own before everything else."""
    if not reasoning:
        return list(events)
    first = events[0][1]
    choice = {"index": 0, "delta": {"role": "assistant", "reasoning_content": reasoning}, "finish_reason": None}
    return [("", {**first, "choices": [choice]}), *events]


def _thought(events: Sequence[Event], thinking: str, signature: str) -> list[Event]:
    """Anthropic's stream with a block of thinking before the others."""
    blocks: list[Json] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": thinking}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": signature}},
        {"type": "content_block_stop", "index": 0},
    ]
    later = [(name, {**data, "index": data["index"] + 1} if "index" in data else data) for name, data in events[1:]]
    return [events[0], *((data["type"], data) for data in blocks), *later]
