"""Run a program. Ensure that none of its processes remains after it ends, regardless of why it ends."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from loom.activities.adapters.sandbox.worker_beat import WORKER_BEAT
from loom.activities.toolbox.built_in.shell import Finished
from loom.activities.toolbox.truncation import Collected
from loom.domain.core.errors import ToolExecutionError

_CHUNK: Final = 256 * 1024
_FLOOD_PAUSE: Final = 0.005
"""Seconds between reads after the output limit is reached, so that endless output doesn't slow down the worker."""

_LAST_WORDS: Final = 2.0
"""Seconds for the pipe to close after all processes have been killed."""


async def supervise(
    arguments: Sequence[str],
    *,
    workspace: Path,
    environment: Mapping[str, str],
    timeout: float,  # noqa: ASYNC109 - after a timeout, the output so far is returned
    max_output: int,
    on_output: Callable[[str], None],
    kill: Callable[[int], None],
    stdin: bytes = b"",
    pass_fds: Sequence[int] = (),
    watch: Callable[[], Awaitable[str]] | None = None,
) -> Finished:
    """Run until the program ends, the timeout expires or the caller is canceled. Then call `kill` with the program's
    process id to end the remaining processes.

    `watch` waits until the program must be stopped, and returns the reason. The output uses a separate pipe instead of
    asyncio's pipe, because asyncio waits for every process that holds its pipe, including background processes.
    """
    collected = Collected(max_output)
    with _readable(stdin) as source:
        start = partial(
            asyncio.create_subprocess_exec,
            *arguments,
            stdin=source,
            cwd=workspace,
            env=environment,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        process, pump = await _start(start, collected, on_output, kill)
    timed_out, limit, stalled = False, "", ""
    try:
        async with asyncio.timeout(timeout) as clock:
            with WORKER_BEAT.needed_by(process.pid) as why_killed:
                try:
                    limit = await _end_of(process, watch)
                finally:
                    stalled = why_killed()
    except TimeoutError:
        if not clock.expired():
            raise
        timed_out = True
    finally:
        kill(process.pid)
        await _settle(process, pump)
    if process.returncode == -signal.SIGKILL and stalled and not limit:
        timed_out, limit = False, stalled
    killed = bool(limit) or process.returncode is None
    return Finished(
        exit_code=-signal.SIGKILL if killed else process.returncode or 0,
        output=collected.text(),
        timed_out=timed_out,
        truncated=collected.truncated,
        limit=limit,
    )


@contextmanager
def _readable(data: bytes) -> Iterator[int]:
    """Yield the descriptor of an in-memory file that contains `data`. No task then has to write while the program is
    reading.
    """
    if not data:
        yield DEVNULL
        return
    with os.fdopen(os.memfd_create("stdin"), "wb") as file:
        file.write(data)
        file.seek(0)
        yield file.fileno()


async def _end_of(process: Process, watch: Callable[[], Awaitable[str]] | None) -> str:
    """Wait until the program ends or must be stopped. Return the reason for stopping it."""
    if watch is None:
        await process.wait()
        return ""
    ending, watching = asyncio.ensure_future(process.wait()), asyncio.ensure_future(watch())
    try:
        await asyncio.wait((ending, watching), return_when=asyncio.FIRST_COMPLETED)
        return "" if ending.done() else watching.result()
    finally:
        ending.cancel()
        watching.cancel()
        await asyncio.gather(ending, watching, return_exceptions=True)


async def _start(
    start: Callable[..., Awaitable[Process]],
    collected: Collected,
    on_output: Callable[[str], None],
    kill: Callable[[int], None],
) -> tuple[Process, "asyncio.Task[None]"]:
    reading, writing = os.pipe()
    stream = asyncio.StreamReader(limit=_CHUNK)
    try:
        # Do this before the program starts, because there must be no await between its start and the `finally` block
        # that kills it.
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", 0)
        )
        try:
            process = await started(start(stdout=writing, stderr=writing), kill)
        except BaseException:
            transport.close()
            raise
    except OSError as error:
        raise ToolExecutionError(f"the command could not be started: {error.strerror}; is it too long?") from None
    finally:
        os.close(writing)
    return process, asyncio.create_task(_pump(stream, collected, on_output))


async def started(starting: Awaitable[Process], kill: Callable[[int], None]) -> Process:
    """Wait until the program has started. If the caller is canceled meanwhile, kill its processes, too.

    By itself, asyncio would kill only the program, and leave the processes that it has begun in this short time.
    """
    start = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(start)
    except asyncio.CancelledError:
        start.add_done_callback(partial(_kill_started, kill))  # even if the caller is canceled a second time
        await asyncio.wait({start})
        raise


def _kill_started(kill: Callable[[int], None], start: "asyncio.Future[Process]") -> None:
    if not start.cancelled() and start.exception() is None:
        kill(start.result().pid)


async def _pump(stream: asyncio.StreamReader, collected: Collected, on_output: Callable[[str], None]) -> None:
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    while data := await stream.read(_CHUNK):
        text = decoder.decode(data)
        collected.add(text)
        on_output(text)
        if collected.truncated:
            await asyncio.sleep(_FLOOD_PAUSE)
    collected.add(decoder.decode(b"", final=True))


async def _settle(process: Process, pump: "asyncio.Task[None]") -> None:
    """Reap the program and read its remaining output, even if the task is canceled a second time."""
    await asyncio.shield(asyncio.ensure_future(process.wait()))
    _, unfinished = await asyncio.wait([pump], timeout=_LAST_WORDS)
    for task in unfinished:
        task.cancel()


def kill_group(pid: int) -> None:
    """Kill a process group and its leader."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
