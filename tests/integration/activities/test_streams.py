"""Streams of all three protocols as odd servers send them: read as they are meant, or another attempt."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pytest

from loom.activities.ports import ModelCall
from loom.domain.core.errors import LLMBadResponseError, LLMRefusedError, LLMUnavailableError, LoomError
from loom.domain.core.messages import ToolCall, user
from tests.integration.activities.stream_fuzz.bodies import Body
from tests.integration.activities.stream_fuzz.hunt import Heard, Providers, hunted, providers_and_server

SSE: Final = {"content-type": "text/event-stream"}
HELLO: Final = ModelCall(model="m-1", system="", messages=(user("hello"),))
A: Final = ToolCall(id="a", name="read_file", arguments={"path": "1"})

Value = Mapping[str, Any]


Reading: TypeAlias = Callable[..., Awaitable[Heard]]


@pytest.fixture(scope="module")
async def providers() -> AsyncIterator[Providers]:
    """Providers of all protocols, and the server that they ask."""
    async with providers_and_server() as providers:
        yield providers


@pytest.fixture
def read(providers: Providers) -> Reading:
    """What the provider of a protocol reads in these bytes."""

    async def read(raw: bytes, protocol: str = "chat") -> Heard:
        return await providers.ask(protocol, Body(chunks=(raw,), fault=""))

    return read


def sse(*values: Value | str) -> bytes:
    """Events with these values."""
    return "".join(f"data: {each if isinstance(each, str) else json.dumps(each)}\n\n" for each in values).encode()


def chat(*deltas: Any, finish: str = "stop") -> bytes:
    """A chat completion of these deltas."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    return sse(*({"choices": [{"index": 0, "delta": delta}]} for delta in deltas), last, "[DONE]")


def messages(*events: Value, stop: str = "end_turn") -> bytes:
    """A message of these events, without its start."""
    delta = {"type": "message_delta", "delta": {"stop_reason": stop}}
    return sse(*events, delta, {"type": "message_stop"})


def responses(*events: Value, **fields: Any) -> bytes:
    """A response of these events."""
    return sse(*events, {"type": "response.completed", "response": {"output": [], **fields}})


OK: Final = chat({"content": "a"}, {"content": "b"})


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + OK,
        b"retry: 3000\n\n" + OK,
        b"event: keepalive\ndata: \n\n" + OK,
        b"id: 1\n" + OK.replace(b"\n\n", b"\n\n: ping\n\n"),
        OK.replace(b"\n", b"\r\n"),
        OK.replace(b"\n", b"\r"),
        OK.removesuffix(b"\n"),
        OK.removesuffix(b"data: [DONE]\n\n").removesuffix(b"\n\n"),
        sse({"choices": [{"index": 1, "delta": {"content": "SECOND"}, "finish_reason": "stop"}]}) + OK,
        sse({"choices": None}, {"choices": []}, {"choices": [None]}, {"choices": [{"delta": None}]}, "null") + OK,
        sse({"choices": [{"delta": {"content": None, "tool_calls": None, "refusal": None}}]}) + OK,
        chat({"content": [{"type": "text", "text": None}, {"type": "new"}, {"type": "text", "text": "ab"}]}),
        chat({"content": "ab", "tool_calls": [None]}),
        b'data: true\n\ndata: ""\n\n' + OK,
        *(
            chat({"content": content})
            for content in (
                [{"type": "output_text", "text": "ab"}],
                [{"text": "a"}, {"text": "b"}],
                ["a", None, "b"],
                {"type": "text", "text": "ab"},
                [{"type": "text", "text": {"value": "ab"}}],
            )
        ),
        sse({"choices": [{"text": "a"}]}, {"choices": [{"text": "b", "finish_reason": "stop"}]}, "[DONE]"),
        sse({"choices": [{"delta": {"content": "ab"}}]}, {"type": "ping"}, "[DONE]"),
    ],
    ids=lambda body: ascii(body[:40]),
)
async def test_what_says_nothing_is_skipped(read: Reading, body: bytes) -> None:
    heard = await read(body)
    assert (heard.answer.message.text, heard.text, heard.answer.stop) == ("ab", "ab", "end")


