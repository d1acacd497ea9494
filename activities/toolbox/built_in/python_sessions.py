"""The interpreters of `python`, which keep a run's variables between its calls.

    a run's call ──session of its earlier calls──▶ PythonSessions ──▶ the interpreter with this id, if it is here
                                                        └──▶ else a new one, and the model is told why

An interpreter belongs to one run on one worker. The run records its id, so a worker that doesn't have it knows that
variables are gone. An interpreter ends when its run ends, when it hasn't been used for a while, when other runs need
its place, or with its worker.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from secrets import token_hex
from time import monotonic
from typing import Final

import structlog
from temporalio import activity

from loom.activities.kept_calls import KeptCalls
from loom.activities.ports import ToolContext
from loom.activities.toolbox.built_in.shell import KEPT, Finished, Sandbox, Session
from loom.domain.core.errors import ToolExecutionError
from loom.domain.core.tool_calls import ENDED

_log = structlog.get_logger("loom.python")

MOST_SESSIONS: Final = 16
"""The maximum number of interpreters that a worker keeps."""
IDLE: Final = 900.0
"""Seconds without a call after which an interpreter ends."""
_REMEMBERED: Final = 1_000
"""The number of ended interpreters whose end a worker can explain."""

_ELSEWHERE: Final = "the worker that kept them has stopped, or another worker now serves this run"
_RESTARTED: Final = "you asked for a new interpreter"
_BUSY: Final = "another call of python still runs in this run: call it again later"

_INTERPRETER: Final = """
def serve():
    import ast, linecache, os, sys, traceback, types
    commands, replies = os.fdopen(os.dup(0), "rb"), os.dup(int(sys.argv[1]))
    os.close(int(sys.argv[1]))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.argv = ["code.py"]
    sys.stdout.reconfigure(line_buffering=True)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    def report(error):
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
    def run(code, name):
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), main.__dict__)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), main.__dict__)
            if value is not None:
                print(repr(value))
    def outcome(code, name):
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            run(code, name)
        except SystemExit as left:
            if isinstance(left.code, int) or left.code is None:
                return (left.code or 0) & 255
            print(left.code, file=sys.stderr)
            return 1
        except BaseException as error:
            report(error)
            return 1
        return 0
    number = 0
    while len(size := commands.read(4)) == 4:
        number += 1
        code = commands.read(int.from_bytes(size, "big")).decode()
        ended = outcome(code, f"code{number if number > 1 else ''}.py")
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        os.write(replies, b"%d\\n" % ended)
serve()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """The outcome of a call."""

    finished: Finished
    session: str
    """The id of the interpreter that keeps the variables, or `ENDED` if none does."""
    gone: str = ""
    """Why the variables of earlier calls are gone. Empty if they aren't."""
    ends: str = ""
    """Why the variables of this call are gone. Empty if they aren't."""


