"""Run Temporal in its own network namespace. Only this user's processes can reach it, through a Unix socket.

    python -m loom.stack.private_network --socket PATH --frontend PORT --ui PORT -- PROGRAM ARGUMENT …

The socket is an HTTP CONNECT proxy for the frontend. Temporal's SDKs support such proxies. Any other request goes to
the Web UI. The kernel lets only the socket's owner connect. The namespace's only network is its own loopback.
"""

import argparse
import asyncio
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_OWNER_ONLY = 0o177  # the umask for the socket

_libc = ctypes.CDLL(None, use_errno=True)


def enter_private_network() -> None:
    """Move this process to a new network namespace. Raises OSError if the kernel doesn't allow it."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _unshare(_CLONE_NEWNET)
    else:
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
    _bring_up_loopback()


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack("16xH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


async def serve(command: Sequence[str], path: Path, frontend: int, ui: int) -> int:
    """Run the program and forward connections to it until it ends. Return its exit code."""
    before = os.umask(_OWNER_ONLY)
    try:
        listening = await asyncio.start_unix_server(lambda r, w: _forward(r, w, frontend, ui), path)
    finally:
        os.umask(before)
    async with listening:
        program = await asyncio.create_subprocess_exec(*command, preexec_fn=_end_with_parent)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _end, program)
        return await program.wait()


def _end(program: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        program.terminate()


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frontend: int, ui: int) -> None:
    with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError), closing(writer):
        head = await reader.readuntil(b"\r\n\r\n")
        is_proxied = head.startswith(b"CONNECT ")
        there, to_there = await asyncio.open_connection("127.0.0.1", frontend if is_proxied else ui)
        with closing(to_there):
            if is_proxied:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                to_there.write(head)
            await asyncio.gather(_copy(reader, to_there), _copy(there, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy bytes until the source ends. Then signal the end to the target."""
    with suppress(OSError):
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
        target.write_eof()


def main() -> None:
    """Run the program that the command line names. Exit with its exit code."""
    options = argparse.ArgumentParser(prog="python -m loom.stack.private_network")
    options.add_argument("--socket", type=Path, required=True)
    options.add_argument("--frontend", type=int, required=True)
    options.add_argument("--ui", type=int, required=True)
    options.add_argument("command", nargs="+")
    given = options.parse_args()
    try:
        enter_private_network()
    except OSError as error:
        sys.exit(
            f"`loom up --private` needs a network namespace, and this machine doesn't allow one ({error.strerror}):"
            " allow unprivileged user namespaces, or start without --private"
        )
    sys.exit(asyncio.run(serve(given.command, given.socket, given.frontend, given.ui)))


if __name__ == "__main__":
    main()
