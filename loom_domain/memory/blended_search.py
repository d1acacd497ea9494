"""Combine a search by words and a search by meaning into one ranking, for memories and for documents.

Ranks alone don't say how good a search's best result is. If a question shares no telling word with any text, the first
result by words is as bad as the last one. The scores are therefore comparable with a perfect match instead:

- by words: a text's BM25 score, as a share of the highest score that any text could have for the question
- by meaning: how far the text's similarity is above the background, which is the lowest similarity among the nearest
  texts; 1 is the nearest text. Embedding models differ in how similar unrelated texts are, but not in this order.
"""

from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

MEANING: Final = 0.35
"""The weight of the search by meaning. The search by words has the rest. For the measurements behind it, see
docs/memory.md.
"""
NEAREST: Final = 100
"""The number of texts to take from each search. The least similar of them is the background."""

T = TypeVar("T", bound=Hashable)


def blended(worded: Mapping[T, float], similar: Mapping[T, float] | None, weight: float = MEANING) -> dict[T, float]:
    """Return every item with its score from 0 to 1, best first.

    `worded` maps items to their shares by words, and `similar` to their cosine similarities, or is None if the search
    used words only. `weight` is the weight of the search by meaning.
    """
    if similar is None:
        return _best_first(dict(worded))
    near = _above_background(similar)
    return _best_first(
        {item: (1 - weight) * worded.get(item, 0.0) + weight * near.get(item, 0.0) for item in {**near, **worded}}
    )


def _above_background(similar: Mapping[T, float]) -> dict[T, float]:
    """Scale similarities, from 0 for the background to 1 for the nearest item."""
    nearest, background = max(similar.values(), default=0.0), min(similar.values(), default=0.0)
    spread = nearest - background
    return {item: (cosine - background) / spread if spread else 1.0 for item, cosine in similar.items()}


def _best_first(scores: dict[T, float]) -> dict[T, float]:
    return dict(sorted(scores.items(), key=lambda scored: -scored[1]))
