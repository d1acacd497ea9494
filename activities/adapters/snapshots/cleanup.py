"""Keep snapshot stores small: delete old snapshots, pack loose objects, and remove unused stores."""

import fcntl
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loom.activities.adapters.snapshots.store import Store, keep
from loom.activities.ports import StoreUnavailable

KEEP_SECONDS: Final = 30 * 86_400.0
KEEP_MOST: Final = 2_000
"""Maximum number of snapshots of one workspace."""
EVERY: Final = 86_400.0
"""Maximum number of seconds between two cleanups."""
EVERY_SO_MANY: Final = 250
"""Maximum number of snapshots between two cleanups."""
_DONE: Final = "tidied"


def is_due(store: Store) -> bool:
    """Whether this store is due for a cleanup."""
    count, (then, counted) = _count(store), _last(store)
    return count - counted >= EVERY_SO_MANY or time.time() - then >= EVERY


def tidy(store: Store, *, keep_seconds: float = KEEP_SECONDS, keep_most: int = KEEP_MOST) -> None:
    """Delete old and excess snapshots, pack the rest, and check the other stores on this machine."""
    with store.locked() as lock:
        keep(
            store.path / _DONE, b"%d" % _count(store)
        )  # write this first, so that a failed cleanup isn't repeated after every snapshot
        try:
            _drop_and_pack(store, lock, _expired(store, keep_seconds, keep_most))
        except StoreUnavailable:
            store.mend(lock)
            raise
    _sweep(store.path.parent, keep_seconds)


def _drop_and_pack(store: Store, lock: int, gone: Sequence[str]) -> None:
    if gone:
        store.git("update-ref", "--stdin", lock=lock, feed="".join(f"delete {ref}\n" for ref in gone).encode())
    store.git("pack-refs", "--all", lock=lock)
    store.git("repack", "-q", "-d", *(("-a",) if gone else ()), lock=lock)
    if gone:
        store.git("prune", "--expire=now", lock=lock)
    for report in store.path.glob("fast_import_crash_*"):
        report.unlink(missing_ok=True)


def _expired(store: Store, keep_seconds: float, keep_most: int) -> list[str]:
    listed = store.git("for-each-ref", "--format=%(committerdate:unix) %(refname)", "refs/loom/")
    found = [line.split(" ", 1) for line in listed.decode().splitlines()]
    found.sort(key=lambda each: each[1].rpartition("/")[2], reverse=True)
    oldest = time.time() - keep_seconds
    return [ref for rank, (at, ref) in enumerate(found) if rank >= keep_most or int(at) < oldest]


def _sweep(root: Path, keep_seconds: float) -> None:
    """Remove unused stores whose last snapshot is too old."""
    for count in root.glob("*/count"):
        if not _is_older(count, keep_seconds):
            continue
        handle = os.open(f"{count.parent}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_older(count, keep_seconds):  # the store wasn't used while another process held the lock
                shutil.rmtree(count.parent)
        except BlockingIOError:
            continue
        finally:
            os.close(handle)


def _is_older(count: Path, seconds: float) -> bool:
    try:
        return time.time() - count.stat().st_mtime >= seconds
    except FileNotFoundError:  # another process has removed it
        return False


def _count(store: Store) -> int:
    try:
        return int((store.path / "count").read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return 0


def _last(store: Store) -> tuple[float, int]:
    """Return the time of the last cleanup, and the number of snapshots that had been taken by then. If there was no
    cleanup, return the time when the store was created, and zero.
    """
    path = store.path / _DONE
    try:
        return path.stat().st_mtime, int(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return (store.path / "ready").stat().st_mtime, 0
