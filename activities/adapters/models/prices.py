"""Prices of model calls, from the price list in genai-prices. Nothing is fetched."""

import asyncio
from typing import Final, Literal, TypeAlias

from loom.domain.core.messages import Usage

Unknown: TypeAlias = Literal["deny", "assume", "free"]
ASSUMED: Final = (15, 75)
"""Dollars for a million tokens of prompt and of reply, assumed for an unlisted model: the price of an expensive one."""


class GenaiPrices:
    """Prices of OpenAI's and Anthropic's own models, and of compatible services that the list knows by address."""

    def __init__(
        self,
        *,
        openai_base_url: str | None = None,
        anthropic_base_url: str | None = None,
        unknown: Unknown = "deny",
    ) -> None:
        """`unknown` selects the price of an unlisted model: unknown, that of an expensive model, or zero."""
        self._unknown = unknown
        self._urls = {"openai": openai_base_url, "anthropic": anthropic_base_url}
        self._loaded = False

    async def cost_micros(self, model: str, usage: Usage) -> int | None:
        """Millionths of a US dollar for this usage of `prefix:name`; None if the price is unknown."""
        known = await self._listed(model, usage)
        if known is not None or self._unknown == "deny":
            return known
        if self._unknown == "free":
            return 0
        prompt, answer = ASSUMED
        return usage.input_tokens * prompt + usage.output_tokens * answer

    async def _listed(self, model: str, usage: Usage) -> int | None:
        prefix, _, name = model.partition(":")
        if prefix == "demo":
            return 0
        if not name or prefix not in self._urls:
            return None
        if self._loaded:
            return self._cost(prefix, name, usage)
        # Reading the list takes a second, in which streams and heartbeats of other runs must continue.
        cost = await asyncio.to_thread(self._cost, prefix, name, usage)
        self._loaded = True
        return cost

    def _cost(self, prefix: str, name: str, usage: Usage) -> int | None:
        from genai_prices import Usage as Counted  # noqa: PLC0415 - takes half a second, which only priced models pay
        from genai_prices import calc_price  # noqa: PLC0415

        counted = Counted(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
        )
        try:
            if url := self._urls[prefix]:
                price = calc_price(counted, name, provider_api_url=url)
            else:
                price = calc_price(counted, name, provider_id=prefix)
        except (LookupError, ValueError):
            return None
        return round(price.total_price * 1_000_000)
