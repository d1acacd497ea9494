"""Decide whether to make a model call, and limit its reply so that the call stays within the remaining budget.

    a turn of the model          `covered`: allow the longest reply that the budget covers
    an evaluation or a summary   `worst_case`: make the call only if the budget covers its maximum usage

The reservation is a limit on the reply's output tokens. It keeps the call's input and output together within the
remaining budget. A call with tools is made only if the budget also covers a final answer after that call.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from temporalio.exceptions import ApplicationError

from loom.activities.failures import to_application_error
from loom.activities.ports import Prices
from loom.domain.core.errors import BadRequest, LoomError
from loom.domain.core.messages import Usage
from loom.domain.tree.budget import WRAP_UP_TOKENS, Share, Spend

LEAST_ANSWER: Final = 256
"""Minimum number of reply tokens for a useful model call. A budget that doesn't cover this many is exhausted."""
LEAST_LAST_ANSWER: Final = 64
"""Minimum number of reply tokens for a useful final answer."""
_WRITES_CACHE: Final = "anthropic:"
"""The prefix of models whose whole prompt may be written to the provider's cache, which costs more."""
GROWTH: Final = 1.25
"""Allowed growth of the conversation before the final answer, as a factor. It covers tool results and errors in the
token estimate.
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


async def worst_case(prices: Prices, model: str, *, prompt: int, output: int, allowance: Share) -> Spend:
    """Return the maximum usage of a call with `prompt` input tokens and at most `output` output tokens.

    Raises BadRequest if the allowance is in dollars and the price of the model is unknown. A person may have chosen
    such a model for a run that had begun with another one.
    """
    usage = Usage(input_tokens=prompt, output_tokens=output, model_calls=1)
    micros = await prices.cost_micros(model, usage)
    if micros is not None and model.startswith(_WRITES_CACHE):
        micros = max(micros, await prices.cost_micros(model, replace(usage, cache_write_tokens=prompt)) or 0)
    if micros is None and allowance.micros is not None:
        raise BadRequest(
            f"the price of {model} is unknown, so the budget in dollars cannot be enforced: go on with another model,"
            " or set LOOM_UNKNOWN_PRICE on the worker",
            model=model,
        )
    return Spend(tokens=usage.total_tokens, micros=micros or 0)


async def failure_of_call(
    error: LoomError, *, prices: Prices, model: str, redact: Callable[[str], str]
) -> ApplicationError:
    """Convert a failed model call's error to a failure that says what the call has cost."""
    cost = None if error.used is None else await prices.cost_micros(model, error.used)
    return to_application_error(error, redact, cost_micros=cost)


async def covered(
    prices: Prices, model: str, *, prompt: int, most: int, allowance: Share, last: bool
) -> Covered | Uncovered:
    """Return the longest reply of at most `most` tokens that the allowance covers after a prompt of `prompt` tokens.

    Return `Uncovered` if the allowance doesn't cover even the shortest useful reply. Raises BadRequest as `worst_case`
    does.
    """

    async def call(output: int) -> Spend:
        return await worst_case(prices, model, prompt=prompt, output=output, allowance=allowance)

    async def need(output: int) -> Spend:
        after = int(GROWTH * prompt) + output
        follows = await worst_case(prices, model, prompt=after, output=LEAST_LAST_ANSWER, allowance=allowance)
        return await call(output) + (Spend() if last else follows)

    least = min(most, LEAST_LAST_ANSWER if last else LEAST_ANSWER)
    if allowance.shortfall(await need(least)):
        return Uncovered(need=await need(least))
    low, high = least, max(least, min(most, WRAP_UP_TOKENS) if last else most)
    while low < high:  # the longest reply that the budget covers
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if allowance.shortfall(await need(middle)) else (middle, high)
    return Covered(output=low, reserved=await call(low))
