"""How long a reply may be so that a model call stays within the rest of a budget, and whether the call may be made.

    a turn of the model        `covered`: as long a reply as the budget allows
    an evaluation, a summary   `worst_case`: all of it, or the run does without

This limit is the reservation: the call is made with a limit of output tokens that, together with its input, costs no
more than what is left. Before a call with tools, enough must be left for a last answer after it.
"""

from dataclasses import dataclass
from typing import Final

from loom.activities.ports import Prices
from loom.domain.core.messages import Usage
from loom.domain.tree.budget import WRAP_UP_TOKENS, Share, Spend

LEAST_ANSWER: Final = 256
"""Tokens below which a model call is useless. A budget that does not cover them is exhausted."""
LEAST_LAST_ANSWER: Final = 64
"""The same for a last answer."""
GROWTH: Final = 1.25
"""How much longer the conversation may be at the last answer: results of tools, and the error of the token estimate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """The call may be made."""

    output: int
    """Maximum tokens of its reply."""
    reserved: Spend
    """Its maximum usage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncovered:
    """The call may not be made."""

    need: Spend
    """What the budget would have to contain for it."""


async def worst_case(prices: Prices, model: str, *, prompt: int, output: int) -> Spend:
    """The maximum usage of a call with `prompt` tokens and a reply of at most `output`."""
    usage = Usage(input_tokens=prompt, output_tokens=output, model_calls=1)
    return Spend(tokens=usage.total_tokens, micros=await prices.cost_micros(model, usage) or 0)


async def covered(
    prices: Prices, model: str, *, prompt: int, most: int, allowance: Share, last: bool
) -> Covered | Uncovered:
    """What a call of `prompt` tokens, with a reply of at most `most`, may use of this allowance."""

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
    while low < high:  # the largest reply that is covered
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if allowance.shortfall(await need(middle)) else (middle, high)
    return Covered(output=low, reserved=await call(low))
