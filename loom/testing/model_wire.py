"""Format a scripted reply as OpenAI and Anthropic send it: as the events of a stream, or as one completion."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from loom.testing.model_replies import Json, Reply, SeenRequest, ToolUse


def events_of(request: SeenRequest, reply: Reply) -> Iterator[bytes]:
    """Return the server-sent events of a reply in the provider's format."""
    return _openai_events(request, reply) if request.provider == "openai" else _anthropic_events(request, reply)


def completion_of(request: SeenRequest, reply: Reply) -> bytes:
    """OpenAI's answer in one piece."""
    uses = [
        {"id": _call_id(request, index, use), "type": "function", "function": _function(use)}
        for index, use in enumerate(reply.calls)
    ]
    message = {"role": "assistant", "content": reply.text, "tool_calls": uses or None}
    choice = {"index": 0, "message": message, "finish_reason": _openai_finish(reply)}
    head = {"id": "c", "object": "chat.completion", "created": 0, "model": request.body["model"]}
    return json.dumps({**head, "choices": [choice], "usage": _openai_usage(reply)}).encode()


def _openai_events(request: SeenRequest, reply: Reply) -> Iterator[bytes]:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": request.body["model"]}
    for delta in _openai_deltas(request, reply):
        yield _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _data({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _openai_finish(reply)}]})
    if reply.usage is not None:
        yield _data({**head, "choices": [], "usage": _openai_usage(reply)})
    yield b"data: [DONE]\n\n"


def _openai_deltas(request: SeenRequest, reply: Reply) -> Iterator[Json]:
    name = "refusal" if reply.finish == "refusal" else "content"
    for piece in _cut(reply.text, reply.pieces):
        yield {"role": "assistant", name: piece}
    for index, use in enumerate(reply.calls):
        opened = {"id": _call_id(request, index, use), "type": "function", "function": {"name": use.name}}
        yield {"tool_calls": [{"index": index, **opened}]}
        for piece in _cut(_arguments(use), 2):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _openai_usage(reply: Reply) -> Json | None:
    if reply.usage is None:
        return None
    prompt, completion, cached = reply.usage
    details = {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}


def _openai_finish(reply: Reply) -> str:
    if reply.finish == "length":
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _anthropic_events(request: SeenRequest, reply: Reply) -> Iterator[bytes]:
    prompt, completion, cached = reply.usage or (0, 0, 0)
    usage = {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": 1}
    head = {"id": "m", "type": "message", "role": "assistant", "model": request.body["model"], "content": []}
    refused = reply.finish == "refusal"
    yield _event("message_start", message={**head, **({"usage": usage} if reply.usage else {})})
    if not refused:
        yield from _anthropic_blocks(request, reply)
    details = {"type": "refusal", "category": "cyber", "explanation": reply.text} if refused else None
    delta = {"stop_reason": _anthropic_stop(reply), "stop_details": details}
    yield _event("message_delta", delta=delta, usage={"output_tokens": completion} if reply.usage else {})
    yield _event("message_stop")


def _anthropic_blocks(request: SeenRequest, reply: Reply) -> Iterator[bytes]:
    if reply.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in _cut(reply.text, reply.pieces)]
        yield from _anthropic_block(0, {"type": "text", "text": ""}, deltas)
    for number, use in enumerate(reply.calls):
        block = {"type": "tool_use", "id": _call_id(request, number, use), "name": use.name, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _cut(_arguments(use), 2)]
        yield from _anthropic_block(number + bool(reply.text), block, deltas)


def _anthropic_block(index: int, block: Json, deltas: list[dict[str, str]]) -> Iterator[bytes]:
    yield _event("content_block_start", index=index, content_block=block)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _anthropic_stop(reply: Reply) -> str:
    match reply.finish:
        case "length":
            return "max_tokens"
        case "refusal":
            return "refusal"
        case "end":
            return "tool_use" if reply.calls else "end_turn"


def _call_id(request: SeenRequest, index: int, use: ToolUse) -> str:
    return f"call_{request.index}_{index}" if use.id is None else use.id


def _function(use: ToolUse) -> Json:
    return {"name": use.name, "arguments": _arguments(use)}


def _arguments(use: ToolUse) -> str:
    return use.arguments if isinstance(use.arguments, str) else json.dumps(use.arguments)


@lru_cache(256)
def _cut(content: str, pieces: int) -> tuple[str, ...]:
    size = max(1, -(-len(content) // pieces))
    return tuple(content[at : at + size] for at in range(0, len(content), size))


def _data(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()
