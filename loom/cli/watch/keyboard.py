"""Keys of a person at the terminal while something else goes on: no thread, no echo, given back on leaving."""

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
"""Seconds within which a line end belongs to the key before it: people who answer `y` and Enter."""
_KEYS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|\x1b.?|.", re.DOTALL)


def at_terminal() -> bool:
    """Whether a person sits before this process: both ends are a terminal, and it is in the foreground."""
    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


class Keyboard:
    """The keys of a terminal, read by the event loop; what is typed while nobody asks is dropped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._listening = False
        self._last_choice = 0.0
        self._before: list[Any] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Take the terminal: keys come at once and unseen; Ctrl-C still interrupts."""
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
        """Give the terminal to another program as it was, and take it again."""
        self._give_back()
        try:
            yield
        finally:
            self._take()

    def forget(self) -> None:
        """Drop what was typed before the question that comes now."""
        while not self._keys.empty():
            self._keys.get_nowait()

    async def choice(self, keys: str) -> str:
        """Wait for one of these keys; any other is ignored."""
        while True:
            key = (await self._next()).lower()
            if key in keys or (key == ESCAPE and ESCAPE in keys):
                self._last_choice = monotonic()
                return key

    async def line(self, show: Callable[[str, int], None], text: str = "") -> str | None:
        """Let a line be typed, shown as text and cursor after each key; None when it was given up with Esc."""
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
        if not data:  # the terminal is gone: nobody will answer
            asyncio.get_running_loop().remove_reader(self._fd)
            return
        keys = _KEYS.findall(self._decoder.decode(data))
        if self._listening or not self._keys.empty():
            for key in keys:
                self._keys.put_nowait(key)


def _leave(number: int, _: object) -> NoReturn:
    """End by way of every `finally`: a terminal without echo or cursor is of no use to its owner."""
    raise SystemExit(128 + number)


def edited(text: str, cursor: int, key: str) -> tuple[str, int]:
    """A line and its cursor after a key."""
    if key in _EDITS:
        return _EDITS[key](text, cursor)
    return (text[:cursor] + key + text[cursor:], cursor + 1) if key.isprintable() else (text, cursor)


def _without_word(text: str, cursor: int) -> tuple[str, int]:
    start = len(text[:cursor].rstrip().rpartition(" ")[0])
    return text[:start] + text[cursor:], start


def _without_letter(text: str, cursor: int) -> tuple[str, int]:
    start = max(cursor - 1, 0)
    return text[:start] + text[cursor:], start


_EDITS: Final[Mapping[str, Callable[[str, int], tuple[str, int]]]] = {
    "\x7f": _without_letter,
    "\x08": _without_letter,
    "\x17": _without_word,  # Ctrl-W
    "\x15": lambda text, cursor: (text[cursor:], 0),  # Ctrl-U
    "\x0b": lambda text, cursor: (text[:cursor], cursor),  # Ctrl-K
    "\x01": lambda text, _: (text, 0),  # Ctrl-A and Home
    "\x1b[H": lambda text, _: (text, 0),
    "\x05": lambda text, _: (text, len(text)),  # Ctrl-E and End
    "\x1b[F": lambda text, _: (text, len(text)),
    "\x1b[D": lambda text, cursor: (text, max(cursor - 1, 0)),
    "\x1b[C": lambda text, cursor: (text, min(cursor + 1, len(text))),
}
