"""An app with a node and with tools that fail or kill their worker, for stories of the corpus."""

import os
import signal
from pathlib import Path

from loom import LoomApp, ToolContext

app = LoomApp()


@app.tool(effect="idempotent")
async def flaky(context: ToolContext) -> str:
    """Fail the first time."""
    if _is_first(context, "flaky"):
        raise ConnectionError("the line was cut")
    return "came through"


@app.tool(effect="once")
async def pay(context: ToolContext) -> str:
    """Kill the worker in the middle, but only the first time."""
    if _is_first(context, "paid"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


@app.node(effect="idempotent", attempts=5)
def shaky(message: object) -> str:
    """Fail more often than a model call may."""
    _COUNT.append("x")
    if len(_COUNT) < 4:
        raise ConnectionError("the line was cut")
    return "came through"


_COUNT: list[str] = []


def _is_first(context: ToolContext, name: str) -> bool:
    mark = Path(context.workspace) / name
    is_first = not mark.exists()
    mark.touch()
    return is_first
