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

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp.server.request_state import RequestStateSecurity
from mcp_types import CreateMessageResult, SamplingMessage, TextContent, ToolAnnotations
from pydantic import BaseModel

parser = argparse.ArgumentParser()
parser.add_argument("--http", type=int)
parser.add_argument("--diary", type=Path, default=Path(os.devnull))
parser.add_argument("--slow", type=float, default=0.0)
options = parser.parse_args()

READS = ToolAnnotations(read_only_hint=True)
# With a key of its own, each process would refuse the calls that another one has begun.
server = MCPServer("echo", log_level="CRITICAL", request_state_security=RequestStateSecurity(keys=["k" * 32]))


def note(text: str) -> None:
    """Write down what happens."""
    with options.diary.open("a") as diary:
        diary.write(text + "\n")


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
