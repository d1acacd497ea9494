"""Which system calls the sandbox's filter refuses, by running its program as the kernel does."""

import errno
import struct

import pytest

from loom.activities.adapters.sandbox.system_calls import system_call_filter

X86, ARM, I386 = 0xC000003E, 0xC00000B7, 0x40000003
ALLOWED, KILLED = "allowed", "killed"


def verdict(machine: str, audit: int, number: int, first: int = 0, second: int = 0) -> str:
    """What becomes of one call: allowed, killed, or the name of its error."""
    program = system_call_filter(machine)
    assert program is not None
    data = struct.pack("=iIQQQ", number, audit, 0, first, second)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = loaded = 0
    while True:
        code, then, otherwise, value = steps[at]
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return _named(value)
        else:
            holds = {0x15: loaded == value, 0x25: loaded > value, 0x35: loaded >= value}[code]
            at += then if holds else otherwise


def _named(value: int) -> str:
    if value == 0x7FFF0000:
        return ALLOWED
    return KILLED if value == 0x80000000 else errno.errorcode[value & 0xFFFF]


@pytest.mark.parametrize(
    ("machine", "audit", "number", "arguments", "expected"),
    [
        ("x86_64", X86, 0, (), ALLOWED),  # read
        ("x86_64", X86, 59, (), ALLOWED),  # execve
        ("x86_64", X86, 101, (), ALLOWED),  # ptrace
        ("x86_64", X86, 250, (), "ENOSYS"),  # keyctl
        ("x86_64", X86, 425, (), "ENOSYS"),  # io_uring_setup
        ("x86_64", X86, 319, (), "ENOSYS"),  # memfd_create
        ("x86_64", X86, 285, (), "ENOTSUP"),  # fallocate
        ("x86_64", X86, 0x40000000, (), "ENOSYS"),  # the x32 convention
        ("x86_64", X86, 41, (1,), ALLOWED),  # socket(AF_UNIX)
        ("x86_64", X86, 41, (2,), ALLOWED),
        ("x86_64", X86, 41, (10,), ALLOWED),
        ("x86_64", X86, 41, (16,), ALLOWED),
        ("x86_64", X86, 41, (40,), "EAFNOSUPPORT"),  # AF_VSOCK
        ("x86_64", X86, 41, (17,), "EAFNOSUPPORT"),  # AF_PACKET
        ("x86_64", X86, 29, (0, 4096), ALLOWED),  # shmget
        ("x86_64", X86, 29, (0, 2**20), ALLOWED),
        ("x86_64", X86, 29, (0, 2**20 + 1), "EINVAL"),
        ("x86_64", X86, 29, (0, 2**32 + 1), "EINVAL"),
        ("x86_64", I386, 3, (), KILLED),
        ("aarch64", ARM, 63, (), ALLOWED),  # read
        ("aarch64", ARM, 219, (), "ENOSYS"),  # keyctl
        ("aarch64", ARM, 47, (), "ENOTSUP"),  # fallocate
        ("aarch64", ARM, 198, (40,), "EAFNOSUPPORT"),
        ("aarch64", ARM, 198, (2,), ALLOWED),
        ("aarch64", ARM, 194, (0, 2**21), "EINVAL"),
        ("aarch64", X86, 63, (), KILLED),
    ],
)
def test_what_becomes_of_a_call(
    machine: str, audit: int, number: int, arguments: tuple[int, ...], expected: str
) -> None:
    assert verdict(machine, audit, number, *arguments) == expected


def test_a_machine_whose_numbers_are_not_known_has_no_filter() -> None:
    assert system_call_filter("riscv64") is None
