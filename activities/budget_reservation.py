"""Limit the length of a reply so that a model call stays within the remaining budget, and decide whether to make the
call.

    a turn of the model        `covered`: as long a reply as the budget allows
    an evaluation, a summary   `worst_case`: all of it, or the run does without

The limit on the reply's output tokens is the reservation. It ensures that the input and output of the call together
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
    """Return the maximum usage of a call with `prompt` input tokens and at most `output` output tokens."""
    usage = Usage(input_tokens=prompt, output_tokens=output, model_calls=1)
    return Spend(tokens=usage.total_tokens, micros=await prices.cost_micros(model, usage) or 0)


async def covered(
    prices: Prices, model: str, *, prompt: int, most: int, allowance: Share, last: bool
) -> Covered | Uncovered:
    """Return how much of this allowance a call may use if its prompt has `prompt` tokens and its reply has at most
    `most` tokens.
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
