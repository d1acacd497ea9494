"""How long an answer may be so that a model call stays within what is left of a budget, and whether one may be given.

    a turn of the model        `covered`: as long an answer as there is room for
    an evaluation, a summary   `worst_case`: all of it, or the run does without

Reserving is this bound: the call is made with a limit of output tokens that, with everything it sends, costs no more
than there is. Before a call with tools so much has to be left that a last answer can still follow it.
"""

from dataclasses import dataclass
from typing import Final

from loom.activities.ports import Prices
from loom.domain.core.messages import Usage
from loom.domain.tree.budget import WRAP_UP_TOKENS, Share, Spend

LEAST_ANSWER: Final = 256
"""Tokens below which calling a model is of no use; a budget that does not cover so much is used up."""
LEAST_LAST_ANSWER: Final = 64
"""The same of a last answer."""
GROWTH: Final = 1.25
"""How much longer the conversation may be at the last answer: results of tools, and what our own count is off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """The call may be made."""

    output: int
    """Tokens that its answer may have."""
    reserved: Spend
    """What it takes at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncovered:
    """The call may not be made."""

    need: Spend
    """What would have to be left for it."""


async def worst_case(prices: Prices, model: str, *, prompt: int, output: int) -> Spend:
    """What a call of `prompt` tokens takes at most, with an answer of at most `output`."""
    usage = Usage(input_tokens=prompt, output_tokens=output, model_calls=1)
    return Spend(tokens=usage.total_tokens, micros=await prices.cost_micros(model, usage) or 0)


async def covered(
    prices: Prices, model: str, *, prompt: int, most: int, allowance: Share, last: bool
) -> Covered | Uncovered:
    """What a call of `prompt` tokens, with an answer of at most `most`, may do with this allowance."""

    async def call(output: int) -> Spend:
        return await worst_case(prices, model, prompt=prompt, output=output)

    async def need(output: int) -> Spend:
        after = int(GROWTH * prompt) + output
        follows = await worst_case(prices, model, prompt=after, output=LEAST_LAST_ANSWER)
        return await call(output) + (Spend() if last else follows)

    least = min(most, LEAST_LAST_ANSWER if last else LEAST_ANSWER)
    if allowance.shortfall(await need(least)):
        return Uncovered(need=await need(least))
    low, high = least, max(least, min(most, WRAP_UP_TOKENS) if last else most)
    while low < high:  # the largest that is covered
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if allowance.shortfall(await need(middle)) else (middle, high)
    return Covered(output=low, reserved=await call(low))
