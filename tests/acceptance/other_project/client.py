"""The project's client: `python client.py typed` starts a run, `python client.py nightly` the project's workflow."""

import asyncio
import sys
from dataclasses import dataclass

from workflows.nightly import Nightly

from loom import LoomClient, load_settings


@dataclass(frozen=True)
class Report:
    """The answer that the project wants."""

    mark: str


async def typed() -> str:
    """Start a run and return a field of its typed answer."""
    async with LoomClient.connected() as loom:
        run_id = await loom.start(
            "Where is the book?", output=Report, permissions={"shelf_mark": "allow"}, budget={"turns": 9}
        )
        result = await loom.result(run_id, output=Report)
        report: Report | None = result.structured_output
        return report.mark if report is not None else f"no answer: {result.status}"


async def nightly() -> str:
    """Run the project's own workflow."""
    settings = load_settings()
    async with LoomClient.connected(settings) as loom:
        note = await loom.temporal.execute_workflow(
            Nightly.run, "Where is the book?", id=sys.argv[2], task_queue=settings.task_queue
        )
        return f"{note.text} on {note.shelf}"


if __name__ == "__main__":
    print(asyncio.run(nightly() if sys.argv[1] == "nightly" else typed()))