SMILE: Final = ("s \ud83d", "\ude00 \ud83d", " end")


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("chat", chat(*({"content": each} for each in SMILE))),
        (
            "messages",
            messages(*({"type": "content_block_delta", "delta": {"type": "text_delta", "text": t}} for t in SMILE)),
        ),
        ("responses", responses(*({"type": "response.output_text.delta", "delta": each} for each in SMILE))),
    ],
)
async def test_text_consists_of_whole_characters(read: Reading, protocol: str, body: bytes) -> None:
    heard = await read(body, protocol)
    assert (heard.answer.message.text, heard.text) == ("s 😀 \ufffd end", "s 😀 \ufffd end")


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("chat", chat(*({"reasoning_content": each} for each in SMILE), {"content": "ok"})),
        ("chat", chat(*({"reasoning": each} for each in SMILE), {"content": "ok"})),
        (
            "chat",
            chat(*({"reasoning_details": [{"type": "t", "index": 0, "text": t}]} for t in SMILE), {"content": "ok"}),
        ),
        ("chat", chat({"content": "<think>"}, *({"content": each} for each in SMILE), {"content": "</think>ok"})),
        (
            "messages",
            messages(
                *({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": t}} for t in SMILE),
                {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "ok"}},
            ),
        ),
        (
            "responses",
            responses(
                *({"type": "response.reasoning_text.delta", "delta": each} for each in SMILE),
                {"type": "response.output_text.delta", "delta": "ok"},
            ),
        ),
    ],
)
async def test_thinking_consists_of_whole_characters(read: Reading, protocol: str, body: bytes) -> None:
    heard = await read(body, protocol)
    assert (heard.thinking, heard.answer.message.text) == ("s 😀 \ufffd end", "ok")


ARGUMENTS: Final = json.dumps({"\ud83d": ["\ud83d\ude00", {"a": "\ude00"}]})
WHOLE: Final = {"\ufffd": ["😀", {"a": "\ufffd"}]}


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("chat", chat({"tool_calls": [{"id": "\ud83d", "function": {"name": "x\ude00", "arguments": ARGUMENTS}}]})),
        (
            "chat",
            chat(
                {"tool_calls": [{"id": "\ud83d", "function": {"name": "x\ude00", "arguments": json.loads(ARGUMENTS)}}]}
            ),
        ),
        (
            "messages",
            messages(
                {
                    "type": "content_block_start",
                    "index": 0,
                    "content_block": {
                        "type": "tool_use",
                        "id": "\ud83d",
                        "name": "x\ude00",
                        "input": json.loads(ARGUMENTS),
                    },
                }
            ),
        ),
        (
            "responses",
            responses(
                output=[{"type": "function_call", "call_id": "\ud83d", "name": "x\ude00", "arguments": ARGUMENTS}]
            ),
        ),
    ],
)
async def test_calls_consist_of_whole_characters(read: Reading, protocol: str, body: bytes) -> None:
    heard = await read(body, protocol)
    assert heard.answer.message.tool_calls == (ToolCall(id="\ufffd", name="x\ufffd", arguments=WHOLE),)


async def test_kept_reasoning_names_and_errors_have_whole_characters(read: Reading) -> None:
    call = {"tool_calls": [{"id": "a", "function": {"name": "f"}}]}
    details = [{"type": "t", "text": "\ud83d", "data": {"\ude00": "\ud83d"}}]
    body = sse({"model": "m\ud83d"}) + chat({"reasoning_details": details}, call)
    heard = await read(body)
    assert heard.answer.model == "m\ufffd"
    json.dumps(heard.answer.message.metadata, ensure_ascii=False).encode()
    for odd in (sse({"error": {"message": "no \ud83d"}}), chat({"refusal": "no \ud83d"})):
        with pytest.raises((LLMUnavailableError, LLMRefusedError)) as caught:
            await read(odd)
        assert "no" in caught.value.message.encode().decode()


def piece(arguments: Any = None, name: str | None = None, **fields: Any) -> Value:
    """A delta with a piece of a call."""
    return {"tool_calls": [{**fields, "function": {"name": name, "arguments": arguments}}]}


