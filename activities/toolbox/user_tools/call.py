"""Run a user's function. An async function runs on the event loop, and any other function runs in its own thread. Every
error is converted to a tool error.

If a call is cancelled or exceeds its timeout, `asyncio.CancelledError` is raised in its thread, at the thread's next
line of Python. Temporal's SDK stops the threads of activities in the same way. A thread that waits outside of Python,
such as for a server, a lock or `time.sleep`, gets the exception only afterward. If it doesn't end soon, it is left
behind, and the worker says so. The threads don't come from a pool, because a few stuck calls could block the pool for
all other calls. The threads end with the process.
"""

import asyncio
import contextvars
import ctypes
import inspect
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from loom.activities.ports import ToolContext, ToolOutput
from loom.activities.toolbox.error_reasons import reason_of
from loom.activities.toolbox.truncation import RESULT_LIMIT, Collected
from loom.activities.toolbox.untrusted_text import defused
from loom.activities.toolbox.user_tools.output import to_output
from loom.domain.core.errors import ExecutionAbortedError, LoomError, ToolExecutionError, ToolExecutionTimeout
from loom.domain.core.messages import Part

_log = structlog.get_logger("loom.tool")

PIECES_LIMIT: Final = 5_000_000
"""Maximum number of characters to keep from a generator's output. The start and the end are kept."""
_IN_TIME: Final = 0.98
"""A thread is stopped after this share of the timeout. There is then still time to tell the model whether it has ended.
"""
_ENDS: Final = 0.01
"""The share of the timeout that a thread has to end after it was stopped."""
_PATIENCE: Final = 0.3
"""The maximum of this time in seconds. An abort waits no longer for a thread."""


async def called(
    name: str, call: Callable[[ToolContext], Any], context: ToolContext, *, blocking: bool
) -> str | ToolOutput:
    """Call the function. Return its result as a tool's output. Raises the tool errors in `loom.domain.core.errors`."""
    limited = replace(context, progress=_limited(context.progress))
    try:
        given = await _in_time(name, call, limited) if blocking else call(limited)
        output = await _finished(given, limited)
        return defused(output) if isinstance(output, str) else replace(output, text=defused(output.text))
    except asyncio.CancelledError:
        if is_asked_to_stop():
            raise
        raise ToolExecutionError(f"{name} failed: something that it waited for was cancelled") from None
    except LoomError:
        raise
    except (Exception, SystemExit, BaseExceptionGroup) as error:  # noqa: BLE001 - `sys.exit` must not end the worker
        _log.warning("tool_raised", tool=name, exc_info=True)
        raise ToolExecutionError(f"{name} failed: {defused(reason_of(error))}") from None


async def in_thread(
    work: Callable[[], Any], *, patience: float = _PATIENCE, on_stop: Callable[[], None] = lambda: None
) -> Any:
    """Run the function in its own thread and wait for the result. If the wait is cancelled, call `on_stop`, stop the
    thread, and leave it behind if it hasn't ended `patience` seconds later.
    """
    ambience = contextvars.copy_context()
    thread = _Thread(lambda: ambience.run(work))
    thread.start()
    try:
        return await thread.done
    except asyncio.CancelledError:
        on_stop()
        thread.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await thread.ended.wait()
        raise


