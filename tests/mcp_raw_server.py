"""An MCP server written by hand, as sloppy as real ones are: `mcp_raw_server.py TOOLS.json DIARY`.

Speaks the older protocol over its pipes and starts at once. It lists what is in the file, whatever that is, and does
by a tool's name: die, hang (answers nothing more), quiet (never answers this call), env, child, flood, reload (the list
has changed), session (an answer that is no answer), book (asks a person), sum (asks the model), line (prints its
argument, with the request's id for ID), build (only as a task, which asks a person); anything else is echoed. The
diary has one line for each message. INSTRUCTIONS in the environment are JSON.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOOLS, DIARY = Path(sys.argv[1]), Path(sys.argv[2])
ASKED: dict[str, Any] = {}


def send(**message: Any) -> None:
    """One message to the client."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def result(request: Any, **content: Any) -> None:
    """The answer to a request."""
    send(id=request["id"], result=content)


def say(request: Any, text: str) -> None:
    """A tool's answer of one text."""
    result(request, content=[{"type": "text", "text": text}])


def note(text: str) -> None:
    """Write down what was heard."""
    with DIARY.open("a") as diary:
        diary.write(text + "\n")


def ask(request: Any, method: str, **params: Any) -> None:
    """Ask the client, and answer the request with what it says."""
    number = f"ask-{len(ASKED)}"
    ASKED[number] = request
    send(id=number, method=method, params=params)


def task(status: str) -> dict[str, Any]:
    """The only task."""
    now = "2025-11-25T00:00:00Z"
    return {
        "taskId": "task-1",
        "status": status,
        "createdAt": now,
        "lastUpdatedAt": now,
        "ttl": None,
        "pollInterval": 50,
    }


def heard(answer: Any) -> None:
    """Take the answer to a question."""
    given = answer.get("result") or answer["error"]
    note(f"heard {json.dumps(given)}")
    say(ASKED.pop(answer["id"]), json.dumps(given))


def call(request: Any) -> None:  # noqa: C901, PLR0912 - one branch for each behaviour
    """Do what the tool's name says."""
    name, arguments = request["params"]["name"], request["params"].get("arguments", {})
    if name == "die":
        sys.stderr.write("so long\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "hang":
        time.sleep(600)
    elif name == "quiet":
        return
    elif name == "env":
        say(request, json.dumps(dict(os.environ)))
    elif name == "child":
        child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL)
        say(request, json.dumps([os.getpid(), child.pid]))
    elif name == "flood":
        for number in range(20_000):
            sys.stderr.write(f"line {number} {'x' * 100}\n")
        say(request, "flooded")
    elif name == "reload":
        say(request, "reloading")
        send(method="notifications/tools/list_changed")
    elif name == "session":
        result(request, resultType="input_required", inputRequests="no object")
    elif name == "book":
        note("book begun")
        form = {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}
        ask(request, "elicitation/create", message=f"Which room in {arguments['city']}?", requestedSchema=form)
    elif name == "build":
        if "task" in request["params"]:
            note("build begun")
            result(request, task=task("working"))
        else:
            send(id=request["id"], error={"code": -32601, "message": "only as a task"})
    elif name == "sum":
        content = {"type": "text", "text": "Sum up."}
        ask(request, "sampling/createMessage", messages=[{"role": "user", "content": content}], maxTokens=50)
    elif name == "line":
        print(arguments["line"].replace("ID", json.dumps(request["id"])), flush=True)
    elif name == "meta":
        say(request, json.dumps(request["params"].get("_meta")))
    else:
        say(request, json.dumps(arguments))


print("this is no message", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        heard(message)
        continue
    note(" ".join([message["method"], message.get("params", {}).get("name", "")]).strip())
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            about = {"name": "raw", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            told = {"instructions": json.loads(os.environ["INSTRUCTIONS"])} if "INSTRUCTIONS" in os.environ else {}
            result(message, protocolVersion=version, capabilities=capabilities, serverInfo=about, **told)
        case "tools/list":
            result(message, tools=json.loads(TOOLS.read_text()))
        case "tools/call":
            call(message)
        case "tasks/get":
            result(message, **task("input_required"))
        case "tasks/result":
            form = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
            related = {"io.modelcontextprotocol/related-task": {"taskId": message["params"]["taskId"]}}
            ask(message, "elicitation/create", message="Which colour?", requestedSchema=form, _meta=related)
        case _ if "id" in message:
            send(id=message["id"], error={"code": -32601, "message": "no such method"})