FULL: Final = '{"path":"1"}'


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(FULL, "read_file", index=0, id="a"), piece(FULL, "read_file", index=0, id="a")],
        [piece('{"path"', "read_file", index=0, id="a"), piece(':"1"}', index=0), piece(FULL, index=0)],
        [piece('{"pa', "read_file", id="a"), piece('th":"1"}', "read_file", id="a")],
        [piece('{"pa', "read_file", id="a"), piece('th":"1"}', id="a")],
        [piece('{"pa', "read_file", id="a"), piece('th":"1"}')],
        [piece('{"pa', "read_file", index="0", id="a"), piece('th":"1"}', index="0")],
        [piece('{"pa', "read_file", index=0.0, id="a"), piece('th":"1"}', index=0)],
        [piece('{"pa', "read_file", id="a"), piece('th":"1"}', index=0)],
        [piece('{"pa', "read_file", index=0), piece('th":"1"}', "read_file", index=0, id="a")],
        [piece({}, "read_file", index=0, id="a"), piece('{"pa', index=0), piece('th":"1"}', index=0)],
        [piece("{}", "read_file", index=0, id="a"), piece(FULL, "read_file", index=0, id="a")],
        [piece({"path": "1"}, "read_file", index=0, id="a")],
        [{"tool_calls": {"id": "a", "function": {"name": "read_file", "arguments": FULL}}}],
        [piece(FULL[:at], "read_file", index=0, id="a") for at in (1, 2, 7, 7, len(FULL))],
        [piece('{"path"', "read_file", index=0, id="a"), piece(FULL, index=0), piece(FULL, index=0)],
        [piece('{"path"', "read_file", id="a"), piece(FULL, "read_file", id="a")],
        [piece('{"path"', "read_file", index=0, id="a"), piece(FULL, "read_file", index=0, id="b")],
        [piece('{"pa', "read_file", index=0, id="a"), piece('th":"1"}', "read_file", index=0, id="b")],
        [piece('{"pa', "read_file", index=0, id="a"), piece('th":"1"}', index=0, id="b")],
    ],
    ids=str,
)
async def test_the_pieces_of_one_call_are_one_call(read: Reading, pieces: Sequence[Value]) -> None:
    heard = await read(chat(*pieces, finish="tool_calls"))
    assert heard.answer.message.tool_calls == (A,)


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(FULL, "read_file", id="a"), piece('{"path":"2"}', "read_file", id="b")],
        [piece(FULL, "read_file", index=0, id="a"), piece('{"path":"2"}', "read_file", index=0, id="b")],
        [piece(FULL, "read_file", index=0, id="a"), piece('{"path":"2"}', "read_file", index=0, id="a")],
        [
            piece('{"pa', "read_file", id="a"),
            piece('{"path":', "read_file", id="b"),
            piece('th":"1"}', id="a"),
            piece('"2"}', id="b"),
        ],
    ],
    ids=str,
)
async def test_two_calls_stay_two(read: Reading, pieces: Sequence[Value]) -> None:
    calls = (await read(chat(*pieces, finish="tool_calls"))).answer.message.tool_calls
    assert [call.arguments for call in calls] == [{"path": "1"}, {"path": "2"}]
    assert len({call.id for call in calls}) == 2


@pytest.mark.parametrize(
    ("sent", "read_as"),
    [
        *((11, 11), (11.0, 11), ("11", 11), ("11.0", 11), ("1e5", 100_000)),
        *((-3, 0), (True, 0), (None, 0), ([], 0), ("NaN", 0), (float("nan"), 0), (float("inf"), 0), (1e300, 0)),
        (10**400, 0),
    ],
)
@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
async def test_counts_are_numbers_of_any_kind(read: Reading, protocol: str, sent: Any, read_as: int) -> None:
    usage = {"prompt_tokens": sent, "completion_tokens": 7.0, "input_tokens": sent, "output_tokens": 7.0}
    body = {
        "chat": sse({"choices": [], "usage": usage}) + OK,
        "messages": messages({"type": "message_start", "message": {"usage": usage}}),
        "responses": responses(usage=usage),
    }[protocol]
    answered = (await read(body, protocol)).answer.usage
    assert (answered.input_tokens, answered.output_tokens) == (read_as, 7)


