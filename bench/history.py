"""Measure how much history a turn adds, as counted by the server."""

from temporalio.client import Client

from bench.report import table
from bench.stage import QUEUE as LOOM_QUEUE
from bench.stage import Stage
from bench.targets import Section, Target
from loom.client import LoomClient

TURNS = (5, 50, 200)
ROTATED = 700
"""Number of turns in a run that continues as new once."""


async def history_cost(stage: Stage) -> Section:
    """Measure the events and bytes of runs with 5, 50 and 200 turns. Each turn has a tool result of 2 KB."""
    stage.needs_worker("loom", "worker")
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    rows, sizes = [], {}
    for turns in TURNS:
        run_id = f"bench-history-{turns}"
        handle = await client.start_workflow(
            "AgentRun", {"task": f"turns={turns}", "max_turns": 1000}, id=run_id, task_queue=LOOM_QUEUE
        )
        await handle.result()
        info = (await handle.describe()).raw_description.workflow_execution_info
        sizes[turns] = info.history_size_bytes
        rows.append([turns, info.history_length, f"{info.history_length / turns:.1f}", info.history_size_bytes])
    content = await _content_bytes(stage)
    per_turn = (sizes[200] - sizes[50]) / 150
    head = ["turns", "events", "events per turn", "bytes"]
    text = (
        "## History per turn\n\n"
        f"Each turn has one `read_file` call with a result of {content} characters.\n"
        "The figures don't include rotation (continue-as-new), which starts at 4,000 events.\n\n"
        + table(head, rows)
        + f"\n\n(bytes(200) − bytes(50)) / 150 = **{per_turn:.0f} bytes per turn**. This is the content once,"
        f" and **{per_turn - content:.0f} bytes** of overhead.\n\n"
        f"Rotation was measured separately. {await _rotation(client)}"
    )
    most = Target(what="history per turn besides its content", measured=per_turn - content, at_most=2000, unit=" bytes")
    return Section(text, (most,))


async def _rotation(client: Client) -> str:
    """Measure the cost of transferring the state to a new history."""
    handle = await client.start_workflow(
        "AgentRun",
        {"task": f"turns={ROTATED}", "max_turns": 1000},
        id=f"bench-history-{ROTATED}",
        task_queue=LOOM_QUEUE,
    )
    await handle.result()
    first = (await handle.fetch_history()).events[0]
    carried = first.workflow_execution_started_event_attributes
    assert carried.continued_execution_run_id, "the run did not rotate"
    out_of_line = sum(size.size_bytes for payload in carried.input.payloads for size in payload.external_payloads)
    return (
        f"A run of {ROTATED} turns continued as new once.\nIts state was written as a first event of"
        f" {first.ByteSize()} bytes, and as {out_of_line} bytes in Postgres."
    )


async def _content_bytes(stage: Stage) -> int:
    async with LoomClient.connected(stage.settings()) as loom:
        turns = await loom.turns("bench-history-5")
    results = [attempt.result for turn in turns for attempt in turn.tools]
    return max(len(result.content) for result in results if result is not None)
