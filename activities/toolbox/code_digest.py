"""A digest of a user's code: of the source of a function, or of an object's class."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from loom.domain.core.messages import short_digest


def code_digest(*pieces: Callable[..., Any] | None) -> str:
    """The digest of this code, without what it calls; empty if there is no source."""
    try:
        return short_digest("".join(inspect.getsource(_written(piece)) for piece in pieces if piece is not None))
    except (OSError, TypeError):
        return ""


def _written(piece: Any) -> Any:
    """The object that has a source: a function, or the class of a method or callable object."""
    while isinstance(piece, partial):
        piece = piece.func
    if inspect.ismethod(piece):
        return piece.__self__ if isinstance(piece.__self__, type) else type(piece.__self__)
    return piece if inspect.isfunction(piece) or isinstance(piece, type) else type(piece)
