"""Any Unicode in every text that comes from outside: the run ends, and no later request has what no provider reads."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_types import CallToolResult, ContentBlock, TextContent
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue

from loom import LoomApp
from loom.activities.adapters.mcp.results import output_of
from loom.activities.ports import ToolOutput
from loom.activities.toolbox.mcp_tool import McpCall, McpTool, offer
from loom.domain.core.errors import BadRequest, ToolExecutionError
from loom.domain.core.messages import well_formed
from loom.domain.core.requests import AGENT_RUN, RunStatus
from loom.domain.core.tasks import Origin
from loom.domain.tools.mcp_servers import Hints, ListedTool, McpServer
from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, text
from loom.testing.waiting import eventually
from loom.workflows.memory_upkeep import upkeep_id
from tests.integration.workflows.conftest import Working

HARD: Final = (
    *("\0", "\x1b", "\x7f", "\x85", "\r", "\n", "\u2028", "\ufeff", "\ufffe", "\uffff", "\U0010ffff", "\ufdd0"),
    *("\u202e", "\u2066", "\u200b", "\u200d", "\u0301", "\ue000", "\U000e0041", "א", "م", "漢", "😀"),
    *("\ud83d", "\ude00", "\udc80", "\udfff", "\\", '"', "/", "%", "'", "<", "`", " "),
)
"""Characters that have broken something somewhere. Some of them, side by side, are the halves of one character."""
CHARACTERS: Final = st.sampled_from(HARD) | st.characters(exclude_categories=())
TEXT: Final = st.text(CHARACTERS, max_size=12)
PLACES: Final = (
    *("task", "session", "said", "argument", "call name", "call id", "function", "failure", "source", "answer"),
    *("sender", "question", "metadata", "file name", "file", "output", "mcp"),
)
"""Where a text comes from outside."""
TEXTS: Final = st.fixed_dictionaries(dict.fromkeys(PLACES, TEXT))
EXAMPLES: Final = settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
)


OBSERVE: Final = ListedTool(
    name="observe", schema={"type": "object", "properties": {"given": {"type": "string"}}}, hints=Hints(read_only=True)
)


def _file_name(given: str) -> str:
    """The nearest text that can be a file's name. A name need not be UTF-8."""
    name = "".join(c for c in given if c not in "\0/" and ("\udc80" <= c <= "\udcff" or not "\ud800" <= c <= "\udfff"))
    return f"f{name}"


@dataclass
class Outside:
    """The texts of the run that is under way. One run at a time reads them."""

    texts: Mapping[str, str]
    run_id: str = ""
    requests: int = 0
    observed: int = 0
    """The number of calls that have reached the MCP server."""

    async def recall(self, question: str, origin: Origin) -> str:
        """A context source."""
        return self.texts["source"]

    def trouble(self) -> str | None:
        """The MCP server can always be called."""
        return None

    async def call(self, call: McpCall) -> ToolOutput:
        """What a call of an MCP server becomes."""
        said = self.texts["mcp"]
        self.observed += 1
        blocks: list[ContentBlock] = [TextContent(type="text", text=said)]
        return output_of(CallToolResult(content=blocks, structured_content={f"k{said}": [said]}), str)

    def abandon(self, call_id: str, task: str = "") -> None:
        """No call of the MCP server waits for input."""

    def app(self) -> LoomApp:
        """Tools and a source that say these texts."""
        app = LoomApp()
        offered = offer(McpServer(name="wire", command=("wire",), trust=True), [OBSERVE], self).tools
        for tool in offered.values():
            assert isinstance(tool, McpTool)
            app.register_tool(replace(tool, spec=replace(tool.spec, name="observe")))

        @app.tool(effect="read")
        def look(given: str = "") -> str:
            """Look outside."""
            return f"{self.texts['function']} {given}"

        @app.tool(effect="read")
        def fail() -> str:
            """Fail with a text."""
            raise ToolExecutionError(self.texts["failure"])

        app.register_context_source("outside", self)
        return app

    def reply(self, request: SeenRequest) -> Reply:
        """What the model says next."""
        said, number = self.texts, self.requests
        self.requests += 1
        if number == 0:
            return calls(
                ToolUse("look", {"given": said["argument"]}),
                ToolUse("fail"),
                ToolUse("observe", {"given": said["argument"]}),
                ToolUse("read_file", {"path": _file_name(said["file name"])}),
                ToolUse("list_dir", {"path": "."}),
                ToolUse(said["call name"], {said["argument"]: said["argument"]}, said["call id"]),
                text=said["said"],
            )
        if number == 1:
            return calls(ToolUse("ask_user", {"question": f"which? {said['question']}"}))
        return text(f"done {said['output']}")


