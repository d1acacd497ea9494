"""Measure the minimum cost of durability: a loop on Temporal whose model and tool only answer, in the same process.

`python -m bench.floor` serves the hand-written loop (*floor*), and the same loop with an approval, in Temporal's
sandbox, which is the SDK's default. `python -m bench.floor bench-floor-bare` serves them outside the sandbox. `app`
gives Loom the same model, so that both can be compared without HTTP and without an SDK, whose cost would hide the
difference.
"""

import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

with workflow.unsafe.imports_passed_through():
    from bench.shape import ASKED, Shape
    from loom import LoomApp, Message, ModelAnswer, ModelCall, ToolCall, Usage

QUEUE: Final = "bench-floor"
BARE_QUEUE: Final = "bench-floor-bare"
RUNNERS: Final = {QUEUE: SandboxedWorkflowRunner, BARE_QUEUE: UnsandboxedWorkflowRunner}
"""The task queues of the floor, and how its workflows run on them."""
_CALL: Final = re.compile(r"c(\d+)-\d+")
_STATUS: Final = SearchAttributeKey.for_keyword("LoomStatus")


class Immediate:
    """A model that calls a tool in each turn, and then answers."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[int, int]] = {}
        """Each run's last turn, and the number of messages that it was asked with."""

    async def answer(self, call: ModelCall, on_delta: Callable[[str], None]) -> ModelAnswer:
        """Answer at once. A request without tools asks for the summary of a long conversation."""
        run_id = "" if call.origin is None else call.origin.run_id
        turn, shape = self._turn(run_id, call.messages), Shape.of(_task(call.messages))
        number = shape.calls_in(turn) if call.tools else 0
        calls = tuple(
            ToolCall(id=f"c{turn}-{n}", name=shape.tool, arguments={"path": shape.file}) for n in range(number)
        )
        if calls:
            self._asked[run_id] = (turn, len(call.messages))
        text = shape.text_in(turn) if calls else "finished"
        if text:
            on_delta(text)
        message = Message(role="assistant", content=text, tool_calls=calls)
        usage = Usage(input_tokens=call.expected_prompt, output_tokens=10, model_calls=1)
        return ModelAnswer(message=message, stop="tools" if calls else "end", usage=usage)

    def _turn(self, run_id: str, messages: Sequence[Message]) -> int:
        """Return the number of the turn, which follows from the last call. A compressed conversation may lack it. A
        second attempt at a turn has the same messages.
        """
        last = next((message.tool_calls[0].id for message in reversed(messages) if message.tool_calls), None)
        if last is not None and (found := _CALL.fullmatch(last)) is not None:
            return int(found[1]) + 1
        turn, asked_with = self._asked.get(run_id, (-1, 0))
        return turn if asked_with == len(messages) else turn + 1


def _task(messages: Sequence[Message]) -> str:
    """Return the message that asks for turns. In a compressed conversation, it isn't the first one."""
    return next(message.text for message in messages if message.role == "user" and ASKED.search(message.text))


app = LoomApp()
app.register_provider("immediate", Immediate())


@app.tool(effect="read")
async def look_up(path: str) -> str:
    """Read a file. The tool isn't declared quick, so each call is an activity."""
    return await asyncio.to_thread((Path(os.environ["LOOM_WORKSPACE"]) / path).read_text)


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
        ids = [f"c{turn}-{number}" for number in range(Shape.of(kept[0]["content"]).calls_in(turn))]
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
            reply = await _model(new)
            if not reply["tool_calls"]:
                return str(reply["content"])
            outputs = await asyncio.gather(*(_tool(workspace) for _ in reply["tool_calls"]))
            new = [{"role": "tool", "content": output} for output in outputs]


@workflow.defn
class FloorWaiting:
    """Calls the model, waits for an approval, and then calls a tool and the model once more."""

    def __init__(self) -> None:
        self._is_approved = False

    @workflow.run
    async def run(self, task: str, workspace: str) -> str:
        """Run the three steps and return the answer. While it waits, the run can be found by its status."""
        await _model([{"role": "user", "content": task}])
        workflow.upsert_search_attributes([_STATUS.value_set("waiting_for_approval")])
        await workflow.wait_condition(lambda: self._is_approved)
        reply = await _model([{"role": "tool", "content": await _tool(workspace)}])
        return str(reply["content"])

    @workflow.signal
    def approve(self, _call: dict[str, Any]) -> None:
        """Let the run go on."""
        self._is_approved = True


async def _model(new: list[dict[str, Any]]) -> dict[str, Any]:
    return await workflow.execute_activity_method(
        FloorActivities.floor_model,
        Ask(run_id=workflow.info().workflow_id, new=new),
        start_to_close_timeout=timedelta(minutes=5),
    )


async def _tool(workspace: str) -> str:
    return await workflow.execute_activity_method(
        FloorActivities.floor_tool, args=[workspace, "data.txt"], start_to_close_timeout=timedelta(minutes=5)
    )


async def main(queue: str) -> None:
    """Run the worker until it is killed."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], data_converter=pydantic_data_converter)
    served = FloorActivities()
    await Worker(
        client,
        task_queue=queue,
        workflows=[FloorLoop, FloorWaiting],
        activities=[served.floor_model, served.floor_tool],
        workflow_runner=RUNNERS[queue](),
    ).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or [QUEUE]))
