"""One ranking out of several, by reciprocal rank: what two ways of looking agree on beats what one of them puts first.

Scores of different ways cannot be compared; ranks can.
"""

from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

K: Final = 60
"""How little the first ranks stand out; the usual value."""

T = TypeVar("T", bound=Hashable)


def fused(rankings: Sequence[Sequence[T]], k: int = K) -> dict[T, float]:
    """Every item with its score, best first; 1 for what all rankings have first that have anything."""
    scores: dict[T, float] = {}
    share = (k + 1) / max(1, sum(map(bool, rankings)))
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + share / (k + rank)
    return dict(sorted(scores.items(), key=lambda scored: -scored[1]))
