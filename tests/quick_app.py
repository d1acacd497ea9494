"""An app with tools that are declared quick, but take long or kill their worker."""

import asyncio
import os
import signal
from pathlib import Path

from loom import LoomApp, ToolContext

app = LoomApp()


@app.tool(effect="read", quick=True)
async def look(context: ToolContext, seconds: float, always: bool = False) -> str:
    """Take so many seconds, the first time or always."""
    if _is_first(context) or always:
        await asyncio.sleep(seconds)
    return "seen"


@app.tool(effect="read", quick=True)
async def kill(context: ToolContext) -> str:
    """Kill the worker, but only the first time."""
    if _is_first(context):
        os.kill(os.getpid(), signal.SIGKILL)
    return "seen"


def _is_first(context: ToolContext) -> bool:
    mark = Path(context.workspace) / "looked"
    is_first = not mark.exists()
    mark.touch()
    return is_first
