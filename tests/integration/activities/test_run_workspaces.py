"""Calls in clones on several machines, with a real Postgres: what is stored, what is lost, and what agents are told."""

import asyncio
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeAlias
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom.activities import clone_holds, run_workspaces
from loom.activities.adapters.postgres import clones
from loom.activities.adapters.postgres.clones import PostgresClonePatches
from loom.activities.adapters.postgres.database import Database
from loom.activities.archives import Archives
from loom.activities.clone_holds import TAKEN_OVER, CloneTakenOver
from loom.activities.ports import LARGEST_PATCH, CloneKey, CloneRecord, StoredPatch, StoreUnavailable
from loom.activities.run_workspaces import HeldClone, RunWorkspaces, key_of
from loom.domain.core.errors import BadRequest, RefusedError
from loom.domain.core.repositories import Repositories
from loom.domain.core.tasks import Origin
from tests.disks import CHECKOUT, Disk, lines_of
from tests.integration.activities.conftest import PostgresServer


class Reached:
    """A `ClonePatches` as one worker reaches it: away at times, and never again once the worker is dead."""

    def __init__(self, patches: PostgresClonePatches) -> None:
        self._patches = patches
        self.is_away = False
        self.loses_answers = False
        """Whether the worker doesn't get the answer to what it stores."""
        self.loses_beginning = False
        """Whether the worker doesn't get the answer when the next call begins."""
        self._held: list[tuple[CloneKey, UUID]] = []

    async def dead(self) -> None:
        """Let what the worker holds pass on, as when it hasn't renewed that for long."""
        for key, holder in self._held:
            await self._patches.release(key, holder)

    async def record(self, key: CloneKey) -> CloneRecord:
        return await self._asked().record(key)

    async def load(self, key: CloneKey) -> StoredPatch:
        return await self._asked().load(key)

    async def hold(self, key: CloneKey, holder: UUID) -> CloneRecord | None:
        self._held.append((key, holder))
        return await self._asked().hold(key, holder)

    async def renew(self, key: CloneKey, holder: UUID) -> bool:
        return await self._asked().renew(key, holder)

    async def begin(self, key: CloneKey, holder: UUID, call: str, generation: str) -> CloneRecord | None:
        begun = await self._asked().begin(key, holder, call, generation)
        if self.loses_beginning:
            self.loses_beginning = False
            raise StoreUnavailable("the answer was lost")
        return begun

    async def save(self, key: CloneKey, holder: UUID, patch: bytes, call: str, version: int) -> int | None:
        saved = await self._asked().save(key, holder, patch, call, version)
        if self.loses_answers:
            self.is_away = True
        self._asked()
        return saved

    async def record_unchanged(self, key: CloneKey, holder: UUID) -> bool:
        return await self._asked().record_unchanged(key, holder)

    async def told(self, key: CloneKey, run_id: str, losses: int) -> None:
        await self._asked().told(key, run_id, losses)

    async def release(self, key: CloneKey, holder: UUID) -> None:
        await self._asked().release(key, holder)

    def _asked(self) -> PostgresClonePatches:
        if self.is_away:
            raise StoreUnavailable("Postgres is away")
        return self._patches


def worker(disk: Disk, patches: Reached | PostgresClonePatches | None) -> RunWorkspaces:
    """A worker on the machine with this disk."""
    return RunWorkspaces(
        clones=disk,
        repositories=Repositories(clone=(CHECKOUT.url,)),
        archives=Archives(None),
        patches=patches,
        redact=str,
    )


@pytest.fixture
def patches(database: Database) -> PostgresClonePatches:
    return PostgresClonePatches(database)


@pytest.fixture
def origin() -> Origin:
    return Origin(run_id=f"run-{uuid4().hex}", execution="abc")


