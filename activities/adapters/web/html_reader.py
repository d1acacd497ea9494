"""Convert HTML to Markdown in a separate process, because a malicious page can consume unlimited memory or time.

A 2 MB table can expand to 200 MB of Markdown, and a native parser can crash its process.
"""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Final

from loom.activities.toolbox.built_in.http_fetch import Page
from loom.domain.core.errors import ToolExecutionError

SECONDS: Final = 12.0
"""Timeout in seconds for one page. The process's own processor time limit is lower."""

_AT_ONCE: Final = 2
"""Maximum number of pages to convert concurrently. Each page may use a gigabyte of memory."""

_CHILD: Final = Path(__file__).with_name("html_child.py")


class SeparateHtmlReader:
    """Converts each page in a new Python process with resource limits."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def read(self, html: str, base: str) -> Page:
        """Return the page without navigation and scripts. Links are resolved against `base`."""
        request = json.dumps({"html": html, "base": base}).encode()
        async with self._room:
            found = json.loads(await _converted(request))
        return Page(markdown=found["markdown"], title=found["title"])


async def _converted(request: bytes) -> bytes:
    process = await _started()
    try:
        async with asyncio.timeout(SECONDS):
            answer, _ = await process.communicate(request)
    except TimeoutError:
        raise _too_much() from None
    finally:
        await _end(process)
    if process.returncode != 0:
        raise _too_much()
    return answer


async def _started() -> Process:
    command = (sys.executable, "-I", str(_CHILD))
    try:
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/", env={})
    except OSError as error:
        raise ToolExecutionError(
            f"no process could be started to read the page ({error.strerror}): call again with `raw` true, or later"
        ) from None


async def _end(process: Process) -> None:
    """Kill and reap the process, even if the task is canceled a second time."""
    if process.returncode is None:
        process.kill()
    await asyncio.shield(asyncio.ensure_future(process.wait()))


def _too_much() -> ToolExecutionError:
    return ToolExecutionError(
        "the page takes too much time or memory to convert to Markdown: call again with `raw` true, "
        "and `max_characters` to keep it short"
    )