@dataclass(eq=False, slots=True)
class _Kept:
    id: str
    session: Session
    places: tuple[str, ...]
    used: float
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class PythonSessions:
    """The interpreters of a worker, by run."""

    def __init__(self, sandbox: Sandbox, *, most: int = MOST_SESSIONS, idle: float = IDLE) -> None:
        self._sandbox = sandbox
        self._most = most
        self._idle = idle
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """The run that was served last is the last one."""
        self._gone: OrderedDict[str, str] = OrderedDict()
        """Why interpreters have ended, by their id."""
        self._runs = KeptCalls()
        self._watching: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def run(
        self, code: str, context: ToolContext, *, restart: bool, seconds: float, on_output: Callable[[str], None]
    ) -> Ran:
        """Run the code in the run's interpreter, or in a new one if there is none."""
        key = f"{context.run_id}/{context.execution}"
        gone = await self._left(key, context, restart=restart)
        kept = self._kept.get(key) or await self._began(key, context)
        async with kept.busy:
            try:
                finished = await kept.session.call(code.encode(), timeout=seconds, max_output=KEPT, on_output=on_output)
            finally:
                kept.used = monotonic()
                if kept.session.has_ended:
                    self._forget(key, kept, "the call that used them was stopped")
        ends = _why_ended(finished) if kept.session.has_ended else ""
        if not ends and len(self._kept) > self._most:
            ends = f"other runs use all {self._most} interpreters that this worker keeps"
            await self._close(key, kept, ends)
        return Ran(finished=finished, session=ENDED if ends else kept.id, gone=gone, ends=ends)

    async def aclose(self) -> None:
        """End all interpreters."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for key, kept in list(self._kept.items()):
            await self._close(key, kept, _ELSEWHERE)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _left(self, key: str, context: ToolContext, *, restart: bool) -> str:
        """End the run's interpreter if it must not be used again. Return why variables of earlier calls are gone."""
        kept = self._kept.get(key)
        if kept is not None:
            if kept.busy.locked():
                raise ToolExecutionError(_BUSY)
            if why := self._why_not(kept, context, restart=restart):
                await self._close(key, kept, why)
                return "" if restart else why
            self._kept.move_to_end(key)
            return ""
        if restart or context.session in ("", ENDED):
            return ""
        return self._gone.get(context.session, _ELSEWHERE)

    def _why_not(self, kept: _Kept, context: ToolContext, *, restart: bool) -> str:
        if restart:
            return _RESTARTED
        if kept.session.has_ended:
            return "their interpreter ended after the last call"
        if context.session not in ("", kept.id):
            return "the run continued on another worker in the meantime"
        if kept.places != tuple(self._sandbox.places(context.workspace)):
            return "the files that the sandbox protects in the workspace have changed"
        return ""

    async def _began(self, key: str, context: ToolContext) -> _Kept:
        await self._make_room()
        places = tuple(self._sandbox.places(context.workspace))
        session = await self._sandbox.begin(
            [self._sandbox.python, "-I", "-X", "utf8", "-c", _INTERPRETER], workspace=context.workspace
        )
        if key in self._kept:  # it would be lost if this one took its place: nothing would ever end it
            await session.close()
            raise ToolExecutionError(_BUSY)
        kept = self._kept[key] = _Kept(id=token_hex(6), session=session, places=places, used=monotonic())
        if activity.in_activity():
            self._runs.keep(key, lambda: self._close_soon(key, kept, "the run ended"))
        if self._watching is None or self._watching.done():
            # In a context of its own, because the task serves all runs.
            self._watching = asyncio.create_task(self._end_idle(), context=Context())
        return kept

    async def _make_room(self) -> None:
        """End the interpreter that hasn't been used for the longest time, if the maximum number is reached."""
        while len(self._kept) >= self._most:
            free = next(((key, kept) for key, kept in self._kept.items() if not kept.busy.locked()), None)
            if free is None:
                return
            await self._close(*free, f"another run needed the place: this worker keeps at most {self._most}")

    async def _end_idle(self) -> None:
        while self._kept:
            await asyncio.sleep(self._idle / 10)
            until = monotonic() - self._idle
            for key, kept in list(self._kept.items()):
                if kept.used < until and not kept.busy.locked():
                    await self._close(key, kept, f"they were not used for {self._idle:g} s")

    def _close_soon(self, key: str, kept: _Kept, why: str) -> None:
        closing = asyncio.create_task(self._close(key, kept, why))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, key: str, kept: _Kept, why: str) -> None:
        self._forget(key, kept, why)
        _log.info("python_session_ended", session=kept.id, why=why)
        await kept.session.close()

    def _forget(self, key: str, kept: _Kept, why: str) -> None:
        if self._kept.get(key) is kept:
            del self._kept[key]
            self._runs.release(key)
        self._gone[kept.id] = why
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)


def _why_ended(finished: Finished) -> str:
    if finished.timed_out:
        return "the interpreter was stopped with the call"
    return "the interpreter was stopped" if finished.limit else "the code ended the interpreter"
