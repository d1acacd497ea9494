"""A name for a user's code as it stands: a digest of the source of a function, or of an object's class."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from loom.domain.core.messages import short_digest


def code_digest(*pieces: Callable[..., Any] | None) -> str:
    """Names the code of these, not what it calls; empty where there is no source to read."""
    try:
        return short_digest("".join(inspect.getsource(_written(piece)) for piece in pieces if piece is not None))
    except (OSError, TypeError):
        return ""


def _written(piece: Any) -> Any:
    """What has a source: a function; of a method or of an object that can be called, the class."""
    while isinstance(piece, partial):
        piece = piece.func
    if inspect.ismethod(piece):
        return piece.__self__ if isinstance(piece.__self__, type) else type(piece.__self__)
    return piece if inspect.isfunction(piece) or isinstance(piece, type) else type(piece)
