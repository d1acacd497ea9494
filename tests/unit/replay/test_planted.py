"""The changes that `python -m tests.replay.planted` plants still fit the code that they are planted in."""

import pytest

from tests.replay.planted import PLANTED, ROOT, Planted


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.after.strip()[:60])
def test_each_has_one_place(planted: Planted) -> None:
    assert (ROOT / planted.path).read_text().count(planted.before) == 1