COUNTS: Final = {"prompt_tokens": 11, "completion_tokens": 7}
END_OF_OK: Final = {"delta": {}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    "chunks",
    [
        [{"choices": [{**END_OF_OK, "usage": COUNTS}]}],
        [{"choices": [END_OF_OK], "x_groq": {"id": "x", "usage": COUNTS}}],
        [{"choices": [END_OF_OK], "usage": {"input_tokens": 11, "output_tokens": 7}}],
        [{"choices": [END_OF_OK], "usage": COUNTS}, {"choices": [], "usage": dict.fromkeys(COUNTS, 0)}],
        [{"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 1}}, {"choices": [], "usage": COUNTS}],
        [{"choices": [END_OF_OK], "usage": COUNTS}, {"choices": [], "usage": {}, "x_groq": None}],
    ],
    ids=str,
)
async def test_counts_may_be_in_any_place(read: Reading, chunks: Sequence[Value]) -> None:
    usage = (await read(sse({"choices": [{"delta": {"content": "ab"}}]}, *chunks, END_CHUNK, "[DONE]"))).answer.usage
    assert (usage.input_tokens, usage.output_tokens) == (11, 7)


END_CHUNK: Final = {"choices": [END_OF_OK]}


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": {"text": "hm"}},
        {"reasoning_details": {"type": "reasoning.text", "text": "hm"}},
        {"reasoning_text": "hm"},
        {"thinking": "hm"},
        {"thinking": True, "reasoning": "hm"},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": "<thinking>hm</thinking>"},
    ],
    ids=str,
)
async def test_thinking_in_any_field_is_thinking(read: Reading, delta: Value) -> None:
    heard = await read(chat(delta, {"content": "ok"}))
    assert (heard.thinking, heard.text, heard.answer.message.text) == ("hm", "ok", "ok")


async def test_blocks_of_reasoning_with_different_ids_stay_apart(read: Reading) -> None:
    pieces = [("r1", "a"), (None, "b"), ("r1", "c"), ("r2", "d"), (None, "e")]
    details = ({"type": "reasoning.text", "index": 0, "id": each, "text": text} for each, text in pieces)
    heard = await read(chat(*({"reasoning_details": [each]} for each in details), piece(FULL, "read_file", id="a")))
    kept = heard.answer.message.metadata["reasoning"]["content"]["reasoning_details"]
    assert [(each["id"], each["text"]) for each in kept] == [("r1", "abc"), ("r2", "de")]


