"""An agent with two tools, an approval and a crash, tested on real servers."""

import asyncio

from loom import LoomApp
from loom.testing import ToolUse, calls, text

app = LoomApp()


@app.tool(effect="read")
async def find_order(number: int) -> str:
    """Find an order."""
    await asyncio.sleep(0.05)
    return f"order {number}: paid 20 EUR"


@app.tool(effect="once")
def refund(number: int) -> str:
    """Pay an order back."""
    return f"order {number} is paid back"


async def test_a_refund_waits_for_a_person_and_survives_a_crash(loom_processes):  # type: ignore[no-untyped-def]
    script = [calls(ToolUse("find_order", {"number": 7})), calls(ToolUse("refund", {"number": 7})), text("Done.")]
    async with loom_processes(script, app=f"{__file__}:app") as (loom, _, workers):
        run_id = await loom.start("Refund order 7", permissions={"refund": "ask"})
        await loom.asked(run_id)
        await workers.restart()
        await loom.client.approve(run_id)
        run = await loom.recorded(run_id)
    run.assert_calls("find_order", "refund")
    run.assert_called("refund", {"number": 7}, times=1)
    run.assert_events("node.approval_requested", "node.approval_decided", "node.complete")
