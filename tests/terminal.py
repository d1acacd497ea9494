"""A terminal for the real command: its bytes go through an emulator, and the test or the reader sees its cells."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pyte
from pyte.screens import Char

_ATTACHED = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell lets commands in the background ignore it
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Makes its terminal the one that controls its session, and becomes the program."""


class Screen(pyte.HistoryScreen):
    """The emulator's screen. It doesn't know dim text, so blinking cells stand for it: Loom writes none."""

    def select_graphic_rendition(self, *attrs: int, **options: Any) -> None:
        """See base class."""
        codes = {2: (5,), 22: (22, 25)}
        super().select_graphic_rendition(*(code for each in attrs for code in codes.get(each, (each,))), **options)


@dataclass
class Terminal:
    """One program in a terminal of a fixed size."""

    process: subprocess.Popen[bytes]
    fd: int
    screen: Screen
    received: bytearray = field(default_factory=bytearray)
    """All bytes that the program has written."""
    code: int | None = None
    """The exit code, once the program has ended and everything that it has written was read."""

    def __post_init__(self) -> None:
        self._stream = pyte.ByteStream(self.screen)

    @property
    def lines(self) -> list[str]:
        """The visible lines, without trailing spaces."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """The visible text."""
        return "\n".join(self.lines).rstrip()

    @property
    def rows(self) -> list[list[Char]]:
        """The visible cells."""
        return [[self.screen.buffer[y][x] for x in range(self.screen.columns)] for y in range(self.screen.lines)]

    def until(self, words: str | Callable[[], bool], within: float = 60.0) -> None:
        """Read until these words are visible, or until this holds."""
        seen: Callable[[], bool] = (lambda: words in self.text) if isinstance(words, str) else words
        deadline = monotonic() + within
        while not seen():
            assert monotonic() < deadline, f"no {words!r} in:\n{self.text}"
            assert self._read() or seen(), f"it ended with {self.code} before {words!r}:\n{self.text}"

    def ended(self, within: float = 60.0) -> int:
        """Read until the program ends, and return its exit code."""
        deadline = monotonic() + within
        while self._read():
            assert monotonic() < deadline, f"it goes on:\n{self.text}"
        assert self.code is not None
        return self.code

    def press(self, keys: str) -> None:
        """Type these keys."""
        os.write(self.fd, keys.encode())

    def _read(self) -> bool:
        """Read once. Return False once the program has ended."""
        if not select.select([self.fd], [], [], 0.2)[0]:
            return self.code is None
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the program has closed its end
            data = b""
        if not data:
            self.code = self.process.wait()
            return False
        self.received += data
        self._stream.feed(data)
        return True

    def close(self) -> None:
        """End the program if it goes on."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.fd)


@contextmanager
def terminal(
    command: Sequence[str], env: Mapping[str, str], *, columns: int = 80, rows: int = 24, folder: str | None = None
) -> Iterator[Terminal]:
    """Run a program in a terminal of this size until the `with` block ends."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _ATTACHED, *command],
        env={
            "TERM": "xterm-256color",
            **{name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")},
        },
        cwd=folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    opened = Terminal(process=process, fd=master, screen=Screen(columns, rows, history=2000))
    try:
        yield opened
    finally:
        opened.close()
