"""OpenAI's Responses API through the official SDK, against scripted bytes over HTTP."""

import json
from dataclasses import replace
from typing import Any

import pytest

from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.adapters.models.prices import GenaiPrices
from loom.activities.adapters.models.providers import ConfiguredProviders
from loom.activities.adapters.models.responses_provider import ResponsesProvider
from loom.activities.ports import ModelAnswer, ModelCall
from loom.domain.core.errors import (
    BadRequest,
    LLMBadResponseError,
    LLMConfigurationError,
    LLMContextLengthError,
    LLMRateLimitError,
    LLMRefusedError,
    LLMUnavailableError,
    LoomError,
)
from loom.domain.core.messages import Message, Part, ToolCall, Usage, user
from loom.domain.core.requests import ModelOptions
from loom.domain.core.tool_calls import ToolSpec
from loom.testing import model_server as served
from loom.testing.model_server import ModelServer, Reply, serving

READ = ToolSpec(name="read_file", description="Read a file.", parameters={"type": "object", "properties": {}})
HELLO = ModelCall(model="m-1", system="Be brief.", messages=(user("hello"),), tools=(READ,))
USAGE = {"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read_file", "arguments": '{"path": "a"}'}
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello to you"}]}


def response(*output: dict[str, Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {"id": "r", "model": "m-1-2026", "status": status, "output": [*output], "usage": USAGE, **fields}


def events(*each: dict[str, Any]) -> Reply:
    """A stream of these events."""
    raw = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in each)
    return Reply(raw=raw.encode(), headers={"content-type": "text/event-stream"})


def ended(*before: dict[str, Any], kind: str = "completed", **whole: Any) -> Reply:
    """A stream that ends with the whole response."""
    return events(*before, {"type": f"response.{kind}", "response": response(status=kind, **whole)})


def done(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "response.output_item.done", "output_index": number, "item": item} for number, item in enumerate(items)
    ]


def says(text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "delta": text, "output_index": 0, "content_index": 0}


async def ask(*replies: Reply, call: ModelCall = HELLO) -> tuple[ModelAnswer, list[str], list[str], ModelServer]:
    """The answer, its streamed text, its streamed thinking, and the server."""
    text: list[str] = []
    thinking: list[str] = []
    async with serving(*replies) as server:
        provider = ResponsesProvider(api_key="k-secret", base_url=server.openai_url)
        try:
            answer = await provider.answer(replace(call, on_thinking=thinking.append), text.append)
        finally:
            await provider.aclose()
    return answer, text, thinking, server


async def test_text_and_thinking_are_streamed_and_counted() -> None:
    begun = {"type": "response.created", "response": response(status="in_progress")}
    summary = {"type": "response.reasoning_summary_text.delta", "delta": "hm"}
    answer, text, thinking, _ = await ask(
        ended(begun, summary, says("hello "), says("to you"), *done(THOUGHT, MESSAGE))
    )
    assert (text, thinking) == (["hello ", "to you"], ["hm"])
    assert answer == ModelAnswer(
        message=Message(role="assistant", content="hello to you"),
        stop="end",
        usage=Usage(input_tokens=10, output_tokens=5, cached_tokens=4, model_calls=1),
        model="m-1-2026",
    )


async def test_a_request_stores_nothing_and_asks_for_encrypted_reasoning() -> None:
    options = ModelOptions(reasoning_effort="high", top_p=0.5, extra_body={"reasoning": {"summary": "auto"}})
    call = replace(HELLO, options=options, max_output_tokens=5)
    *_, server = await ask(ended(says("ok")), call=call)
    assert server.requests[0].body == {
        "model": "m-1",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "hello"}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 16,
        "reasoning": {"effort": "high", "summary": "auto"},
        "top_p": 0.5,
        "tools": [
            {
                "type": "function",
                "name": "read_file",
                "description": "Read a file.",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            }
        ],
    }


async def test_reasoning_goes_back_with_the_calls_to_the_same_api_only() -> None:
    answer, *_ = await ask(ended(*done(THOUGHT, CALL)))
    assert answer.stop == "tools"
    assert answer.message.tool_calls == (ToolCall(id="c1", name="read_file", arguments={"path": "a"}),)
    talk = (user("hello"), answer.message, Message(role="tool", tool_call_id="c1", content="text of a"))
    call = replace(HELLO, messages=talk)

    *_, server = await ask(ended(says("ok")), call=call)
    output = {"type": "function_call_output", "call_id": "c1", "output": "text of a"}
    given = {name: value for name, value in CALL.items() if name != "id"}
    assert server.requests[0].body["input"] == [{"role": "user", "content": "hello"}, THOUGHT, given, output]

    *_, other = await ask(ended(says("ok")), call=replace(call, model="m-2"))
    assert THOUGHT not in other.requests[0].body["input"]
    async with serving(served.text("ok")) as chat:
        provider = OpenAIProvider(api_key="k", base_url=chat.openai_url)
        await provider.answer(call, lambda _: None)
        await provider.aclose()
    assert set(chat.requests[0].messages[2]) == {"role", "content", "tool_calls"}