def block(index: Any, start: Value, *deltas: Value) -> list[Value]:
    """The events of a block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


TEXT: Final = {"type": "text", "text": ""}
USE: Final = {"type": "tool_use", "id": "a", "name": "read_file", "input": {}}
SAYS: Final = {"type": "text_delta", "text": "ab"}
HALVES: Final = (
    {"type": "input_json_delta", "partial_json": '{"pa'},
    {"type": "input_json_delta", "partial_json": 'th":"1"}'},
)


@pytest.mark.parametrize(
    "events",
    [
        [*block(0, TEXT, SAYS), *block(1, USE, *HALVES)],
        [*block(0, TEXT, SAYS)[1:], *block(1, USE, *HALVES)],
        [*block("0", TEXT, SAYS), *block("1", USE, *HALVES)],
        [*block(None, TEXT, SAYS), *block(None, USE, *HALVES)],
        [*block(0, TEXT, SAYS), *block(0, USE, *HALVES)],
        [*block(0, {"type": "text", "text": "ab"}), *block(1, {**USE, "input": {"path": "1"}}, *HALVES)],
        [*block(0, TEXT, SAYS), *block(1, {**USE, "input": {"path": "1"}}, {**HALVES[0], "partial_json": ""})],
        [*block(0, TEXT, SAYS), block(1, USE)[0], *block(1, USE, *HALVES)],
        [*block(0, {"type": "new", "x": 1}, {"type": "new_delta"}), *block(1, TEXT, SAYS), *block(2, USE, *HALVES)],
        [{"type": "ping", "x": []}, {"type": "new"}, *block(0, TEXT, SAYS), *block(1, USE, *HALVES)],
        [{"type": "message_start", "message": None}, *block(0, TEXT, SAYS), *block(1, USE, *HALVES)],
    ],
    ids=[
        "as the API does",
        "a text without a start",
        "text as index",
        "no index",
        "index always 0",
        "whole at the start, and again",
        "whole at the start, and an empty piece",
        "a start twice",
        "an unknown block",
        "unknown events",
        "an empty start",
    ],
)
async def test_blocks_in_odd_forms_are_read(read: Reading, events: Sequence[Value]) -> None:
    heard = await read(messages(*events, stop="tool_use"), "messages")
    assert (heard.answer.message.text, heard.text, heard.answer.message.tool_calls) == ("ab", "ab", (A,))


async def test_arguments_without_a_call_are_no_reply(read: Reading) -> None:
    with pytest.raises(LLMBadResponseError):
        await read(messages(*block(0, USE, *HALVES)[1:]), "messages")


async def test_a_call_of_a_response_without_its_complete_item_is_read(read: Reading) -> None:
    item = {"type": "function_call", "call_id": "a", "name": "read_file", "arguments": ""}
    pieces = (
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": p} for p in (FULL[:4], FULL[4:])
    )
    body = responses({"type": "response.output_item.added", "output_index": 0, "item": item}, *pieces)
    assert (await read(body, "responses")).answer.message.tool_calls == (A,)


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("chat", chat(piece(FULL, "read_file", id="a"), finish="length")),
        ("chat", chat(piece(FULL, "read_file", id="a"), finish="MAX_TOKENS")),
        ("chat", chat(piece(FULL, "read_file", id="a"), finish="model_context_window_exceeded")),
        (
            "responses",
            responses(
                status="incomplete",
                output=[{"type": "function_call", "call_id": "a", "name": "read_file", "arguments": FULL}],
            ),
        ),
        ("messages", messages(*block(0, USE, *HALVES), stop="max_tokens")),
        (
            "responses",
            sse(
                {
                    "type": "response.incomplete",
                    "response": {
                        "status": "incomplete",
                        "incomplete_details": {"reason": "max_output_tokens"},
                        "output": [{"type": "function_call", "call_id": "a", "name": "read_file", "arguments": FULL}],
                    },
                }
            ),
        ),
    ],
)
async def test_a_call_in_a_cut_reply_says_that_the_limit_cut_it(read: Reading, protocol: str, body: bytes) -> None:
    answer = (await read(body, protocol)).answer
    assert (answer.stop, answer.message.tool_calls) == ("length", (A,))


HALF: Final = {
    "chat": sse({"choices": [{"delta": {"content": "The answer is part"}}]}),
    "messages": sse(*block(0, {"type": "text", "text": "The answer is part"})),
    "responses": sse({"type": "response.output_text.delta", "delta": "The answer is part"}),
}
END: Final = {"chat": OK, "messages": messages(), "responses": responses()}


@pytest.mark.parametrize(
    "error",
    [
        sse({"error": "no"}),
        sse({"text": "CUDA out of memory", "error_code": 50002}),
        sse({"object": "error", "message": "no"}),
        sse({"detail": "no"}),
        sse({"code": 500, "message": "no"}),
        b"event: error\ndata: no\n\n",
        b'error: {"message": "no"}\n\n',
        sse({"exception": "no"}),
        sse({"status": 500, "title": "no"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
async def test_an_error_before_the_end_is_another_attempt(read: Reading, protocol: str, error: bytes) -> None:
    with pytest.raises(LLMUnavailableError):
        await read(HALF[protocol] + error + END[protocol], protocol)


def ended(protocol: str, reason: str) -> bytes:
    """The end of a reply that contains text and a call, with this reason."""
    call = {"type": "function_call", "call_id": "a", "name": "read_file", "arguments": FULL}
    why = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return {
        "chat": chat(piece(FULL, "read_file", id="a"), finish=reason),
        "messages": messages(*block(1, USE, *HALVES), stop=reason),
        "responses": sse({"type": "response.incomplete", "response": {**why, "output": [call]}}),
    }[protocol]


@pytest.mark.parametrize("reason", ["error", "network_error", "abort", "cancelled", "timeout", "server_overloaded"])
@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
async def test_a_reply_that_the_server_broke_off_is_another_attempt(read: Reading, protocol: str, reason: str) -> None:
    for after in (b"", END[protocol]):
        with pytest.raises(LLMUnavailableError):
            await read(HALF[protocol] + ended(protocol, reason).removesuffix(b"data: [DONE]\n\n") + after, protocol)


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
async def test_a_filtered_reply_is_refused_and_a_malformed_call_is_no_reply(read: Reading, protocol: str) -> None:
    for reason, error in {"SAFETY": LLMRefusedError, "MALFORMED_FUNCTION_CALL": LLMBadResponseError}.items():
        with pytest.raises(error):
            await read(HALF[protocol] + ended(protocol, reason), protocol)


async def test_an_unknown_chunk_makes_a_reply_without_a_reason_another_attempt(read: Reading) -> None:
    with pytest.raises(LLMUnavailableError):
        await read(HALF["chat"] + sse({"what": "no"}, "[DONE]"))
    assert (await read(HALF["chat"] + sse({"what": "no"}, END_CHUNK, "[DONE]"))).text == "The answer is part"


async def test_a_message_with_a_reason_is_complete_without_its_last_event(read: Reading) -> None:
    body = HALF["messages"] + messages().removesuffix(sse({"type": "message_stop"}))
    assert (await read(body, "messages")).text == "The answer is part"
    with pytest.raises(LLMUnavailableError):
        await read(HALF["messages"], "messages")


async def test_streamed_blanks_of_a_response_are_not_repeated(read: Reading) -> None:
    whole = [{"type": "message", "content": [{"type": "output_text", "text": " "}]}]
    body = responses({"type": "response.output_text.delta", "delta": " "}, output=whole)
    assert (await read(body, "responses")).answer.message.text == " "


async def test_empty_parts_of_a_response_are_skipped(read: Reading) -> None:
    parts = [None, {"type": "output_text", "text": None}, {"type": "output_text", "text": "ab"}]
    assert (await read(responses(output=[{"type": "message", "content": parts}]), "responses")).text == "ab"


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
async def test_what_follows_the_end_of_a_reply_is_not_read(read: Reading, protocol: str) -> None:
    heard = await read(HALF[protocol] + END[protocol] + b"data: {not JSON\n\n", protocol)
    assert heard.answer.message.text.startswith("The answer is part")


ODD: Final[Sequence[Any]] = [5, "x", [1], {"choices": 5}, {"choices": [{"delta": [1]}]}, {"type": 5}, {"model": 5}]
ODDER: Final[Sequence[Any]] = [
    {"choices": [{"delta": {"tool_calls": [{"function": {"name": 5}}]}}]},
    {"choices": [{"delta": {"reasoning_details": [{"text": 5}]}}]},
    {"choices": [{"delta": {"content": [5]}}]},
    {"type": "content_block_start", "index": 0, "content_block": {"type": 5}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "server_tool_use", "input": "{"}},
    {"type": "content_block_start", "index": [], "content_block": None},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}},
    {"type": "message_start", "message": 5},
    {"type": "response.output_item.done", "output_index": 0, "item": {"type": None}},
    {"type": "response.output_item.done", "output_index": 0, "item": {"type": "function_call", "name": 5}},
    {"type": "response.output_text.delta", "delta": {}},
    {"type": "response.completed", "response": {"output": [5], "usage": 5}},
    {"type": "response.completed", "response": {"output": [{"type": "message", "content": [5]}]}},
    {"error": json.loads("[" * 900 + "]" * 900)},
    {"choices": [{"delta": {"reasoning_details": [json.loads("[" * 900 + "]" * 900)], "tool_calls": [{"id": "a"}]}}]},
]


@pytest.mark.parametrize("odd", [*ODD, *ODDER], ids=lambda odd: str(odd)[:60])
@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
async def test_what_cannot_be_read_is_a_typed_error(read: Reading, protocol: str, odd: Any) -> None:
    try:
        await read(HALF[protocol] + sse(odd) + END[protocol], protocol)
    except LoomError as error:
        expected = LLMBadResponseError | LLMUnavailableError
        assert isinstance(error, expected)  # noqa: PT017 - other protocols ignore the event


async def test_bodies_of_the_short_fuzz_are_read_as_they_are_meant(providers: Providers) -> None:
    report = await hunted(providers, "ci", range(150))
    assert report.outcomes["whole: read"] > 50
    assert not report.findings, "\n".join(map(str, report.findings))


@pytest.mark.slow
async def test_bodies_of_the_long_fuzz_are_read_as_they_are_meant(providers: Providers) -> None:
    report = await hunted(providers, "slow", range(3_000))
    assert not report.findings, "\n".join(map(str, report.findings))
