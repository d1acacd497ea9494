"""Convert any Python value to JSON. What JSON can't represent is replaced, and everything around it is kept."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_json, to_jsonable_python

from loom.activities.toolbox.error_reasons import reason_of
from loom.activities.toolbox.workspace.text_bytes import readable

_DEPTH: Final = 100
"""Maximum nesting depth of a value that has to be converted piece by piece."""
_SCALARS: Final = (type(None), bool, int, float)
_BYTES: Final = 1000
"""Maximum number of bytes that are shown as text if they aren't UTF-8."""


def as_json(value: object) -> str:
    """Return the value as JSON. The members that JSON can't represent are replaced with texts."""
    if isinstance(value, Iterator):
        value = list(value)  # a second look finds nothing in it
    try:
        return _json(value.model_dump(mode="json", warnings=False) if isinstance(value, BaseModel) else value)
    except Exception:  # noqa: BLE001 - the value's own code may raise anything
        return _json(_plain(value, ()))


def _json(value: object) -> str:
    return to_json(value, fallback=_described, inf_nan_mode="strings").decode()


def _plain(value: object, above: tuple[int, ...]) -> Any:
    """Return the value with only the types of JSON. `above` has the ids of the values that contain it."""
    if type(value) in _SCALARS:
        return value
    if id(value) in above:
        return "(a value that contains itself)"
    if len(above) >= _DEPTH:
        return "(nested too deeply)"
    try:
        return _pieces(value, (*above, id(value)))
    except Exception:  # noqa: BLE001 - see `as_json`
        return _described(value)


def _pieces(value: object, inside: tuple[int, ...]) -> Any:
    match value:
        case str():
            return readable(value)
        case bytes() | bytearray() | memoryview():
            return _text_of(bytes(value))
        case Enum():
            return _plain(value.value, inside)
        case Mapping():
            return {_name(key): _plain(each, inside) for key, each in value.items()}
        case list() | tuple() | AbstractSet() | Iterator():
            return [_plain(each, inside) for each in value]
        case _:
            return _whole(value, inside)


def _whole(value: object, inside: tuple[int, ...]) -> Any:
    """Return an object's own form as JSON. If it has none, return its attributes, or a text that describes it."""
    try:
        return _plain(to_jsonable_python(value, inf_nan_mode="strings"), inside)
    except Exception:  # noqa: BLE001 - see `as_json`
        if isinstance(value, BaseModel):
            return {_name(name): _plain(each, inside) for name, each in value.__dict__.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return {each.name: _plain(getattr(value, each.name, None), inside) for each in fields(value)}
        return _described(value)


def _name(key: object) -> str:
    try:
        return readable(str(to_jsonable_python({key: None}).popitem()[0]))
    except Exception:  # noqa: BLE001 - see `as_json`
        return _text_of(key) if isinstance(key, bytes) else _described(key)


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace") if len(data) <= _BYTES else f"({len(data):,} bytes)"


def _described(value: object) -> str:
    if isinstance(value, BaseException):
        return reason_of(value)
    try:
        return readable(str(value))
    except Exception:  # noqa: BLE001 - see `as_json`
        return f"<{type(value).__name__} object>"
