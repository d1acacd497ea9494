"""Compute a digest of user code from the source of a function or of an object's class."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from loom.domain.core.messages import short_digest


def code_digest(*pieces: Callable[..., Any] | None) -> str:
    """Return the digest of this code, excluding the code that it calls. Return an empty string if no source is
    available.
    """
    try:
        return short_digest("".join(inspect.getsource(_written(piece)) for piece in pieces if piece is not None))
    except (OSError, TypeError):
        return ""


def _written(piece: Any) -> Any:
    """Return the object that has source code: a function, or the class of a method or callable object."""
    while isinstance(piece, partial):
        piece = piece.func
    if inspect.ismethod(piece):
        return piece.__self__ if isinstance(piece.__self__, type) else type(piece.__self__)
    return piece if inspect.isfunction(piece) or isinstance(piece, type) else type(piece)
