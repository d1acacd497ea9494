"""The local attempts at the calls of one turn end together."""

import asyncio
from datetime import UTC, datetime

import pytest

from loom.activities import run_tool
from loom.activities.run_tool import CallGroups
from loom.domain.core.tasks import Origin
from loom.domain.run.activity_payloads import ToolRequest
from loom.testing.waiting import eventually


class Attempts:
    """Attempts whose work is to note that they have begun."""

    def __init__(self) -> None:
        self.groups = CallGroups()
        self.worked: list[int] = []
        self.ended: list[int] = []

    def begin(self, number: int, *, peers: int, turn: int = 1, fails: bool = False) -> asyncio.Task[None]:
        return asyncio.create_task(self._attempt(number, peers, turn, fails=fails))

    async def have_worked(self, *numbers: int) -> None:
        async def all_have() -> bool:
            return set(numbers) <= set(self.worked)

        await eventually(all_have)

    async def _attempt(self, number: int, peers: int, turn: int, *, fails: bool) -> None:
        origin = Origin(run_id="run", session_id="session", agent="coder")
        request = ToolRequest(
            origin=origin, turn=turn, call_id=f"c{number}", tool="read_file", execution="e1", local=True, peers=peers
        )
        async with self.groups.joined(request, datetime.now(UTC)):
            self.worked.append(number)
            if fails:
                raise OSError("no such file")
        self.ended.append(number)


pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """Attempts that wait for the others as long as a test may take."""
    monkeypatch.setattr(run_tool, "GROUP_WAIT", 300.0)
    return Attempts()


async def test_attempts_that_begin_one_after_another_end_together(attempts: Attempts) -> None:
    first, second = attempts.begin(1, peers=2), attempts.begin(2, peers=2)
    await attempts.have_worked(1, 2)
    assert attempts.ended == []
    await asyncio.gather(first, second, attempts.begin(3, peers=2))
    assert sorted(attempts.ended) == [1, 2, 3]


async def test_another_turn_is_another_group_and_an_attempt_alone_is_none(attempts: Attempts) -> None:
    first = attempts.begin(1, peers=1)
    await attempts.have_worked(1)
    await asyncio.gather(attempts.begin(2, peers=1, turn=2), attempts.begin(3, peers=1, turn=2))
    await attempts.begin(4, peers=0)
    assert sorted(attempts.ended) == [2, 3, 4]
    await asyncio.gather(first, attempts.begin(5, peers=1))


async def test_an_attempt_that_never_begins_holds_the_others_only_briefly(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tool, "GROUP_WAIT", 0.01)
    await attempts.begin(1, peers=1)
    assert attempts.ended == [1]
    monkeypatch.setattr(run_tool, "GROUP_WAIT", 300.0)
    late = attempts.begin(2, peers=1)
    await attempts.have_worked(2)
    assert attempts.ended == [1]  # the group of the first attempt is over
    await asyncio.gather(late, attempts.begin(3, peers=1))


async def test_an_attempt_that_fails_neither_waits_nor_is_waited_for(attempts: Attempts) -> None:
    other = attempts.begin(1, peers=1)
    await attempts.have_worked(1)
    with pytest.raises(OSError, match="no such file"):
        await attempts.begin(2, peers=1, fails=True)
    await other
    assert attempts.ended == [1]
