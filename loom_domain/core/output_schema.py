"""Answers that must match a JSON Schema: the instructions, finding the JSON, and describing what is wrong."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.tool_calls import read_done

_FENCE: Final = re.compile(r"^[ \t]*```[\w-]*[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_OPENING: Final = re.compile(r"^[ \t]*(?=[{\[])", re.MULTILINE)
"""Where JSON may start within an answer: at the beginning of a line."""
_MOST_OPENINGS: Final = 50
_THOUGHT: Final = re.compile(r"^\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedAnswer:
    """The result of validating an answer. Computed where the model is called, recorded, never recomputed."""

    value: Any = None
    """The answer as a JSON value, if it is valid."""
    problems: tuple[str, ...] = ()
    """What is wrong, each with its location."""


class NotJson(ValueError):
    """The answer contains no JSON; the message says why."""


def instructions(schema: JsonObject, *, through_done: bool) -> str:
    """The instructions about the form of the answer."""
    how = (
        "Call `done` with it as `result`, written as JSON text." if through_done else "Answer with it and nothing else."
    )
    shown = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return f"Your final answer has to be one JSON value that fits this JSON Schema. {how}\n{shown}"


def repair(problems: Sequence[str], *, through_done: bool = False) -> str:
    """What the model reads if its answer does not match."""
    listed = "\n".join(f"- {problem}" for problem in problems)
    again = "Call `done` again with" if through_done else "Answer again with"
    return f"Your answer does not fit the schema that was asked for:\n{listed}\n{again} the whole corrected JSON."


def values_of(text: str) -> tuple[Any, ...]:
    """The JSON values that this answer may contain, most likely first; raises NotJson.

    The whole answer, else the content of code fences (the last first), else what starts on a line of its own.
    """
    said = _THOUGHT.sub("", text).strip()
    try:
        return (read_json(said),)
    except NotJson as error:
        found = [*_all_json(reversed(_FENCE.findall(said)))] or [*_embedded(said)]
        if not found:
            raise error from None
        return tuple(found)


def values_of_done(call: ToolCall, text: str) -> tuple[Any, ...]:
    """The same for a call of `done`, to which models pass it in many ways; raises NotJson."""
    given = call.arguments.get("result")
    if isinstance(given, dict | list):
        return (given,)
    arguments = () if "result" in call.arguments or not call.arguments else (dict(call.arguments),)
    try:
        return (*arguments, *values_of(read_done(call) or text))
    except NotJson:
        if not arguments:
            raise
        return arguments


def read_json(text: str) -> Any:
    """Parse strict JSON, without Python's extensions; raises NotJson."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise NotJson("the JSON has half a surrogate pair in it: write whole characters") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"the answer is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise NotJson("the JSON is nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"the answer is not JSON: {error}") from None
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _all_json(texts: Iterator[str]) -> Iterator[Any]:
    for text in texts:
        try:
            yield read_json(text)
        except NotJson:
            continue


def _embedded(text: str) -> Iterator[Any]:
    """Objects and arrays that start on a line of their own, one after the other."""
    decoder, after = json.JSONDecoder(parse_constant=_refuse), 0
    for opening in list(_OPENING.finditer(text))[:_MOST_OPENINGS]:
        if opening.end() < after:
            continue
        try:
            _, after = decoder.raw_decode(text, opening.end())
            yield read_json(text[opening.end() : after])
        except (ValueError, RecursionError):
            continue
