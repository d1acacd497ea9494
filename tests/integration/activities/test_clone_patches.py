"""Changes to clones on a real Postgres: the latest one, stored only by the call that may change files."""

from datetime import timedelta
from uuid import uuid4

import pytest

from loom.activities.adapters.postgres import clones
from loom.activities.adapters.postgres.clones import PostgresClonePatches
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.retention import drop, leftovers
from loom.activities.ports import CloneKey, ClonePatches, CloneRecord, StoredPatch
from tests.databases import rows


@pytest.fixture(scope="module")
def patches(database: Database) -> PostgresClonePatches:
    return PostgresClonePatches(database)


@pytest.fixture
def key() -> CloneKey:
    return CloneKey(run_id=f"run\0-{uuid4().hex}", execution="abc")


@pytest.fixture
def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hold end at once, as if its worker were dead."""
    monkeypatch.setattr(clones, "LEASE", timedelta(0))


def test_it_is_what_the_port_asks_for(patches: PostgresClonePatches) -> None:
    port: ClonePatches = patches
    assert port is patches


async def test_nothing_is_known_of_a_clone_that_no_call_has_held(patches: PostgresClonePatches, key: CloneKey) -> None:
    assert await patches.record(key) == CloneRecord()
    assert await patches.load(key) == StoredPatch(version=0, patch=b"")


async def test_the_latest_change_is_kept(patches: PostgresClonePatches, key: CloneKey) -> None:
    holder, later = uuid4(), b"\0\xff" * 100_000
    assert await patches.hold(key, holder) == CloneRecord(is_held=True)

    assert await patches.save(key, holder, b"one", "c1", 0) == 1
    assert await patches.save(key, holder, later, "c2\0", 1) == 2

    assert await patches.load(key) == StoredPatch(version=2, patch=later)
    assert await patches.record(key) == CloneRecord(version=2, call="c2\\0", is_held=True)
    assert await patches.load(CloneKey(run_id=key.run_id, execution="other")) == StoredPatch(version=0, patch=b"")


async def test_after_a_database_was_restored_a_change_counts_more_than_what_workers_know(
    patches: PostgresClonePatches, key: CloneKey
) -> None:
    holder = uuid4()
    await patches.hold(key, holder)
    assert await patches.save(key, holder, b"newer", "c9", version=8) == 9


async def test_a_call_that_stores_its_change_or_has_none_is_no_longer_changing_files(
    patches: PostgresClonePatches, key: CloneKey
) -> None:
    holder = uuid4()
    await patches.hold(key, holder)
    assert await patches.begin(key, holder, "c1", "here") == CloneRecord(
        changing=("c1",), generation="here", is_held=True
    )

    await patches.save(key, holder, b"one", "c1", 0)
    stored = await patches.record(key)
    await patches.begin(key, holder, "c2", "here")
    await patches.record_unchanged(key, holder)
    await patches.release(key, holder)

    assert stored == CloneRecord(version=1, call="c1", generation="here", is_held=True)
    assert await patches.record(key) == CloneRecord(version=1, call="c1", generation="here")


async def test_changes_are_lost_when_a_call_begins_in_another_clone(
    patches: PostgresClonePatches, key: CloneKey
) -> None:
    holder = uuid4()
    await patches.hold(key, holder)
    await patches.save(key, holder, b"one", "c1", 0)

    async def begun(call: str, generation: str) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        begun = await patches.begin(key, holder, call, generation)
        assert begun is not None
        return begun.version, begun.changing, begun.lost

    assert await begun("c2", "here") == (1, ("c2",), ())
    assert await begun("c3", "here") == (1, ("c2", "c3"), ())  # the files have the change of c2, too
    assert await begun("c2", "here") == (1, ("c3", "c2"), ())
    assert await begun("c4", "there") == (2, ("c4",), ("c3", "c2"))  # the first clone is old now
    assert await begun("c4", "there") == (2, ("c4",), ("c3", "c2"))  # the answer was lost, and it is repeated
    assert await begun("c5", "here") == (3, ("c5",), ("c3", "c2", "c4"))

    assert (await patches.load(key)).patch == b"one"


async def test_it_is_known_which_run_has_been_told_of_which_losses(
    patches: PostgresClonePatches, key: CloneKey
) -> None:
    holder = uuid4()
    await patches.hold(key, holder)
    for number in range(4):
        await patches.begin(key, holder, f"c{number}", f"clone {number}")

    await patches.told(key, key.run_id, 2)
    await patches.told(key, key.run_id, 1)  # a result that was stored late

    record = await patches.record(key)
    assert record.untold(key.run_id) == ("c2",)
    assert record.untold("child") == ("c0", "c1", "c2")


async def test_one_call_at_a_time_changes_a_clone(patches: PostgresClonePatches, key: CloneKey) -> None:
    first, second = uuid4(), uuid4()
    assert await patches.hold(key, first)

    assert not await patches.hold(key, second)
    assert await patches.begin(key, second, "c2", "there") is None
    assert await patches.save(key, second, b"not mine", "c2", 0) is None
    assert not await patches.record_unchanged(key, second)
    await patches.release(key, first)

    assert await patches.hold(key, second)
    assert not await patches.renew(key, first)
    assert await patches.save(key, first, b"too late", "c1", 0) is None


@pytest.mark.usefixtures("no_lease")
async def test_a_clone_whose_holder_is_dead_passes_on(patches: PostgresClonePatches, key: CloneKey) -> None:
    first, second = uuid4(), uuid4()
    await patches.hold(key, first)
    assert not (await patches.record(key)).is_held

    assert await patches.hold(key, second)
    assert not await patches.renew(key, first)


@pytest.mark.usefixtures("no_lease")
async def test_a_holder_whose_lease_has_ended_goes_on_if_nobody_else_came(
    patches: PostgresClonePatches, key: CloneKey
) -> None:
    holder = uuid4()
    await patches.hold(key, holder)

    assert await patches.renew(key, holder)
    assert await patches.save(key, holder, b"one", "c1", 0) == 1


async def test_it_is_deleted_with_the_run_s_other_data(
    patches: PostgresClonePatches, key: CloneKey, database: Database, url: str
) -> None:
    holder = uuid4()
    await patches.hold(key, holder)
    await patches.save(key, holder, b"one", "c1", 0)
    ((now, name),) = await rows(
        url, "SELECT clock_timestamp(), run_id FROM loom_clones ORDER BY created_at DESC LIMIT 1"
    )
    assert name in {left.run_id for left in await leftovers(database, now)}

    await drop(database, [name], now)

    assert await patches.record(key) == CloneRecord()
