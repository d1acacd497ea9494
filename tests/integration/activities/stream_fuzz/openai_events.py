"""A reply in the chunks of OpenAI's Chat Completions API, as the API and compatible servers send them."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeAlias

from tests.integration.activities.stream_fuzz.bodies import Sent
from tests.integration.activities.stream_fuzz.replies import Call, Said, count, noise, pieces, written

Delta: TypeAlias = dict[str, Any]


def openai_events(dice: Random, said: Said) -> list[Sent]:
    """Return the events of a reply."""
    usage = _usage(dice, said)
    way = dice.choice(("at the end", "with the reason", "everywhere", "in the choice", "in a field", "before zeros"))
    deltas = [*_beginning(dice), *_thinking(dice, said), *_calls_and_text(dice, said)]
    chunks = [_chunk(dice, said, delta) for delta in deltas]
    for at in range(len(chunks), -1, -1):
        if dice.random() < 0.05:
            chunks.insert(at, {**_head(dice, said), **_empty(dice)})
    finish = "length" if said.is_cut else dice.choice(("tool_calls", "stop")) if said.calls else "stop"
    chunks.append(_chunk(dice, said, dice.choice(({}, None, {"content": None})), finish))
    if way == "everywhere":
        chunks = [{**chunk, "usage": usage} for chunk in chunks]
    elif way == "with the reason":
        chunks[-1]["usage"] = usage
    elif way == "in the choice":
        last = next(choice for choice in chunks[-1]["choices"] if choice["finish_reason"] == finish)
        last["usage"] = usage
    elif way == "in a field":
        chunks[-1]["x_groq"] = {"id": "x", "usage": usage}
    elif way == "before zeros":
        chunks[-1]["usage"] = usage
        chunks.append({**_head(dice, said), "choices": [], "usage": dict.fromkeys(usage, 0)})
    else:
        chunks.append({**_head(dice, said), "choices": dice.choice(([], None)), "usage": usage})
    events = [Sent("", chunk) for chunk in chunks]
    return [*events, Sent("", "[DONE]", is_text=True)] if dice.random() < 0.9 else events


def _head(dice: Random, said: Said) -> Delta:
    return {"id": "c", "object": "chat.completion.chunk", "model": said.model, **noise(dice)}


def _empty(dice: Random) -> Delta:
    return dice.choice(({"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": [{"delta": None}]}, {}))


def _chunk(dice: Random, said: Said, delta: Delta | None, finish: str | None = None) -> Delta:
    index = dice.choice(({"index": 0}, {"index": 0}, {}, {"index": None}, {"index": "0"}))
    choice = {**index, "delta": delta, "finish_reason": finish, **noise(dice)}
    other = {"index": dice.choice((1, 1.0, "1")), "delta": {"content": "NOT THIS"}, "finish_reason": "error"}
    choices = dice.choice(([choice],) * 18 + ([other, choice], [choice, other]))
    return {**_head(dice, said), "choices": choices, "error": None}


def _usage(dice: Random, said: Said) -> Delta:
    names = dice.choice((("prompt_tokens", "completion_tokens"),) * 3 + (("input_tokens", "output_tokens"),))
    usage = dict(zip(names, (count(dice, said.prompt), count(dice, said.completion)), strict=True))
    if not said.cached:
        return {**usage, **dice.choice(({}, {"prompt_tokens_details": None}, {"total_tokens": "?"}))}
    cached = count(dice, said.cached)
    return {
        **usage,
        **dice.choice(({"prompt_tokens_details": {"cached_tokens": cached}}, {"prompt_cache_hit_tokens": cached})),
    }


def _beginning(dice: Random) -> list[Delta]:
    first: Delta = {"role": "assistant", "content": dice.choice(("", None)), "tool_calls": dice.choice((None, []))}
    return [first] if dice.random() < 0.7 else []


def _thinking(dice: Random, said: Said) -> list[Delta]:
    if not said.thinking:
        return []
    return [_thought(dice, piece) for piece in pieces(dice, said.thinking)] if dice.random() < 0.6 else _one(dice, said)


def _thought(dice: Random, piece: str) -> Delta:
    return {"reasoning_content": piece, **dice.choice(({}, {"content": None}, {"content": ""}, {"reasoning": piece}))}


def _one(dice: Random, said: Said) -> list[Delta]:
    """Return all thinking in one of the other ways."""
    cut = pieces(dice, said.thinking)
    details = [{"type": "reasoning.text", "index": 0, "text": piece} for piece in cut]
    return dice.choice(
        (
            [{"reasoning": piece} for piece in cut],
            [{"reasoning_details": [detail]} for detail in details],
            [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": piece}]}]} for piece in cut],
            [{"content": [{"type": "thinking", "thinking": piece}, {"type": "what", "x": 1}]} for piece in cut],
        )
    )


def _text(dice: Random, piece: str) -> Delta:
    parts = [{"type": "text", "text": None}, {"type": "text", "text": piece}, {"type": "image"}, None]
    return {"content": dice.choice((piece, piece, piece, parts))}


def _calls_and_text(dice: Random, said: Said) -> list[Delta]:
    text = [_text(dice, piece) for piece in pieces(dice, said.text)] if said.text else []
    if not said.calls:
        return text
    calls = [
        {"tool_calls": dice.choice((each, each, [None, *each]))} for each in _way(dice, said.calls)(dice, said.calls)
    ]
    if dice.random() < 0.9:
        return text + calls
    merged: list[Delta] = []  # in any order
    while text or calls:
        merged.append((text if text and (not calls or dice.random() < 0.5) else calls).pop(0))
    return merged


def _indexed(dice: Random, calls: tuple[Call, ...]) -> Iterator[list[Delta]]:
    """Yield the calls in fragments with an index. Fragments of several calls may alternate."""
    write = dice.choice((int, int, str, float))
    each = [_fragments(dice, call, {"index": write(at)}) for at, call in enumerate(calls)]
    yield from _one_by_one(each) if dice.random() < 0.8 else _alternating(dice, each)


def _identified(dice: Random, calls: tuple[Call, ...]) -> Iterator[list[Delta]]:
    """Yield the calls in fragments that have only an id."""
    each = [_fragments(dice, call, {"id": call.id}) for call in calls]
    yield from _one_by_one(each) if dice.random() < 0.8 else _alternating(dice, each)


def _anonymous(dice: Random, calls: tuple[Call, ...]) -> Iterator[list[Delta]]:
    """Yield the calls in fragments, of which only the first has an id and a name."""
    yield from _one_by_one([_fragments(dice, call, {}) for call in calls])


def _whole(dice: Random, calls: tuple[Call, ...]) -> Iterator[list[Delta]]:
    """Yield whole calls, all with the same index or without one, in one chunk or in several."""
    index = dice.choice(({}, {"index": 0}, {"index": None})) if _have_ids(calls) else {}
    whole = [_piece(dice, {**index, **_id(call)}, call.name, _object(dice, call)) for call in calls]
    yield from [whole] if dice.random() < 0.5 else ([each] for each in whole)


def _fragments(dice: Random, call: Call, always: Delta) -> list[Delta]:
    text = written(dice, call)
    if text.startswith("{") and dice.random() < 0.1:
        cut = _growing(dice, text)
    else:
        cut = [*dice.choice(([], [], [""], ["{}"])), *pieces(dice, text)]
    if text and text[0] == "{" and call.id and always and dice.random() < 0.2:
        cut.append(text)  # the last fragment repeats everything
    name = call.name if dice.random() < 0.2 and call.id and always else None
    rest = [_piece(dice, {**always, **dice.choice(({}, _id(call) if always else {}))}, name, each) for each in cut[1:]]
    return [_piece(dice, {**always, **_id(call), "type": "function"}, call.name, cut[0]), *rest]


def _growing(dice: Random, text: str) -> list[str]:
    """Return fragments of which each repeats those before it."""
    cuts = sorted(dice.randrange(len(text)) for _ in range(dice.choice((0, 1, 2, 5))))
    return [*(text[:at] for at in cuts if not "\ud800" <= text[at - 1 : at] <= "\udbff"), text]


def _piece(dice: Random, fields: Delta, name: str | None, arguments: Any) -> Delta:
    function = (
        {"arguments": arguments} if name is None and dice.random() < 0.5 else {"name": name, "arguments": arguments}
    )
    return {**fields, "function": function, **noise(dice)}


def _object(dice: Random, call: Call) -> Any:
    return dice.choice((call.arguments, json.dumps(call.arguments)))


def _id(call: Call) -> Delta:
    return {"id": call.id} if call.id else {}


def _have_ids(calls: tuple[Call, ...]) -> bool:
    ids = [call.id for call in calls]
    return all(ids) and len(set(ids)) == len(ids)


def _one_by_one(each: list[list[Delta]]) -> Iterator[list[Delta]]:
    return ([fragment] for fragments in each for fragment in fragments)


def _alternating(dice: Random, each: list[list[Delta]]) -> Iterator[list[Delta]]:
    yield [fragments.pop(0) for fragments in each]
    while left := [fragments for fragments in each if fragments]:
        yield [dice.choice(left).pop(0)]


def _way(dice: Random, calls: tuple[Call, ...]) -> Callable[[Random, tuple[Call, ...]], Iterator[list[Delta]]]:
    if not _have_ids(calls):
        return _whole if dice.random() < 0.3 and len({call.id for call in calls}) == 1 and not calls[0].id else _indexed
    return dice.choice((_indexed, _indexed, _identified, _anonymous, _whole))
