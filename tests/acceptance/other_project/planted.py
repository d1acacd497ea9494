"""Calls with planted mistakes, which a type checker has to find, one a line."""

from client import Report

from loom import LoomClient


async def mistakes(loom: LoomClient) -> None:
    """Make them."""
    await loom.start("t", modle="demo")  # wrong
    await loom.start("t", max_turns="many")  # wrong
    await loom.start("t", budget={"dollars": 1})  # wrong
    await loom.fork("run", turn=1, agent="other")  # wrong
    result = await loom.result("run", output=Report)
    print(result.structured_output.amount)  # wrong
