"""Clones for runs: each call in a clone finds the latest files, and stores what it has changed.

Agents work in the clone's folder as in any workspace. `Clones` computes the change without Git's reading anything that
an agent may have written in the clone's own `.git`.

With a database, workers need no shared disk: a clone is its commit and a patch, which is stored after each call that
may have changed it.

    hold the clones ─▶ make one here, if another machine has a newer one ─▶ begin ─▶ call ─▶ store ─▶ release

If a change can't be stored, the result of the call says so. The files keep it, and as long as no other machine goes on,
the next call tries to store it again, because a patch is the whole difference from the commit. If another machine goes
on, the change is lost. The database knows that, and the next result of each run says it, on any machine. Without a
database, a run stays on the machine with its clone.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import structlog
from temporalio.exceptions import ApplicationError

from loom.activities.archives import Archives
from loom.activities.clone_holds import TAKEN_OVER, CloneHolds, CloneTakenOver, Hold
from loom.activities.ports import (
    LARGEST_PATCH,
    Clone,
    CloneKey,
    ClonePatches,
    CloneRecord,
    Clones,
    CloneState,
    StoreUnavailable,
)
from loom.domain.core.errors import BadRequest, LoomError, RefusedError, UnreachableError
from loom.domain.core.repositories import Checkout, GitWorkspace, Repositories, Repository, folder_name
from loom.domain.core.tasks import Origin
from loom.domain.core.value_problems import DIGEST
from loom.domain.run.retry_policy import CLONE_AWAY

_log = structlog.get_logger("loom.workspace")

_T = TypeVar("_T")

Store: TypeAlias = Callable[[float], Awaitable[str]]
"""Stores the change of a call. It waits for a database that is away for so many seconds."""

STORE_TIMEOUT: Final = 90.0
"""Seconds for which the database may be away when a call has ended. Its change is then on this machine alone."""
RETRY_INTERVAL: Final = 1.0
"""Seconds between two attempts to store a change."""
LOST: Final = "If {call} changed files, these changes are gone."
ELSEWHERE: Final = "If {call} changed files, these changes are not here, because they could not be stored."
NEW: Final = "The workspace was recreated in its state {after}."
OTHER: Final = "The workspace is now on another machine, in its state {after}."
IGNORED: Final = "Files that Git ignores, such as build results and environments, are {not_here}."
NOT_STORED: Final = (
    "The files are changed, but only on this machine, because the change could not be stored: {why}. The next call here"
    " tries to store it again. If the run continues on another machine first, the change is gone."
)
MAYBE_LOST: Final = "This call's changes to files may be lost."
_MOST_NAMED: Final = 10
"""The maximum number of calls that a note names. Of more, it names the latest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Begun:
    """What is known of a clone when a call begins."""

    note: str
    lost: str
    generation: str
    is_as_stored: bool
    """Whether the stored change is the one that this machine knows (`CloneState.tree`). After the database was restored
    from a backup, it is an older one, and the clone is stored even if the call changes nothing.
    """


