"""Reading keys while the screen is live: without threads or echo, and the terminal is restored at the end.

prompt_toolkit is no substitute here, as measured: a key typed before a question appears would answer it (this module
drops such keys, so that nobody approves a call unseen), its prompt and the live screen erase each other at every frame,
and it takes 0.11 s to import.
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

ESCAPE: Final = "\x1b"
ENTER: Final = ("\r", "\n")

_SAME_STROKE: Final = 0.15
"""Seconds within which Enter belongs to the key before it, for people who answer `y` and Enter."""
_KEYS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|\x1b.?|.", re.DOTALL)


def at_terminal() -> bool:
    """Whether a person can answer: standard input and output are a terminal, and the process is in the foreground."""
    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


class Keyboard:
    """The keys of a terminal, read by the event loop; keys typed while no question is open are dropped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._listening = False
        self._last_choice = 0.0
        self._before: list[Any] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Take the terminal: keys arrive at once and without echo; Ctrl-C still interrupts."""
        self._before = termios.tcgetattr(self._fd)
        handler = signal.signal(signal.SIGTERM, _leave)
        self._take()
        try:
            yield
        finally:
            self._give_back()
            signal.signal(signal.SIGTERM, handler)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the terminal to another program in its original state."""
        self._give_back()
        try:
            yield
        finally:
            self._take()

    def forget(self) -> None:
        """Drop the keys typed before the next question."""
        while not self._keys.empty():
            self._keys.get_nowait()

    async def choice(self, keys: str) -> str:
        """Wait for one of these keys and ignore all others."""
        while True:
            key = (await self._next()).lower()
            if key in keys or (key == ESCAPE and ESCAPE in keys):
                self._last_choice = monotonic()
                return key

    async def line(self, show: Callable[[str, int], None], text: str = "") -> str | None:
        """Read a line, calling `show` with text and cursor after each key; None after Esc."""
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
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _give_back(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 4096)
        except OSError:
            data = b""
        if not data:  # the terminal was closed
            asyncio.get_running_loop().remove_reader(self._fd)
            return
        keys = _KEYS.findall(self._decoder.decode(data))
        if self._listening or not self._keys.empty():
            for key in keys:
                self._keys.put_nowait(key)


def _leave(number: int, _: object) -> NoReturn:
    """Exit through every `finally`, so that the terminal gets its echo and cursor back."""
    raise SystemExit(128 + number)


def edited(text: str, cursor: int, key: str) -> tuple[str, int]:
    """The line and its cursor after a key."""
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
