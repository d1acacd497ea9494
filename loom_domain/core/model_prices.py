"""Prices that are set by hand, for models that no price list contains."""

from dataclasses import dataclass

from loom.domain.core.messages import Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPrice:
    """Prices in US dollars per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """The price of prompt tokens read from the provider's cache. If None, that of other prompt tokens applies."""
    cache_write: float | None = None
    """The price of prompt tokens written to the cache. If None, that of other prompt tokens applies."""

    def cost_micros(self, usage: Usage) -> int:
        """Return the price of this usage in millionths of a US dollar."""
        plain = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
        parts = (
            (plain, self.input),
            (usage.cached_tokens, self.input if self.cached is None else self.cached),
            (usage.cache_write_tokens, self.input if self.cache_write is None else self.cache_write),
            (usage.output_tokens, self.output),
        )
        return round(sum(tokens * price for tokens, price in parts))
