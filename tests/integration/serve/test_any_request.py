"""No request that the API's own schema allows makes the service fail, whatever it is about.

Requests are made from the schema, about runs and chats that exist, so that they reach what the routes do.
"""

import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core import NOT_SET
from schemathesis.core.result import Ok

from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.serve.conftest import Serving
from tests.integration.serve.processes import serve_process
from tests.integration.serve.served import Served

STORES: Final = calls(ToolUse("bash", {"command": "seq 20000"}))
ASKS: Final = calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"}))
CONTROLS: Final = ("approve", "deny", "pause", "abort", "messages", "permissions")
"""What people do with a run. Each has a run of its own, with a call that waits for a person."""
ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = 3
"""Requests for each route. The first one has only what is required, and the last one also makes up its path."""
BODIES: Final[dict[str, Any]] = {
    "set_permissions": {"rules": {"bash": "deny"}},
    "a2a_request": {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}},
    "agui_run": {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "1", "role": "user", "content": "hello"}],
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
    },
}
"""Valid bodies of protocols, which the schema doesn't describe in full."""
FILE: Final = "known.txt"
"""A file in the workspace of the runs."""
REFUSED: Final = frozenset({"retry_run"})
"""Operations that the test's runs aren't ready for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """The names of what exists."""

    ended: str
    waiting: dict[str, str]
    artifact: str
    chat: str

    def parameters(self, path: str) -> dict[str, str]:
        """Values for the parameters of a path."""
        run_id = self.waiting.get(path.rpartition("/")[2].replace("resume", "pause"), self.ended)
        others = {
            "session": "known",
            "message_id": "m-1",
            "agent": "default",
            "artifact_id": self.artifact,
            "path": FILE,
        }
        return {"run_id": run_id, **others}


async def known(serving: Serving) -> tuple[Served, Known]:
    """A service with a run that has ended, runs that wait, and a chat that rests."""
    asks = [ASKS] * len(CONTROLS)
    api = await serving(script([STORES, text("done"), text("Hello."), *asks, text("done")], repeat_last=True))
    (api.loom.workspace / FILE).write_text("a")
    ended = await api.start(permissions={"bash": "allow"})
    await api.result(ended)
    (stored,) = (await api.http.get(f"/v1/runs/{ended}/artifacts")).json()["artifacts"]
    chat = await api.http.post("/v1/chats/known/messages", json={"text": "hello", "message_id": "m-1"})
    assert (await api.http.get("/v1/chats/known/messages/m-1?wait=60")).status_code == 200
    started = await asyncio.gather(*(api.start(permissions={"write_file": "ask"}) for _ in CONTROLS))
    waiting = dict(zip(CONTROLS, started, strict=True))
    await asyncio.gather(*map(api.asked, waiting.values()))
    return api, Known(ended=ended, waiting=waiting, artifact=stored["id"], chat=chat.json()["chat"])


def made_from(schema: dict[str, Any]) -> dict[str, list[Any]]:
    """Requests for each operation of a schema. The first one has only what is required."""
    made: dict[str, list[Any]] = {}
    for found in schemathesis.openapi.from_dict(schema).get_all_operations():
        assert isinstance(found, Ok), found.err()
        operation = found.ok()
        some: list[Any] = []

        @settings(
            max_examples=EXAMPLES,
            phases=(Phase.generate,),
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def make(case: Any) -> None:
            some.append(case)  # noqa: B023 - called at once

        make()
        made[operation.definition.raw["operationId"]] = some
    return made


async def sent(http: httpx2.AsyncClient, case: Any) -> httpx2.Response:
    """Send a request, without its headers, which would be those of a stranger."""
    body = {} if case.body is NOT_SET else {"json": case.body}
    return await http.request(case.method, case.formatted_path, params=case.query, **body)


async def test_no_request_of_the_schema_makes_the_service_fail(serving: Serving) -> None:
    api, names = await known(serving)
    schema = (await api.http.get("/openapi.json")).json()
    answers: dict[str, list[int]] = {}
    for name, cases in (await asyncio.to_thread(made_from, schema)).items():
        for number, case in enumerate(cases):
            if number < EXAMPLES - 1:
                known_here = names.parameters(case.path)
                case.path_parameters = {each: known_here[each] for each in case.path_parameters}
            if number == 0 and name in BODIES:
                case.body = BODIES[name]
            if "wait" in case.query:
                case.query["wait"] = 0
            answer = await sent(api.http, case)
            assert answer.status_code < 500, (case.method, case.formatted_path, case.query, case.body, answer.text)
            answers.setdefault(name, []).append(answer.status_code)
    assert len(answers) == sum(map(len, schema["paths"].values()))
    assert {name for name, statuses in answers.items() if min(statuses) >= 300} == REFUSED, answers


@pytest.mark.slow
async def test_no_request_of_the_schema_makes_the_service_fail_for_long(serving: Serving, tmp_path: Path) -> None:
    api, names = await known(serving)
    ids = {**names.parameters(""), "run_id": [names.ended, names.chat, *names.waiting.values()]}
    with serve_process(api.loom.settings, tmp_path) as service:
        url = await service.url()
        config = tmp_path / "schemathesis.toml"
        config.write_text('hooks = "tests.integration.serve.known_ids"\nwarnings.fail-on = ["missing_auth"]\n')
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("st")), "--config-file", str(config), "run", f"{url}/openapi.json"),
            *("--header", f"Authorization: {api.http.headers['authorization']}", "--checks", "not_a_server_error"),
            *("--no-color", "--no-shrink", "--workers", "1", "--generation-database", "none"),
            *("--request-timeout", "60", "--max-examples", "50", "--max-time", "240"),
            cwd=tmp_path,  # where it leaves its cache
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYTHONWARNINGS": "ignore",
                "KNOWN_IDS": json.dumps({**ids, "ended": names.ended}),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await process.communicate())[0].decode()
        sys.stdout.write(said)  # shown by `pytest -s`
        assert process.returncode == 0, said[-6000:]
        selected, tested = (re.findall(rf"{name}: +(\d+)", said) for name in ("Selected", "Tested"))
        assert selected == tested != ["0"], said[-6000:]
        assert "request_failed" not in service.log.read_text()