async def test_pictures_and_documents_are_sent_also_as_results() -> None:
    picture = Part(type="image", media_type="image/png", data="iVBOR")
    document = Part(type="file", media_type="application/pdf", data="JVBERi0", name="r.pdf")
    sound = Part(type="audio", media_type="audio/wav", data="UklGR", name="a.wav")
    asked = Message(role="assistant", tool_calls=(ToolCall(id="c1", name="read_file", arguments={}),))
    talk = (
        Message(role="user", content=(Part(type="text", text="look"), picture, document, sound)),
        asked,
        Message(role="tool", tool_call_id="c1", content=(Part(type="text", text="a.png"), picture)),
    )
    *_, server = await ask(ended(says("ok")), call=replace(HELLO, messages=talk))
    first, _, result = server.requests[0].body["input"]
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBOR", "detail": "auto"}
    file = {"type": "input_file", "filename": "r.pdf", "file_data": "data:application/pdf;base64,JVBERi0"}
    assert first["content"][:3] == [{"type": "input_text", "text": "look"}, image, file]
    assert first["content"][3]["type"] == "input_text"
    assert result["output"] == [{"type": "input_text", "text": "a.png"}, image]


async def test_one_body_is_read_where_a_stream_was_asked() -> None:
    body = Reply(raw=json.dumps(response(MESSAGE, CALL)).encode(), headers={"content-type": "application/json"})
    answer, text, *_ = await ask(body)
    assert (answer.message.text, text, answer.stop) == ("hello to you", ["hello to you"], "tools")


async def test_items_that_only_the_last_event_has_are_read() -> None:
    last = {"type": "response.completed", "response": response(THOUGHT, MESSAGE, CALL)}
    answer, text, *_ = await ask(events(last))
    assert (answer.message.text, text, len(answer.message.tool_calls)) == ("hello to you", ["hello to you"], 1)
    assert answer.message.metadata["reasoning"]["content"] == [THOUGHT]


async def test_an_answer_that_is_cut_has_reached_its_length() -> None:
    cut = ended(says("hel"), kind="incomplete", incomplete_details={"reason": "max_output_tokens"})
    answer, *_ = await ask(cut)
    assert (answer.stop, answer.message.text) == ("length", "hel")


async def test_a_model_without_reasoning_is_asked_again_without_it_once() -> None:
    refused = served.status(400, message="Encrypted content is not supported with this model.")
    async with serving(refused, ended(says("ok")), ended(says("ok"))) as server:
        provider = ResponsesProvider(api_key="k", base_url=server.openai_url)
        for _ in range(2):
            assert (await provider.answer(HELLO, lambda _: None)).message.text == "ok"
        await provider.aclose()
    assert ["include" in request.body for request in server.requests] == [True, False, False]


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (ended(kind="failed", error={"code": "server_error", "message": "boom"}), LLMUnavailableError, "boom"),
        (ended(kind="failed", error={"code": "rate_limit_exceeded", "message": "slow"}), LLMRateLimitError, "slow"),
        (
            ended(kind="failed", error={"code": "context_length_exceeded", "message": "too long"}),
            LLMContextLengthError,
            "too long",
        ),
        (events({"type": "error", "code": "server_error", "message": "boom"}), LLMUnavailableError, "boom"),
        (ended(kind="failed"), LLMUnavailableError, "broke off the reply (failed)"),
        (ended(kind="incomplete", incomplete_details={"reason": "content_filter"}), LLMRefusedError, "content filter"),
        (ended({"type": "response.refusal.delta", "delta": "I won't"}), LLMRefusedError, "I won't"),
        (events(says("hel")), LLMUnavailableError, "ended before the reply was complete"),
        (events({"type": "response.output_text.delta"}), LLMBadResponseError, "not a model's reply"),
        (Reply(raw=b"<html>", headers={"content-type": "text/html"}), LLMBadResponseError, "text/html"),
        (served.status(401, message="wrong key k-secret"), LLMConfigurationError, "OPENAI_API_KEY"),
        (served.status(429, message="slow down"), LLMRateLimitError, "slow down"),
        (served.status(503, message="overloaded"), LLMUnavailableError, "overloaded"),
        (served.context_length(), LLMContextLengthError, "too long"),
    ],
)
async def test_each_failure_has_its_error(reply: Reply, error: type[LoomError], said: str) -> None:
    with pytest.raises(error) as caught:
        await ask(reply)
    assert said in caught.value.message
    assert "k-secret" not in caught.value.message


async def test_the_prefix_chooses_the_api_its_options_and_its_prices() -> None:
    providers = ConfiguredProviders(openai_api_key="k")
    assert providers.resolve("openai-responses:gpt-5.2")[1] == "gpt-5.2"
    with pytest.raises(BadRequest, match=r"doesn't support `seed`"):
        providers.check_options("openai-responses:gpt-5.2", ModelOptions(seed=1))
    with pytest.raises(LLMConfigurationError, match="OPENAI_API_KEY"):
        ConfiguredProviders().resolve("openai-responses:gpt-5.2")
    await providers.aclose()
    prices, usage = GenaiPrices(), Usage(input_tokens=1000, output_tokens=1000, model_calls=1)
    same = [await prices.cost_micros(f"{prefix}:gpt-5.2", usage) for prefix in ("openai", "openai-responses")]
    assert same[0] == same[1]
    assert same[0] is not None
