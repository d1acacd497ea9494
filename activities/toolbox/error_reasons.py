"""Describe why a tool failed, including the errors in exception groups."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from itertools import islice
from typing import Final

from loom.activities.toolbox.workspace.text_bytes import readable
from loom.domain.core.suggestions import nearest

_REASONS: Final = 20
"""Maximum number of errors in a group that are told."""
_LENGTH: Final = 2000
"""Maximum number of characters of one reason in a group."""
_DEPTH: Final = 50
"""Maximum nesting depth of groups."""


def reason_of(error: BaseException) -> str:
    """Return the error's type and text. For a group of errors, add those of each error in it, nested ones included."""
    if not isinstance(error, BaseExceptionGroup):
        return _named(error, _text_of(error))
    found = list(islice(errors_in(error), _REASONS + 1))
    reasons = [f"- {_named(each, _text_of(each)[:_LENGTH])}" for each in found[:_REASONS]]
    more = ["- and more"] if len(found) > _REASONS else []
    return "\n".join([f"{type(error).__name__}: {readable(error.message)}", *reasons, *more])


def errors_in(error: BaseException, depth: int = _DEPTH) -> Iterator[BaseException]:
    """Yield the errors in a group, nested ones included, or the error itself if it isn't a group."""
    if isinstance(error, BaseExceptionGroup) and depth:
        for each in error.exceptions:
            yield from errors_in(each, depth - 1)
    else:
        yield error


def _named(error: BaseException, text: str) -> str:
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def _text_of(error: BaseException) -> str:
    try:
        return readable(f"{error}{_near(error)}")
    except Exception:  # noqa: BLE001 - the error's own code may raise anything
        return ""


def _near(error: BaseException) -> str:
    """Name the attribute that was meant, if the code has asked a dataclass, such as a ToolCall, for another."""
    if not isinstance(error, AttributeError) or not error.name or not is_dataclass(error.obj):
        return ""
    public = [name for name in dir(error.obj) if not name.startswith("_")]
    return "; " + nearest(error.name, public, f"it has: {', '.join(public)}")
