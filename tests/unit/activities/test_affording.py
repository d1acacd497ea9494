"""How long an answer may be so that a call stays within what is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.budget_reservation import LEAST_ANSWER, LEAST_LAST_ANSWER, Covered, Uncovered, covered
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import Usage
from loom.domain.tree.budget import WRAP_UP_TOKENS, Share, Spend


class Dear:
    """Two micro-dollars a token of prompt, ten a token of answer."""

    async def cost_micros(self, model: str, usage: Usage) -> int | None:
        return None if model == "unknown" else 2 * usage.input_tokens + 10 * usage.output_tokens


async def asked(
    allowance: Share, *, last: bool = False, model: str = "dear", prompt: int = 1000
) -> Covered | Uncovered:
    return await covered(Dear(), model, prompt=prompt, most=8000, allowance=allowance, last=last)


async def test_with_plenty_left_the_answer_may_be_as_long_as_the_agent_says() -> None:
    assert await asked(Share(tokens=100_000)) == Covered(output=8000, reserved=Spend(tokens=9000, micros=82_000))


async def test_near_the_end_the_answer_is_shorter_and_a_last_one_still_fits_behind_it() -> None:
    bound = await asked(Share(tokens=5000))
    assert isinstance(bound, Covered)
    assert LEAST_ANSWER < bound.output < 8000
    follows = int(1.25 * 1000) + bound.output + LEAST_LAST_ANSWER
    assert bound.reserved.tokens + follows <= 5000 < bound.reserved.tokens + follows + 2


async def test_what_covers_no_useful_answer_is_too_little_and_says_how_much_it_takes() -> None:
    bound = await asked(Share(tokens=2000))
    assert bound == Uncovered(need=Spend(tokens=2826, micros=8212))
    assert isinstance(await asked(Share(tokens=bound.need.tokens)), Covered)


async def test_a_last_answer_is_short_and_needs_nothing_behind_it() -> None:
    assert await asked(Share(tokens=100_000), last=True) == Covered(
        output=WRAP_UP_TOKENS, reserved=Spend(tokens=2024, micros=12_240)
    )
    assert isinstance(await asked(Share(tokens=1064), last=True), Covered)
    assert isinstance(await asked(Share(tokens=1063), last=True), Uncovered)


async def test_money_bounds_as_tokens_do() -> None:
    bound = await asked(Share(micros=30_000))
    assert isinstance(bound, Covered)
    assert bound.reserved.micros <= 30_000


async def test_a_model_whose_price_is_unknown_is_called_only_if_no_dollars_are_counted() -> None:
    assert await asked(Share(tokens=100_000), model="unknown") == Covered(output=8000, reserved=Spend(tokens=9000))
    with pytest.raises(BadRequest, match="the price of unknown is unknown"):
        await asked(Share(micros=1_000_000_000), model="unknown")


@pytest.mark.parametrize("last", [True, False])
@given(tokens=st.integers(0, 40_000), micros=st.integers(0, 400_000), prompt=st.integers(0, 20_000))
async def test_what_is_reserved_is_always_there(tokens: int, micros: int, prompt: int, last: bool) -> None:
    allowance = Share(tokens=tokens, micros=micros)
    bound = await asked(allowance, last=last, prompt=prompt)
    if isinstance(bound, Covered):
        assert not allowance.shortfall(bound.reserved)
    else:
        assert allowance.shortfall(bound.need)
