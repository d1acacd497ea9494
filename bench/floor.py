"""Measure the minimum cost of durability: a loop on Temporal whose model and tool only answer, in the same process.

`python -m bench.floor` serves the hand-written loop (*floor*). `app` gives Loom the same model, so that both can be
compared without HTTP and without an SDK, whose cost would hide the difference.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bench.shape import calls_in
    from loom import LoomApp, Message, ModelAnswer, ModelCall, ToolCall, Usage

QUEUE: Final = "bench-floor"


class Immediate:
    """A model that calls `read_file` in each turn, and then answers."""

    async def answer(self, call: ModelCall, on_delta: Callable[[str], None]) -> ModelAnswer:
        """Answer at once."""
        said = [message for message in call.messages if message.role == "assistant"]
        task = next(message.text for message in call.messages if message.role == "user")
        calls = tuple(
            ToolCall(id=f"c{len(said)}-{n}", name="read_file", arguments={"path": "data.txt"})
            for n in range(calls_in(task, len(said)))
        )
        text = "" if calls else "finished"
        if text:
            on_delta(text)
        message = Message(role="assistant", content=text, tool_calls=calls)
        usage = Usage(input_tokens=100, output_tokens=10, model_calls=1)
        return ModelAnswer(message=message, stop="tools" if calls else "end", usage=usage)


app = LoomApp()
app.register_provider("immediate", Immediate())


@dataclass
class Ask:
    """The input of a model call: the messages that are new."""

    run_id: str
    new: list[dict[str, Any]]


class FloorActivities:
    """The model activity and the tool activity."""

    def __init__(self) -> None:
        self._kept: dict[str, list[dict[str, Any]]] = {}

    @activity.defn
    async def floor_model(self, ask: Ask) -> dict[str, Any]:
        """Answer at once."""
        kept = self._kept.setdefault(ask.run_id, [])
        kept.extend(ask.new)
        turn = sum(message["role"] == "assistant" for message in kept)
        ids = [f"c{turn}-{number}" for number in range(calls_in(kept[0]["content"], turn))]
        message = {"role": "assistant", "content": "" if ids else "finished", "tool_calls": ids}
        kept.append(message)
        return message

    @activity.defn
    async def floor_tool(self, workspace: str, path: str) -> str:
        """Read a file."""
        return await asyncio.to_thread((Path(workspace) / path).read_text)


@workflow.defn
class FloorLoop:
    """Calls the model and its tools in turn until there is an answer."""

    @workflow.run
    async def run(self, task: str, workspace: str) -> str:
        """Run the loop and return the answer."""
        new: list[dict[str, Any]] = [{"role": "user", "content": task}]
        while True:
            reply = await workflow.execute_activity_method(
                FloorActivities.floor_model,
                Ask(run_id=workflow.info().workflow_id, new=new),
                start_to_close_timeout=timedelta(minutes=5),
            )
            if not reply["tool_calls"]:
                return str(reply["content"])
            outputs = await asyncio.gather(*(self._read(workspace) for _ in reply["tool_calls"]))
            new = [{"role": "tool", "content": output} for output in outputs]

    async def _read(self, workspace: str) -> str:
        return await workflow.execute_activity_method(
            FloorActivities.floor_tool, args=[workspace, "data.txt"], start_to_close_timeout=timedelta(minutes=5)
        )


async def main() -> None:
    """Run the worker until it is killed."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], data_converter=pydantic_data_converter)
    served = FloorActivities()
    await Worker(
        client, task_queue=QUEUE, workflows=[FloorLoop], activities=[served.floor_model, served.floor_tool]
    ).run()


if __name__ == "__main__":
    asyncio.run(main())
