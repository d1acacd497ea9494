"""Read JSON texts that models write.

`read_json` is strict, except that it accepts numbers too large for a float. Workflow code calls it, so it must keep
accepting and rejecting the same texts. `read_written` is for activities, which record what they have read. It also
accepts raw line breaks and other control characters in strings, which can mean only one thing.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from loom.domain.core.messages import JsonObject

MAX_DEPTH: Final = 100
"""Maximum nesting depth of a tool call's arguments. Values with deeper nesting can't be serialized."""
_QUOTED: Final = 20
"""The number of characters that an error quotes of a number, and those of the longest name that it quotes."""
_HIGH: Final = r"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE: Final = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|({_HIGH}|{_LOW})|.)", re.DOTALL)
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """The text contains no valid JSON. The message gives the reason."""


def read_json(text: str) -> Any:
    """Parse strict JSON, without Python's extensions. Raises NotJson if the text is invalid."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
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


def read_written(text: str) -> Any:
    """Parse JSON in which strings may contain raw control characters. Raises NotJson if the text is invalid, if a
    number isn't finite, or if an object has two values for one name.
    """
    try:
        return json.loads(
            text,
            strict=False,
            parse_constant=refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_unambiguous,
        )
    except json.JSONDecodeError as error:
        # The text isn't quoted: a cut secret would no longer be recognized, and masked.
        where = f"at line {error.lineno}, column {error.colno}"
        raise NotJson(f"{error.msg.removesuffix(' at')} {where}") from None
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
    except ValueError as error:
        raise NotJson(str(error)) from None


def read_arguments(text: str) -> JsonObject:
    """Parse a tool call's argument text. Some servers encode the object twice. Raises NotJson with the cause if the
    text isn't a JSON object.
    """
    value = read_written(text)
    if isinstance(value, str):
        value = read_written(value)
    if not isinstance(value, dict):
        raise NotJson(f"it is {_kind(value)}, not an object")
    if is_deeper(value, MAX_DEPTH):
        raise NotJson("it is nested too deeply")
    return value


def is_deeper(value: object, depth: int) -> bool:
    """Whether lists and objects are nested more than `depth` levels deep."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inside) and (depth == 0 or any(is_deeper(each, depth - 1) for each in inside))


def is_finite(value: object) -> bool:
    """Whether JSON can represent every number in the value."""
    match value:
        case float():
            return math.isfinite(value)
        case Mapping():
            return all(map(is_finite, value.values()))
        case list() | tuple():
            return all(map(is_finite, value))
        case _:
            return True


def about_text(value: object) -> str:
    """Return what to tell a model that has sent JSON as a text where a list or an object is required, or an empty
    string if the value is anything else.
    """
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return ""
    kind = "list" if value.lstrip().startswith("[") else "object"
    try:
        read_written(value)
    except NotJson as error:
        return f"it is a text that isn't valid JSON either: {error}; send the {kind} itself"
    return f"it is a text with JSON: send the {kind} itself"


def refuse_constant(name: str) -> NoReturn:
    """Raises ValueError for `NaN`, `Infinity` and `-Infinity`, which Python reads."""
    raise ValueError(f"{name} isn't a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_QUOTED]} is too large for a number")
    return value


def _unambiguous(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(members)
    if len(read) < len(members):
        for name, value in members:
            if read[name] != value or type(read[name]) is not type(value):
                shown = repr(name) if len(name) <= _QUOTED else "a name"
                raise ValueError(f"{shown} occurs twice, with different values")
    return read


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case _:
            return "a list"


def with_whole_escapes(text: str) -> str:
    r"""Return the JSON text with `\ufffd` instead of each escape of an unpaired surrogate. UTF-8 can't encode these, so
    no store and no provider accepts them.
    """
    if not _HALF.search(text):
        return text
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text)