@pytest.fixture
async def outside(working: Working, url: str, workspace: Path) -> AsyncIterator[tuple[Harness, Any, Outside]]:
    """A worker with a memory whose model and tools say what `Outside` has at the moment."""
    told = Outside(texts=dict.fromkeys(PLACES, ""))
    loom, model = await working(told.reply, app=told.app(), database_url=url, memory="on", embedder="off", patience=0)
    yield loom, model, told
    await loom.client.temporal.get_workflow_handle(upkeep_id(loom.settings.task_queue)).terminate()


async def _started(loom: Harness, texts: Mapping[str, str]) -> str:
    """A run whose client sends these texts, or what is left of those that its border refuses."""
    given: dict[str, Any] = {
        "task": f"do {texts['task']}",
        "session_id": f"s {texts['session']}",
        "metadata": {f"k{texts['metadata']}": texts["metadata"]},
    }
    try:
        return await loom.start(**given)
    except BadRequest:
        plain = json.loads(well_formed(json.dumps(given, ensure_ascii=False)))
        assert plain != given, "only half a character may be refused"
        return await loom.start(**plain)


async def _answered(loom: Harness, run_id: str, texts: Mapping[str, str]) -> None:
    """Answer the agent's question, if it asks one: a call with half a character may be refused."""

    async def stands() -> str | None:
        status = str((await loom.client.status(run_id))["status"])
        return status if status in ("waiting_for_input", "completed", "failed") else None

    if await eventually(stands) != "waiting_for_input":
        return
    try:
        await loom.client.send(run_id, f"answer {texts['answer']}", by=texts["sender"])
    except BadRequest:
        await loom.client.send(run_id, well_formed(f"answer {texts['answer']}"), by=well_formed(texts["sender"]))


async def _ends(loom: Harness, model: Any, outside: Outside, texts: Mapping[str, str]) -> None:
    outside.texts, outside.requests, outside.observed = texts, 0, 0
    before = len(model.requests)
    (loom.workspace / _file_name(texts["file name"])).write_bytes(texts["file"].encode("utf-8", "surrogatepass"))
    try:
        run_id = await _started(loom, texts)
        await _answered(loom, run_id, texts)
        result = await loom.client.result(run_id)
    finally:
        os.unlink(loom.workspace / _file_name(texts["file name"]))
    assert result.status is RunStatus.COMPLETED, result.error
    assert result.output.startswith("done ")
    assert outside.observed == 1
    for request in model.requests[before:]:
        json.dumps(request.body, ensure_ascii=False).encode()  # no half of a character
    assert await loom.client.transcript(run_id)
    assert [each async for each in loom.client.events(run_id)]


@EXAMPLES
@given(texts=TEXTS)
async def test_a_run_ends_whatever_the_texts_from_outside_are(
    outside: tuple[Harness, Any, Outside], texts: Mapping[str, str]
) -> None:
    await _ends(*outside, texts)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=300)
@given(texts=TEXTS)
async def test_a_run_ends_whatever_the_texts_from_outside_are_in_many_examples(
    outside: tuple[Harness, Any, Outside], texts: Mapping[str, str]
) -> None:
    await _ends(*outside, texts)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
async def test_a_run_ends_with_each_hard_character_in_each_place(
    outside: tuple[Harness, Any, Outside], place: str
) -> None:
    for character in HARD:
        await _ends(*outside, {**dict.fromkeys(PLACES, ""), place: f"a{character}b"})


def _json(text: str) -> RawValue:
    """JSON as a client in another language sends it. Its escapes can spell half a character."""
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=text.encode()))


HALVES: Final = [r"\ud83d", r"\ude00 \u0000"]


@pytest.mark.parametrize("half", HALVES, ids=ascii)
async def test_half_a_character_in_a_request_of_another_client_ends_the_run_with_a_typed_error(
    working: Working, addresses: Addresses, half: str
) -> None:
    loom, _ = await working(lambda _: text("done"))
    plain = await Client.connect(addresses.temporal, namespace=addresses.namespace)
    run_id = f"test-{uuid4().hex[:8]}"
    body = _json(f'{{"task": "do {half}", "workspace": "{loom.workspace}"}}')
    await plain.start_workflow(AGENT_RUN, body, id=run_id, task_queue=loom.settings.task_queue)
    loom.started.append(run_id)
    result = await loom.client.result(run_id)
    assert result.status is RunStatus.COMPLETED or (result.error is not None and result.error.type == "BadRequest")


@pytest.mark.parametrize("half", HALVES, ids=ascii)
async def test_half_a_character_in_a_message_of_another_client_does_not_stop_the_run(
    working: Working, addresses: Addresses, half: str
) -> None:
    loom, _ = await working([calls(ToolUse("ask_user", {"question": "which?"})), text("done")])
    plain = await Client.connect(addresses.temporal, namespace=addresses.namespace)
    run_id = await loom.start()
    await loom.until(run_id, lambda status: status["status"] == "waiting_for_input")
    handle = plain.get_workflow_handle(run_id)
    await handle.signal("send_message", _json(f'{{"text": "this {half}", "by": "{half}"}}'))
    await loom.client.send(run_id, "this one")
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
