"""Combine rankings by reciprocal rank fusion. An item found by two searches ranks above an item found by only one
search, even if that search ranks it first.

The fusion uses ranks because the scores of different searches are not comparable.
"""

from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

K: Final = 60
"""A constant that reduces the weight of the first ranks. This is the commonly used value."""

T = TypeVar("T", bound=Hashable)


def fused(rankings: Sequence[Sequence[T]], k: int = K) -> dict[T, float]:
    """Return every item with its score, best first. An item that ranks first in all non-empty rankings has a
    score of 1.
    """
    scores: dict[T, float] = {}
    share = (k + 1) / max(1, sum(map(bool, rankings)))
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + share / (k + rank)
    return dict(sorted(scores.items(), key=lambda scored: -scored[1]))