class HeldClone:
    """A clone that a call may change."""

    def __init__(self, *, note: str = "", lost: str = "", hold: Hold | None = None, store: Store | None = None) -> None:
        """`store` stores the change. None if there is no database."""
        self.note = note
        """What the agent has to know about the files. Empty if there is nothing."""
        self.lost = lost
        """The calls whose changes are lost without the agent knowing it. Empty if there are none."""
        self._hold = hold
        self._store = store

    def changing(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager for the work that changes files. It raises CloneTakenOver if another worker has
        taken over.
        """
        return nullcontext() if self._hold is None else self._hold.guarding()

    async def store(self, within: float = STORE_TIMEOUT) -> str:
        """Store the change, and return what the agent has to know: why it isn't stored, or an empty string.

        Only the first attempt counts. If there is none until the clone is released, it is made then.
        """
        store, self._store = self._store, None
        return "" if store is None else await store(within)


class RunWorkspaces:
    """The clones that this worker's runs work in."""

    def __init__(
        self,
        *,
        clones: Clones,
        repositories: Repositories,
        archives: Archives,
        patches: ClonePatches | None,
        redact: Callable[[str], str],
    ) -> None:
        """Without a database, `patches` is None."""
        self._clones = clones
        self._repositories = repositories
        self._archives = archives
        self._patches = patches
        self._holds = None if patches is None else CloneHolds(patches)
        self._redact = redact

    def folder_for(self, workspace: Repository, origin: Origin) -> str:
        """Return the path of the clone that the run will have. Raises BadRequest if this worker doesn't clone the
        repository, doesn't push to it, or stores no archives.
        """
        if isinstance(workspace, GitWorkspace):
            self._repositories.refuse(workspace)
        else:
            self._archives.refuse_without_store()
        return self._clones.folder(folder_name(origin.run_id, origin.execution))

    def refuse_folder(self, path: Path) -> None:
        """Raise BadRequest if a request names a folder in which this worker keeps clones, or one around it."""
        if self._clones.exposes(path):
            raise BadRequest(
                f"workspace {str(path)!r} is in, or contains, a folder with the clones of runs (LOOM_RUN_WORKSPACES or"
                " LOOM_HOME). Each belongs to its run: choose another folder, or name the repository",
                field="workspace",
            )

    async def ensure_clone(self, origin: Origin, checkout: Checkout) -> str:
        """Make sure that the clone is here, with the latest stored change. Return what the agent has to know about the
        files, or an empty string.

        Raises BadRequest if the clone can't be made here, and UnreachableError or StoreUnavailable if it can't now.
        """
        self.refuse_checkout(origin, checkout)
        if self._patches is None:
            async with self._clones.opened(checkout.folder) as clone:
                if (here := clone.state) is None:
                    raise BadRequest(_missing(checkout), field="workspace")
                _refuse_other_commit(here, checkout)
            return ""
        record = await self._patches.record(key_of(origin))
        async with self._clones.opened(checkout.folder) as clone:
            known = await self._current(self._patches, clone, checkout, origin, record)
        is_elsewhere = record.generation != known.generation and not record.is_held
        missing = ELSEWHERE.format(call=_named(record.changing)) if record.changing and is_elsewhere else ""
        return _joined(_untold(known, origin), _lost(record, origin), missing)

    async def told(self, origin: Origin, checkout: Checkout, note: str) -> None:
        """Record that a result of the run with this note is stored, so that no later one has to repeat it. If this
        fails, the next one does.
        """
        try:
            async with self._clones.opened(checkout.folder) as clone:
                known = clone.state
                if known is not None and (untold := _untold(known, origin)) and untold in note:
                    await clone.keep(replace(known, is_restored=False, told=(*known.told, origin.run_id)))
            if self._patches is not None:
                record = await self._patches.record(key := key_of(origin))
                if (lost := _lost(record, origin)) and lost in note:
                    await self._patches.told(key, origin.run_id, len(record.lost))
        except (StoreUnavailable, OSError) as error:
            _log.warning("note_not_spent", folder=checkout.folder, error=str(error))

    @asynccontextmanager
    async def held(
        self, origin: Origin, checkout: Checkout, call: str = "", *, takes_over: bool = True
    ) -> AsyncIterator[HeldClone]:
        """Hold the clone, so that no other call of the tree changes it in the body, and have it here. `call` names the
        call that may change files. If it is empty, the body only reads them, and is cancelled if another worker takes
        over.

        A call that takes over from another machine loses what isn't stored there, because the run has to go on. Without
        `takes_over`, it raises RefusedError instead. Raises the errors of `ensure_clone`, and CloneTakenOver.
        """
        if self._holds is None:
            await self.ensure_clone(origin, checkout)
            yield HeldClone()
            return
        self.refuse_checkout(origin, checkout)
        async with self._holds.held(key_of(origin)) as hold:
            begun = await self._begun(hold, origin, checkout, call, takes_over=takes_over)
            if not call:
                async with hold.guarding():
                    yield HeldClone(note=begun.note, lost=begun.lost)
                return
            store = partial(self._store, hold, checkout, call, begun)
            held = HeldClone(note=begun.note, lost=begun.lost, hold=hold, store=store)
            try:
                yield held
            finally:
                await held.store(within=0.0)

    async def _begun(self, hold: Hold, origin: Origin, checkout: Checkout, call: str, *, takes_over: bool) -> _Begun:
        """Have the clone here, and begin the call."""
        record = hold.record
        async with self._clones.opened(checkout.folder) as clone:
            known = await self._current(hold.patches, clone, checkout, origin, record)
            is_as_stored = known.version == record.version
            if call:
                if record.generation not in ("", known.generation):
                    if record.changing and not takes_over:
                        raise RefusedError(
                            f"the change of {_named(record.changing)} is on another machine, isn't stored, and would"
                            " be lost: try again later, or have the agent do this"
                        )
                    # It is kept before the call begins, because the answer may be lost.
                    known = replace(known, note=_note(record, is_new=known.is_restored), told=())
                    await clone.keep(known)
                begun = await hold.patches.begin(hold.key, hold.holder, call, known.generation)
                if begun is None:
                    raise CloneTakenOver("another worker took over the workspace before the call began")
                record = begun
                if record.version > known.version:
                    known = replace(known, version=record.version)
                    await clone.keep(known)
        return _Begun(
            note=_joined(_untold(known, origin), _lost(record, origin)),
            lost=_named(record.untold(origin.run_id)),
            generation=known.generation,
            is_as_stored=is_as_stored,
        )

    async def _current(
        self, patches: ClonePatches, clone: Clone, checkout: Checkout, origin: Origin, record: CloneRecord
    ) -> CloneState:
        """Make the clone anew if its files are older than the stored change, and return its state.

        They aren't if the latest call worked in this clone, even if the worker then died before it noted the version.
        A lower version is that of a database that was restored, which must not undo what runs have done since. A clone
        of another commit, in which no call of the run has worked, is left from another attempt to prepare the run.
        """
        known = clone.state
        if known is not None and record.generation == known.generation:
            _refuse_other_commit(known, checkout)
            return known if known.version >= record.version else replace(known, version=record.version, tree="")
        if known is not None and known.version >= record.version and known.commit == checkout.commit:
            return known
        stored = await patches.load(key := key_of(origin))
        if checkout.archive and not await clone.has(checkout.commit):
            unpacked = await clone.unpack(await self._archives.content(checkout.archive, origin), checkout.revision)
            _refuse_other_content(unpacked, checkout)
        await clone.build(checkout, stored.patch, stored.version)
        _log.info("workspace_restored", run_id=key.run_id, version=stored.version)
        made = clone.state
        if made is None:
            raise StoreUnavailable(f"the clone {checkout.folder} was deleted while it was made")
        if is_restored := bool(record.generation):  # otherwise, no call has worked in a clone
            made = replace(made, note=_note(record, is_new=True))
        made = replace(made, is_restored=is_restored)
        await clone.keep(made)
        return made

    async def _store(self, hold: Hold, checkout: Checkout, call: str, begun: _Begun, within: float) -> str:
        try:
            if hold.is_lost or not await self._is_stored(hold, checkout, call, begun, within):
                return f"{TAKEN_OVER} {MAYBE_LOST}"
        except (StoreUnavailable, LoomError, OSError) as error:
            _log.error("change_not_stored", folder=checkout.folder, error=str(error))
            return NOT_STORED.format(why=self._redact(str(error)))
        return ""

    async def _is_stored(self, hold: Hold, checkout: Checkout, call: str, begun: _Begun, within: float) -> bool:
        """Store the change, and return whether this worker still held the clone."""
        patches = hold.patches
        async with self._clones.opened(checkout.folder) as clone:
            known = clone.state
            if known is None:
                raise StoreUnavailable(f"the clone {checkout.folder} was deleted during the call")
            if known.generation != begun.generation:  # made anew here, after another worker had taken over
                return False
            change = await clone.change(checkout, unless=known.tree if begun.is_as_stored else "")
        if change is None or (not change.files and not known.version):
            with suppress(StoreUnavailable):  # then it only seems as if the call could have changed files
                return await patches.record_unchanged(hold.key, hold.holder)
            return True
        if change.patch is None:
            raise StoreUnavailable(f"its patch has more than {LARGEST_PATCH:,} bytes")
        save = partial(patches.save, hold.key, hold.holder, change.patch, call, known.version)
        version = await _within(within, save)
        if version is None:
            return False
        async with self._clones.opened(checkout.folder) as clone:
            now = clone.state
            if now is not None and now.generation == known.generation:
                await clone.keep(replace(now, version=version, tree=change.tree))
        return True

    def refuse_checkout(self, origin: Origin, checkout: Checkout) -> None:
        """Raise BadRequest if this worker doesn't clone the repository, or if the clone isn't that of the run's tree.

        A checkout comes from other runs, or from another server, so whoever can start workflows can make one up.
        """
        if checkout.archive:
            if not re.fullmatch(DIGEST, checkout.archive):
                raise BadRequest(f"{checkout.archive!r} isn't the digest of an archive", field="workspace")
            self._archives.refuse_without_store()
        else:
            self._repositories.refuse_clone(checkout.url)
        key = key_of(origin)
        expected = self._clones.folder(folder_name(key.run_id, key.execution))
        if checkout.folder != expected:
            raise BadRequest(
                f"the clone of run {key.run_id!r} is {expected} here, and not {checkout.folder}: a run works only in"
                " the clone of its own tree, and LOOM_RUN_WORKSPACES is the same path on all workers",
                field="workspace",
            )

    async def refuse_moved(self, origin: Origin, checkout: Checkout) -> None:
        """Raise BadRequest if a run that was moved here can't go on in its clone. Raises StoreUnavailable, too."""
        self.refuse_checkout(origin, checkout)
        if checkout.archive:
            await self._archives.refuse_missing(checkout.archive, origin)
        async with self._clones.opened(checkout.folder) as clone:
            if clone.state is None and self._patches is None:
                raise BadRequest(_missing(checkout), field="workspace")


async def _within(seconds: float, work: Callable[[], Awaitable[_T]]) -> _T:
    """Do the work again while the database is away, for so many seconds."""
    now = asyncio.get_running_loop().time
    until = now() + seconds
    while True:
        try:
            return await work()
        except StoreUnavailable:
            if now() >= until:
                raise
        await asyncio.sleep(RETRY_INTERVAL)


def _note(record: CloneRecord, *, is_new: bool) -> str:
    """Return what the agent has to know about files that aren't those in which the last call worked."""
    after = f"after {record.call}" if record.call else "at the start of the run"
    state = (NEW if is_new else OTHER).format(after=after)
    return _joined(state, IGNORED.format(not_here="gone" if is_new else "perhaps not there"))


def _untold(known: CloneState, origin: Origin) -> str:
    """Return what this run's agent doesn't know yet about the clone here."""
    return "" if origin.run_id in known.told else known.note


def _lost(record: CloneRecord, origin: Origin) -> str:
    """Return what this run's agent doesn't know yet about changes that are lost."""
    calls = record.untold(origin.run_id)
    return LOST.format(call=_named(calls)) if calls else ""


def _named(calls: Sequence[str]) -> str:
    """Return the names of the calls. Empty if there are none."""
    names = list(dict.fromkeys(calls))
    if len(names) > _MOST_NAMED:
        names = [f"{len(names) - _MOST_NAMED} other calls", *names[-_MOST_NAMED:]]
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def away(error: StoreUnavailable | UnreachableError) -> ApplicationError:
    """Return the failure of an attempt that did not start, because the run's clone can't be used at present."""
    return ApplicationError(f"the run's clone is unavailable: {error}", type=CLONE_AWAY, non_retryable=True)


def key_of(origin: Origin) -> CloneKey:
    """Return the tree of runs that works in the clone."""
    return CloneKey(run_id=origin.root_run_id or origin.run_id, execution=origin.root_execution or origin.execution)


def _refuse_other_commit(known: CloneState, checkout: Checkout) -> None:
    """Raise BadRequest if the clone is one of another commit."""
    if known.commit != checkout.commit:
        raise BadRequest(
            f"the clone in {checkout.folder} wasn't made from commit {checkout.commit}, which this run names",
            field="workspace",
        )


def _refuse_other_content(unpacked: Checkout, checkout: Checkout) -> None:
    """Raise BadRequest if the archive makes another commit."""
    if unpacked.commit != checkout.commit:
        raise BadRequest(
            f"the archive {checkout.archive} doesn't produce the commit {checkout.commit}, which this run names",
            field="workspace",
        )


def _missing(checkout: Checkout) -> str:
    return (
        f"this worker doesn't have the run's clone of {checkout.url} ({checkout.folder}). Without a database, such a"
        " run needs workers with the same LOOM_HOME on one machine: set LOOM_DATABASE_URL to use several machines"
    )
