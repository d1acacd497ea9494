"""Confine the paths in a user tool's arguments to the workspace, and derive the subjects to match against permission
patterns.

A path is first matched against the rules, and then confined when the call runs. How the function uses the path
afterward isn't checked. A link may change in the meantime, and the function may construct other paths.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from loom.activities.toolbox.workspace import paths as workspace
from loom.domain.core.errors import BadRequest
from loom.domain.permissions.subjects import Subject, Touched

_LISTS: Final = (list, tuple, set, frozenset)
_PATHS: Final = frozenset({"path", "file-path", "directory-path"})
_READS: Final = ("read_file",)
_WRITES: Final = ("read_file", "write_file")


def confined(value: Any, place: Path, home: Path | None) -> Any:
    """Return the value with its paths resolved inside the workspace. Raises ToolValidationError if a path is
    outside.
    """
    if isinstance(value, PurePath):
        return workspace.resolve(place, str(value), home=home, must_exist=False)
    if isinstance(value, _LISTS) and any(isinstance(item, PurePath) for item in value):
        return type(value)(confined(item, place, home) for item in value)
    return value


def subjects_of(name: str, value: Any, place: Path | None, *, home: Path | None, reads: bool) -> Iterator[Subject]:
    """Yield every text, number and path in an argument. `place` is the folder that paths are confined to, or None if
    they aren't confined.

    The file tools' rules apply to these paths, too, so a rule that protects a file covers every way of accessing it.
    """
    if isinstance(value, PurePath) and place is not None:
        for subject in workspace.subjects(place, str(value), home=home):
            tools = _READS if reads else _WRITES
            files = tuple(Touched(tool=tool, text=subject.text, loose=subject.loose) for tool in tools)
            yield replace(subject, files=files)
    elif isinstance(value, _LISTS):
        for item in value:
            yield from subjects_of(name, item, place, home=home, reads=reads)
    elif value is not None:
        yield _subject(name, value)


def refuse_hidden_paths(kinds: Mapping[str, Any], origin: str) -> None:
    """Raise BadRequest if a parameter may contain paths that can't be confined."""
    for name, kind in kinds.items():
        formats = _PATHS & set(_formats(TypeAdapter(kind).json_schema()))
        if formats and not (formats == {"path"} and _is_plain(kind)):
            raise BadRequest(
                f"{origin}: the paths in `{name}` cannot be confined to the workspace: take a Path, or a list of them,"
                ' as a separate parameter, or set scope="system"',
                field="tool",
            )


def _formats(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("format"), str):
            yield schema["format"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _formats(part)


def _is_plain(kind: Any) -> bool:
    """Whether paths occur only directly or in a list, and not inside a model, mapping or iterator."""
    if hasattr(kind, "__metadata__"):  # Annotated
        return _is_plain(kind.__origin__)
    if get_origin(kind) in (Union, UnionType):
        return all(_is_plain(option) for option in get_args(kind))
    if get_origin(kind) in _LISTS:
        return all(item is ... or (isinstance(item, type) and issubclass(item, PurePath)) for item in get_args(kind))
    return isinstance(kind, type) and issubclass(kind, (PurePath, str, int, float, NoneType))


def _subject(name: str, value: Any) -> Subject:
    """Return a value as a subject. Nested values are opaque, so no pattern matches them."""
    try:
        plain = to_jsonable_python(value, fallback=str)
    except (PydanticSerializationError, ValueError, RecursionError):
        return Subject(text=name, opaque=True)
    if isinstance(plain, bool):
        return Subject(text="true" if plain else "false")
    if isinstance(plain, str | int | float):
        return Subject(text=str(plain))
    return Subject(text=name, opaque=True)
