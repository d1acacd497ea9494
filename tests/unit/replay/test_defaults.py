"""The defaults that running work depends on don't change by accident."""

import json

from tests.replay.defaults import DEFAULTS, defaults


def test_numbers_and_defaults_are_those_that_were_reviewed() -> None:
    assert defaults() == json.loads(DEFAULTS.read_text())