class _Thread(threading.Thread):
    """The thread of one function. It can be stopped where it runs Python."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="loom-tool", daemon=True)
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._cannot_be_stopped = False
        """Whether its work has ended, or it was stopped before."""
        self.done: asyncio.Future[Any] = self._loop.create_future()
        self.ended = asyncio.Event()

    def run(self) -> None:
        try:
            value, error = self._outcome()
            with self._lock:
                self._cannot_be_stopped = True
            _line()
        except asyncio.CancelledError as late:  # it was stopped when its work had just ended
            value, error = None, late
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, value, error)

    def stop(self) -> None:
        """Raise CancelledError in the thread, at its next line of Python."""
        with self._lock:
            if not self._cannot_be_stopped and self.ident is not None:
                self._cannot_be_stopped = True
                raised = ctypes.py_object(asyncio.CancelledError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), raised)

    def _outcome(self) -> tuple[Any, BaseException | None]:
        try:
            return self._work(), None
        except StopIteration as error:  # a future can't have it
            return None, RuntimeError(f"StopIteration: {error}")
        except BaseException as error:  # noqa: BLE001 - the error is passed to the waiting caller
            return None, error

    def _settle(self, value: Any, error: BaseException | None) -> None:
        self.ended.set()
        if self.done.done():
            return
        if error is None:
            self.done.set_result(value)
        else:
            self.done.set_exception(error)


def _line() -> None:
    """Do nothing. Calling this gives Python a chance to raise a pending exception."""


async def _in_time(name: str, call: Callable[[ToolContext], Any], context: ToolContext) -> Any:
    """Return the value of a blocking call. A generator is run to its end. Progress is reported on the event loop."""
    loop = asyncio.get_running_loop()
    relay = _Relay(loop=loop, tell=context.progress, is_wanted=context.check)
    inner = replace(context, progress=relay, check=relay.check)
    patience = min(_PATIENCE, context.timeout * _ENDS)

    def work() -> Any:
        try:
            return _exhausted(call(inner), relay)
        finally:
            relay.has_ended = True

    try:
        async with asyncio.timeout(context.timeout * _IN_TIME) as limit:
            return await in_thread(work, patience=patience, on_stop=relay.stop)
    except asyncio.CancelledError:
        if not relay.has_ended:
            _log.warning("tool_left_running", tool=name)
            context.progress(f"\n{name} was stopped, but may still be running, and may take effect\n")
        raise
    except TimeoutError:
        if not limit.expired():
            raise
        how = "was stopped: it may be half done" if relay.has_ended else "cannot be stopped: it may still be running"
        raise ToolExecutionTimeout(
            f"{name} has not returned after {context.timeout:g} s and {how}."
            " Check what is there before you go on, or do less in one call"
        ) from None
    finally:
        relay.is_open = False


def _exhausted(value: Any, relay: "_Relay") -> Any:
    if not inspect.isgenerator(value):
        return value
    gathered = _Gathered(relay)
    with closing(value):
        for piece in _with_end(value):
            gathered.add(piece)
            relay.check()
    return gathered.output()


def _with_end(generator: Generator[Any, Any, Any]) -> Iterator[Any]:
    """Yield the generator's values, and its return value if there is one."""
    end = yield from generator
    if end is not None:
        yield end


async def _finished(value: Any, context: ToolContext) -> str | ToolOutput:
    if inspect.isawaitable(value):
        value = await value
    if inspect.isasyncgen(value):
        gathered = _Gathered(context.progress)
        async with aclosing(value) as pieces:
            async for piece in pieces:
                gathered.add(piece)
        return gathered.output()
    return await in_thread(lambda: to_output(value)) if _is_heavy(value) else to_output(value)


def _is_heavy(value: Any) -> bool:
    """Whether converting the value could block the event loop. The value may contain files to read or long lists to
    serialize.
    """
    return not isinstance(value, str | int | float | bool | None | ToolOutput | Part)


@dataclass(slots=True)
class _Relay:
    """Passes progress from a thread to the event loop for as long as the caller waits for the thread."""

    loop: asyncio.AbstractEventLoop
    tell: Callable[[str], None]
    is_wanted: Callable[[], None]
    """Raises ExecutionAbortedError if nobody wants the call any more."""
    is_open: bool = True
    is_stopped: bool = False
    """Whether the call has ended before the function has."""
    has_ended: bool = False
    """Whether the function has ended."""

    def stop(self) -> None:
        """Refuse what the function does from now on."""
        self.is_stopped = True

    def check(self) -> None:
        """Raises ExecutionAbortedError if the call has ended, or if nobody wants it any more."""
        if self.is_stopped:
            raise ExecutionAbortedError(
                "this call is over: it was aborted, or it has used up its time. Nothing waits for its result: return "
                "without doing anything else"
            )
        self.is_wanted()

    def __call__(self, text: str) -> None:
        self.check()
        if self.is_open and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._say, text)

    def _say(self, text: str) -> None:
        if self.is_open:
            self.tell(text)


@dataclass(slots=True)
class _Gathered:
    """Collects a generator's values. Each text is reported as progress and appended to the output. Images and files are
    added to the output.
    """

    tell: Callable[[str], None]
    text: Collected = field(default_factory=lambda: Collected(PIECES_LIMIT))
    parts: list[Part] = field(default_factory=list)
    is_warning: bool = False

    def add(self, piece: Any) -> None:
        """Add a yielded value."""
        output = to_output(piece)
        if isinstance(output, ToolOutput):
            self.parts.extend(output.parts)
            self.is_warning = self.is_warning or output.is_warning
            output = output.text
        output = output if isinstance(piece, str) or not output else f"{output}\n"
        self.text.add(output)
        self.tell(output)

    def output(self) -> str | ToolOutput:
        """Return the complete output."""
        text = self.text.text()
        if not self.parts and not self.is_warning:
            return text
        return ToolOutput(text=text, parts=tuple(self.parts), is_warning=self.is_warning)


def _limited(progress: Callable[[str], None]) -> Callable[[str], None]:
    """Limit progress to the maximum length of a result, because longer output isn't useful on the live stream."""
    room = RESULT_LIMIT

    def tell(text: str) -> None:
        nonlocal room
        if room > 0 and text:
            progress(text[:room])
            room -= len(text)

    return tell


def is_asked_to_stop() -> bool:
    """Whether a cancellation targets this call, as opposed to an operation that the user's code was waiting for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
