"""Convert PDF and HTML documents to text. Each document is converted in a separate process, because a malicious
document can consume unlimited memory or time.
"""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Final

from loom.activities.adapters.documents.pdf_child import ENCRYPTED
from loom.activities.adapters.web.html_reader import SeparateHtmlReader
from loom.activities.knowledge.ports import UnreadableDocument, UnreadableNow
from loom.domain.core.errors import ToolExecutionError

SECONDS: Final = 60.0
"""Timeout in seconds for one document."""

_CHILD: Final = Path(__file__).with_name("pdf_child.py")
_REASONS: Final = {ENCRYPTED: "needs a password"}


class SeparateDocumentReader:
    """A `DocumentReader` that reads each document in a separate Python process with limited resources."""

    def __init__(self) -> None:
        self._html = SeparateHtmlReader()

    async def pdf(self, data: bytes) -> str:
        """See the port."""
        process = await _started()
        try:
            async with asyncio.timeout(SECONDS):
                text, _ = await process.communicate(data)
        except TimeoutError:
            raise UnreadableNow("takes too long to read") from None
        finally:
            await _end(process)
        if process.returncode != 0:
            raise UnreadableDocument(_REASONS.get(process.returncode or 0, "is damaged or too large to read"))
        if not text.strip():
            raise UnreadableDocument("contains no text, perhaps only images")
        return text.decode("utf-8", "replace")

    async def html(self, text: str) -> str:
        """See the port."""
        try:
            return (await self._html.read(text, "")).markdown
        except ToolExecutionError:
            raise UnreadableDocument("takes too much time or memory to read") from None


async def _started() -> Process:
    command = (sys.executable, "-I", str(_CHILD))
    try:
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/", env={})
    except OSError as error:
        raise UnreadableNow(f"cannot be read now: no process could be started ({error.strerror})") from None


async def _end(process: Process) -> None:
    """Kill and reap the process, even if the task is canceled a second time."""
    if process.returncode is None:
        process.kill()
    await asyncio.shield(asyncio.ensure_future(process.wait()))