@pytest.fixture
def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another worker take over at any time, as if the one that holds the clone stood still for long."""
    monkeypatch.setattr(clones, "LEASE", timedelta(0))


async def call(on: RunWorkspaces, origin: Origin, disk: Disk, name: str, *lines: str) -> tuple[str, str]:
    """Make a call that writes these lines, and return its note and its problem."""
    async with on.held(origin, CHECKOUT, name) as clone:
        async with clone.changing():
            disk.write(*lines)
        return clone.note, await clone.store(0.0)


async def dies_in(patches: PostgresClonePatches, origin: Origin, disk: Disk, name: str, *lines: str) -> None:
    """Let a worker die in a call that has written these lines."""
    reached = Reached(patches)
    async with worker(disk, reached).held(origin, CHECKOUT, name):
        disk.write(*lines)
        reached.is_away = True
    await reached.dead()


async def test_the_next_call_on_another_machine_finds_the_files_as_they_were_stored(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    here, there = Disk(), Disk()
    assert await call(worker(here, patches), origin, here, "bash (c1)", "one") == ("", "")

    note, problem = await call(worker(there, patches), origin, there, "bash (c2)", "two")

    assert note == (
        "The workspace was recreated in its state after bash (c1). Files that Git ignores, such as build results and"
        " environments, are gone."
    )
    assert problem == ""
    assert there.lines == {"one", "two"}


async def test_a_call_on_the_same_machine_is_told_nothing(patches: PostgresClonePatches, origin: Origin) -> None:
    disk = Disk()
    for name in ("c1", "c2", "c3"):
        assert await call(worker(disk, patches), origin, disk, name, name) == ("", "")
    assert disk.built == 1


async def test_a_call_that_changes_nothing_stores_nothing(patches: PostgresClonePatches, origin: Origin) -> None:
    disk = Disk()
    await call(worker(disk, patches), origin, disk, "c1", "one")
    await call(worker(disk, patches), origin, disk, "c2")
    record = await patches.record(key_of(origin))
    assert (record.version, record.call, record.changing) == (1, "c1", ())


async def test_the_note_is_told_until_a_result_with_it_is_stored(patches: PostgresClonePatches, origin: Origin) -> None:
    here, there = Disk(), Disk()
    await call(worker(here, patches), origin, here, "c1", "one")
    second = worker(there, patches)

    read = await second.ensure_clone(origin, CHECKOUT)
    first, _ = await call(second, origin, there, "c2")
    again, _ = await call(second, origin, there, "c3")
    await second.told(origin, CHECKOUT, again)

    assert read
    assert read == first == again
    assert await second.ensure_clone(origin, CHECKOUT) == ""
    assert await call(second, origin, there, "c4") == ("", "")


async def test_a_persons_change_takes_nothing_over_that_another_machine_has_not_stored(
    patches: PostgresClonePatches, origin: Origin, no_lease: None
) -> None:
    here, there = Disk(), Disk()
    await call(worker(here, patches), origin, here, "c1", "one")
    await dies_in(patches, origin, here, "bash (c2)", "two")
    before = await patches.record(key_of(origin))

    with pytest.raises(RefusedError, match=r"the change of bash \(c2\) is on another machine"):
        async with worker(there, patches).held(origin, CHECKOUT, "a person's change", takes_over=False):
            pass

    assert await patches.record(key_of(origin)) == before
    assert await call(worker(here, patches), origin, here, "c3", "three") == ("", "")
    assert here.lines == {"one", "two", "three"}


async def test_each_agent_of_a_tree_is_told(patches: PostgresClonePatches, origin: Origin) -> None:
    here, there = Disk(), Disk()
    child = Origin(run_id=f"{origin.run_id}-child", root_run_id=origin.run_id, root_execution=origin.execution)
    await call(worker(here, patches), origin, here, "c1", "one")
    second = worker(there, patches)

    note, _ = await call(second, origin, there, "c2")
    await second.told(origin, CHECKOUT, note)

    assert (await second.ensure_clone(origin, CHECKOUT), await second.ensure_clone(child, CHECKOUT)) == ("", note)


async def test_files_that_git_ignores_are_told_even_if_nothing_was_stored(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    here, there = Disk(), Disk()
    await call(worker(here, patches), origin, here, "make (c1)")

    note, _ = await call(worker(there, patches), origin, there, "c2")

    assert note.startswith("The workspace was recreated in its state at the start of the run. Files that Git ignores")


async def test_a_call_whose_machine_is_lost_is_named(patches: PostgresClonePatches, origin: Origin) -> None:
    here, there = Disk(), Disk()
    await call(worker(here, patches), origin, here, "bash (c1)", "one")
    await dies_in(patches, origin, here, "bash (c2)", "two")

    note, _ = await call(worker(there, patches), origin, there, "bash (c3)", "three")

    assert note.startswith("The workspace was recreated in its state after bash (c1).")
    assert note.endswith("If bash (c2) changed files, these changes are gone.")
    assert (await patches.load(key_of(origin))).patch == b"one three"


@pytest.mark.parametrize("is_known_there", [False, True])
async def test_a_loss_is_told_even_if_the_worker_that_causes_it_does_not_learn_of_it(
    patches: PostgresClonePatches, origin: Origin, is_known_there: bool
) -> None:
    here, there = Disk(), Disk()
    await call(worker(here, patches), origin, here, "bash (c1)", "one")
    if is_known_there:
        note = await worker(there, patches).ensure_clone(origin, CHECKOUT)
        await worker(there, patches).told(origin, CHECKOUT, note)
    await dies_in(patches, origin, here, "bash (c2)", "two")
    reached = Reached(patches)
    reached.loses_beginning = True
    with pytest.raises(StoreUnavailable):
        await call(worker(there, reached), origin, there, "bash (c3)", "three")

    note, _ = await call(worker(there, reached), origin, there, "bash (c3)", "three")

    assert note.startswith("The workspace ")
    assert note.endswith("If bash (c2) changed files, these changes are gone.")


async def test_each_agent_is_told_of_all_losses_once_on_whichever_machine_it_goes_on(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    child = Origin(run_id=f"{origin.run_id}-child", root_run_id=origin.run_id, root_execution=origin.execution)
    for name in ("bash (c1)", "bash (c2)"):
        await dies_in(patches, origin, Disk(), name, "lost")
    third, fourth, fifth = Disk(), Disk(), Disk()
    lost = "If bash (c1) or bash (c2) changed files, these changes are gone."

    note, _ = await call(worker(third, patches), origin, third, "c3")
    await worker(third, patches).told(origin, CHECKOUT, note)

    assert note.endswith(lost)
    assert lost not in (await call(worker(fourth, patches), origin, fourth, "c4"))[0]
    assert (await worker(fifth, patches).ensure_clone(child, CHECKOUT)).endswith(lost)


async def test_a_result_that_is_stored_late_does_not_hide_a_later_loss(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    child = Origin(run_id=f"{origin.run_id}-child", root_run_id=origin.run_id, root_execution=origin.execution)
    here, there = Disk(), Disk()
    await dies_in(patches, origin, Disk(), "c1", "lost")
    note, _ = await call(worker(here, patches), origin, here, "c2")
    await dies_in(patches, child, Disk(), "c3", "lost")
    await call(worker(there, patches), child, there, "c4")

    await worker(here, patches).told(origin, CHECKOUT, note)

    note = await worker(there, patches).ensure_clone(origin, CHECKOUT)
    assert note.endswith("If c1 or c3 changed files, these changes are gone.")


async def test_the_latest_of_many_calls_whose_changes_are_lost_are_named(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    here, there = Disk(), Disk()
    for number in range(12):
        await dies_in(patches, origin, here, f"c{number}", "lost")

    note, _ = await call(worker(there, patches), origin, there, "c12")

    assert note.endswith(
        "If 2 other calls, c2, c3, c4, c5, c6, c7, c8, c9, c10 or c11 changed files, these changes are gone."
    )


async def test_a_clone_that_another_attempt_to_prepare_the_run_left_is_made_anew(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    here, there, older = Disk(), Disk(), replace(CHECKOUT, commit="1" * 40)
    await here.build(older)
    await there.build(older)
    assert await worker(there, patches).ensure_clone(origin, CHECKOUT) == ""  # before the first call
    await call(worker(there, patches), origin, there, "c1", "one")

    await call(worker(here, patches), origin, here, "c2", "two")

    assert here.state is not None
    assert here.state.commit == CHECKOUT.commit
    assert (await patches.load(key_of(origin))).patch == b"one two"


async def test_a_clone_in_which_the_run_has_worked_is_never_replaced_because_of_its_commit(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    disk = Disk()
    await dies_in(patches, origin, disk, "c1", "one")

    with pytest.raises(BadRequest, match="wasn't made from commit 1111"):
        await worker(disk, patches).ensure_clone(origin, replace(CHECKOUT, commit="1" * 40))

    assert disk.lines == {"one"}


async def test_the_same_machine_goes_on_with_the_files_of_a_worker_that_died(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    disk = Disk()
    await dies_in(patches, origin, disk, "c1", "one")

    assert await call(worker(disk, patches), origin, disk, "c2", "two") == ("", "")
    assert (await patches.load(key_of(origin))).patch == b"one two"


async def test_the_files_of_a_machine_that_comes_back_are_made_anew(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    here, there = Disk(), Disk()
    await dies_in(patches, origin, here, "c1", "lost")
    await call(worker(there, patches), origin, there, "c2")  # changes nothing

    note, _ = await call(worker(here, patches), origin, here, "c3", "three")

    assert note.startswith("The workspace was recreated")
    assert here.lines == {"three"}


async def test_a_read_says_what_is_not_here(patches: PostgresClonePatches, origin: Origin) -> None:
    here, there = Disk(), Disk()
    await dies_in(patches, origin, here, "bash (c1)", "one")

    note = await worker(there, patches).ensure_clone(origin, CHECKOUT)

    assert note.endswith("If bash (c1) changed files, these changes are not here, because they could not be stored.")
    assert await call(worker(here, patches), origin, here, "c2") == ("", "")  # and they aren't lost


async def test_a_worker_that_dies_after_it_has_stored_a_change_has_lost_nothing(
    patches: PostgresClonePatches, origin: Origin
) -> None:
    disk, dying = Disk(), Reached(patches)
    dying.loses_answers = True
    await call(worker(disk, dying), origin, disk, "c1", "one")
    await dying.dead()

    assert await call(worker(disk, patches), origin, disk, "c2", "two") == ("", "")
    assert (await patches.load(key_of(origin))).patch == b"one two"
    assert disk.built == 1


async def test_a_database_that_was_restored_does_not_undo_what_is_here(
    patches: PostgresClonePatches, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    await call(worker(disk, patches), origin, disk, "c1", "one")
    await call(worker(disk, patches), origin, disk, "c2", "two")
    as_before = Origin(run_id=f"{origin.run_id}-restored", execution="abc")
    holder = uuid4()
    await patches.hold(key_of(as_before), holder)
    await patches.save(key_of(as_before), holder, b"one", "c1", 0)
    await patches.release(key_of(as_before), holder)

    await call(worker(disk, patches), as_before, disk, "c3")

    assert await patches.load(key_of(as_before)) == StoredPatch(version=3, patch=b"one two")


async def test_calls_of_one_worker_take_turns_in_their_order(patches: PostgresClonePatches, origin: Origin) -> None:
    disk, order = Disk(), list[str]()
    on = worker(disk, patches)

    async def one(name: str) -> None:
        async with on.held(origin, CHECKOUT, name):
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

    await asyncio.gather(*(one(name) for name in "abcde"))

    assert "".join(order) == "aabbccddee"


async def test_a_call_waits_while_a_call_on_another_machine_changes_files(
    patches: PostgresClonePatches, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_holds, "POLL_INTERVAL", 0.01)
    here, there = Disk(), Disk()
    async with worker(here, patches).held(origin, CHECKOUT, "c1") as clone:
        second = asyncio.create_task(call(worker(there, patches), origin, there, "c2", "two"))
        await asyncio.wait({second}, timeout=0.1)
        assert there.built == 0
        here.write("one")
        await clone.store()

    await second
    assert there.lines == {"one", "two"}


async def test_a_call_that_waits_for_too_long_is_told_from_one_that_failed(
    patches: PostgresClonePatches, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_holds, "HOLD_TIMEOUT", 0.05)
    here, there = Disk(), Disk()
    async with worker(here, patches).held(origin, CHECKOUT, "c1"):
        with pytest.raises(StoreUnavailable, match="other calls"):
            await call(worker(there, patches), origin, there, "c2")


@pytest.mark.usefixtures("no_lease")
async def test_a_worker_that_stood_still_ends_its_call_and_says_why(
    patches: PostgresClonePatches, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_holds, "RENEWAL", 0.01)
    here, there = Disk(), Disk()

    async def stands_still(clone: HeldClone) -> None:
        async with clone.changing():
            here.write("one")
            await asyncio.sleep(3600)

    async with worker(here, patches).held(origin, CHECKOUT, "c1") as clone:
        second = asyncio.create_task(call(worker(there, patches), origin, there, "c2", "two"))
        with pytest.raises(CloneTakenOver):
            await stands_still(clone)
        assert (await clone.store()).startswith(TAKEN_OVER)
    await second
    assert (await patches.load(key_of(origin))).patch == b"two"


async def test_a_call_that_a_person_stops_is_stopped(patches: PostgresClonePatches, origin: Origin) -> None:
    disk, in_it = Disk(), asyncio.Event()

    async def endless() -> None:
        async with worker(disk, patches).held(origin, CHECKOUT, "c1") as clone, clone.changing():
            disk.write("half")
            in_it.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(endless())
    await in_it.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await patches.load(key_of(origin))).patch == b"half"


async def test_the_result_says_that_a_patch_is_too_large(patches: PostgresClonePatches, origin: Origin) -> None:
    here, there = Disk(largest=3), Disk()

    _, problem = await call(worker(here, patches), origin, here, "bash (c1)", "four")
    note, _ = await call(worker(there, patches), origin, there, "c2")

    assert problem == run_workspaces.NOT_STORED.format(why=f"its patch has more than {LARGEST_PATCH:,} bytes")
    assert "If bash (c1) changed files, these changes are gone." in note


@pytest.mark.usefixtures("soon_away")
async def test_a_change_is_stored_once_postgres_is_back(
    postgres: PostgresServer, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_workspaces, "RETRY_INTERVAL", 0.05)
    monkeypatch.setattr(clone_holds, "RENEWAL", 0.05)
    disk = Disk()
    async with aclosing(Database(postgres.url)) as database:
        patches = PostgresClonePatches(database)
        async with worker(disk, patches).held(origin, CHECKOUT, "c1") as clone:
            async with clone.changing():
                await postgres.stop()
                with pytest.raises(StoreUnavailable):
                    await patches.record(key_of(origin))
                disk.write("one")
            storing = asyncio.create_task(clone.store())
            await asyncio.wait({storing}, timeout=0.3)
            assert not storing.done()
            await postgres.start()
            assert await storing == ""
        assert (await patches.load(key_of(origin))).patch == b"one"


async def test_while_postgres_is_away_the_result_says_where_the_change_is(
    patches: PostgresClonePatches, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, reached = Disk(), Reached(patches)
    async with worker(disk, reached).held(origin, CHECKOUT, "c1") as clone:
        disk.write("one")
        reached.is_away = True
        assert await clone.store(0.0) == run_workspaces.NOT_STORED.format(why="Postgres is away")
    await reached.dead()

    assert await call(worker(disk, patches), origin, disk, "c2") == ("", "")
    assert (await patches.load(key_of(origin))).patch == b"one"


async def test_without_a_database_a_clone_has_to_be_here(origin: Origin) -> None:
    disk = Disk()
    on = worker(disk, None)
    with pytest.raises(BadRequest, match="LOOM_DATABASE_URL"):
        await on.ensure_clone(origin, CHECKOUT)
    await disk.build(CHECKOUT)

    assert await call(on, origin, disk, "c1", "one") == ("", "")


WHEN_OPEN: Final = ("end", "end", "end without an answer", "die", "read")
WHEN_CLOSED: Final = ("begin", "begin", "begin", "begin without an answer", "read", "lose the disk")
Step: TypeAlias = tuple[int, int, str, str]
"""A machine, the number of a run, and what happens there if a call is open, and otherwise."""

STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.sampled_from(WHEN_OPEN), st.sampled_from(WHEN_CLOSED)),
    min_size=4,
    max_size=20,
)


class Story:
    """Two machines whose workers make calls for a run and its child, and may take over from each other at any time."""

    def __init__(self, patches: PostgresClonePatches) -> None:
        self.patches = patches
        root = Origin(run_id=f"run-{uuid4().hex}", execution="abc")
        child = Origin(run_id=f"{root.run_id}-child", root_run_id=root.run_id, root_execution=root.execution)
        self.origins = (root, child)
        self.machines = (Machine(self), Machine(self))
        self.stored: frozenset[str] = frozenset()
        self.written: list[str] = []
        """What calls have written that have begun: their names."""
        self.notes: tuple[list[str], list[str]] = ([], [])
        """What has been told to each run with a result that is stored."""

    async def look(self) -> None:
        """Check that what is stored now contains what was stored before."""
        stored = lines_of((await self.patches.load(key_of(self.origins[0]))).patch)
        assert self.stored <= stored
        self.stored = stored

    def untold(self, run: int, names: set[str]) -> set[str]:
        """Return the calls of which no result has told the run that their changes are lost."""
        notes = [note for note in self.notes[run] if "these changes are gone" in note]
        return {name for name in names if not any(name in note for note in notes)}


class Machine:
    """A machine with one worker at a time."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._disk = Disk()
        self._open: OpenCall | None = None
        self._start()

    def _start(self) -> None:
        self._reached = Reached(self._story.patches)
        self._worker = worker(self._disk, self._reached)

    async def do(self, run: int, when_open: str, when_closed: str) -> None:
        match when_closed if self._open is None else when_open:
            case "begin":
                before, name = set(self._story.written), f"call{len(self._story.written):02}"
                self._open = OpenCall(await self._begun(run, name), run=run, name=name, before=before)
                self._story.written.append(name)
                self._disk.write(name)
            case "begin without an answer":
                self._reached.loses_beginning = True
                with pytest.raises(StoreUnavailable):
                    await self._begun(run, "call of no effect")
            case "end":
                await self._end()
            case "end without an answer":
                self._reached.loses_answers = True
                await self._end()
                self._start()
            case "die":
                self._reached.is_away = True
                await self._end()
                self._start()
            case "lose the disk":
                self._disk.wipe()
            case "read":
                await self._told(run, await self.note(run))

    async def note(self, run: int) -> str:
        """Return what the next read has to tell the agent of the run."""
        return await self._worker.ensure_clone(self._story.origins[run], CHECKOUT)

    async def _told(self, run: int, note: str) -> None:
        """Store a result with this note."""
        self._story.notes[run].append(note)
        await self._worker.told(self._story.origins[run], CHECKOUT, note)

    async def _begun(self, run: int, name: str) -> tuple[AsyncExitStack, HeldClone]:
        stack = AsyncExitStack()
        held = self._worker.held(self._story.origins[run], CHECKOUT, name)
        return stack, await stack.enter_async_context(held)

    async def _end(self) -> None:
        assert self._open is not None
        ended, self._open = self._open, None
        stack, clone = ended.held
        problem = await clone.store(0.0)
        await stack.aclose()
        await self._story.look()
        if not self._reached.is_away:
            await self._told(ended.run, clone.note)
        if problem:  # told in the result, or the worker has died, of which the run learns
            return
        assert ended.name in self._story.stored
        assert self._story.untold(ended.run, ended.before - self._story.stored) == set()


