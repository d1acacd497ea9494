"""The users as which services run when root starts the stack.

Each service then has a user id of its own, which nothing else on the machine uses. Another process therefore can't send
signals to the service, or open its files and its shared memory, unless it runs as root. The owner of the service's
folder records the id, so that it doesn't change. A folder of an earlier release belongs to root or to `nobody`, and is
given to the service's own user. A folder that belongs to a person keeps its owner, because this person may start the
stack the next time.

The ids are from 2100000000 to 2146999999. If root of a container doesn't have these ids, they are from 60706 to 61183.
Neither systemd nor Linux distributions assign ids of these ranges, and ids above 31 bits aren't safe. An id that has an
account, is delegated to containers, or has running processes is skipped.
"""

import grp
import os
import pwd
import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import psutil

from loom.stack.errors import StackError

ROOT: Final = 0
_RANGES: Final = (range(2_100_000_000, 2_147_000_000), range(60_706, 61_184))
READ_SEARCH: Final = "dac_read_search"
"""The capability to search all folders and to read all files."""


def user_of(data: Path) -> int | None:
    """Return the user id of the service whose data this is, or None if this process isn't root's."""
    if os.geteuid() != ROOT:
        return None
    owner = data.stat().st_uid if data.exists() else ROOT
    busy = _running()
    is_in_use = _is_own(owner) and owner in busy  # for example, by the stack of which this one is a copy
    return _choose(data, busy) if owner in {ROOT, nobody()} or is_in_use else owner


def nobody() -> int:
    """Return the id of the user `nobody`."""
    return pwd.getpwnam("nobody").pw_uid


def give(folder: Path, user: int | None) -> None:
    """Make the user the owner of the folder and of what its owner has in it. The folder itself comes last, so that this
    is done again if it was interrupted. If `user` is None, nothing changes.
    """
    former = folder.stat().st_uid
    if user is None or user == former:
        return
    group = _group_of(user)
    try:
        for _, folders, files, opened in os.fwalk(folder, topdown=False, follow_symlinks=False):
            for name in (*folders, *files):
                if os.stat(name, dir_fd=opened, follow_symlinks=False).st_uid == former:
                    os.chown(name, user, group, dir_fd=opened, follow_symlinks=False)
        os.chown(folder, user, group)
    except OSError as error:
        raise StackError(
            f"{folder} can't be given to the user {user} ({error.strerror}): set LOOM_HOME to a directory whose owner "
            "root may change, or run as an ordinary user",
            home=str(folder),
        ) from None


def as_user(user: int | None, *capabilities: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command prefix that makes root run a program as this user, with these capabilities only. If `user` is
    None, the prefix is empty. `options` are further ones of the program `setpriv`.

    The program itself may be in a folder that only root can access. Postgres checks its own programs with access(2).
    For this call, the kernel ignores the capabilities of non-root processes unless the `no_setuid_fixup` secure bit is
    set. Only ambient capabilities survive the subsequent exec, so the bit doesn't grant any other privileges.
    """
    if user is None:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError(
            "root's stack runs its services as other users, and `setpriv`, which changes the user, is missing: "
            "install util-linux, or run as an ordinary user"
        )
    kept = ",".join(("-all", *(f"+{name}" for name in capabilities)))
    return (
        setpriv, f"--reuid={user}", f"--regid={_group_of(user)}", "--clear-groups", "--no-new-privs", *options,
        "--securebits=+no_setuid_fixup", f"--inh-caps={kept}", f"--ambient-caps={kept}", "--",
    )  # fmt: skip


def _is_own(user: int) -> bool:
    """Whether this is an id of a service."""
    return any(user in ids for ids in _RANGES)


def _group_of(user: int) -> int:
    """Return the group of a service that runs as this user. A person's groups are of no use to it."""
    return user if _is_own(user) else pwd.getpwnam("nobody").pw_gid


def _choose(data: Path, busy: frozenset[int]) -> int:
    """Return a free id. It depends on the path, so that two stacks don't choose the same one before they start."""
    ids = next((each for each in _RANGES if _is_mapped(each, "uid") and _is_mapped(each, "gid")), range(0))
    delegated = [*_delegated(Path("/etc/subuid")), *_delegated(Path("/etc/subgid"))]
    first = int.from_bytes(sha256(os.fsencode(data)).digest()[:8])
    for step in range(len(ids)):
        chosen = ids[(first + step) % len(ids)]
        if chosen not in busy and not _has_account(chosen) and not any(chosen in each for each in delegated):
            return chosen
    raise StackError(
        "root's stack runs its services as users of their own, and this container has no free user ids from "
        f"{_RANGES[-1].start} to {_RANGES[-1].stop - 1}: map these ids, or run as an ordinary user"
    )


def _running() -> frozenset[int]:
    """Return the ids of all processes' users."""
    return frozenset(user for process in psutil.process_iter(["uids"]) for user in process.info["uids"] or ())


def _has_account(number: int) -> bool:
    """Whether a user or a group has this id."""
    for look in (pwd.getpwuid, grp.getgrgid):
        try:
            look(number)
        except KeyError:
            continue
        return True
    return False


def _is_mapped(ids: range, kind: str) -> bool:
    """Whether this user namespace has all of these ids."""
    table = Path(f"/proc/self/{kind}_map")
    if not table.exists():  # not Linux
        return True
    lines = table.read_text(encoding="ascii").splitlines()
    maps = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return any(first <= ids.start and ids.stop <= first + count for first, count in maps)


def _delegated(path: Path) -> Iterator[range]:
    """Yield the ids that a file such as /etc/subuid delegates."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        _, _, numbers = line.partition(":")
        first, _, count = numbers.partition(":")
        if first.isdecimal() and count.isdecimal():
            yield range(int(first), int(first) + int(count))
