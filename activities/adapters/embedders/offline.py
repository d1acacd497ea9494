"""Compute vectors offline, in a separate process, with the 4-bit version of the multilingual-e5-small model.

Each worker has one such process. The process starts when it is first used, restarts if it dies, and ends if it isn't
used for a while. It runs at a low priority and embeds one batch at a time. A batch takes up to a second. Questions are
embedded before other texts.
Sentences with the same meaning have similar vectors in English, Chinese and about ninety other languages.
"""

import asyncio
import base64
import json
import os
import sys
from array import array
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from loom import extras
from loom.activities.memory.ports import EmbedderUnavailable

MODEL: Final = "multilingual-e5-small-q4"
DIMENSION: Final = 384
MISSING: Final = f"the offline embedder is not installed: {extras.install('embed')}, or set LOOM_EMBEDDER"

LONGEST: Final = 4_000
"""Maximum number of characters per text. The model reads 512 tokens at a time, and the results are averaged."""
BATCH: Final = 16
"""Maximum number of texts in one batch. The number of characters is limited separately."""
BATCH_CHARACTERS: Final = 1_000
"""Maximum number of characters in one batch. A batch of this size takes 0.25 s on an idle machine and 1 s on a busy
machine. A longer text is sent in a batch of its own.
"""
SECONDS: Final = 120.0
"""Timeout in seconds for one batch. It is long enough for a busy machine."""

IDLE: Final = 60.0
"""Seconds without use after which the process ends. It takes 65 MB of memory."""

_CHILD: Final = Path(__file__).with_name("e5_child.py")
_LINE_LIMIT: Final = 1 << 22


def is_installed() -> bool:
    """Whether the package with the model is installed. The check doesn't import the package."""
    return all(map(extras.is_installed, extras.PACKAGES["embed"]))


class OfflineEmbedder:
    """An `Embedder` that runs entirely on this machine."""

    def __init__(self, *, threads: int = 1, idle: float = IDLE) -> None:
        """Configure the embedder without starting its process. More `threads` increase the speed only if the processor
        is idle. The process ends after `idle` seconds without use.
        """
        self._threads = threads
        self._idle = idle
        self._ending: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._texts = asyncio.Lock()
        """This lock is held while texts are embedded, so that a question waits for at most one batch."""
        self._work: asyncio.Task[list[list[float]]] | None = None
        self._process: Process | None = None

    @property
    def model(self) -> str:
        """See the port."""
        return MODEL

    @property
    def dimension(self) -> int:
        """See the port."""
        return DIMENSION

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        """See the port. Vectors have length 1."""
        if not is_installed():
            raise EmbedderUnavailable(MISSING)
        vectors: list[list[float]] = []
        for batch in _batches([_readable(text) for text in texts]):
            if query:
                vectors += await self._in_turn(batch, query=True)
                continue
            async with self._texts:
                vectors += await self._in_turn(batch, query=False)
        return vectors

    async def aclose(self) -> None:
        """Stop the process. The next call starts it again."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.wait({self._ending})
        await self._stop()

    async def _in_turn(self, texts: list[str], *, query: bool) -> list[list[float]]:
        """Process a batch to completion, even if the caller was canceled.

        If every canceled question stopped the process, the process would never finish starting on a busy machine.
        """
        await self._turn.acquire()
        if self._ending is not None:
            self._ending.cancel()
        self._work = asyncio.create_task(self._batch(texts, query=query))
        self._work.add_done_callback(self._done)
        return await asyncio.shield(self._work)

    def _done(self, work: asyncio.Task[list[list[float]]]) -> None:
        self._turn.release()
        if not work.cancelled():
            work.exception()  # retrieve the exception, because the caller may no longer be waiting
            self._ending = asyncio.create_task(self._end_unused())

    async def _end_unused(self) -> None:
        await asyncio.sleep(self._idle)
        async with self._turn:
            self._ending = None  # a batch that waits for its turn must not cancel this task
            await self._stop()

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def _batch(self, texts: list[str], *, query: bool) -> list[list[float]]:
        try:
            async with asyncio.timeout(SECONDS):
                process = await self._running()
                answer = await _asked(process, {"texts": texts, "query": query})
        except (OSError, ValueError, EOFError, TimeoutError) as error:
            await self._stop()
            raise EmbedderUnavailable(_ended(error)) from None
        except asyncio.CancelledError:
            # Otherwise, the next question would read this batch's output as its own result.
            await self._stop()
            raise
        return _vectors(answer["vectors"])

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await _started(self._threads)
            found = await _line(self._process)
            if found.get("dimension") != DIMENSION:
                raise ValueError(f"the model has {found.get('dimension')} dimensions, but {DIMENSION} are expected")
        return self._process


async def _started(threads: int) -> Process:
    # Don't pass -I, because the package may be in any folder on this process's module search path.
    command = (sys.executable, "-P", str(_CHILD))
    env = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        # Busy-waiting threads slow down every program on a busy machine, including this one.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    return await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/", env=env, limit=_LINE_LIMIT
    )


async def _asked(process: Process, request: dict[str, Any]) -> dict[str, Any]:
    if process.stdin is None:
        raise EOFError("no input")
    process.stdin.write(json.dumps(request).encode() + b"\n")
    await process.stdin.drain()
    return await _line(process)


async def _line(process: Process) -> dict[str, Any]:
    line = await process.stdout.readline() if process.stdout is not None else b""
    if not line:
        raise EOFError(f"exit code {await process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _vectors(encoded: str) -> list[list[float]]:
    floats = array("f", base64.b64decode(encoded))
    return [floats[start : start + DIMENSION].tolist() for start in range(0, len(floats), DIMENSION)]


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        if batch and (len(batch) == BATCH or sum(map(len, batch)) + len(text) > BATCH_CHARACTERS):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def _readable(text: str) -> str:
    """Truncate the text, and replace NUL and unpaired surrogates, because the C code can't read them."""
    return text[:LONGEST].replace("\0", " ").encode("utf-8", "replace").decode()


def _ended(error: Exception) -> str:
    why = f"no response within {SECONDS:.0f} s" if isinstance(error, TimeoutError) else str(error)
    return f"the offline embedder's process ended ({why}): the next call restarts it"


async def _end(process: Process) -> None:
    """Kill and reap the process, even if the task is canceled a second time."""
    if process.returncode is None:
        process.kill()
    await asyncio.shield(asyncio.ensure_future(process.wait()))
