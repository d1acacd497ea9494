"""An attempt at a call that another attempt has begun, ended or taken over, and the keys by which it knows."""

import json

from tests.replay.attempts import OUTCOMES, outcomes
from tests.replay.keys import KEYS, keys


async def test_a_call_is_not_made_twice() -> None:
    assert await outcomes() == OUTCOMES


def test_the_keys_of_calls_in_flight_are_those_that_were_recorded() -> None:
    assert keys() == json.loads(KEYS.read_text())
