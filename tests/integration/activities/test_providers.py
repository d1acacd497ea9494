"""Both providers through their official SDKs against a scripted model behind real HTTP."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TypeAlias

import pytest

from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
from loom.activities.adapters.models.context_overflow import context_numbers
from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.adapters.models.prices import GenaiPrices
from loom.activities.adapters.models.providers import ConfiguredProviders
from loom.activities.found_tools import WithFoundTools
from loom.activities.model_permits import PermittedProvider
from loom.activities.ports import ModelAnswer, ModelCall
from loom.activities.refused_requests import RefusalRetries
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
from loom.domain.core.messages import Message, Part, ToolCall, Usage, reminder, user
from loom.domain.core.tool_calls import ToolSpec
from loom.testing import model_server as served
from loom.testing.model_server import ModelServer, Reply, ToolUse, serving
from loom.testing.waiting import eventually

Provider: TypeAlias = OpenAIProvider | AnthropicProvider

KEY = "sk-very-secret-key"
READ = ToolSpec(name="read_file", description="Read a file.", parameters={"type": "object", "properties": {}})
HELLO = ModelCall(model="m-1", system="Be brief.", messages=(user("hello"),), tools=(READ,))

both = pytest.mark.parametrize("kind", [OpenAIProvider, AnthropicProvider], ids=["openai", "anthropic"])


@asynccontextmanager
async def connected(
    kind: type[Provider], server: ModelServer, *, key: str = KEY, read_timeout: float = 10.0
) -> AsyncIterator[Provider]:
    """A provider that talks to the server, closed afterwards."""
    url = server.openai_url if kind is OpenAIProvider else server.anthropic_url
    provider = kind(api_key=key, base_url=url, read_timeout=read_timeout)
    try:
        yield provider
    finally:
        await provider.aclose()


async def ask(
    kind: type[Provider], reply: Reply, call: ModelCall = HELLO
) -> tuple[ModelAnswer, list[str], ModelServer]:
    """One call: the answer, what was streamed, and the server that saw it."""
    heard: list[str] = []
    async with serving(reply) as server, connected(kind, server) as provider:
        answer = await provider.answer(call, heard.append)
    return answer, heard, server


async def fail(kind: type[Provider], reply: Reply) -> LoomError:
    """The error of one call; it says nothing of the key, and keeps no SDK object."""
    with pytest.raises(LoomError) as caught:
        await ask(kind, reply)
    assert KEY not in caught.value.message
    assert KEY not in str(caught.value.context)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


async def _until(seen: Callable[[], bool]) -> None:
    async def look() -> bool | None:
        return seen() or None

    await eventually(look)


@both
async def test_text_streams_in_the_pieces_that_the_server_sends(kind: type[Provider]) -> None:
    answer, heard, _ = await ask(kind, served.text("hello to you", chunks=3))
    assert heard == ["hell", "o to", " you"]
    assert answer == ModelAnswer(
        message=Message(role="assistant", content="hello to you"),
        stop="end",
        usage=Usage(input_tokens=10, output_tokens=5, model_calls=1),
        model="m-1",
    )


@both
async def test_several_tool_calls_come_back_in_order_with_their_text(kind: type[Provider]) -> None:
    uses = (ToolUse("read_file", {"path": "a"}, "id1"), ToolUse("read_file", {"path": "ü"}, "id2"))
    answer, heard, _ = await ask(kind, served.calls(*uses, text="I look."))
    assert answer.stop == "tools"
    assert answer.message == Message(
        role="assistant",
        content="I look.",
        tool_calls=(
            ToolCall(id="id1", name="read_file", arguments={"path": "a"}),
            ToolCall(id="id2", name="read_file", arguments={"path": "ü"}),
        ),
    )
    assert heard == ["I look."]


@both
async def test_cached_tokens_are_part_of_the_input_tokens(kind: type[Provider]) -> None:
    answer, _, _ = await ask(kind, Reply(text="x", usage=(100, 7, 60)))
    assert answer.usage == Usage(input_tokens=100, output_tokens=7, cached_tokens=60, model_calls=1)


@both
async def test_a_server_that_tells_no_usage_is_fine(kind: type[Provider]) -> None:
    answer, _, _ = await ask(kind, Reply(text="x", usage=None))
    assert answer.usage.input_tokens == 0
    assert answer.usage.model_calls == 1


@both
async def test_the_key_goes_out_and_connections_are_kept(kind: type[Provider]) -> None:
    async with serving(served.text("a"), served.text("b")) as server, connected(kind, server) as provider:
        await provider.answer(HELLO, lambda _: None)
        await provider.answer(HELLO, lambda _: None)
        assert len(server._open) == 1
    assert all(KEY in str(request.headers) for request in server.requests)
    assert len(server.requests) == 2


@both
async def test_a_cut_answer_says_length(kind: type[Provider]) -> None:
    answer, _, _ = await ask(kind, served.cut_length("half an ans"))
    assert (answer.stop, answer.message.text) == ("length", "half an ans")


@both
async def test_an_empty_answer_is_an_answer(kind: type[Provider]) -> None:
    answer, heard, _ = await ask(kind, served.empty())
    assert (answer.stop, answer.message, heard) == ("end", Message(role="assistant"), [])


@both
@pytest.mark.parametrize("arguments", ['{"path": "a', "[1, 2]", "just text", "null"])
async def test_arguments_that_are_no_object_are_kept_as_written(kind: type[Provider], arguments: str) -> None:
    answer, _, _ = await ask(kind, served.malformed_call("read_file", arguments))
    assert answer.message.tool_calls[0].malformed == arguments
    assert answer.message.tool_calls[0].arguments == {}


@both
async def test_empty_arguments_are_an_empty_object(kind: type[Provider]) -> None:
    answer, _, _ = await ask(kind, served.calls(ToolUse("read_file", "", "id1")))
    assert answer.message.tool_calls == (ToolCall(id="id1", name="read_file"),)


@both
async def test_missing_and_repeated_call_ids_are_made_distinct_in_the_whole_conversation(kind: type[Provider]) -> None:
    uses = (ToolUse("read_file", {}, ""), ToolUse("read_file", {}, "x"), ToolUse("read_file", {}, "x"))
    earlier = Message(role="assistant", tool_calls=(ToolCall(id="call_1", name="read_file"),))
    result = Message(role="tool", tool_call_id="call_1", content="text")
    call = ModelCall(model="m-1", system="", messages=(user("hello"), earlier, result))
    first, _, _ = await ask(kind, served.calls(*uses), call)
    again, _, _ = await ask(kind, served.calls(*uses), call)
    assert [made.id for made in first.message.tool_calls] == ["call_2", "x", "call_3"]
    assert first.message == again.message


PATHS: list[tuple[str, Reply, type[LoomError], str]] = [
    ("401", served.status(401, message=f"Incorrect key: {KEY}"), LLMConfigurationError, "_API_KEY"),
    ("403", served.status(403), LLMConfigurationError, "_API_KEY"),
    ("402", served.status(402), LLMConfigurationError, "no quota"),
    ("404", served.status(404, error_code="model_not_found"), LLMConfigurationError, "does not know the model 'm-1'"),
    ("400", served.status(400, message=f"bad schema {KEY}"), LLMConfigurationError, "bad schema ***"),
    ("429", served.status(429), LLMRateLimitError, "too many requests"),
    ("quota", served.status(429, error_code="insufficient_quota"), LLMConfigurationError, "no quota"),
    ("408", served.status(408), LLMUnavailableError, "408"),
    ("409", served.status(409), LLMUnavailableError, "409"),
    ("500", served.status(500), LLMUnavailableError, "500"),
    ("502", served.status(502, body=b"<html>Bad gateway</html>"), LLMUnavailableError, "Bad gateway"),
    ("529", served.status(529, error_code="overloaded_error"), LLMUnavailableError, "529"),
    ("413", served.status(413), LLMContextLengthError, "too long"),
    ("too long", served.context_length(), LLMContextLengthError, "too long"),
    ("filtered", served.status(400, error_code="content_filter"), LLMRefusedError, "declined"),
    ("garbled stream", served.garbage("sse"), LLMBadResponseError, "JSONDecodeError"),
    ("garbled bytes", served.garbage("bytes"), LLMBadResponseError, "JSONDecodeError"),
    ("another shape", served.garbage("shape"), LLMBadResponseError, "not a model's reply"),
    ("a web page", served.garbage("html"), LLMBadResponseError, "text/html"),
    ("json at once", served.garbage("json"), LLMBadResponseError, "application/json"),
    ("reset", served.cut_after(3), LLMUnavailableError, "was lost"),
    ("reset at once", served.cut_after(0), LLMUnavailableError, "was lost"),
    ("ended early", served.cut_after(3, clean=True), LLMUnavailableError, "ended before"),
    ("ended at once", served.cut_after(0, clean=True), LLMUnavailableError, "ended before"),
    ("refused", served.refusal("not that"), LLMRefusedError, "not that"),
]


@both
@pytest.mark.parametrize(("reply", "error", "says"), [path[1:] for path in PATHS], ids=[path[0] for path in PATHS])
async def test_everything_that_goes_wrong_has_a_type(
    kind: type[Provider], reply: Reply, error: type[LoomError], says: str
) -> None:
    raised = await fail(kind, reply)
    assert type(raised) is error
    assert says in raised.message


@both
@pytest.mark.parametrize("clean", [True, False], ids=["ended early", "reset"])
async def test_a_reply_that_breaks_off_says_what_it_has_used(kind: type[Provider], clean: bool) -> None:
    raised = await fail(kind, served.cut_after(4, clean=clean))
    assert raised.used is not None
    assert raised.used.model_calls == 1
    assert raised.used.input_tokens > 0
    assert 0 < raised.used.output_tokens < 10


@both
@pytest.mark.parametrize("reply", [served.status(500), served.cut_after(0), served.garbage("html")])
async def test_a_call_without_a_reply_has_used_nothing(kind: type[Provider], reply: Reply) -> None:
    assert (await fail(kind, reply)).used is None


@both
async def test_the_sdk_does_not_retry_by_itself(kind: type[Provider]) -> None:
    async with serving(served.status(500), served.text("second")) as server, connected(kind, server) as provider:
        with pytest.raises(LLMUnavailableError):
            await provider.answer(HELLO, lambda _: None)
        assert server.count == 1


@both
@pytest.mark.parametrize(
    ("reply", "seconds"),
    [
        (served.status(429, retry_after=7), 7.0),
        (served.status(429, retry_after=0.25), 0.25),
        (served.status(429, retry_after=9, headers={"retry-after-ms": "1500"}), 1.5),
        (served.status(429, retry_after="soon"), None),
        (served.status(429, retry_after="inf"), None),
        (served.status(429, retry_after=-5), 0.0),
        (served.status(429), None),
    ],
)
async def test_retry_after_is_read_as_seconds(kind: type[Provider], reply: Reply, seconds: float | None) -> None:
    raised = await fail(kind, reply)
    assert isinstance(raised, LLMRateLimitError)
    assert raised.retry_after == seconds


@both
async def test_retry_after_may_be_a_date(kind: type[Provider]) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    raised = await fail(kind, served.status(429, retry_after=at))
    assert isinstance(raised, LLMRateLimitError)
    assert raised.retry_after is not None
    assert 400 < raised.retry_after <= 600


@both
async def test_a_conversation_that_is_too_long_comes_with_its_numbers(kind: type[Provider]) -> None:
    raised = await fail(kind, served.context_length(tokens=9000, limit=8192))
    assert raised.context == {"model": "m-1", "tokens": 9000, "limit": 8192}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("maximum context length is 8192 tokens. However, your messages resulted in 9,000 tokens", (9000, 8192)),
        (
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300001 tokens.",
            (300001, 272000),
        ),
        ("You passed 5000 input tokens … the model's context length is only 4096 tokens", (5000, 4096)),
        ("request (5001 tokens) exceeds the available context size (4096 tokens)", (5001, 4096)),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", (210000, 200000)),
        ("prompt is too long: 208310 tokens > 200000 maximum", (208310, 200000)),
    ],
)
def test_every_dialect_of_too_long_is_read(text: str, numbers: tuple[int, int]) -> None:
    assert context_numbers(text) == {"tokens": numbers[0], "limit": numbers[1]}


XAI = "This model's maximum prompt length is 16000 but the request contains 17000 tokens."


@both
@pytest.mark.parametrize(
    "reply",
    [
        served.status(400, body=json.dumps([{"error": {"code": 400, "message": XAI}}]).encode()),
        served.status(400, body=json.dumps({"code": "invalid argument", "error": XAI}).encode()),
        served.status(400, body=json.dumps({"object": "error", "message": XAI, "code": 400}).encode()),
        served.status(422, body=json.dumps({"detail": [{"loc": ["body"], "msg": XAI}]}).encode()),
        served.status(400, body=XAI.encode()),
        served.status(500, body=json.dumps({"error": {"message": json.dumps({"error": XAI})}}).encode()),
    ],
    ids=["list", "text", "bare", "detail", "plain", "nested"],
)
async def test_too_long_is_read_in_each_shape_of_an_error(kind: type[Provider], reply: Reply) -> None:
    raised = await fail(kind, reply)
    assert isinstance(raised, LLMContextLengthError)
    assert raised.context == {"model": "m-1", "tokens": 17000, "limit": 16000}


@both
async def test_a_server_that_is_not_ready_says_when_it_will_be(kind: type[Provider]) -> None:
    raised = await fail(kind, served.status(503, message="loading model", retry_after=17))
    assert isinstance(raised, LLMUnavailableError)
    assert raised.context == {"model": "m-1", "retry_after": 17.0}


@both
async def test_a_refused_request_is_told_apart_from_a_wrong_setting(kind: type[Provider]) -> None:
    refused = await fail(kind, served.status(400, message="messages[3]: a call is missing its signature"))
    wrong = await fail(kind, served.status(400, message="max_tokens is too large: 8192"))
    assert (refused.context.get("refused"), wrong.context.get("refused")) == (400, None)
    assert type(refused) is type(wrong) is LLMConfigurationError


@both
async def test_silence_ends_in_a_typed_error(kind: type[Provider]) -> None:
    async with serving(served.hang()) as server, connected(kind, server, read_timeout=0.2) as provider:
        with pytest.raises(LLMUnavailableError, match="no data within"):
            await provider.answer(HELLO, lambda _: None)


@both
async def test_a_cancelled_call_lets_go_of_its_connection(kind: type[Provider]) -> None:
    heard: list[str] = []
    async with serving(served.hang(4)) as server, connected(kind, server) as provider:
        task = asyncio.create_task(provider.answer(HELLO, heard.append))
        await _until(lambda: bool(heard))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _until(lambda: server.requests[0].disconnected)


@both
async def test_nobody_listening_is_a_typed_error(kind: type[Provider]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://user:pass@127.0.0.1:{free.getsockname()[1]}/v1"
    async with aclosing(kind(api_key=KEY, base_url=url)) as provider:
        with pytest.raises(LLMUnavailableError, match=r"no connection.*\(ConnectError\)") as caught:
            await provider.answer(HELLO, lambda _: None)
    assert "pass" not in caught.value.message


TALK = (
    Message(
        role="user", content=(Part(type="text", text="see"), Part(type="image", media_type="image/png", data="QQ=="))
    ),
    Message(
        role="assistant",
        tool_calls=(
            ToolCall(id="a.1", name="read_file", arguments={"path": "x"}),
            ToolCall(id="a2", name="read_file", malformed="{oops"),
        ),
    ),
    Message(role="tool", tool_call_id="a.1", name="read_file", content="text of x"),
    user("hurry"),
    Message(role="tool", tool_call_id="a2", name="read_file", content="not JSON", is_error=True),
    reminder("nearly spent"),
)


async def test_a_conversation_in_openai_s_words() -> None:
    _, _, server = await ask(
        OpenAIProvider, served.text("ok"), ModelCall(model="m-1", system="S", messages=TALK, tools=(READ,))
    )
    body = server.requests[0].body
    assert body["messages"] == [
        {"role": "system", "content": "S"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a.1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "x"}'}},
                {
                    "id": "a2",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": '{"malformed_arguments": "{oops"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "a.1", "content": "text of x"},
        {"role": "tool", "tool_call_id": "a2", "content": "not JSON"},
        {"role": "user", "content": "hurry"},
        {"role": "user", "content": "<system-reminder>nearly spent</system-reminder>"},
    ]
    assert (body["stream"], body["stream_options"], body["max_tokens"]) == (True, {"include_usage": True}, 8192)
    assert body["tools"][0]["function"] == {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": READ.parameters,
    }


async def test_a_conversation_in_anthropic_s_words_alternates_with_results_first() -> None:
    _, _, server = await ask(
        AnthropicProvider, served.text("ok"), ModelCall(model="m-1", system="S", messages=TALK, tools=(READ,))
    )
    body = server.requests[0].body
    mark = {"cache_control": {"type": "ephemeral"}}
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}, **mark},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "a_1_xc72f8b9e49aa", "name": "read_file", "input": {"path": "x"}},
                {"type": "tool_use", "id": "a2", "name": "read_file", "input": {"malformed_arguments": "{oops"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a_1_xc72f8b9e49aa", "content": "text of x"},
                {"type": "tool_result", "tool_use_id": "a2", "content": "not JSON", "is_error": True},
                {"type": "text", "text": "hurry"},
                {"type": "text", "text": "<system-reminder>nearly spent</system-reminder>", **mark},
            ],
        },
    ]
    assert body["system"] == [{"type": "text", "text": "S", **mark}]
    assert body["tools"] == [
        {"name": "read_file", "description": "Read a file.", "input_schema": dict(READ.parameters), **mark}
    ]
    assert (body["max_tokens"], "temperature" in body) == (8192, False)


async def test_what_is_late_comes_last_and_anthropic_caches_only_what_stands_before_it() -> None:
    late = Message(role="user", content="recalled just now", metadata={"kind": "reminder", "late": True})
    _, _, server = await ask(
        AnthropicProvider, served.text("ok"), ModelCall(model="m-1", system="S", messages=(*TALK, late))
    )

    *_, reminder, last = server.requests[0].body["messages"][-1]["content"]
    assert reminder["cache_control"] == {"type": "ephemeral"}
    assert last == {"type": "text", "text": "recalled just now"}


@pytest.mark.parametrize("answered", [True, False])
async def test_after_an_answer_what_is_late_is_a_message_of_its_own(answered: bool) -> None:
    talk = (user("hello"), *([Message(role="assistant", content="hi")] if answered else []))
    late = Message(role="user", content="now", metadata={"late": True})
    _, _, server = await ask(
        AnthropicProvider, served.text("ok"), ModelCall(model="m-1", system="S", messages=(*talk, late))
    )

    sent = server.requests[0].body["messages"]
    assert [message["role"] for message in sent] == (["user", "assistant", "user"] if answered else ["user"])
    assert sent[-1]["content"][-1] == {"type": "text", "text": "now"}
    assert "cache_control" in sent[0]["content"][0]


async def test_a_picture_that_a_tool_gave_follows_after_the_results_for_openai() -> None:
    picture = Part(type="image", url="https://example.com/a.png")
    talk = (
        user("look"),
        Message(role="assistant", tool_calls=(ToolCall(id="1", name="see"), ToolCall(id="2", name="see"))),
        Message(role="tool", tool_call_id="1", content=(Part(type="text", text="a picture"), picture)),
        Message(role="tool", tool_call_id="2", content="none"),
    )
    _, _, server = await ask(OpenAIProvider, served.text("ok"), ModelCall(model="m-1", system="", messages=talk))
    assert [message["role"] for message in server.requests[0].messages] == ["user", "assistant", "tool", "tool", "user"]
    assert server.requests[0].messages[-1]["content"] == [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    ]


@both
async def test_temperature_goes_out_only_when_it_is_set(kind: type[Provider]) -> None:
    warm = ModelCall(model="m-1", system="", messages=(user("hello"),), temperature=0.5)
    _, _, server = await ask(kind, served.text("ok"), warm)
    assert server.requests[0].body["temperature"] == 0.5
    if kind is AnthropicProvider:
        assert server.requests[0].headers["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize(
    ("complaint", "gone", "there"),
    [
        ("Unrecognized request argument: stream_options", "stream_options", "max_tokens"),
        ("'max_tokens' is not supported, use 'max_completion_tokens' instead", "max_tokens", "max_completion_tokens"),
    ],
)
async def test_a_server_that_wants_other_field_names_is_met_half_way(complaint: str, gone: str, there: str) -> None:
    replies = (served.status(400, message=complaint), served.text("ok"), served.text("ok"))
    async with serving(*replies) as server, connected(OpenAIProvider, server) as provider:
        await provider.answer(HELLO, lambda _: None)
        await provider.answer(HELLO, lambda _: None)
    assert [gone in request.body for request in server.requests] == [True, False, False]
    assert all(there in request.body for request in server.requests[1:])


SSE = {"content-type": "text/event-stream"}


async def test_whole_calls_under_one_index_stay_apart() -> None:
    lines = [
        '{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b","function":{"name":"g","arguments":{"x":1}}}]}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"function":{"name":"h","arguments":"{}"}}]}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"function":{"name":"h","arguments":"{}"}}]},"finish_reason":"stop"}]}',
    ]
    raw = "".join(f"data: {line}\n\n" for line in lines).encode()
    answer, _, _ = await ask(OpenAIProvider, Reply(raw=raw, headers=SSE))
    assert answer.stop == "tools"
    assert answer.message.tool_calls == (
        ToolCall(id="a", name="f"),
        ToolCall(id="b", name="g", arguments={"x": 1}),
        ToolCall(id="call_0", name="h"),
        ToolCall(id="call_1", name="h"),
    )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("rate_limit_exceeded", LLMRateLimitError),
        ("context_length_exceeded", LLMContextLengthError),
        ("", LLMUnavailableError),
    ],
)
async def test_an_error_in_the_middle_of_openai_s_stream_has_its_type(code: str, error: type[LoomError]) -> None:
    chunks = '{"choices":[{"delta":{"content":"a"}}]}', f'{{"error":{{"message":"no","code":"{code}"}}}}'
    raw = "".join(f"data: {chunk}\n\n" for chunk in chunks)
    assert type(await fail(OpenAIProvider, Reply(raw=raw.encode(), headers=SSE))) is error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("rate_limit_error", LLMRateLimitError),
        ("overloaded_error", LLMUnavailableError),
        ("invalid_request_error", LLMConfigurationError),
        ("authentication_error", LLMConfigurationError),
    ],
)
async def test_an_error_in_the_middle_of_anthropic_s_stream_has_its_type(code: str, error: type[LoomError]) -> None:
    raw = f'event: error\ndata: {{"type":"error","error":{{"type":"{code}","message":"no"}}}}\n\n'
    assert type(await fail(AnthropicProvider, Reply(raw=raw.encode(), headers=SSE))) is error


THINKING = """event: message_start
data: {"type":"message_start","message":{"model":"m-1","usage":{"input_tokens":3}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sig"}}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{"a":1}}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":4,"input_tokens":null}}

