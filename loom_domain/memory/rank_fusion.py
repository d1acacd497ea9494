"""Reciprocal rank fusion: one ranking from several. An item that ranks well in two searches beats the first of one.

The scores of different searches cannot be compared; ranks can.
"""

from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

K: Final = 60
"""The constant `k` of reciprocal rank fusion: a larger value flattens the first ranks. 60 is the usual value."""

T = TypeVar("T", bound=Hashable)


def fused(rankings: Sequence[Sequence[T]], k: int = K) -> dict[T, float]:
    """Every item with its score, best first. An item that is first in every nonempty ranking scores 1."""
    scores: dict[T, float] = {}
    share = (k + 1) / max(1, sum(map(bool, rankings)))
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + share / (k + rank)
    return dict(sorted(scores.items(), key=lambda scored: -scored[1]))
