"""A Loom worker with tools that wait for a test, and one that dies at the worst moment: `… [--die-after-the-end]`.

`look` (read) and `store` (idempotent) write the key of their call into `keys.txt` of the workspace, then wait there
for a file of their own name, and return what is in it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from loom import LoomApp, LoomPlugin
from loom.activities.ports import EventStream, Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.composition.load_settings import load_settings
from loom.composition.logs import configure_logs
from loom.composition.temporal_connection import connected
from loom.composition.worker_parts import WorkerParts
from loom.domain.core.tasks import FINAL_ACTIONS, Segment, Task
from loom.domain.core.tool_calls import Effect


class Nothing(Arguments):
    """No arguments."""


def patient(name: str, effect: Effect) -> Tool:
    """A tool that a test can hold on to."""

    async def run(_: Nothing, context: ToolContext) -> str:
        with (context.workspace / "keys.txt").open("a") as keys:
            keys.write(f"{name} {context.idempotency_key}\n")
        answer = context.workspace / name
        while not answer.exists():
            await asyncio.sleep(0.02)
        return answer.read_text()

    spec = tool_spec(name, "Wait for an answer.", Nothing, effect=effect)
    return FunctionTool(spec=spec, arguments=Nothing, function=run)


@dataclass(frozen=True)
class Deadly:
    """A stream that takes its worker with it once the last event of a run is written."""

    stream: EventStream

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """Write, then die if that was the end."""
        written = await self.stream.publish(tasks, segment)
        if any(task.action in FINAL_ACTIONS for task in tasks):
            os.kill(os.getpid(), signal.SIGKILL)
        return written


class Mortal(LoomPlugin):
    """Loom with that stream."""

    def parts_for(self, client: Client) -> WorkerParts:
        """The usual parts, but for the stream."""
        parts = super().parts_for(client)
        return replace(parts, stream=Deadly(parts.stream))


async def main() -> None:
    """Work until killed."""
    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format)
    app = LoomApp()
    app.register_tool(patient("look", Effect.READ))
    app.register_tool(patient("store", Effect.IDEMPOTENT))
    plugin = Mortal(settings, app=app) if "--die-after-the-end" in sys.argv else LoomPlugin(settings, app=app)
    async with connected(settings) as client, Worker(client, task_queue=settings.task_queue, plugins=[plugin]):
        structlog.get_logger("loom.worker").info("worker_ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
