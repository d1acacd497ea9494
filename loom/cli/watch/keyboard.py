"""Read keys while the screen is live, without threads or echo, and restore the terminal on exit.

Tests showed that prompt_toolkit can't replace this module. With prompt_toolkit, a key that was typed before a question
appears answers that question. This module drops such keys, so that nobody approves a call before seeing it. The
prompt_toolkit prompt and the live screen also erase each other in every frame, and importing prompt_toolkit takes
0.11 s.
"""

import asyncio
import codecs
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, NoReturn

from loom.cli.output import DUMB
from loom.cli.pager import interrupts_left_to_child

ESCAPE: Final = "\x1b"
ENTER: Final = ("\r", "\n")
SHOW_CURSOR: Final = b"\x1b[?25h"
HIDE_CURSOR: Final = b"\x1b[?25l"

_SAME_STROKE: Final = 0.15
"""Enter is ignored for this many seconds after a key, for people who type `y` and then press Enter."""
PAUSE: Final = 0.3
"""A question takes keys once nobody has pressed one for this many seconds. Earlier keys aren't meant for it."""
_KEYS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|\x1b.?|.", re.DOTALL)


def at_terminal() -> bool:
    """Return whether a person can answer.

    This requires that standard input and output are terminals that can move the cursor, and that the process is in the
    foreground.
    """
    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") in DUMB:
            return False
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


class Keyboard:
    """Reads a terminal's keys in the event loop. Keys typed while no question is open are dropped."""

    def __init__(self, fd: int, pause: float = PAUSE) -> None:
        self._fd = fd
        self._pause = pause
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._listening = False
        self._last_choice = 0.0
        self._last_key = 0.0
        self._before: list[Any] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Take over the terminal: keys arrive immediately and without echo. Ctrl-C, Ctrl-\\ and Ctrl-Z still work."""
        self._before = termios.tcgetattr(self._fd)
        handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGQUIT)}
        self._take()
        try:
            yield
        finally:
            self._give_back()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Restore the original state while another program uses the terminal. Ctrl-C and Ctrl-\\ are that program's."""
        self._give_back()
        try:
            with interrupts_left_to_child():
                yield
        finally:
            self._take()

    async def pause(self) -> None:
        """Wait until the person has stopped typing and can have seen the question, and drop the keys until then."""
        rest = self._pause
        while rest > 0:
            await asyncio.sleep(rest)
            rest = self._last_key + self._pause - monotonic()
        while not self._keys.empty():
            self._keys.get_nowait()

    async def choice(self, keys: str) -> str:
        """Wait for one of the given keys and ignore all others."""
        while True:
            key = (await self._next()).lower()
            if key in keys or (key == ESCAPE and ESCAPE in keys):
                self._last_choice = monotonic()
                return key

    async def line(self, show: Callable[[str, int], None], text: str = "") -> str | None:
        """Read a line and call `show` with the text and cursor after each key. Return None after Esc."""
        cursor = len(text)
        show(text, cursor)
        while True:
            key = await self._next()
            if key == ESCAPE:
                return None
            if key in ENTER:
                if not text and monotonic() - self._last_choice < _SAME_STROKE:
                    continue
                return text
            self._last_choice = 0.0  # a later Enter is meant
            text, cursor = edited(text, cursor, key)
            show(text, cursor)

    async def _next(self) -> str:
        self._listening = True
        try:
            return await self._keys.get()
        finally:
            self._listening = False

    def _take(self) -> None:
        tty.setcbreak(self._fd, termios.TCSANOW)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._read)
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:  # without job control, nobody could continue it
            loop.add_signal_handler(signal.SIGTSTP, self._stop)

    def _give_back(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._fd)
        loop.remove_signal_handler(signal.SIGTSTP)
        termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    def _stop(self) -> None:
        """Stop the process for Ctrl-Z, with the terminal in its original state until `fg` continues the process."""
        self._give_back()
        os.write(self._fd, SHOW_CURSOR)
        os.kill(os.getpid(), signal.SIGTSTP)
        self._take()
        os.write(self._fd, HIDE_CURSOR)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 4096)
        except OSError:
            data = b""
        if not data:  # the terminal was closed
            asyncio.get_running_loop().remove_reader(self._fd)
            return
        self._last_key = monotonic()
        keys = _KEYS.findall(self._decoder.decode(data))
        if self._listening or not self._keys.empty():
            for key in keys:
                self._keys.put_nowait(key)


def _leave(number: int, _: object) -> NoReturn:
    """Raise SystemExit, so that `finally` blocks restore the terminal's echo and cursor."""
    raise SystemExit(128 + number)


def edited(text: str, cursor: int, key: str) -> tuple[str, int]:
    """Apply a key to a line, and return the new text and cursor."""
    if key in _EDITS:
        return _EDITS[key](text, cursor)
    return (text[:cursor] + key + text[cursor:], cursor + 1) if key.isprintable() else (text, cursor)


def _delete_word(text: str, cursor: int) -> tuple[str, int]:
    start = len(text[:cursor].rstrip().rpartition(" ")[0])
    return text[:start] + text[cursor:], start


def _delete_character(text: str, cursor: int) -> tuple[str, int]:
    start = max(cursor - 1, 0)
    return text[:start] + text[cursor:], start


_EDITS: Final[Mapping[str, Callable[[str, int], tuple[str, int]]]] = {
    "\x7f": _delete_character,
    "\x08": _delete_character,
    "\x17": _delete_word,  # Ctrl-W
    "\x15": lambda text, cursor: (text[cursor:], 0),  # Ctrl-U
    "\x0b": lambda text, cursor: (text[:cursor], cursor),  # Ctrl-K
    "\x01": lambda text, _: (text, 0),  # Ctrl-A and Home
    "\x1b[H": lambda text, _: (text, 0),
    "\x05": lambda text, _: (text, len(text)),  # Ctrl-E and End
    "\x1b[F": lambda text, _: (text, len(text)),
    "\x1b[D": lambda text, cursor: (text, max(cursor - 1, 0)),
    "\x1b[C": lambda text, cursor: (text, min(cursor + 1, len(text))),
}
