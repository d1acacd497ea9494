"""Serve an agent of Pydantic AI with its Temporal integration, set up as its documentation shows.

The model answers at once in this process, as in `bench.floor`. The module runs in the peers' environment
(`requirements.txt`), which doesn't contain Loom.
"""

import asyncio
import os
import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bench.shape import Shape


async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Call the tool in each turn, and then answer, at once."""
    task = next(str(part.content) for part in messages[0].parts if isinstance(part, UserPromptPart))
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    shape = Shape.of(task)
    calls = [
        ToolCallPart("read_file", {"path": shape.file}, tool_call_id=f"c{turn}-{n}")
        for n in range(shape.calls_in(turn))
    ]
    text = shape.text_in(turn) if calls else "finished"
    usage = RequestUsage(input_tokens=100, output_tokens=10)
    return ModelResponse(parts=[*([TextPart(text)] if text else ()), *calls], usage=usage)


agent = Agent(FunctionModel(answer), name="bench", capabilities=[TemporalDurability()])


@agent.tool_plain
async def read_file(path: str) -> str:
    """Read a file."""
    return await asyncio.to_thread((Path(os.environ["LOOM_WORKSPACE"]) / path).read_text)


@workflow.defn(name="PeerLoop")
class PeerLoop(PydanticAIWorkflow):
    """Runs the agent."""

    __pydantic_ai_agents__ = (agent,)

    @workflow.run
    async def run(self, task: str) -> str:
        """Run the agent and return its answer."""
        result = await agent.run(task, usage_limits=UsageLimits(request_limit=None))
        return result.output


async def main(queue: str) -> None:
    """Run the worker until it is killed."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], plugins=[PydanticAIPlugin()])
    await Worker(client, task_queue=queue, workflows=[PeerLoop]).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
