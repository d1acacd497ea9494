"""An app whose tool takes a second."""

import asyncio

from loom import LoomApp

app = LoomApp()


@app.tool(effect="read")
async def find_order(number: int) -> str:
    """Find an order."""
    await asyncio.sleep(1)
    return f"order {number}: paid"
