"""A program that stays between calls: it reads one command after the other, and says when each has ended.

    worker ──commands──▶ the program's standard input (a length of four bytes, then the command)
    worker ◀──replies─── a pipe whose number is the program's last argument (an exit code and a line feed)
    worker ◀──output──── what the program and its children print

A reply follows what the command has printed, so the output that is readable then is the command's whole output.
"""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from loom.activities.adapters.sandbox.processes import started
from loom.activities.adapters.sandbox.worker_beat import WORKER_BEAT
from loom.activities.toolbox.built_in.shell import Finished
from loom.activities.toolbox.truncation import Collected
from loom.domain.core.errors import ToolExecutionError

_CHUNK: Final = 256 * 1024
_FLOOD_PAUSE: Final = 0.005
"""Seconds between reads after the output limit is reached."""
_MOST_READS: Final = 4
"""The number of reads that empty a pipe. Threads of the program may continue to print."""
_LONGEST_CODE: Final = 12
_LAST_WORDS: Final = 2.0
"""Seconds for the program to end after it has closed its pipe."""
_HAD_ENDED: Final = "the program had ended before this call, which was not run"
IDLE_SECONDS: Final = 60.0
"""Between two calls, a program may use as much processor time as a call with this timeout."""


class Session:
    """A running program. Its processes end with it."""

    def __init__(
        self,
        process: Process,
        stack: ExitStack,
        *,
        pipes: tuple[int, int, int],
        kill: Callable[[int], None],
        watch: Callable[[float], Awaitable[str]] | None,
        why_killed: Callable[[], str],
    ) -> None:
        """`stack` releases what the program needs while it runs. `pipes` are the ends for commands, output and replies.
        `watch` waits until the program exceeds its limits with the given timeout, and returns the reason. `why_killed`
        returns why the program was killed if its worker stood still.
        """
        self._process = process
        self._stack = stack
        self._commands, self._output, self._replies = pipes
        self._kill = kill
        self._watch = watch
        self._why_killed = why_killed
        self.has_ended = False
        self._is_calling = False
        self._resting = asyncio.create_task(self._rest())

    async def call(
        self,
        command: bytes,
        *,
        timeout: float,  # noqa: ASYNC109 - the command's own timeout: the output until then is returned
        max_output: int,
        on_output: Callable[[str], None],
    ) -> Finished:
        """Carry out one command. If it doesn't end in time, exceeds a limit or is canceled, the program ends."""
        await _canceled(self._resting)
        if self.has_ended:
            return Finished(exit_code=-signal.SIGKILL, output="", limit=_HAD_ENDED)
        self._is_calling = True
        collected, decoder = Collected(max_output), getincrementaldecoder("utf-8")("backslashreplace")

        def take(data: bytes, *, final: bool = False) -> None:
            text = decoder.decode(data, final)
            collected.add(text)
            on_output(text)

        code, limit, timed_out, stalled = b"", "", False, ""
        sending = asyncio.ensure_future(asyncio.to_thread(self._send, command))
        pump = asyncio.create_task(self._pump(take, collected))
        try:
            async with asyncio.timeout(timeout) as clock:
                code, limit = await self._reply_or_limit(timeout)
        except TimeoutError:
            if not clock.expired():
                raise
            timed_out = True
        finally:
            stalled = "" if code else self._why_killed()
            await asyncio.shield(asyncio.ensure_future(self._settle(sending, pump, take, ends=not code)))
        if stalled and not limit:
            timed_out, limit = False, stalled
        killed = -signal.SIGKILL if limit or timed_out else self._process.returncode or 0
        return Finished(
            exit_code=int(code) if code else killed,
            output=collected.text(),
            timed_out=timed_out,
            truncated=collected.truncated,
            limit=limit,
        )

    async def close(self) -> None:
        """End the program and all its processes. A call that is in progress releases what the program needed."""
        if self._is_calling:
            self._kill(self._process.pid)
            return
        await _canceled(self._resting)
        await self._end()

    async def _reply_or_limit(self, timeout: float) -> tuple[bytes, str]:  # noqa: ASYNC109 - for the limits
        reply, watching = asyncio.create_task(self._reply()), asyncio.create_task(self._excess(timeout))
        try:
            await asyncio.wait((reply, watching), return_when=asyncio.FIRST_COMPLETED)
            return (reply.result(), "") if reply.done() else (b"", watching.result())
        finally:
            await _canceled(reply, watching)

    async def _settle(
        self,
        sending: "asyncio.Future[None]",
        pump: "asyncio.Task[None]",
        take: Callable[..., None],
        *,
        ends: bool,
    ) -> None:
        await _canceled(pump)
        if ends:
            self._kill(self._process.pid)
            await self._process.wait()
        await sending
        for _ in range(_MOST_READS):
            take(_read(self._output) or b"")
        take(b"", final=True)
        self._is_calling = False
        if ends:
            await self._end()
        else:
            self._resting = asyncio.create_task(self._rest())

    async def _rest(self) -> None:
        """Between two calls, end the program if it exceeds its limits, and release what it needed if it has ended."""
        ending, watching = (
            asyncio.ensure_future(self._process.wait()),
            asyncio.ensure_future(self._excess(IDLE_SECONDS)),
        )
        try:
            await asyncio.wait((ending, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _canceled(ending, watching)
        await self._end()

    async def _end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        try:
            self._kill(self._process.pid)
            await asyncio.shield(asyncio.ensure_future(self._process.wait()))
        finally:
            self._stack.close()

    async def _excess(self, timeout: float) -> str:  # noqa: ASYNC109 - for the limits
        if self._watch is None:
            await asyncio.get_running_loop().create_future()
            return ""
        return await self._watch(timeout)

    def _send(self, command: bytes) -> None:
        data = memoryview(len(command).to_bytes(4, "big") + command)
        try:
            while data:
                data = data[os.write(self._commands, data) :]
        except OSError:  # the program has ended, which its reply tells
            return

    async def _reply(self) -> bytes:
        """Return the exit code of the command, or nothing if the program has ended."""
        await _readable(self._replies)
        # The command's own code can write here, too. Then it only deceives itself.
        if not (data := _read(self._replies)):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await self._process.wait()  # for its exit code
            return b""
        code = data.strip()
        return code if code.removeprefix(b"-").isdigit() and len(code) < _LONGEST_CODE else b""

    async def _pump(self, take: Callable[[bytes], None], collected: Collected) -> None:
        while True:
            await _readable(self._output)
            if not (data := _read(self._output)):
                return
            take(data)
            if collected.truncated:
                await asyncio.sleep(_FLOOD_PAUSE)


async def _canceled(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel these tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _readable(descriptor: int) -> None:
    """Wait until the descriptor has data, or has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, ready.set_result, None)
    ready.add_done_callback(lambda _: loop.remove_reader(descriptor))
    await ready


def _read(descriptor: int) -> bytes | None:
    """Return what is readable: None if there is nothing now, and no bytes at the end."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


async def begin(
    arguments: Sequence[str],
    stack: ExitStack,
    *,
    workspace: Path,
    environment: Mapping[str, str],
    kill: Callable[[int], None],
    pass_fds: Sequence[int] = (),
    watch: Callable[[float], Awaitable[str]] | None = None,
) -> Session:
    """Start a program. `stack` is closed when it ends, or if it can't be started."""
    with ExitStack() as failing, ExitStack() as inner:
        failing.callback(stack.close)
        commands, sending = _pipe(inner, stack, ours=1)
        output, printing = _pipe(inner, stack, ours=0)
        replies, replying = _pipe(inner, stack, ours=0)
        starting = asyncio.create_subprocess_exec(
            *arguments,
            str(replying),
            stdin=commands,
            stdout=printing,
            stderr=printing,
            cwd=workspace,
            env=environment,
            start_new_session=True,
            pass_fds=(*pass_fds, replying),
        )
        try:
            process = await started(starting, kill)
        except OSError as error:
            raise ToolExecutionError(f"the program could not be started: {error.strerror}") from None
        failing.pop_all()
    why_killed = stack.enter_context(WORKER_BEAT.needed_by(process.pid))
    pipes = (sending, output, replies)
    return Session(process, stack, pipes=pipes, kill=kill, watch=watch, why_killed=why_killed)


def _pipe(inner: ExitStack, stack: ExitStack, *, ours: int) -> tuple[int, int]:
    """Return a new pipe. This process's end is closed with `stack`, and the program's end with `inner`."""
    ends = os.pipe()
    for number, end in enumerate(ends):
        (stack if number == ours else inner).callback(os.close, end)
    if ours == 0:
        os.set_blocking(ends[0], False)
    return ends
