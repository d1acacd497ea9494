"""Convert any Python value to JSON. What JSON can't represent is replaced, and everything around it is kept."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from itertools import count
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass
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
            return _object(value.items(), inside)
        case list() | tuple() | AbstractSet() | Iterator():
            return [_plain(each, inside) for each in value]
        case _:
            return _whole(value, inside)


def _whole(value: object, inside: tuple[int, ...]) -> Any:
    """Return an object's own form as JSON. If it has none, return its attributes, or a text that describes it."""
    for form in (partial(to_jsonable_python, inf_nan_mode="strings"), _dumped):
        try:
            return _plain(form(value), inside)
        except Exception:  # noqa: BLE001, S112 - see `as_json`
            continue
    attributes = _attributes(value)
    return _described(value) if attributes is None else _object(attributes.items(), inside)


def _dumped(value: object) -> Any:
    """Return a model's fields, each of them in its own form as JSON if it has one. Excluded fields are left out."""
    if is_pydantic_dataclass(type(value)):
        return TypeAdapter(type(value)).dump_python(value, warnings=False)
    if not isinstance(value, BaseModel):
        raise TypeError
    made = value.model_dump(warnings=False)
    if isinstance(made, dict):  # the value of a root model may be a list
        for name in type(value).model_fields:
            with suppress(Exception):
                made |= value.model_dump(mode="json", include={name}, warnings=False)
    return made


def _attributes(value: object) -> Mapping[str, Any] | None:
    """Return the attributes of a model or of a dataclass, without those that its author has hidden."""
    hidden = {
        name
        for name, field in getattr(type(value), "__pydantic_fields__", {}).items()
        if field.exclude or field.exclude_if is not None or not field.repr
    }
    if isinstance(value, BaseModel):
        return {name: each for name, each in value.__dict__.items() if name not in hidden}
    if not is_dataclass(value) or isinstance(value, type):
        return None
    names = [each.name for each in fields(value) if each.repr and each.name not in hidden]
    return {name: getattr(value, name, None) for name in names}


def _object(members: Iterable[tuple[object, object]], inside: tuple[int, ...]) -> dict[str, Any]:
    """Return an object with all members. Two keys may have the same name as text."""
    made: dict[str, Any] = {}
    for key, value in members:
        name = _name(key)
        free = name if name not in made else next(f"{name} ({n})" for n in count(2) if f"{name} ({n})" not in made)
        made[free] = _plain(value, inside)
    return made


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
