"""Running a program so that, however it ends, nothing that it started is left."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from activities.toolbox.output import Collected
from activities.toolbox.shell import Finished
from loom_domain.errors import ToolExecutionError

SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHUNK: Final = 256 * 1024
_FLOOD_PAUSE: Final = 0.005
"""Seconds between reads once nothing more is kept, so that endless output does not take the worker's time."""

_LAST_WORDS: Final = 2.0
"""Seconds for the pipe to close after everything was killed."""


def clean_environment(home: str) -> dict[str, str]:
    """What a command sees of the environment: nothing of the worker's."""
    return {"PATH": SEARCH_PATH, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb"}


async def supervise(
    arguments: Sequence[str],
    *,
    workspace: Path,
    environment: Mapping[str, str],
    timeout: float,  # noqa: ASYNC109 - at its end the output so far is the answer, not an error
    max_output: int,
    on_output: Callable[[str], None],
    kill: Callable[[int], None],
) -> Finished:
    """Run until the program ends, time is up or the caller is cancelled; then `kill` whatever is left, given its id.

    Output goes through a pipe of our own, not asyncio's: that one is waited for until its last holder is gone, and a
    forgotten background process would hold it.
    """
    collected = Collected(max_output)
    process, pump = await _start(arguments, workspace, environment, collected, on_output)
    timed_out = False
    try:
        async with asyncio.timeout(timeout) as limit:
            await process.wait()
    except TimeoutError:
        if not limit.expired():
            raise
        timed_out = True
    finally:
        kill(process.pid)
        await _settle(process, pump)
    return Finished(
        exit_code=process.returncode if process.returncode is not None else -signal.SIGKILL,
        output=collected.text(),
        timed_out=timed_out,
        truncated=collected.truncated,
    )


async def _start(
    arguments: Sequence[str],
    workspace: Path,
    environment: Mapping[str, str],
    collected: Collected,
    on_output: Callable[[str], None],
) -> tuple[Process, "asyncio.Task[None]"]:
    reading, writing = os.pipe()
    pipe = os.fdopen(reading, "rb", 0)
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=DEVNULL,
            stdout=writing,
            stderr=writing,
            cwd=workspace,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        pipe.close()
        raise ToolExecutionError(f"the command could not be started: {error.strerror}; is it too long?") from None
    except BaseException:
        pipe.close()
        raise
    finally:
        os.close(writing)
    stream = asyncio.StreamReader(limit=_CHUNK)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
    return process, asyncio.create_task(_pump(stream, collected, on_output))


async def _pump(stream: asyncio.StreamReader, collected: Collected, on_output: Callable[[str], None]) -> None:
    decoder = getincrementaldecoder("utf-8")("replace")
    while data := await stream.read(_CHUNK):
        text = decoder.decode(data)
        collected.add(text)
        on_output(text)
        if collected.truncated:
            await asyncio.sleep(_FLOOD_PAUSE)
    collected.add(decoder.decode(b"", final=True))


async def _settle(process: Process, pump: "asyncio.Task[None]") -> None:
    """Reap the program and read what it still said; a second cancellation must not leave it unreaped."""
    await asyncio.shield(asyncio.ensure_future(process.wait()))
    _, unfinished = await asyncio.wait([pump], timeout=_LAST_WORDS)
    for task in unfinished:
        task.cancel()


def kill_group(pid: int) -> None:
    """Kill a process that leads its group, and the group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
