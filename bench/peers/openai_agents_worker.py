"""Serve an agent of the OpenAI Agents SDK with its Temporal plugin, set up as its documentation shows.

The model answers at once in this process, as in `bench.floor`. The module runs in the peers' environment
(`requirements.txt`), which doesn't contain Loom.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelProvider, ModelResponse, Runner, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.openai_agents import OpenAIAgentsPlugin
from temporalio.openai_agents.workflow import activity_as_tool
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bench.shape import Shape


class Immediate(Model, ModelProvider):
    """A model that calls `read_file` in each turn, and then answers."""

    def get_model(self, model_name: str | None) -> Model:
        """Return the only model."""
        return self

    async def get_response(self, *_: Any, **call: Any) -> ModelResponse:
        """Answer at once."""
        task, *rest = call["input"]
        turn = len({item["call_id"].split("-")[0] for item in rest if item.get("type") == "function_call"})
        shape, arguments = Shape.of(task["content"]), '{{"path": "{}"}}'
        output: list[Any] = [
            ResponseFunctionToolCall(
                type="function_call", call_id=f"c{turn}-{n}", name="read_file", arguments=arguments.format(shape.file)
            )
            for n in range(shape.calls_in(turn))
        ]
        if text := shape.text_in(turn) if output else "finished":
            said = ResponseOutputText(type="output_text", text=text, annotations=[])
            message = ResponseOutputMessage(
                id=f"m{turn}", type="message", role="assistant", status="completed", content=[said]
            )
            output = [message, *output]
        usage = Usage(requests=1, input_tokens=100, output_tokens=10, total_tokens=110)
        return ModelResponse(output=output, usage=usage, response_id=None)

    def stream_response(self, *_: Any, **call: Any) -> AsyncIterator[Any]:
        """Refuse to stream: the run doesn't ask for it."""
        raise NotImplementedError


@activity.defn
async def read_file(path: str) -> str:
    """Read a file."""
    return await asyncio.to_thread((Path(os.environ["LOOM_WORKSPACE"]) / path).read_text)


@workflow.defn(name="PeerLoop")
class PeerLoop:
    """Runs the agent."""

    @workflow.run
    async def run(self, task: str) -> str:
        """Run the agent and return its answer."""
        read = activity_as_tool(read_file, start_to_close_timeout=timedelta(minutes=5))
        result = await Runner.run(Agent(name="bench", tools=[read]), task, max_turns=None)
        return str(result.final_output)


async def main(queue: str) -> None:
    """Run the worker until it is killed. Tracing is off, since it would send spans to OpenAI."""
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    plugin = OpenAIAgentsPlugin(model_provider=Immediate())
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], plugins=[plugin])
    await Worker(client, task_queue=queue, workflows=[PeerLoop], activities=[read_file]).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
