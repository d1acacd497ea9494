"""Answers that must match a JSON Schema: instruct the model, find the JSON, and describe validation problems."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loom.domain.core.json_text import NotJson, read_json, refuse_constant
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.tool_calls import read_done

_FENCE: Final = re.compile(r"^[ \t]*```[\w-]*[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_OPENING: Final = re.compile(r"^[ \t]*(?=[{\[])", re.MULTILINE)
"""Where JSON may start within an answer: at the beginning of a line."""
_MOST_OPENINGS: Final = 50
_THOUGHT: Final = re.compile(r"^\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedAnswer:
    """The result of validating an answer. The model call's activity computes it once, and history records it."""

    value: Any = None
    """The answer's JSON value, if it is valid."""
    problems: tuple[str, ...] = ()
    """The validation problems, each with its location."""


def instructions(schema: JsonObject, *, through_done: bool) -> str:
    """Return the instructions that tell the model how to format its answer."""
    how = (
        "Call `done` with it as `result`, written as JSON text." if through_done else "Answer with it and nothing else."
    )
    shown = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return f"Your final answer has to be one JSON value that fits this JSON Schema. {how}\n{shown}"


def repair(problems: Sequence[str], *, through_done: bool = False) -> str:
    """Return the message that asks the model to correct an answer that does not match the schema."""
    listed = "\n".join(f"- {problem}" for problem in problems)
    again = "Call `done` again with" if through_done else "Answer again with"
    return f"Your answer does not fit the schema that was asked for:\n{listed}\n{again} the whole corrected JSON."


def values_of(text: str) -> tuple[Any, ...]:
    """Return the JSON values that this answer may contain, most likely first. Raises NotJson if there are none.

    The whole answer is tried first, then code blocks from last to first, and then JSON that starts on its own line.
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
    """Return the possible JSON values in a call to `done`. Models pass the values in various ways.

    Raises NotJson if there are none.
    """
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


def _all_json(texts: Iterator[str]) -> Iterator[Any]:
    for text in texts:
        try:
            yield read_json(text)
        except NotJson:
            continue


def _embedded(text: str) -> Iterator[Any]:
    """Yield the objects and arrays that start on their own line, in order."""
    decoder, after = json.JSONDecoder(parse_constant=refuse_constant), 0
    for opening in list(_OPENING.finditer(text))[:_MOST_OPENINGS]:
        if opening.end() < after:
            continue
        try:
            _, after = decoder.raw_decode(text, opening.end())
            yield read_json(text[opening.end() : after])
        except (ValueError, RecursionError):
            continue