event: message_stop
data: {"type":"message_stop"}

"""


async def test_anthropic_s_thinking_goes_back_to_the_same_model_and_to_no_other() -> None:
    answer, heard, _ = await ask(AnthropicProvider, Reply(raw=THINKING.encode(), headers=SSE))
    assert heard == []
    assert answer.usage == Usage(input_tokens=3, output_tokens=4, model_calls=1)
    assert answer.message.tool_calls == (ToolCall(id="t", name="f", arguments={"a": 1}),)
    talk = (user("hello"), answer.message, Message(role="tool", tool_call_id="t", content="r"))
    blocks = {}
    for model in ("m-1", "m-2"):
        _, _, server = await ask(AnthropicProvider, served.text("ok"), ModelCall(model=model, system="", messages=talk))
        blocks[model] = [block["type"] for block in server.requests[0].messages[1]["content"]]
        kept = server.requests[0].messages[1]["content"][0]
        assert kept["type"] != "thinking" or kept == {"type": "thinking", "thinking": "hm", "signature": "sig"}
    assert blocks == {"m-1": ["thinking", "tool_use"], "m-2": ["tool_use"]}


async def test_a_compatible_server_s_reasoning_goes_back_with_the_calls() -> None:
    raw = (
        b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"t","function":{"name":"f","arguments":"{}"}}]},'
        b'"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    )
    answer, heard, _ = await ask(OpenAIProvider, Reply(raw=raw, headers=SSE))
    assert (heard, answer.message.text) == ([], "")
    talk = (user("hello"), answer.message, Message(role="tool", tool_call_id="t", content="r"))
    _, _, server = await ask(OpenAIProvider, served.text("ok"), ModelCall(model="m-1", system="", messages=talk))
    assert server.requests[0].messages[1]["reasoning_content"] == "hm"


async def test_providers_resolve_by_prefix_and_are_kept() -> None:
    configured = ConfiguredProviders(openai_base_url="http://127.0.0.1:1/v1", anthropic_api_key="k")
    async with aclosing(configured) as providers:
        openai, name = providers.resolve("openai:qwen3:8b")
        other, _ = providers.resolve("openai:other")
        anthropic, _ = providers.resolve("anthropic:claude-x")
        found = []
        for forgiving in (openai, other, anthropic):
            assert isinstance(forgiving, RefusalRetries)
            assert isinstance(forgiving.provider, PermittedProvider)
            assert isinstance(forgiving.provider.provider, WithFoundTools)
            found.append(forgiving.provider.provider)
        assert (type(found[0].provider), name) == (OpenAIProvider, "qwen3:8b")
        assert found[1] is found[0]
        assert type(found[2].provider) is AnthropicProvider
        assert providers.resolve("demo")[1] == "demo"


@pytest.mark.parametrize("model", ["gpt-5", "openai:", "mistral:large", ""])
def test_an_unknown_prefix_is_the_caller_s_mistake(model: str) -> None:
    with pytest.raises(BadRequest, match=f"no such model: '{model}'; (write one of openai:|did you mean)") as caught:
        ConfiguredProviders().resolve(model)
    assert caught.value.context == {"field": "model"}


@pytest.mark.parametrize("prefix", ["openai", "anthropic"])
def test_without_key_and_address_the_error_names_the_ways_out(prefix: str) -> None:
    with pytest.raises(LLMConfigurationError) as caught:
        ConfiguredProviders().resolve(f"{prefix}:x")
    for way_out in (f"{prefix.upper()}_API_KEY", f"{prefix.upper()}_BASE_URL", "`demo`"):
        assert way_out in caught.value.message


@pytest.mark.parametrize("url", ["localhost:11434", "ftp://host/v1", "http://", "http://[::1"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(LLMConfigurationError, match="OPENAI_BASE_URL is not an http"):
        ConfiguredProviders(openai_base_url=url).resolve("openai:x")


@pytest.mark.parametrize("key", ["sk-ключ", "sk-a\nsk-b"])
def test_a_garbled_key_is_refused_without_repeating_it(key: str) -> None:
    with pytest.raises(LLMConfigurationError, match="OPENAI_API_KEY contains invalid characters") as caught:
        ConfiguredProviders(openai_api_key=key).resolve("openai:x")
    assert key not in caught.value.message


async def test_a_local_server_needs_no_key() -> None:
    async with (
        serving(served.text("ok")) as server,
        aclosing(ConfiguredProviders(openai_base_url=server.openai_url)) as providers,
    ):
        provider, name = providers.resolve("openai:local")
        answer = await provider.answer(ModelCall(model=name, system="", messages=(user("hi"),)), lambda _: None)
    assert answer.message.text == "ok"


async def test_prices_know_models_and_say_when_they_do_not() -> None:
    used = Usage(input_tokens=1_000_000, output_tokens=1_000_000, cached_tokens=1_000_000, model_calls=1)
    prices = GenaiPrices()
    whole = await prices.cost_micros("openai:gpt-5", Usage(input_tokens=1_000_000, output_tokens=1_000_000))
    cached = await prices.cost_micros("openai:gpt-5", used)
    assert whole is not None
    assert cached is not None
    assert 0 < cached < whole
    assert await prices.cost_micros("demo", used) == 0
    assert await prices.cost_micros("openai:my-own-model-7b", used) is None
    assert await GenaiPrices(openai_base_url="http://127.0.0.1:1/v1").cost_micros("openai:gpt-5", used) is None
