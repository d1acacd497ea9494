"""A minimal, hand-written agent loop on Temporal, used as a reference for Loom's time per turn.

The loop has one workflow, a model activity and a tool activity. It has no approvals, stream, budget or recovery.
There are two ways to keep the conversation. `lean` sends only new messages and keeps the rest in the worker's memory,
where it is lost if the worker dies. `whole` sends the full list of messages in each turn, as most such loops do.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

with workflow.unsafe.imports_passed_through():
    from openai import AsyncOpenAI

QUEUE = "bench-minimal"
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


@dataclass
class Ask:
    """The input of a model call."""

    run_id: str
    messages: list[dict[str, Any]]
    whole: bool


class MinimalActivities:
    """The model activity and the tool activity."""

    def __init__(self, base_url: str) -> None:
        self._client = AsyncOpenAI(api_key="sk-bench", base_url=base_url, max_retries=0)
        self._kept: dict[str, list[dict[str, Any]]] = {}

    @activity.defn
    async def minimal_model(self, ask: Ask) -> dict[str, Any]:
        """Call the model with streaming and return the assistant's message."""
        kept: Any = ask.messages if ask.whole else self._kept.setdefault(ask.run_id, [])
        if not ask.whole:
            kept.extend(ask.messages)
        stream = await self._client.chat.completions.create(
            model="scripted", messages=kept, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        text = ""
        calls: dict[int, dict[str, str]] = {}
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for part in choice.delta.tool_calls or ():
                    call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                    call["id"] += part.id or ""
                    if part.function:
                        call["name"] += part.function.name or ""
                        call["arguments"] += part.function.arguments or ""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                for c in calls.values()
            ]
        if not ask.whole:
            kept.append(message)
        return message

    @activity.defn
    async def minimal_tool(self, workspace: str, arguments: str) -> str:
        """Read a file."""
        import json  # noqa: PLC0415

        return await asyncio.to_thread((Path(workspace) / json.loads(arguments)["path"]).read_text)


@workflow.defn
class MinimalLoop:
    """Calls the model and its tools in turn until there is an answer."""

    @workflow.run
    async def run(self, task: str, workspace: str, whole: bool) -> str:
        """Run the loop and return the answer."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
        new = list(messages)
        while True:
            ask = Ask(run_id=workflow.info().workflow_id, messages=messages if whole else new, whole=whole)
            reply = await workflow.execute_activity_method(
                MinimalActivities.minimal_model, ask, start_to_close_timeout=timedelta(minutes=5)
            )
            messages.append(reply)
            new = []
            if not reply.get("tool_calls"):
                return str(reply["content"])
            for call in reply["tool_calls"]:
                output = await workflow.execute_activity_method(
                    MinimalActivities.minimal_tool,
                    args=[workspace, call["function"]["arguments"]],
                    start_to_close_timeout=timedelta(minutes=5),
                )
                new.append({"role": "tool", "tool_call_id": call["id"], "content": output})
            messages.extend(new)


async def main() -> None:
    """Run the worker until it is killed."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], data_converter=pydantic_data_converter)
    activities = MinimalActivities(sys.argv[1])
    runner = SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules("openai", "bench", "pydantic")
    )
    await Worker(
        client,
        task_queue=QUEUE,
        workflows=[MinimalLoop],
        activities=[activities.minimal_model, activities.minimal_tool],
        workflow_runner=runner,
    ).run()


if __name__ == "__main__":
    asyncio.run(main())
