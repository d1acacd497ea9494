"""A worker returns freed memory to the system, so that a very long run doesn't make it grow."""

import platform
import subprocess
import sys
from typing import Final

import pytest

PROGRAM: Final = """
import ctypes, tempfile
from concurrent.futures import ThreadPoolExecutor
from loom._worker import _return_freed_memory

libc = ctypes.CDLL(None)
libc.fdopen.restype = libc.malloc.restype = ctypes.c_void_p
_return_freed_memory()
with ThreadPoolExecutor(8) as threads, tempfile.TemporaryFile() as told:
    list(threads.map(libc.malloc, [64] * 1000))
    stream = ctypes.c_void_p(libc.fdopen(told.fileno(), b"w"))
    libc.malloc_info(0, stream)
    libc.fflush(stream)
    told.seek(0)
    print(told.read().count(b"<heap nr"))
"""
"""Prints the number of arenas that eight threads use."""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no arenas")
def test_the_threads_of_a_worker_share_two_arenas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)

    assert int(done.stdout) in (1, 2)
