"""Run a user's function. An async function runs on the event loop, and any other function runs in its own thread. Every
error is converted to a tool error.

A thread can't be stopped. If a call is cancelled or exceeds its timeout, its thread is abandoned: further output is
dropped, and a generator ends at its next yield. The threads don't come from a pool, because a few stuck calls could
block the pool for all other calls. The threads end with the process.
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from loom.activities.ports import ToolContext, ToolOutput
from loom.activities.toolbox.truncation import RESULT_LIMIT, Collected
from loom.activities.toolbox.untrusted_text import defused
from loom.activities.toolbox.user_tools.output import to_output
from loom.domain.core.errors import LoomError, ToolExecutionError, ToolExecutionTimeout
from loom.domain.core.messages import Part

_log = structlog.get_logger("loom.tool")

PIECES_LIMIT: Final = 5_000_000
"""Maximum number of characters to keep from a generator's output. The start and the end are kept."""
_IN_TIME: Final = 0.98
"""A thread is abandoned after this share of the timeout. There is then still time to tell the model that the thread
couldn't be stopped.
"""


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
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool that calls `sys.exit` must not end the worker
        _log.warning("tool_raised", tool=name, exc_info=True)
        raise ToolExecutionError(f"{name} failed: {defused(_named(error))}") from None


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run the function in its own thread and wait for the result. If the wait is cancelled, abandon the thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    ambience = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def run() -> None:
        value, failure = None, None
        try:
            value = ambience.run(work)
        except BaseException as error:  # noqa: BLE001 - the error is passed to the waiting caller
            failure = error if not isinstance(error, StopIteration) else RuntimeError(f"StopIteration: {error}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, name="loom-tool", daemon=True).start()
    return await done


async def _in_time(name: str, call: Callable[[ToolContext], Any], context: ToolContext) -> Any:
    """Return the value of a blocking call. A generator is run to its end. Progress is reported on the event loop."""
    loop = asyncio.get_running_loop()
    relay = _Relay(loop=loop, tell=context.progress)
    try:
        async with asyncio.timeout(context.timeout * _IN_TIME) as limit:
            return await in_thread(lambda: _exhausted(call(replace(context, progress=relay)), relay))
    except TimeoutError:
        if not limit.expired():
            raise
        raise ToolExecutionTimeout(
            f"{name} has not returned after {context.timeout:g} s and cannot be stopped: it may still be running."
            " Check what is there before you go on, or do less in one call"
        ) from None
    finally:
        relay.is_open = False


def _exhausted(value: Any, relay: "_Relay") -> Any:
    if not inspect.isgenerator(value):
        return value
    gathered = _Gathered(relay)
    for piece in _with_end(value):
        gathered.add(piece)
        if not relay.is_open:  # the caller no longer waits; unlike other functions, a generator can be stopped
            value.close()
            break
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
    is_open: bool = True

    def __call__(self, text: str) -> None:
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


def _named(error: BaseException) -> str:
    kind, text = type(error).__name__, str(error)
    return f"{kind}: {text}" if text else kind
