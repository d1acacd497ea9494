"""What a scripted model says, and what a reader must make of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

_ALPHABETS: Final = (
    "abc xyz",
    "{}[]\"'\\`</:,;.!?- \n\t\r",
    "äöüßéñ",
    "\0\x01\x1f\x7f\x85\u2028\u2029\ufeff\ufffd\uffff",
    "中文字符。！",
    "שלוםعربى\u202e\u200d",
    "😀🎉👩‍👩‍👧𝒳",
    "\ud83d\ude00\ud800\udfff",
)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Said:
    """A whole reply. Its texts may contain halves of surrogate pairs."""

    thinking: str
    in_tags: str
    """Thinking that is a part of the text."""
    text: str
    calls: tuple[Call, ...]
    prompt: int
    completion: int
    cached: int
    is_cut: bool
    model: str


@dataclass(frozen=True, kw_only=True)
class Read:
    """What must be read."""

    thinking: str
    text: str
    calls: tuple[tuple[str, str, Mapping[str, Any]], ...]
    usage: tuple[int, int, int]
    stop: Literal["end", "tools", "length"]
    model: str


def said(dice: Random) -> Said:
    """Make up a reply."""
    calls = [call(dice) for _ in range(dice.choice((0, 0, 1, 1, 2, 3)))]
    if len(calls) > 1 and dice.random() < 0.1:
        calls[1] = Call(id=calls[0].id, name=calls[1].name, arguments=calls[1].arguments)
    text = words(dice) if not calls or dice.random() < 0.4 else ""
    way = dice.choice(("", "", "", "in fields", "in fields", "in tags"))
    thinking = words(dice) if way else ""
    if way == "in tags":
        text = f"{dice.choice(('', ' '))}<think>{thinking}</think>{text}"
    return Said(
        thinking="" if way == "in tags" else thinking,
        in_tags=thinking if way == "in tags" else "",
        text=text,
        calls=tuple(calls),
        prompt=dice.randrange(1, 10_000),
        completion=dice.randrange(1, 1_000),
        cached=0,
        is_cut=dice.random() < 0.1,
        model=words(dice, 5).strip() or "m",
    )


def call(dice: Random) -> Call:
    """Make up a call."""
    name = dice.choice(("read_file", "list_dir", "edit", words(dice, 6).strip() or "x"))
    return Call(
        id=dice.choice(("", f"call-{dice.randrange(10**6)}", words(dice, 4))), name=name, arguments=_object(dice)
    )


def words(dice: Random, most: int = 40) -> str:
    """Make up a text of at least one character and of any characters, without think tags."""
    size = dice.randrange(1, most)
    text = ""
    while len(text) < size:
        alphabet = dice.choice(_ALPHABETS)
        text += "".join(dice.choice(alphabet) for _ in range(dice.randrange(1, 8)))
    return text


def _object(dice: Random) -> dict[str, Any]:
    return _named(dice, [_value(dice, 3) for _ in range(dice.choice((0, 1, 1, 2, 3)))])


def _named(dice: Random, values: Sequence[Any]) -> dict[str, Any]:
    """Return an object whose names stay different when halves are replaced."""
    names = [words(dice, 6) for _ in values]
    return dict(zip({whole(name): name for name in names}.values(), values, strict=False))


def _value(dice: Random, depth: int) -> Any:
    kind = dice.randrange(8 if depth else 6)
    match kind:
        case 0 | 1 | 2:
            return words(dice, 30)
        case 3:
            return dice.choice((0, -1, 7, 0.5, 10**20, -1e-7))
        case 4:
            return dice.choice((True, False, None))
        case 5:
            return json.dumps({"a": words(dice, 5)})
        case 6:
            return [_value(dice, depth - 1) for _ in range(dice.randrange(3))]
        case _:
            return _named(dice, [_value(dice, depth - 1) for _ in range(dice.randrange(3))])


def read(said: Said) -> Read:
    """Return what must be read: whole characters, and an id of its own for each call."""
    return Read(
        thinking=whole(said.thinking or said.in_tags),
        text=whole(said.text.partition("</think>")[2]).lstrip() if said.in_tags else whole(said.text),
        calls=tuple(
            (call_id, whole(call.name), whole(call.arguments))
            for call_id, call in zip(_ids([whole(call.id) for call in said.calls]), said.calls, strict=True)
        ),
        usage=(said.prompt, said.completion, said.cached),
        stop="length" if said.is_cut else "tools" if said.calls else "end",
        model=whole(said.model),
    )


def _ids(given: Sequence[str]) -> list[str]:
    taken: list[str] = []
    free = iter(range(1000))
    for each in given:
        name = each
        while not name or name in taken:
            name = f"call_{next(free)}"
        taken.append(name)
    return taken


def whole(value: Any) -> Any:
    """Return the value with pairs joined and lone halves replaced, by the definition of UTF-16."""
    if isinstance(value, Mapping):
        return {whole(name): whole(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [whole(inside) for inside in value]
    if not isinstance(value, str):
        return value
    characters: list[str] = []
    for each in value:
        is_low = "\udc00" <= each <= "\udfff"
        if is_low and characters and "\ud800" <= characters[-1] <= "\udbff":
            high = ord(characters.pop()) - 0xD800
            characters.append(chr(0x10000 + high * 0x400 + ord(each) - 0xDC00))
        else:
            characters.append(each)
    return "".join("\ufffd" if "\ud800" <= each <= "\udfff" else each for each in characters)


def pieces(dice: Random, text: str) -> list[str]:
    """Cut a text anywhere, even within a surrogate pair."""
    if dice.random() < 0.5:
        text = "".join(_halves(each) for each in text)
    cuts = sorted(dice.randrange(len(text) + 1) for _ in range(dice.choice((0, 1, 2, 5))))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _halves(character: str) -> str:
    if ord(character) < 0x10000:
        return character
    rest = ord(character) - 0x10000
    return chr(0xD800 + rest // 0x400) + chr(0xDC00 + rest % 0x400)


def written(dice: Random, call: Call) -> str:
    """Write a call's arguments as JSON."""
    if not call.arguments and dice.random() < 0.3:
        return ""
    text = json.dumps(call.arguments, ensure_ascii=dice.random() < 0.5, indent=dice.choice((None, None, 1)))
    return json.dumps(text) if dice.random() < 0.03 else text


def count(dice: Random, number: int) -> Any:
    """Write a number of tokens in one of the ways in which servers do."""
    return dice.choice((number, number, number, float(number), str(number), f"{number}.0"))


def noise(dice: Random) -> dict[str, Any]:
    """Make up fields that nobody knows."""
    values: tuple[Any, ...] = (None, 0, "x", [], {"a": [1]}, "\ud800", True)
    return {f"x_{dice.randrange(50)}": dice.choice(values) for _ in range(dice.choice((0, 0, 1, 2)))}
