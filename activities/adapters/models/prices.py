"""Calculate the prices of model calls without network access. The genai-prices package contains the price list."""

import asyncio
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from loom.domain.core.messages import Usage
from loom.domain.core.model_prices import ModelPrice

Unknown: TypeAlias = Literal["deny", "assume", "free"]
ASSUMED: Final = (15, 75)
"""The assumed price of an unlisted model, in dollars per million prompt tokens and per million reply tokens. It is the
price of an expensive model.
"""


class GenaiPrices:
    """Prices of OpenAI and Anthropic models, and of compatible services whose addresses are in the price list."""

    def __init__(
        self,
        *,
        openai_base_url: str | None = None,
        anthropic_base_url: str | None = None,
        unknown: Unknown = "deny",
        own: Mapping[str, ModelPrice] | None = None,
    ) -> None:
        """`own` contains prices by `prefix:name`, or by the start of such a name with `*`. The longest name applies.
        `unknown` determines how an unlisted model is priced: as unknown, as an expensive model, or as free.
        """
        self._own = sorted((own or {}).items(), key=lambda each: len(each[0]), reverse=True)
        self._unknown = unknown
        self._urls = {"openai": openai_base_url, "anthropic": anthropic_base_url}
        self._loaded = False

    async def cost_micros(self, model: str, usage: Usage) -> int | None:
        """Return the price of this usage of `prefix:name` in millionths of a US dollar, or None if the price is
        unknown.
        """
        for pattern, price in self._own:
            if model == pattern or (pattern.endswith("*") and model.startswith(pattern[:-1])):
                return price.cost_micros(usage)
        known = await self._listed(model, usage)
        if known is not None or self._unknown == "deny":
            return known
        if self._unknown == "free":
            return 0
        prompt, answer = ASSUMED
        return usage.input_tokens * prompt + usage.output_tokens * answer

    async def _listed(self, model: str, usage: Usage) -> int | None:
        prefix, _, name = model.partition(":")
        prefix = prefix.removesuffix("-responses")  # another API of the same models
        if prefix == "demo":
            return 0
        if not name or prefix not in self._urls:
            return None
        if self._loaded:
            return self._cost(prefix, name, usage)
        # Read the price list in a thread. Reading takes a second, and the streams and heartbeats of other runs must
        # continue during that time.
        cost = await asyncio.to_thread(self._cost, prefix, name, usage)
        self._loaded = True
        return cost

    def _cost(self, prefix: str, name: str, usage: Usage) -> int | None:
        from genai_prices import Usage as Counted  # noqa: PLC0415 - importing the package takes half a second
        from genai_prices import calc_price  # noqa: PLC0415

        counted = Counted(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        try:
            if url := self._urls[prefix]:
                price = calc_price(counted, name, provider_api_url=url)
            else:
                price = calc_price(counted, name, provider_id=prefix)
        except (LookupError, ValueError):
            return None
        return round(price.total_price * 1_000_000)
