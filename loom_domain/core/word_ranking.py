"""Rank texts by the words of a query (BM25), for searches that need no index."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from typing import Final

from loom.domain.core.lexemes import asked_lexemes, lexemes_of

_K1: Final = 1.2
_B: Final = 0.6
"""How soon repetitions stop to count, and how much long texts lose."""


def scores_of(texts: Sequence[str], query: str) -> list[float]:
    """Return how well each text fits the query's words. A text without any of them has the score 0."""
    asked = asked_lexemes(query)
    counts = [Counter(lexemes_of(text)) for text in texts]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    having = Counter(lexeme for count in counts for lexeme in asked if lexeme in count)
    weights = {lexeme: log(1 + (len(counts) - having[lexeme] + 0.5) / (having[lexeme] + 0.5)) for lexeme in having}
    return [_score(count, weights, length / mean) for count, length in zip(counts, lengths, strict=True)]


def _score(count: Mapping[str, int], weights: Mapping[str, float], length: float) -> float:
    return sum(
        weight * times * (_K1 + 1) / (times + _K1 * (1 - _B + _B * length))
        for lexeme, weight in weights.items()
        if (times := count.get(lexeme, 0))
    )
