"""Combine rankings by reciprocal rank fusion: what two searches agree on ranks above what only one puts first.

Scores of different searches are not comparable, but ranks are.
"""

from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

K: Final = 60
"""Constant that reduces the weight of the first ranks; the usual value."""

T = TypeVar("T", bound=Hashable)


def fused(rankings: Sequence[Sequence[T]], k: int = K) -> dict[T, float]:
    """Every item with its score, best first. 1 for an item that is first in all non-empty rankings."""
    scores: dict[T, float] = {}
    share = (k + 1) / max(1, sum(map(bool, rankings)))
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + share / (k + rank)
    return dict(sorted(scores.items(), key=lambda scored: -scored[1]))
