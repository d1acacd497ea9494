"""Hand notifications to a command of the operator's."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from loom.domain.core.errors import NotDeliveredError

TIME_LIMIT: Final = 20.0
"""Seconds that the command may take."""


class Command:
    """Implements `Receiver`. The command reads the message from its standard input. No shell takes part."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments

    async def send(self, message_id: str, body: bytes) -> None:
        """See the port. A command that fails or takes too long is tried again."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise NotDeliveredError(f"the command can't be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(TIME_LIMIT):
                await process.communicate(body)
        except TimeoutError:
            raise NotDeliveredError(f"the command took longer than {TIME_LIMIT:.0f} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            raise NotDeliveredError(f"the command exited with code {process.returncode}")
