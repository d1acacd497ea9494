"""Validate task handlers when they are registered."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from loom.domain.core.errors import BadRequest
from loom.domain.core.task_routing import TaskHandler, check_arrives

NAME: Final = r"[\w.-]{1,64}"


def handler_of(function: Callable[..., Any], pattern: str, name: str, origin: str) -> TaskHandler:
    """Return a task handler for the function. If `name` is empty, the handler has the function's name."""
    inner: Any = function.func if isinstance(function, partial) else function
    named = name or getattr(inner, "__name__", type(inner).__name__)
    if not callable(function):
        raise BadRequest(f'write @app.on_task("{pattern}") above a function, not {function!r}', field="on_task")
    if not re.fullmatch(NAME, named):
        raise BadRequest(
            f"{named!r} cannot be a handler's name on the bus: pass `name=` with at most 64 letters, digits, `.`,"
            " `_` or `-`",
            field="on_task",
        )
    check_arrives(pattern)
    return TaskHandler(name=named, pattern=pattern, function=function, origin=origin)
