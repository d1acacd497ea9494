"""Limit the length of a reply so that a model call stays within the remaining budget, and decide whether to make the
call.

    a turn of the model        `covered`: as long a reply as the budget allows
    an evaluation, a summary   `worst_case`: all of it, or the run does without

This limit is the reservation. The call is made with a limit on output tokens so that its input and output together
don't exceed the remaining budget. Before a call with tools, the budget must also leave enough for a final answer after
that call.
"""

from dataclasses import dataclass
from typing import Final

from loom.activities.ports import Prices
from loom.domain.core.messages import Usage
from loom.domain.tree.budget import WRAP_UP_TOKENS, Share, Spend

LEAST_ANSWER: Final = 256
"""Minimum number of reply tokens for a useful model call. A budget that doesn't cover them is exhausted."""
LEAST_LAST_ANSWER: Final = 64
"""Minimum number of reply tokens for a useful final answer."""
GROWTH: Final = 1.25
"""Factor by which the conversation may grow before the final answer, due to tool results and token estimation errors.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """The budget allows the call."""

    output: int
    """Maximum number of tokens in the reply."""
    reserved: Spend
    """Maximum usage of the call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncovered:
    """The budget doesn't allow the call."""

    need: Spend
    """The budget that the call would require."""


async def worst_case(prices: Prices, model: str, *, prompt: int, output: int) -> Spend:
    """Return the maximum usage of a call with `prompt` tokens and a reply of at most `output` tokens."""
    usage = Usage(input_tokens=prompt, output_tokens=output, model_calls=1)
    return Spend(tokens=usage.total_tokens, micros=await prices.cost_micros(model, usage) or 0)


async def covered(
    prices: Prices, model: str, *, prompt: int, most: int, allowance: Share, last: bool
) -> Covered | Uncovered:
    """Return the share of this allowance that a call with `prompt` tokens and a reply of at most `most`
    tokens may use.
    """

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
    while low < high:  # the longest reply that the budget covers
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if allowance.shortfall(await need(middle)) else (middle, high)
    return Covered(output=low, reserved=await call(low))
