"""An MCP server for tests, made with the official library: over its pipes, or with `--http PORT` over HTTP.

`--diary FILE` is where it writes down what it does, one line each; `--slow SECONDS` before it answers at all.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CreateMessageResult,
    RequestParams,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel, Field

parser = argparse.ArgumentParser()
parser.add_argument("--http", type=int)
parser.add_argument("--diary", type=Path, default=Path(os.devnull))
parser.add_argument("--slow", type=float, default=0.0)
options = parser.parse_args()

READS = ToolAnnotations(read_only_hint=True)


def note(text: str) -> None:
    """Write down what happens."""
    with options.diary.open("a") as diary:
        diary.write(text + "\n")


class TaskParams(RequestParams):
    """What a request about a task says."""

    task_id: str
    input_responses: dict[str, Any] = Field(default_factory=dict)


class Building(Extension):
    """Runs the tool `build` as a task, which asks for a colour. A file has the tasks, because processes die."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self._file = options.diary.with_suffix(".tasks")

    def methods(self) -> list[MethodBinding]:
        """The requests about tasks."""
        handlers = {"tasks/get": self._get, "tasks/update": self._update, "tasks/cancel": self._cancel}
        return [MethodBinding(name, TaskParams, handler) for name, handler in handlers.items()]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Create a task."""
        if params.name != "build":
            return await call_next(ctx)
        note(f"build {params.arguments}")
        self._file.write_text(json.dumps({"id": "task-1", "status": "working"}))
        return self._state("task-1", "working", resultType="task", statusMessage="Digging.")

    def _state(self, task_id: str, status: str, **more: Any) -> dict[str, Any]:
        now = "2026-07-28T00:00:00Z"
        told = {"taskId": task_id, "status": status, "createdAt": now, "lastUpdatedAt": now, "ttlMs": None}
        return {"resultType": "complete", **told, "pollIntervalMs": 50, **more}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        task = json.loads(self._file.read_text())
        if task["id"] != params.task_id:
            raise MCPError(INVALID_PARAMS, "Task not found")
        note(f"polled in {os.getpid()}")
        match task["status"]:
            case "working":  # until somebody writes something else
                return self._state(task["id"], "working", statusMessage="Laying bricks.")
            case "input_required":
                form = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
                asked = {"mode": "form", "message": "Which colour?", "requestedSchema": form}
                requests = {"colour": {"method": "elicitation/create", "params": asked}}
                return self._state(task["id"], "input_required", inputRequests=requests)
            case colour:
                content = [{"type": "text", "text": f"built in {colour}"}]
                return self._state(task["id"], "completed", result={"content": content})

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        answer = params.input_responses["colour"]
        note(f"told {answer['action']}")
        task = {"id": params.task_id, "status": (answer.get("content") or {}).get("colour", "grey")}
        self._file.write_text(json.dumps(task))
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        note(f"cancelled {params.task_id}")
        return {"resultType": "complete"}


server = MCPServer(
    "echo",
    log_level="CRITICAL",
    # With a key of its own, each process would refuse the calls that another one has begun.
    request_state_security=RequestStateSecurity(keys=["k" * 32]),
    extensions=[Building()],
)


@server.tool(annotations=READS)
def echo(text: str, times: int = 1) -> str:
    """Say it again."""
    return text * times


@server.tool(annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=True))
def put(value: str, ctx: Context[Any, Any]) -> str:
    """Put a value where it already may be."""
    meta: Any = ctx.request_context.meta or {}
    return f"{value} {meta.get('loom.dev/idempotency-key')}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def destroy() -> str:
    """Destroy everything."""
    note("destroyed")
    return "gone"


@server.tool(annotations=READS)
async def wait(seconds: float, mark: str) -> str:
    """Wait for some time."""
    note(f"begun {mark}")
    try:
        await asyncio.sleep(seconds)
    except BaseException as error:
        note(f"stopped {mark} {type(error).__name__}")
        raise
    note(f"ended {mark}")
    return mark


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def build(city: str) -> str:
    """Build a house."""
    raise ToolError("only as a task")


@server.tool()
def freeze(seconds: float) -> str:
    """Answer nobody for some time."""
    note("frozen")
    time.sleep(seconds)
    return "thawed"


@server.tool()
def die() -> str:
    """End at once."""
    note("dying")
    os._exit(3)


@server.tool()
def environment() -> str:
    """The variables that the server sees."""
    return json.dumps({"pid": os.getpid(), **os.environ})


@server.tool()
def leave_child() -> str:
    """Start a process that leaves the server's session and group."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL)
    return f"{os.getpid()} {child.pid}"


@server.tool()
def flood(lines: int) -> str:
    """Write many lines to standard error."""
    for number in range(lines):
        sys.stderr.write(f"line {number} {'x' * 200}\n")
    sys.stderr.flush()
    return "flooded"


@server.tool(structured_output=False)
def picture(size: int = 8) -> list[Any]:
    """A text and an image."""
    return ["a picture", Image(data=b"\x89PNG" + b"\0" * size, format="png")]


class Room(BaseModel):
    """What a guest must say."""

    room: Literal["quiet", "bright"]
    nights: int = 1


def which_room(city: str) -> Elicit[Room]:
    """Ask for the room."""
    return Elicit(f"Which room in {city}?", Room)


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def book(city: str, wanted: Annotated[ElicitationResult[Room], Resolve(which_room)]) -> str:
    """Book a room, once a person has chosen it."""
    match wanted:
        case AcceptedElicitation(data=chosen):
            note(f"booked {city} {chosen.room} {chosen.nights}")
            return f"booked {chosen.room} in {city} for {chosen.nights}"
        case _:
            return f"not booked: {wanted.action}"


def words_for(text: str) -> Sample:
    """Ask the model."""
    asked = SamplingMessage(role="user", content=TextContent(type="text", text=f"Sum up: {text}"))
    return Sample([asked], max_tokens=50, system_prompt="Be brief.")


@server.tool()
def summarize(text: str, summary: Annotated[CreateMessageResult, Resolve(words_for)]) -> str:
    """Sum up a text with the client's model."""
    return f"{len(text)} characters: {summary.content.text if isinstance(summary.content, TextContent) else ''}"


@server.resource("notes://today", mime_type="text/plain")
def today() -> str:
    """What is noted for today."""
    return "Water the plants."


@server.resource("notes://{day}")
def of_day(day: str) -> str:
    """What is noted for a day."""
    return f"Nothing on {day}."


@server.prompt()
def review(code: str) -> str:
    """How to review code."""
    return f"Review this code: {code}"


@server.tool()
def fail(reason: str) -> str:
    """Fail with a reason."""
    raise ToolError(reason)


@server.tool()
async def learn(name: str, ctx: Context[Any, Any]) -> str:
    """Have one tool more, and say so."""
    server.add_tool(lambda: f"{name} says hello", name=name, description="Learnt.")
    await ctx.notify_tools_changed()
    return f"learnt {name}"


@server.tool()
async def write_down(name: str, ctx: Context[Any, Any]) -> str:
    """Have one resource and one prompt more, and say so."""
    server.resource(f"notes://{name}", name=name)(lambda: f"All about the {name}.")
    server.prompt(name=name, description="Learnt.")(lambda: f"Tell me about the {name}.")
    await ctx.notify_resources_changed()
    await ctx.notify_prompts_changed()
    return f"noted {name}"


time.sleep(options.slow)
if options.http is None:
    server.run("stdio")
else:
    server.run("streamable-http", host="127.0.0.1", port=options.http)
