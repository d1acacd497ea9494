"""A reply in the events of OpenAI's Responses API, as the API and compatible servers send them."""

from random import Random
from typing import Any, TypeAlias

from tests.integration.activities.stream_fuzz.bodies import Sent
from tests.integration.activities.stream_fuzz.replies import Said, count, noise, pieces, written

Value: TypeAlias = dict[str, Any]


def responses_events(dice: Random, said: Said) -> list[Sent]:
    """Return the events of a reply."""
    output, events = _output(dice, said)
    for at in range(len(events), -1, -1):
        if dice.random() < 0.03:
            events.insert(at, {"type": dice.choice(("response.new.delta", "ping")), "delta": None, **noise(dice)})
    usage = {"input_tokens": count(dice, said.prompt), "output_tokens": count(dice, said.completion)}
    if said.cached or dice.random() < 0.5:
        usage["input_tokens_details"] = {"cached_tokens": count(dice, said.cached)}
    status = "incomplete" if said.is_cut else "completed"
    response = {
        "id": "r",
        "model": said.model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if said.is_cut else None,
        "output": output,
        "usage": usage,
        **noise(dice),
    }
    created = {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}
    every = [created, *events, {"type": f"response.{status}", "response": response}]
    done = [Sent("", "[DONE]", is_text=True)] if dice.random() < 0.1 else []
    return [*(Sent(value["type"], value) for value in every), *done]


def _output(dice: Random, said: Said) -> tuple[Any, list[Value]]:
    """Return the output of the whole response, and the events before it."""
    items: list[Value] = []
    events: list[Value] = []
    streams = dice.random() < 0.9
    if said.thinking:
        kind = dice.choice(("response.reasoning_summary_text.delta", "response.reasoning_text.delta"))
        events += [
            {"type": kind, "output_index": 0, "delta": piece, **noise(dice)} for piece in pieces(dice, said.thinking)
        ]
        items.append({"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": said.thinking}]})
    if said.text:
        parts = [{"type": "output_text", "text": said.text, "annotations": []}, {"type": "new_part"}]
        if streams:
            at = {"output_index": len(items), **noise(dice)}
            events += [{"type": "response.output_text.delta", "delta": each, **at} for each in pieces(dice, said.text)]
        items.append({"type": "message", "role": "assistant", "content": parts})
    calls = len(items)
    for call in said.calls:
        text = written(dice, call)
        item = {"type": "function_call", "call_id": call.id or None, "name": call.name, "arguments": text}
        begun = {"type": "response.output_item.added", "output_index": len(items), "item": {**item, "arguments": ""}}
        kind = "response.function_call_arguments.delta"
        events += [begun, *({"type": kind, "output_index": len(items), "delta": each} for each in pieces(dice, text))]
        items.append({**item, **noise(dice)})
    match dice.randrange(3):
        case 0:
            return items, events
        case 1:
            done = [
                {"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(items)
            ]
            return dice.choice((items, [], None)) if streams else items, events + done
        case _:
            return items[:calls] if calls == len(items) or not streams else dice.choice((items, None)), events
