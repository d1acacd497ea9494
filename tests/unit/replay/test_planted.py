"""The changes of `tests/replay/plants.py`: they fit the code, they cover all of it, and those that matter are found."""

import subprocess
import sys
from collections import Counter

from loom.domain.machine.transitions import TABLE
from tests.replay.contents import HISTORIES
from tests.replay.planted import ROOT, source_with
from tests.replay.plants import PLANTED
from tests.unit.replay.test_histories import activities_of

EACH = 2


def test_each_has_one_place_and_is_valid() -> None:
    for planted in PLANTED:
        compile(source_with(planted), f"{planted.path} with {planted.after}", "exec")


def test_there_are_two_for_each_event_and_each_activity() -> None:
    events = {event.__name__ for event in TABLE}
    activities = {activity for path in HISTORIES for activity in activities_of(path)}
    changed = Counter(name for planted in PLANTED for name in planted.of.split())

    assert [name for name in sorted(events | activities) if changed[name] < EACH] == []


def test_the_two_of_each_kind_that_matter_most_are_found() -> None:
    kinds = Counter(planted.kind for planted in PLANTED if planted.matters)
    assert kinds == dict.fromkeys({planted.kind for planted in PLANTED}, EACH)
    command = [sys.executable, "-m", "tests.replay.planted", "--matter"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)

    assert (ended.returncode, [line for line in ended.stdout.splitlines() if "MISSED" in line]) == (0, []), ended
