"""Make a commit of the files in an archive: `archive_import` reads the archive in a child process, and Git stores it.

The child writes what Git reads. Its memory and time are limited, and it leaves no files behind. If it fails, Git
doesn't make the commit. Both processes are ended if the activity is cancelled.
"""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import Process, create_subprocess_exec
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from loom.activities.adapters.git.bare_repository import BareRepository
from loom.activities.adapters.git.remotes import LARGEST
from loom.activities.adapters.snapshots.walk import MOST
from loom.activities.ports import StoreUnavailable
from loom.domain.core.archives import archive_format
from loom.domain.core.errors import BadRequest

SECONDS: Final = 300
"""Seconds after which unpacking is ended."""
LARGEST_PATHS: Final = 32 * 2**20
"""The most bytes of all paths in an archive."""
_ROOT: Final = str(Path(__file__).parents[4])
"""The folder that has this package."""
_CHILD: Final = (
    "import sys; sys.path.append(sys.argv.pop(1)); from loom.activities.adapters.git.archive_import import main; main()"
)
"""The child's program. In its isolated mode, Python doesn't find this package by itself."""
_IMPORT: Final = (
    *("-c", "core.fsync=none", "-c", "fastimport.unpackLimit=0"),
    *("fast-import", "--quiet", "--done", "--force", "--depth=0"),
)
_INVALID_PATH: Final = re.compile(rb"invalid path '?([^\n]*)", re.IGNORECASE)
_FIELD: Final = "workspace.archive"
_MOST_TOLD: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Unpacked:
    """The commit with the files of an archive."""

    commit: str
    left_out: tuple[str, ...] = ()
    """The `.git` folders that it doesn't have."""


class Unpacker:
    """Unpacks archives into repositories that nobody else uses."""

    def __init__(self, repository: BareRepository) -> None:
        self._repository = repository

    async def unpack(self, content: bytes, into: Path) -> Unpacked:
        """Return the commit. Raises BadRequest if the archive can't be used, and StoreUnavailable if a process fails
        for another reason.
        """
        limits = json.dumps((MOST, LARGEST, LARGEST_PATHS, SECONDS))
        command = (sys.executable, "-I", "-S", "-c", _CHILD, _ROOT, archive_format(content), limits)
        with TemporaryFile() as archive, TemporaryFile() as said, TemporaryFile() as out, TemporaryFile() as complaint:
            archive.write(content)
            archive.seek(0)
            async with AsyncExitStack() as processes:
                with _pipe() as (reading, writing):
                    reader = create_subprocess_exec(
                        *command, stdin=archive, stdout=writing, stderr=said, cwd="/", env={}, start_new_session=True
                    )
                    child = await processes.enter_async_context(_running(reader))
                    importer = self._repository.started(*_IMPORT, at=into, feed=reading, out=out, said=complaint)
                    git = await processes.enter_async_context(_running(importer))
                try:
                    async with asyncio.timeout(SECONDS):
                        codes = await child.wait(), await git.wait()
                except TimeoutError:
                    raise _too_slow() from None
            left_out = _left_out(codes[0], _content(said))
            if codes[1]:
                raise self._failure(_content(complaint))
            return Unpacked(commit=_content(out).decode("ascii").strip(), left_out=left_out)

    def _failure(self, complaint: bytes) -> BadRequest | StoreUnavailable:
        if invalid := _INVALID_PATH.search(complaint):
            path = invalid[1].decode("utf-8", "replace")[:_MOST_TOLD]
            return BadRequest(f"the archive has the path '{path}, which Git refuses: rename the file", field=_FIELD)
        return self._repository.failure(_IMPORT, complaint)


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Make a pipe, which is open in this process until the end of the block."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@asynccontextmanager
async def _running(starting: Awaitable[Process]) -> AsyncIterator[Process]:
    """Start a process, and end it at the end of the block."""
    process = await starting
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _left_out(code: int, said: bytes) -> tuple[str, ...]:
    """Return the folders that the child has left out. Raises BadRequest if it refuses the archive, and StoreUnavailable
    if it couldn't start, or was killed.
    """
    if code == -signal.SIGALRM:
        raise _too_slow()
    try:
        answer = json.loads(said)
    except ValueError:
        why = " ".join(said.decode("utf-8", "replace").split())[-_MOST_TOLD:] or "it was killed"
        raise StoreUnavailable(f"the process that reads archives ended with code {code}: {why}") from None
    if refused := answer.get("refused"):
        raise BadRequest(refused, field=_FIELD)
    return tuple(answer["left_out"])


def _too_slow() -> BadRequest:
    return BadRequest(f"the archive takes longer than {SECONDS} s to unpack: leave files out", field=_FIELD)
