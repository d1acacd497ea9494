"""Names in an app: each once, found again with the nearest one, and where in the user's module it was given."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest

T = TypeVar("T")


def caller() -> str:
    """The line of the user's module that called the caller of this."""
    frame = inspect.currentframe()
    outer = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    return "unknown" if outer is None else f"{outer.f_code.co_filename}:{outer.f_lineno}"


def refuse_twice(kind: str, name: str, first: object, origin: str) -> None:
    """Raises BadRequest where there is a `first` of that name: the thing itself, or where it is from."""
    if first is not None:
        first = getattr(first, "origin", first)
        raise BadRequest(f"two {kind}s are called {name!r}: {first} and {origin}: give one another name", field=kind)


def folder_of(given: str | Path, line: str, what: str) -> Path:
    """A folder that has to be there; a relative one is meant from the file of that line."""
    path = (Path(line.rpartition(":")[0]).parent / Path(given).expanduser()).resolve()
    if not path.is_dir():
        raise BadRequest(f"there is no folder {path} with {what}", field=what)
    return path


def found(kind: str, name: str, among: Mapping[str, T]) -> T:
    """The one of that name; raises BadRequest with the nearest one."""
    if name in among:
        return among[name]
    hint = nearest(name, among, f"there are {', '.join(sorted(among)) or 'none'}")
    raise BadRequest(f"there is no {kind} {name!r}: {hint}", field=kind)
