"""A request to a model, read alike in both protocols, so that one rule fits both."""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from loom.testing.model_replies import Api, Json


@dataclass(frozen=True, kw_only=True)
class Content:
    """A picture or a document in a request."""

    media_type: str
    """As declared by the client."""
    data: bytes | None
    """None if it isn't base64."""
    size: int
    """The number of characters in base64."""
    in_result: bool = False
    """Whether it is a part of a tool's result, which only Anthropic's protocol can say."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call that the model has made."""

    at: int
    """The number of its message."""
    id: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a call."""

    at: int
    id: str
    content: Any


@dataclass(frozen=True)
class Asked:
    """The body of a request."""

    api: Api
    body: Json

    @cached_property
    def messages(self) -> list[Json]:
        """The conversation without the system prompt."""
        return [message for message in self.body["messages"] if message["role"] not in ("system", "developer")]

    @cached_property
    def length(self) -> int:
        """The number of bytes of the conversation."""
        return len(json.dumps(self.messages))

    @cached_property
    def tools(self) -> list[tuple[str, Json]]:
        """The name and the schema of each tool."""
        given = self.body.get("tools") or []
        if self.api == "anthropic":
            return [(tool["name"], tool["input_schema"]) for tool in given]
        return [(tool["function"]["name"], tool["function"]["parameters"]) for tool in given]

    @property
    def may_call(self) -> bool:
        """Whether the model may call tools."""
        return bool(self.tools) and self.body.get("tool_choice") not in ("none", {"type": "none"})

    @cached_property
    def blocks(self) -> list[tuple[int, Json]]:
        """Each block of content with the number of its message. Text alone counts as a block."""
        found: list[tuple[int, Json]] = []
        for at, message in enumerate(self.messages):
            content = message.get("content")
            found += ((at, block) for block in ([_text(content)] if isinstance(content, str) else content or []))
        return found

    @cached_property
    def nested(self) -> list[tuple[int, Json, bool]]:
        """Each block, those inside a tool's result included. The last value says whether it is inside one."""
        found: list[tuple[int, Json, bool]] = []
        for at, block in self.blocks:
            found.append((at, block, False))
            if block["type"] == "tool_result":
                inside = block.get("content") or []
                found += ((at, each, True) for each in ([_text(inside)] if isinstance(inside, str) else inside))
        return found

    @cached_property
    def texts(self) -> list[str]:
        """All texts of the conversation, results included."""
        return [block["text"] for _, block, _ in self.nested if block["type"] == "text"]

    @cached_property
    def strings(self) -> list[str]:
        """Every string of the conversation: texts, names, ids, arguments. Contents in base64 aren't among them."""
        return list(_strings(self.messages))

    @cached_property
    def pictures(self) -> list[Content]:
        """The pictures of the conversation."""
        return [_content(block, inside) for _, block, inside in self.nested if block["type"] in ("image", "image_url")]

    @cached_property
    def documents(self) -> list[Content]:
        """The documents of the conversation."""
        return [_content(block, inside) for _, block, inside in self.nested if block["type"] in ("document", "file")]

    @cached_property
    def calls(self) -> list[Call]:
        """The calls of the conversation."""
        if self.api == "anthropic":
            return [
                Call(at=at, id=block["id"], name=block["name"])
                for at, block in self.blocks
                if block["type"] == "tool_use"
            ]
        return [
            Call(at=at, id=call["id"], name=call["function"]["name"])
            for at, message in enumerate(self.messages)
            for call in message.get("tool_calls") or ()
        ]

    @cached_property
    def results(self) -> list[Result]:
        """The results of the conversation."""
        if self.api == "anthropic":
            return [
                Result(at=at, id=block["tool_use_id"], content=block.get("content"))
                for at, block in self.blocks
                if block["type"] == "tool_result"
            ]
        return [
            Result(at=at, id=message["tool_call_id"], content=message.get("content"))
            for at, message in enumerate(self.messages)
            if message["role"] == "tool"
        ]

    @cached_property
    def schemas(self) -> list[Json]:
        """Every schema of every tool, nested ones included."""
        return [each for _, schema in self.tools for each in _schemas(schema)]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _content(block: Json, inside: bool) -> Content:
    match block["type"]:
        case "image_url":
            media_type, encoded = _data_url(block["image_url"]["url"])
        case "file":
            media_type, encoded = _data_url(block["file"]["file_data"])
        case _:
            media_type, encoded = block["source"].get("media_type", ""), block["source"].get("data", "")
    try:
        data = b64decode(encoded, validate=True)
    except ValueError:
        data = None
    return Content(media_type=media_type, data=data, size=len(encoded), in_result=inside)


def _data_url(url: str) -> tuple[str, str]:
    head, _, encoded = url.partition(";base64,")
    return head.removeprefix("data:"), encoded


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield value
    elif isinstance(value, Mapping):
        if value.get("type") != "base64":
            for name, each in value.items():
                yield name
                yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _schemas(node: object) -> Iterator[Json]:
    if not isinstance(node, dict):
        return
    yield node
    for name in ("properties", "$defs", "definitions"):
        for each in (node.get(name) or {}).values():
            yield from _schemas(each)
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for each in node.get(name) or ():
            yield from _schemas(each)
    for name in ("items", "additionalProperties", "not"):
        yield from _schemas(node.get(name))
