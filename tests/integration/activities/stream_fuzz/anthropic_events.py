"""A reply in the events of Anthropic's Messages API, as the API and compatible servers send them."""

from collections.abc import Iterator
from random import Random
from typing import Any, TypeAlias

from tests.integration.activities.stream_fuzz.bodies import Sent
from tests.integration.activities.stream_fuzz.replies import Call, Said, count, noise, pieces, written

Value: TypeAlias = dict[str, Any]


def anthropic_events(dice: Random, said: Said) -> list[Sent]:
    """Return the events of a reply."""
    blocks = [_thinking(dice, said.thinking)] if said.thinking else []
    if said.text:
        blocks.append(_text(dice, said.text))
    blocks.extend(_use(dice, call) for call in said.calls)
    for at in range(len(blocks), -1, -1):
        if dice.random() < 0.05:
            blocks.insert(
                at, [({"type": "new_block", "x": 1}), {"type": "new_delta", "text": "x", "partial_json": "{"}]
            )
    always_first = dice.random() < 0.05  # a server that counts no blocks
    events = [event for at, block in enumerate(blocks) for event in _block(dice, 0 if always_first else at, block)]
    for at in range(len(events), -1, -1):
        if dice.random() < 0.03:
            events.insert(at, dice.choice((Sent("ping", {"type": "ping", "x": None}), Sent("new", {"type": "new"}))))
    usage = {"input_tokens": count(dice, said.prompt), "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": said.model, "content": [], "usage": usage}
    start = {"type": "message_start", "message": {**message, **noise(dice)}}
    stop = "max_tokens" if said.is_cut else "tool_use" if said.calls else dice.choice(("end_turn", "stop_sequence"))
    end = {"output_tokens": count(dice, said.completion), "input_tokens": dice.choice((None, count(dice, said.prompt)))}
    return [
        Sent("message_start", start),
        *events,
        *dice.choice(([], [], [Sent("message_delta", {"type": "message_delta", "delta": None})])),
        Sent("message_delta", {"type": "message_delta", "delta": {"stop_reason": stop, **noise(dice)}, "usage": end}),
        Sent("message_stop", {"type": "message_stop", **noise(dice)}),
    ]


def _block(dice: Random, index: int, block: list[Value]) -> Iterator[Sent]:
    """Yield the events of a block, of which the first value is the start."""
    write = dice.choice((int, int, int, str, float))
    start, *deltas = block
    begun = Sent(
        "content_block_start",
        {"type": "content_block_start", "index": write(index), "content_block": start, **noise(dice)},
    )
    says_something = start["type"] not in ("text", "thinking") or start[start["type"]]
    if says_something or dice.random() < 0.95:
        yield begun
    if not deltas and dice.random() < 0.1:
        yield begun
    for delta in deltas:
        yield Sent("content_block_delta", {"type": "content_block_delta", "index": write(index), "delta": delta})
        if dice.random() < 0.03:
            yield begun
    yield Sent("content_block_stop", {"type": "content_block_stop", "index": write(index), **noise(dice)})


def _thinking(dice: Random, text: str) -> list[Value]:
    deltas = [{"type": "thinking_delta", "thinking": piece, **noise(dice)} for piece in pieces(dice, text)]
    return [
        {"type": "thinking", "thinking": dice.choice(("", None))},
        *deltas,
        {"type": "signature_delta", "signature": "s"},
    ]


def _text(dice: Random, text: str) -> list[Value]:
    cut: list[str | None] = [*pieces(dice, text)]
    if dice.random() < 0.7:
        cut.insert(0, dice.choice(("", None)))
    deltas = ({"type": "text_delta", "text": piece, **noise(dice)} for piece in cut[1:])
    return [{"type": "text", "text": cut[0]}, *deltas]


def _use(dice: Random, call: Call) -> list[Value]:
    start = {"type": "tool_use", "id": call.id or None, "name": call.name, **noise(dice)}
    text = written(dice, call)
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(dice, text)]
    match dice.randrange(6):
        case 0:
            return [{**start, "input": call.arguments}]
        case 1 if text:
            return [{**start, "input": call.arguments}, *deltas]
        case 2:
            return [{**start, "input": call.arguments}, {"type": "input_json_delta", "partial_json": ""}]
        case _:
            return [{**start, "input": dice.choice(({}, None))}, *deltas]
