"""Programs whose time runs out, on a machine that may need most of it to start them."""

from collections.abc import Awaitable, Callable

import pytest

from loom.domain.core.errors import ToolExecutionTimeout


async def said_when_stopped(work: Callable[[float], Awaitable[object]]) -> str:
    """What is said when the time of a program runs out that says "begun" and goes on for good.

    It gets more time until it has begun, so that a pause of the machine is not taken for the program's own.
    """
    seconds = 0.5
    while True:
        with pytest.raises(ToolExecutionTimeout) as raised:
            await work(seconds)
        assert f"stopped after {seconds:g} s" in raised.value.message
        if "begun" in raised.value.message:
            return raised.value.message
        seconds *= 2
        assert seconds < 60, raised.value.message
