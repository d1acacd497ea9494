"""Measure how much one tenant's 500 queued runs slow down a single run of another tenant.

`python -m bench.tenants` prints the figures. With `--write`, replace them in docs/tenants.md.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final
from uuid import uuid4

from temporalio.client import Client
from temporalio.common import Priority

from bench.report import put, spread, table
from bench.stage import QUEUE, stage

DOC: Final = Path(__file__).parent.parent / "docs" / "tenants.md"
MARKS: Final = ("<!-- noisy tenant: begin -->", "<!-- noisy tenant: end -->")
TURNS: Final = 5
"""Turns of each run. Each turn takes a second in the model, and a tool call."""
REPEATS: Final = 5
SITUATIONS: Final = {
    "500 queued runs of another tenant, 4 at a time": '{"default": {"runs": 4}}',
    "500 queued runs of another tenant, without a limit": "{}",
}
"""The tenants' limits in each situation."""


async def measure(queued: int, situation: str) -> list[str]:
    """Return one row: the time of a run alone, the time of the same run beside the queued runs, and the ratio."""
    with stage() as ready:
        ready.env["LOOM_TENANTS"] = SITUATIONS[situation]
        ready.start_worker("loom", "worker")
        client = await Client.connect(ready.env["TEMPORAL_ADDRESS"])
        await _run(client, "quiet")  # warm-up
        alone = [await _run(client, "quiet") for _ in range(REPEATS)]
        await asyncio.gather(*(_start(client, "noisy") for _ in range(queued)))
        while await _count(client, "WorkflowType = 'AgentRun' AND LoomStatus IS NULL"):  # not prepared yet
            await asyncio.sleep(0.5)
        beside = [await _run(client, "quiet") for _ in range(REPEATS)]
        left = await _count(client, "WorkflowType = 'AgentRun' AND ExecutionStatus = 'Running'")
    ratio = median(beside) / median(alone)
    return [situation, spread(alone, "s"), spread(beside, "s"), f"{ratio:.2f}", str(left)]


async def _run(client: Client, tenant: str) -> float:
    begun = perf_counter()
    run_id = await _start(client, tenant)
    await client.get_workflow_handle(run_id).result()
    return perf_counter() - begun


async def _start(client: Client, tenant: str) -> str:
    handle = await client.start_workflow(
        "AgentRun",
        {"task": f"paced={TURNS}", "tenant": tenant},
        id=f"bench-{uuid4().hex[:12]}",
        task_queue=QUEUE,
        priority=Priority(fairness_key=tenant),  # as LoomClient does
    )
    return handle.id


async def _count(client: Client, query: str) -> int:
    return (await client.count_workflows(query)).count


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=500, help="number of runs of the other tenant")
    parser.add_argument("--write", action="store_true", help=f"replace the figures in {DOC.name}")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started
    rows = [asyncio.run(measure(given.queued, situation)) for situation in SITUATIONS]
    section = table(["", "alone", "beside them", "ratio", "runs left at the end"], rows)
    sys.stdout.write(section + "\n")
    if given.write:
        put(DOC, MARKS, section)


if __name__ == "__main__":
    main()
