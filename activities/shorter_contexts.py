"""What to do if a provider refuses a conversation as too long: what it said, and ever shorter contexts."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

import structlog

from loom.activities.refused_requests import is_refused
from loom.domain.context.model_context import ModelContext
from loom.domain.core.errors import LLMContextLengthError, LoomError
from loom.domain.run.activity_payloads import ModelReply
from loom.domain.run.conversation import TooLong

LEAST_GROWN: Final = 2_000
"""The number of tokens from which a conversation that is refused for an unknown reason may be too long."""
SMALLEST: Final = 256
"""The number of tokens of the smallest window that is tried."""

_log = structlog.get_logger("loom.model")


def may_be_too_long(error: LoomError, context: ModelContext) -> bool:
    """Whether a shorter conversation may be accepted. Some servers refuse a long one without a reason."""
    has_grown = context.tokens >= LEAST_GROWN and any(message.role == "assistant" for message in context.said)
    is_unclear = is_refused(error) and bool(error.context.get("is_vague"))
    return isinstance(error, LLMContextLengthError) or (is_unclear and has_grown)


def halves(tokens: int) -> Iterator[int]:
    """Yield ever smaller windows for a conversation of this many tokens."""
    while (tokens := tokens // 2) >= SMALLEST:
        yield tokens


async def first_that_fits(
    ask: Callable[..., Awaitable[ModelReply]],
    refused: ModelContext,
    windows: Iterable[ModelContext],
    error: LLMContextLengthError,
) -> tuple[ModelContext, ModelReply]:
    """Return the reply to the longest of these contexts that isn't too long. If none is accepted, raise the error."""
    for context in windows:
        if context.assembled().tokens >= refused.assembled().tokens:
            continue
        refused = context
        _log.info("context_shortened", tokens=context.tokens, message=error.message)
        with suppress(LLMContextLengthError):
            return context, await ask(context, too_long=error.message)
    raise error


def too_long_in(error: LoomError, context: ModelContext) -> TooLong:
    """Return what the provider said about the length. If it named no number, Loom's own count stands for it."""
    told = (error.context.get(name) for name in ("tokens", "limit"))
    tokens, limit = (value if isinstance(value, int) and value > 0 else 0 for value in told)
    return TooLong(trigger="provider", tokens=tokens or context.tokens, limit=limit)
