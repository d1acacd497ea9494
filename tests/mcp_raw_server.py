"""An MCP server written by hand, as sloppy as real ones are: `mcp_raw_server.py TOOLS.json DIARY`.

Speaks the older protocol over its pipes and starts at once. It lists what is in the file, whatever that is, and does
by a tool's name: die, hang (answers nothing more), quiet (never answers this call), env, child, flood, reload (the list
has changed), session (an answer that is no answer); anything else is echoed. The diary has one line for each message.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOOLS, DIARY = Path(sys.argv[1]), Path(sys.argv[2])


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


def call(request: Any) -> None:  # noqa: C901 - one branch for each behaviour
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
        result(request, content="no list")
    elif name == "meta":
        say(request, json.dumps(request["params"].get("_meta")))
    else:
        say(request, json.dumps(arguments))


print("this is no message", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    note(" ".join([message["method"], message.get("params", {}).get("name", "")]).strip())
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            about = {"name": "raw", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            result(message, protocolVersion=version, capabilities=capabilities, serverInfo=about)
        case "tools/list":
            result(message, tools=json.loads(TOOLS.read_text()))
        case "tools/call":
            call(message)
        case _ if "id" in message:
            send(id=message["id"], error={"code": -32601, "message": "no such method"})
