"""Classify the reasons that servers give for the end of a reply. Their words differ, so parts of words decide."""

import re
from typing import Final, Literal, TypeAlias

from loom.activities.adapters.models.error_responses import Server, quote, unreachable, unreadable
from loom.domain.core.errors import LLMRefusedError

Ending: TypeAlias = Literal["whole", "cut", "refused", "malformed", "broken off"]

REFUSAL: Final = "refusal"
"""Anthropic's reason for a reply that the model has declined."""

_ENDINGS: Final[tuple[tuple[Ending, re.Pattern[str]], ...]] = (
    ("malformed", re.compile(r"malformed")),
    (
        "refused",
        re.compile(
            r"refus|content_?filter(?!_(?:error|fail|timeout))|safety|recitation|sensitive|prohibited|blocked|blocklist"
            r"|\bspii\b|guardrail|toxic"
        ),
    ),
    (
        "broken off",
        re.compile(
            r"error|abort|cancel|fail|time_?out|timed_?out|overload|network|exception|unavailable|interrupt"
            r"|insufficient_system"
        ),
    ),
    ("cut", re.compile(r"length|max_?(?:\w+_)?tokens|token_limit|context_window")),
)
"""The endings by their words. The first one that matches counts. Other words end a whole reply."""


def ending_of(reason: str) -> Ending:
    """Return how a reply with this reason has ended. Without a reason, it is whole."""
    words = re.sub(r"[\s-]", "_", reason.lower())
    return next((ending for ending, pattern in _ENDINGS if pattern.search(words)), "whole")


def latest(before: str, after: str) -> str:
    """Return the reason that counts of two consecutive ones. The first bad reason is final."""
    return before if ending_of(before) not in ("whole", "cut") else after or before


def check_stop_reason(reason: str, said: str, server: Server, model: str) -> None:
    """Raise the error of a reply that the server broke off, or that the model or its provider has refused. `said` is
    what they said about a refusal.
    """
    match ending_of(reason):
        case "refused":
            default = "no reason given" if reason == REFUSAL else "its content filter stopped the answer"
            raise LLMRefusedError(f"{model} declined to answer: {quote(said, server) or default}", model=model)
        case "malformed":
            raise unreadable(server, model, quote(reason, server))
        case "broken off":
            raise unreachable(server, model, f"the server broke off the reply ({quote(reason, server)})")
        case "whole" | "cut":
            pass