@dataclass
class OpenCall:
    """A call that may change files."""

    held: tuple[AsyncExitStack, HeldClone]
    run: int
    name: str
    """Also what it writes."""
    before: set[str]
    """What had been written when it began."""


@pytest.mark.usefixtures("no_lease")
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_no_stored_change_is_replaced_by_one_without_it_and_every_run_is_told_every_loss(
    steps: list[Step], url: str
) -> None:
    async def told() -> None:
        async with aclosing(Database(url)) as database:
            story = Story(PostgresClonePatches(database))
            for machine, run, when_open, when_closed in steps:
                await story.machines[machine].do(run, when_open, when_closed)
                await story.look()

    asyncio.run(told())


@pytest.mark.usefixtures("no_lease")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(WHEN_OPEN),
            st.sampled_from(("begin", "begin without an answer", "read")),
        )
    )
)
def test_a_run_that_stays_on_its_machine_loses_nothing_and_is_told_nothing(
    steps: list[tuple[int, str, str]], url: str
) -> None:
    async def told() -> None:
        async with aclosing(Database(url)) as database:
            story = Story(PostgresClonePatches(database))
            for what in (*steps, (0, "end", "read"), (0, "end", "begin"), (0, "end", "read")):
                await story.machines[0].do(*what)
            assert story.stored == set(story.written)
            assert {*story.notes[0], *story.notes[1], await story.machines[0].note(0)} == {""}

    asyncio.run(told())


async def test_a_checkout_that_somebody_made_up_is_refused(origin: Origin) -> None:
    with pytest.raises(BadRequest, match="'xyz' isn't the digest of an archive"):
        worker(Disk(), None).refuse_checkout(origin, replace(CHECKOUT, url="archive:xyz"))
