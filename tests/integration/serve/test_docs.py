"""The documentation of the HTTP API is that of the API: its table of roles, and its examples."""

import ast
import asyncio
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
from a2a.types import TaskState

from loom.serve.access.roles import Role
from loom.serve.app import build_app
from loom.serve.routes.caller import ROLE
from loom.testing.model_server import script, text
from tests.integration.serve.conftest import Serving

DOCS: Final = Path(__file__).parents[3] / "docs"


def roles_table() -> str:
    """Which role allows which requests, from the API's own schema."""
    temporal = SimpleNamespace(data_converter=SimpleNamespace(payload_codec=None))
    client = SimpleNamespace(temporal=temporal)
    service: Any = SimpleNamespace(settings=SimpleNamespace(serve_origins=()), client=client)
    schema = build_app(service, SimpleNamespace()).openapi()
    rows = ["| role | may also |", "|---|---|"]
    for role in Role:
        allowed = [
            f"`{method.upper()} {path}`".replace("{run_id}", "RUN")
            .replace("{artifact_id}", "ID")
            .replace("{agent}", "AGENT")
            .replace("{session}", "SESSION")
            .replace("{message_id}", "ID")
            .replace("{path}", "PATH")
            for path, methods in schema["paths"].items()
            for method, what in methods.items()
            if what.get(ROLE) == role.value
        ]
        rows.append(f"| {role.value} | {', '.join(allowed)} |")
    return "\n".join(rows)


def test_the_table_of_roles_is_the_one_in_the_code() -> None:
    page = (DOCS / "access.md").read_text()
    (written,) = re.findall(r"<!-- roles: begin -->\n(.*?)\n?<!-- roles: end -->", page, re.DOTALL)
    assert written == roles_table()


async def test_the_examples_of_open_protocols_run(serving: Serving) -> None:
    api = await serving(script([text("done")], repeat_last=True), has_tokens=False)
    page = (DOCS / "faces.md").read_text()
    here = api.url.removeprefix("http://")
    (command,) = re.findall(r"^\$ (curl (?:.*\\\n)*.*)$", page, re.MULTILINE)
    words = (*shlex.split(command.replace("\\\n", " ").replace("localhost:8000", here)), "--fail-with-body")
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: ")]
    assert (events[0]["type"], events[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED")
    api.loom.started.append(next(each["value"]["run_id"] for each in events if each.get("name") == "loom.run"))

    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed: list[Any] = []
    ann = await api.with_token("ann", Role.OPERATOR)
    names: dict[str, Any] = {"httpx": httpx, "token": ann.headers["Authorization"].split()[1], "print": printed.append}
    code = compile(program.replace("localhost:8000", here), "faces.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, names)
    await names["http"].aclose()
    assert printed[0].task.id
    assert TaskState.Name(printed[-1].status_update.status.state) == "TASK_STATE_COMPLETED"
    api.loom.started.append(printed[0].task.id)


async def test_the_examples_run(serving: Serving) -> None:
    api = await serving(script([text("done")], repeat_last=True), has_tokens=False)
    page = (DOCS / "http.md").read_text().replace("\\\n", " ")
    commands = [line[2:] for line in page.splitlines() if line.startswith("$ curl")]
    assert len(commands) == 8
    for command in commands:
        here = command.replace("localhost:8000", api.url.removeprefix("http://")).replace('"demo"', "null")
        words = (*shlex.split(here), "--fail-with-body")
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, (command, said)
        if "/events" in command:
            assert said.rstrip().splitlines()[-2:] == ["event: end", 'data: {"run_id":"first"}']
        else:
            json.loads(said)
    api.loom.started += ["first", "chat-holiday"]
