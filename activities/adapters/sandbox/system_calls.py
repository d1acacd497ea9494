"""Create a seccomp filter for bubblewrap that blocks system calls in sandboxed programs.

Some of the blocked calls bypass namespaces. For example, kernel keyrings belong to the user and not to a namespace.
Sockets of some families ignore network namespaces (`AF_VSOCK` connects to the machine's own host). Calls through
io_uring bypass the filter. Other blocked calls evade the limits. Some of them allocate memory that isn't included in
the size of any process, and `fallocate` can fill a whole disk with a single call. Programs have alternatives to all of
the blocked calls. Each blocked call fails with the error that makes programs use the alternative.
"""

import errno
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_NOT_THERE: Final[Mapping[str, int]] = {
    **dict.fromkeys(("add_key", "request_key", "keyctl"), errno.ENOSYS),
    **dict.fromkeys(("io_uring_setup", "io_uring_enter", "io_uring_register"), errno.ENOSYS),
    **dict.fromkeys(("bpf", "perf_event_open", "userfaultfd"), errno.ENOSYS),
    **dict.fromkeys(("memfd_create", "memfd_secret"), errno.ENOSYS),
    "fallocate": errno.EOPNOTSUPP,
}
_FAMILIES: Final = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_SHARED: Final = 1024 * 1024
"""Maximum size in bytes of a System V shared memory segment. Segments outlive the process that creates them, but
databases need a small one.
"""


class _Machine(NamedTuple):
    audit: int
    column: int
    foreign: int | None = None
    """The first call number of another calling convention."""


_MACHINES: Final[Mapping[str, _Machine]] = {
    "x86_64": _Machine(audit=0xC000003E, column=0, foreign=0x40000000),
    "aarch64": _Machine(audit=0xC00000B7, column=1),
}
_NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    "socket": (41, 198),
    "shmget": (29, 194),
    "fallocate": (285, 47),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "memfd_create": (319, 279),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_secret": (447, 447),
}
"""Maps each call's name to its numbers, one for each machine. The order is that of `_MACHINES`."""

_LOAD: Final = 0x20
_IF_EQUAL: Final = 0x15
_IF_GREATER: Final = 0x25
_IF_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_REFUSE: Final = 0x00050000
_NUMBER, _AUDIT, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`: the call number, the machine, and the low halves of the first two arguments."""


def system_call_filter(machine: str | None = None) -> bytes | None:
    """Return the filter in the format of bubblewrap's `--seccomp` option, or None if the machine's call numbers are
    unknown.
    """
    known = _MACHINES.get(machine or os.uname().machine)
    return None if known is None else b"".join(_program(known))


def _program(machine: _Machine) -> Sequence[bytes]:
    numbers = {name: each[machine.column] for name, each in _NUMBERS.items()}
    return [
        _step(_LOAD, _AUDIT),
        _step(_IF_EQUAL, machine.audit, then=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        *(() if machine.foreign is None else _refused(_IF_AT_LEAST, machine.foreign, errno.ENOSYS)),
        *(step for name, error in _NOT_THERE.items() for step in _refused(_IF_EQUAL, numbers[name], error)),
        *_only_these_families(numbers["socket"]),
        *_only_small_segments(numbers["shmget"]),
        _step(_RETURN, _ALLOW),
    ]


def _only_these_families(number: int) -> Sequence[bytes]:
    count = len(_FAMILIES)
    return [
        _step(_IF_EQUAL, number, otherwise=count + 3),
        _step(_LOAD, _FIRST),
        *(_step(_IF_EQUAL, family, then=count - place) for place, family in enumerate(_FAMILIES)),
        _step(_RETURN, _REFUSE | errno.EAFNOSUPPORT),
        _step(_RETURN, _ALLOW),
    ]


def _only_small_segments(number: int) -> Sequence[bytes]:
    """Return instructions that check both halves of the size. If they checked only the low half, a size just above 4
    GiB would look like a small size.
    """
    return [
        _step(_IF_EQUAL, number, otherwise=6),
        _step(_LOAD, _SECOND + 4),
        _step(_IF_GREATER, 0, then=2),
        _step(_LOAD, _SECOND),
        _step(_IF_GREATER, _SHARED, otherwise=1),
        _step(_RETURN, _REFUSE | errno.EINVAL),
        _step(_RETURN, _ALLOW),
    ]


def _refused(test: int, number: int, error: int) -> Sequence[bytes]:
    return [_step(test, number, otherwise=1), _step(_RETURN, _REFUSE | error)]


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Return one classic BPF instruction: the operation, the jumps for true and false, and the operand."""
    return struct.pack("=HBBI", code, then, otherwise, value)
