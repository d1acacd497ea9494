"""The users as which services run when root starts the stack.

Each service then has a user id of its own, which nothing else on the machine uses. Another process therefore can't send
signals to the service, or open its files and its shared memory, unless it runs as root. The owner of the service's
folder records the id, so that it doesn't change. A folder of an earlier release belongs to root or to `nobody`, and is
given to the service's own user. A folder that belongs to a person keeps its owner, because this person may start the
stack the next time.

The ids are from 2100000000 to 2146999999. If root of a container doesn't have these ids, they are from 60706 to 61183.
Neither systemd nor Linux distributions assign ids of these ranges, and ids above 31 bits aren't safe. An id that has an
account, is delegated to containers, or has running processes is skipped.

While a process of the former owner still uses a folder, the folder isn't given away. Postgres doesn't notice a former
server that runs as another user, and would write the same files.
"""

import grp
import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil

from loom.stack.errors import StackError

ROOT: Final = 0
_RANGES: Final = (range(2_100_000_000, 2_147_000_000), range(60_706, 61_184))
SEARCH: Final = {"dac_read_search": 2, "dac_override": 1}
"""The capabilities that let a program search all folders and read all files, and their numbers, the narrowest first.
By default, root of a Docker container has only the second one, with which a program may also write all files.
"""


def user_of(data: Path) -> int | None:
    """Return the user id of the service whose data this is, or None if this process isn't root's."""
    if os.geteuid() != ROOT:
        return None
    owner = data.stat().st_uid if data.exists() else ROOT
    busy = _running()
    if owner == ROOT:
        return _choose(data, busy)
    is_in_use = _is_own(owner) and owner in busy  # for example, by the stack of which this one is a copy
    return _choose(data, busy) if (owner == nobody() or is_in_use) and not _is_used(data, owner) else owner


def nobody() -> int:
    """Return the id of the user `nobody`."""
    return pwd.getpwnam("nobody").pw_uid


def give(folder: Path, user: int | None) -> None:
    """Make the user the owner of the folder and of what its owner or root has in it. An earlier release stores files as
    root also in a folder that already has its new owner. The folder itself comes last, so that this is done again if it
    was interrupted. If `user` is None, nothing changes.
    """
    if user is None:
        return
    former, group = folder.stat().st_uid, _group_of(user)
    try:
        for _, folders, files, opened in os.fwalk(folder, topdown=False, follow_symlinks=False):
            for name in (*folders, *files):
                with suppress(FileNotFoundError):  # a process that still uses the folder may remove files
                    status = os.stat(name, dir_fd=opened, follow_symlinks=False)
                    if status.st_uid != user and (status.st_uid == former or _is_only_here(status)):
                        os.chown(name, user, group, dir_fd=opened, follow_symlinks=False)
        if user != former:
            os.chown(folder, user, group)
    except OSError as error:
        raise StackError(
            f"{folder} can't be given to the user {user} ({error.strerror}): set LOOM_HOME to a directory whose owner "
            "root may change, or run as an ordinary user",
            home=str(folder),
        ) from None


def as_user(
    user: int | None, any_of: Mapping[str, int] = MappingProxyType({}), options: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the command prefix that makes root run a program as this user. If `user` is None, the prefix is empty.

    Of the capabilities `any_of`, by name and number, the program gets the first one that root itself may pass on, and
    no others. `options` are further ones of the program `setpriv`.

    What root has in its inheritable and ambient sets isn't passed on. The kernel clears the ambient set when the user
    changes. Inheritable capabilities have an effect only on files that have capabilities, and `no_new_privs` prevents
    it. The option `-all` would clear both sets, but fails if the kernel is much newer than `setpriv`.

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
    kept = next((name for name, number in any_of.items() if _may_pass_on(number)), None)
    return (
        setpriv, f"--reuid={user}", f"--regid={_group_of(user)}", "--clear-groups", "--no-new-privs", *options,
        "--securebits=+no_setuid_fixup", *((f"--inh-caps=+{kept}", f"--ambient-caps=+{kept}") if kept else ()), "--",
    )  # fmt: skip


def _is_own(user: int) -> bool:
    """Whether this is an id of a service."""
    return any(user in ids for ids in _RANGES)


def _is_used(data: Path, user: int) -> bool:
    """Whether a process of this user works in this folder, or names it on its command line."""
    folder = data.resolve()
    for process in psutil.process_iter(["uids"]):
        if user in (process.info["uids"] or ()):
            with suppress(psutil.NoSuchProcess):
                paths = [_working_directory(process, user) or data, *process.cmdline()]
                if any(Path(path).is_relative_to(each) for path in paths for each in (folder, data)):
                    return True
    return False


def _working_directory(process: psutil.Process, user: int) -> str | None:
    """Return the working directory of this user's process, or None if it can't be found out.

    Root in a container often lacks CAP_SYS_PTRACE, without which only the process's own user may see the directory.
    """
    try:
        return str(process.cwd())
    except psutil.AccessDenied:
        command = (*as_user(user, SEARCH), "readlink", f"/proc/{process.pid}/cwd")
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.rstrip("\n") or None


def _is_only_here(status: os.stat_result) -> bool:
    """Whether this is a file of root that isn't also in another folder. On some systems, a service can create hard
    links to any of root's files in its own folder.
    """
    return status.st_uid == ROOT and (stat.S_ISDIR(status.st_mode) or status.st_nlink == 1)


def _may_pass_on(capability: int) -> bool:
    """Whether programs that this process starts can get the capability with this number."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> capability & 1)


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
