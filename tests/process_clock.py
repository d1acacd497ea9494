"""The clock of one running process, which a test sets while the machine's clock stays right (Linux on x86-64)."""

import re
import struct
from pathlib import Path
from typing import Final

_GETTIME: Final = b"__vdso_clock_gettime"
_BODY: Final = bytes.fromhex(
    "57 56"  # push rdi, rsi: which clock, and where its time goes
    "b8 e4000000 0f05"  # call the kernel's clock_gettime
    "5e 5f"
    "85c0 7511"  # on an error, or for any other than the wall clock, return
    "85ff 750d"
    "48ba 0000000000000000"  # add seconds
    "480116"
    "c3"
)
_SECONDS: Final = 21
"""Where in `_BODY` the seconds are."""


class ProcessClock:
    """The wall clock of another process. Monotonic clocks go on as they do on a real machine.

    The kernel maps code into each process that reads its clocks (the vDSO). This class writes a function of its own
    behind that code, and a jump to it in front of the kernel's.
    """

    def __init__(self, pid: int) -> None:
        self._memory = Path(f"/proc/{pid}/mem")
        maps = Path(f"/proc/{pid}/maps").read_text()
        found = re.search(r"^([0-9a-f]+)-([0-9a-f]+) .*\[vdso\]$", maps, re.MULTILINE)
        assert found is not None, "the process has no vDSO"
        self._start, end = (int(each, 16) for each in found.groups())
        code = self._read(end - self._start)
        self._body = len(code.rstrip(b"\0")) + 16 & ~15
        assert self._body + len(_BODY) <= len(code), "no room behind the vDSO"
        self._function = _address_of(_GETTIME, code)
        self.set(0)
        self._write(self._function, b"\xe9" + struct.pack("<i", self._body - self._function - 5))

    def set(self, seconds: int) -> None:
        """Let the process read this many seconds more than the machine's clock says."""
        self._write(self._body, _BODY[:_SECONDS] + struct.pack("<q", seconds) + _BODY[_SECONDS + 8 :])

    def _read(self, size: int) -> bytes:
        with self._memory.open("rb") as memory:
            memory.seek(self._start)
            return memory.read(size)

    def _write(self, place: int, code: bytes) -> None:
        with self._memory.open("r+b", buffering=0) as memory:
            memory.seek(self._start + place)
            memory.write(code)


def _address_of(name: bytes, elf: bytes) -> int:
    """Return the offset of a function in a shared library (ELF64: sections 4 are dynamic symbols, 24 bytes each)."""
    (sections,) = struct.unpack_from("<Q", elf, 0x28)
    size, number = struct.unpack_from("<HH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, sections + place * size) for place in range(number)]
    symbols = next(header for header in headers if header[1] == 11)  # SHT_DYNSYM
    names = headers[symbols[6]][4]
    for place in range(symbols[4], symbols[4] + symbols[5], 24):
        at, _info, _other, _section, value, _size = struct.unpack_from("<IBBHQQ", elf, place)
        if elf[names + at : elf.index(b"\0", names + at)] == name:
            return int(value)
    raise AssertionError(f"no {name.decode()}")
