"""An app with a tool that stops its worker's event loop once, so that Temporal takes the worker for lost."""

import time
from pathlib import Path

from loom import LoomApp, ToolContext

app = LoomApp()


@app.tool(effect="idempotent")
async def stall(context: ToolContext, seconds: float) -> str:
    """Stop everything in this process, but only the first time."""
    mark = Path(context.workspace) / "stalled"
    if not mark.exists():
        mark.touch()
        time.sleep(seconds)  # this is the fault to record
    return "done"
