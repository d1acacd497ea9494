"""Odd answers of compatible servers, each with its bytes: read, or refused by name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
from loom.activities.adapters.models.anthropic_reply import MOST_PAUSES
from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.adapters.models.thinking import ThinkTags
from loom.activities.ports import ModelAnswer, ModelCall
from loom.domain.core.errors import LLMBadResponseError, LLMConfigurationError, LLMUnavailableError, LoomError
from loom.domain.core.messages import Message, ToolCall, Usage, user
from loom.domain.core.tool_calls import ToolSpec
from loom.testing import model_server as served
from loom.testing.model_server import ModelServer, Reply, ToolUse, serving

SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json; charset=utf-8"}
READ = ToolSpec(name="read_file", description="Read a file.", parameters={"type": "object", "properties": {}})
HELLO = ModelCall(model="m-1", system="Be brief.", messages=(user("hello"),), tools=(READ,))
A = ToolCall(id="call_0", name="read_file", arguments={"path": "a"})


async def ask(
    provider: OpenAIProvider | AnthropicProvider, call: ModelCall = HELLO
) -> tuple[ModelAnswer, list[str], list[str]]:
    """One call: the answer, its streamed text and its streamed thinking."""
    text: list[str] = []
    thinking: list[str] = []
    try:
        answer = await provider.answer(replace(call, on_thinking=thinking.append), text.append)
    finally:
        await provider.aclose()
    return answer, text, thinking


async def openai(raw: str, headers: Mapping[str, str] = SSE) -> tuple[ModelAnswer, list[str], list[str]]:
    """What the provider makes of these bytes of an OpenAI-compatible server."""
    async with serving(Reply(raw=raw.encode(), headers=headers)) as server:
        return await ask(OpenAIProvider(api_key="k", base_url=server.openai_url))


async def anthropic(*replies: Reply) -> tuple[ModelAnswer, list[str], list[str], ModelServer]:
    """The same for an Anthropic-compatible server, which may be asked several times."""
    async with serving(*replies) as server:
        return *await ask(AnthropicProvider(api_key="k", base_url=server.anthropic_url)), server


def sse(*lines: str, done: bool = True) -> str:
    """Chunks as server-sent events."""
    return "".join(f"data: {line}\n\n" for line in (*lines, *(["[DONE]"] if done else [])))


def deltas(*each: str, finish: str = "stop") -> str:
    """A stream of these deltas, with an end."""
    last = f'{{"choices":[{{"delta":{{}},"finish_reason":"{finish}"}}]}}'
    return sse(*(f'{{"choices":[{{"delta":{delta}}}]}}' for delta in each), last)


def events(*each: dict[str, Any]) -> Reply:
    """Anthropic's events."""
    raw = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in each)
    return Reply(raw=raw.encode(), headers=SSE)


def blocks(*content: dict[str, Any], stop: str, output: int = 5) -> Reply:
    """An Anthropic reply of whole blocks."""
    return events(
        {"type": "message_start", "message": {"model": "m-1", "usage": {"input_tokens": 10, "output_tokens": 1}}},
        *({"type": "content_block_start", "index": at, "content_block": block} for at, block in enumerate(content)),
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    )


def split(*pieces: str) -> tuple[str, str]:
    """The answer and the thinking in these pieces of text. What is streamed is what is kept."""
    tags = ThinkTags()
    answer, thinking = "", ""
    for said in (*(tags.feed(piece) for piece in pieces), tags.flush()):
        answer = said.answer if said.takes_back else answer + said.answer
        thinking += said.thinking
    assert (answer, thinking) == ("".join(tags.answer), "".join(tags.thinking))
    return answer, thinking


@pytest.mark.parametrize(
    ("text", "answer", "thinking"),
    [
        ("<think>hm</think>yes", "yes", "hm"),
        ("\n<think>\nhm\n</think>\n\nyes\n", "yes\n", "\nhm\n"),
        ("<think>a</think> <think>b</think> yes", "yes", "ab"),
        ("<think></think>\n\nyes", "yes", ""),
        ("<think>never closed </thin", "", "never closed </thin"),
        ("<think>hm</think>\n", "", "hm"),
        ("<thinking about it>", "<thinking about it>", ""),
        ("  plain", "  plain", ""),
        ("Write <think>x</think> in HTML.", "Write <think>x</think> in HTML.", ""),
        ("<thinking>hm</thinking>\n\nyes", "yes", "hm"),
        ("<thought>hm </think></thought>yes", "yes", "hm </think>"),
        ("\n<reasoning>hm</reasoning>yes", "yes", "hm"),
        ("<seed:think>hm</seed:think>yes", "yes", "hm"),
        ("[THINK]hm[/THINK]yes", "yes", "hm"),
        ("◁think▷hm◁/think▷yes", "yes", "hm"),
        ("[THIS] <thinking>x</thinking>", "[THIS] <thinking>x</thinking>", ""),
        ("hm</thinking>yes", "hm</thinking>yes", ""),
        ("<th", "<th", ""),
        ("", "", ""),
    ],
)
def test_think_tags_at_the_start_are_thinking_however_they_are_cut(text: str, answer: str, thinking: str) -> None:
    for size in (1, 2, 3, 7, 100):
        assert split(*(text[at : at + size] for at in range(0, len(text), size))) == (answer, thinking)


@pytest.mark.parametrize("text", ["<thinking> begins a block.", "[THINK]", "<reasoning>a </reasoning", "<thought"])
def test_an_answer_that_begins_with_another_tag_is_kept(text: str) -> None:
    for size in (1, 2, 3, 7, 100):
        tags = ThinkTags()
        for at in range(0, len(text), size):
            tags.feed(text[at : at + size])
        tags.flush()
        assert ("".join(tags.answer), tags.thinking) == (text, [])


@pytest.mark.parametrize(
    ("text", "answer", "thinking"),
    [
        ("hm, so\nyes\n</think>\n\nThe answer", "The answer", "hm, so\nyes\n"),
        ("hm.</think>\n\nyes", "yes", "hm."),
        ("</think>\n\nyes", "yes", ""),
        ("a\n</think>\nb", "b", "a\n"),
        ("hm\n</think>", "", "hm\n"),
        ("plan plan</think>\n\nhi", "hi", "plan plan"),
        ("plan plan</think>hi", "hi", "plan plan"),
        ("plan plan</think> hi", "hi", "plan plan"),
        ("plan plan</think>\nhi", "hi", "plan plan"),
        ("plan plan\r\n</think>\r\n\r\nhi", "hi", "plan plan\r\n"),
        ("plan </think>hi", "hi", "plan "),
        ("I plan. </think> Hi", "Hi", "I plan. "),
        ("**plan**</think>**hi** `</think>`", "**hi** `</think>`", "**plan**"),
        ("```\nx\n```\nplan</think>```\ny\n```", "```\ny\n```", "```\nx\n```\nplan"),
        ('The `tag`, or "tag"</think>- hi', "- hi", 'The `tag`, or "tag"'),
        ("我想想。</think>你好", "你好", "我想想。"),
        ("plan</think>", "", "plan"),
        ("Use </think> to close.\nok", "Use </think> to close.\nok", ""),
        ("Use </think>.\n</think>\n\nok", "Use </think>.\n</think>\n\nok", ""),
        ("Write <think>x\n</think>\n\nin HTML", "Write <think>x\n</think>\n\nin HTML", ""),
        ("a < b and </th", "a < b and </th", ""),
        ("The tag is `</think>`\n\nok", "The tag is `</think>`\n\nok", ""),
        ("Write:\n```xml\nhm</think>\n\nyes\n```", "Write:\n```xml\nhm</think>\n\nyes\n```", ""),
        ('Write "</think>" there.', 'Write "</think>" there.', ""),
        ('{"tag": "x</think>y"}', '{"tag": "x</think>y"}', ""),
        ("The tag (</think>) closes.", "The tag (</think>) closes.", ""),
        ("It ends with </think>", "It ends with </think>", ""),
        ("Use the </think>-tag", "Use the </think>-tag", ""),
        ("</think> closes it.", "</think> closes it.", ""),
        ("<think>a</think>Use </think>\n\nnow", "Use </think>\n\nnow", "a"),
    ],
)
def test_a_closing_tag_that_no_sentence_talks_about_makes_what_was_said_thinking(
    text: str, answer: str, thinking: str
) -> None:
    for size in (1, 2, 3, 7, 100):
        assert split(*(text[at : at + size] for at in range(0, len(text), size))) == (answer, thinking)


async def test_a_model_without_an_opening_tag_is_remembered() -> None:
    reply = Reply(raw=deltas('{"content":"hm\\n"}', '{"content":"</think>\\n\\nyes"}').encode(), headers=SSE)
    plain = Reply(raw=deltas('{"content":"no "}', '{"content":"tags"}').encode(), headers=SSE)
    told: list[str] = []
    call = replace(
        HELLO,
        on_thinking=lambda text: told.append(f"thinks {text}"),
        on_taken_back=lambda: told.append("takes back"),
    )
    async with serving(reply, reply, plain) as server:
        provider = OpenAIProvider(api_key="k", base_url=server.openai_url)
        answers = [await provider.answer(call, lambda text: told.append(f"says {text}")) for _ in range(3)]
        await provider.aclose()
    assert [answer.message.text for answer in answers] == ["yes", "yes", "no tags"]
    assert told[:4] == ["says hm\n", "takes back", "thinks hm\n", "says yes"]
    assert told[4:6] == ["thinks hm\n", "says yes"]
    assert told[6:] == ["thinks no ", "thinks tags", "says no tags"]


async def test_blocks_of_reasoning_go_back_unchanged() -> None:
    call = '{"tool_calls":[{"index":0,"id":"t","function":{"name":"read_file","arguments":"{}"}}]}'
    pieces = [
        '{"reasoning":"h","reasoning_details":[{"type":"reasoning.text","text":"h","index":0,"format":"f"}]}',
        '{"reasoning":"m","reasoning_details":[{"type":"reasoning.text","text":"m","index":0,"signature":"s"}]}',
        '{"reasoning_details":[{"type":"reasoning.encrypted","data":"xyz","index":1,"id":"r1"}]}',
    ]
    answer, text, thinking = await openai(deltas(*pieces, call))
    assert (answer.message.text, text, thinking) == ("", [], ["h", "m"])
    talk = (user("hello"), answer.message, Message(role="tool", tool_call_id="t", content="r"))
    async with serving(served.text("ok")) as server:
        asked = ModelCall(model="m-1", system="", messages=talk)
        await ask(OpenAIProvider(api_key="k", base_url=server.openai_url), asked)
    assert server.requests[0].messages[1]["reasoning_details"] == [
        {"type": "reasoning.text", "text": "hm", "index": 0, "format": "f", "signature": "s"},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1, "id": "r1"},
    ]


async def test_think_tags_are_thinking_and_not_the_answer() -> None:
    raw = deltas('{"content":"<thi"}', '{"content":"nk>hm</think>\\n"}', '{"content":"\\nyes"}')
    answer, text, thinking = await openai(raw)
    assert (answer.message, text, thinking) == (Message(role="assistant", content="yes"), ["yes"], ["hm"])


async def test_think_tags_with_calls_go_back_as_they_came() -> None:
    call = '{"tool_calls":[{"index":0,"id":"t","function":{"name":"read_file","arguments":"{}"}}]}'
    answer, _, _ = await openai(deltas('{"content":"<think>hm</think>I look."}', call))
    talk = (user("hello"), answer.message, Message(role="tool", tool_call_id="t", content="r"))
    async with serving(served.text("ok"), served.text("ok")) as server:
        for model in ("m-1", "m-2"):
            asked = ModelCall(model=model, system="", messages=talk)
            await ask(OpenAIProvider(api_key="k", base_url=server.openai_url), asked)
    sent = [request.messages[1]["content"] for request in server.requests]
    assert sent == ["<think>hm</think>\n\nI look.", "I look."]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_fields_of_thinking_are_streamed_and_go_back_under_their_name(name: str) -> None:
    call = '{"tool_calls":[{"index":0,"id":"t","function":{"name":"read_file","arguments":"{}"}}]}'
    answer, text, thinking = await openai(deltas(f'{{"{name}":"h"}}', f'{{"{name}":"m","content":""}}', call))
    assert (answer.message.text, text, thinking) == ("", [], ["h", "m"])
    talk = (user("hello"), answer.message, Message(role="tool", tool_call_id="t", content="r"))
    async with serving(served.text("ok")) as server:
        await ask(
            OpenAIProvider(api_key="k", base_url=server.openai_url), ModelCall(model="m-1", system="", messages=talk)
        )
    assert server.requests[0].messages[1][name] == "hm"


async def test_thinking_that_comes_under_both_names_is_told_once() -> None:
    _, _, thinking = await openai(deltas('{"reasoning":"hm","reasoning_content":"hm"}', '{"content":"yes"}'))
    assert thinking == ["hm"]


async def test_content_in_parts_is_read() -> None:
    thought = '{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}'
    answer, text, thinking = await openai(deltas(f'{{"content":[{thought},{{"type":"text","text":"yes"}}]}}'))
    assert (answer.message.text, text, thinking) == ("yes", ["yes"], ["hm"])


async def test_anthropic_s_thinking_is_streamed() -> None:
    answer, text, thinking, _ = await anthropic(
        blocks({"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}, stop="end_turn")
    )
    assert (answer.message.text, text, thinking) == ("yes", ["yes"], ["hm"])


SEARCHES = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}


async def test_a_paused_turn_goes_on() -> None:
    answer, text, _, server = await anthropic(
        blocks({"type": "text", "text": "I search. "}, SEARCHES, FOUND, stop="pause_turn"),
        blocks({"type": "text", "text": "It is so."}, stop="end_turn", output=7),
    )
    assert answer.message == Message(role="assistant", content="I search. It is so.")
    assert text == ["I search. ", "It is so."]
    assert answer.usage == Usage(input_tokens=20, output_tokens=12, model_calls=2)
    assert server.requests[1].messages[1:] == [
        {"role": "assistant", "content": [{"type": "text", "text": "I search. "}, SEARCHES, FOUND]}
    ]


async def test_a_turn_that_pauses_without_end_is_refused() -> None:
    paused = blocks({"type": "text", "text": "…"}, stop="pause_turn")
    with pytest.raises(LLMBadResponseError, match=f"it paused its turn {MOST_PAUSES} times") as caught:
        await anthropic(*[paused] * (MOST_PAUSES + 1))
    assert caught.value.used == Usage(input_tokens=110, output_tokens=55, model_calls=11)


async def test_a_legacy_function_call_is_a_call() -> None:
    raw = deltas(
        '{"function_call":{"name":"read_file","arguments":""}}',
        '{"function_call":{"arguments":"{\\"path\\":"}}',
        '{"function_call":{"arguments":"\\"a\\"}"}}',
        finish="function_call",
    )
    answer, _, _ = await openai(raw)
    assert (answer.stop, answer.message.tool_calls) == ("tools", (A,))


def piece(name: str = "", arguments: Any = None, **more: Any) -> str:
    """A piece of a call."""
    function = {**({"name": name} if name else {}), **({} if arguments is None else {"arguments": arguments})}
    return json.dumps({"tool_calls": [{**more, "function": function}]})


TWO = (A, ToolCall(id="call_1", name="read_file", arguments={"path": "b"}))


@pytest.mark.parametrize(
    ("pieces", "called"),
    [
        ([piece("read_", index=0, id="call_0"), piece("file", index=0), piece("", '{"path":"a"}', index=0)], (A,)),
        ([piece("read_file", index=0, id="call_0"), piece("read_file", '{"path":"a"}', index=0, id="call_0")], (A,)),
        ([piece("read", index=0), piece("read_file", '{"path":', index=0), piece("read_file", '"a"}', index=0)], (A,)),
        ([piece("read_file", '{"path":"a"}'), piece("read_file", '{"path":"b"}')], TWO),
        ([piece("read_file", '{"path":"a"}', index=0), piece("read_file", '{"path":"b"}', index=0)], TWO),
        ([piece("read_file", {"path": "a"}), piece("read_file", {"path": "b"})], TWO),
        ([piece("read_file", json.dumps('{"path":"a"}'), index=0)], (A,)),
    ],
    ids=[
        "name in fragments",
        "repeated name",
        "growing name",
        "no index",
        "one index, no id",
        "objects",
        "doubly encoded",
    ],
)
async def test_calls_in_odd_pieces_are_read(pieces: Sequence[str], called: tuple[ToolCall, ...]) -> None:
    answer, _, _ = await openai(deltas(*pieces))
    assert (answer.stop, answer.message.tool_calls) == ("tools", called)


async def test_doubly_encoded_arguments_are_read_from_anthropic_s_servers_too() -> None:
    use = ToolUse("read_file", json.dumps('{"path":"a"}'), "call_0")
    answer, _, _, _ = await anthropic(served.calls(use))
    assert answer.message.tool_calls == (A,)


CALLED = '{"id":"call_0","type":"function","function":{"name":"read_file","arguments":"{\\"path\\":\\"a\\"}"}}'
WHOLE = (
    '{"object":"chat.completion","model":"m-2","choices":[{"message":'
    '{"role":"assistant","content":"<think>hm</think>I look.",'
    f'"tool_calls":[{CALLED}]}},"finish_reason":"tool_calls"}}],"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}'
)


@pytest.mark.parametrize(("raw", "headers"), [(WHOLE, JSON), (sse(WHOLE), SSE)], ids=["one body", "one chunk"])
async def test_a_whole_reply_where_a_stream_was_asked_is_read(raw: str, headers: Mapping[str, str]) -> None:
    answer, text, thinking = await openai(raw, headers)
    assert answer == ModelAnswer(
        message=Message(
            role="assistant",
            content="I look.",
            tool_calls=(A,),
            metadata={"reasoning": {"model": "m-1", "content": {"think": "hm"}}},
        ),
        stop="tools",
        usage=Usage(input_tokens=3, output_tokens=4, model_calls=1),
        model="m-2",
    )
    assert (text, thinking) == (["I look."], ["hm"])


async def test_a_whole_message_where_a_stream_was_asked_is_read_from_anthropic_s_servers_too() -> None:
    body = {
        "type": "message",
        "model": "m-2",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_0", "name": "read_file", "input": {"path": "a"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    answer, text, _, _ = await anthropic(Reply(raw=json.dumps(body).encode(), headers=JSON))
    assert answer == ModelAnswer(
        message=Message(role="assistant", content="I look.", tool_calls=(A,)),
        stop="tools",
        usage=Usage(input_tokens=3, output_tokens=4, model_calls=1),
        model="m-2",
    )
    assert text == ["I look."]


async def test_an_error_as_one_body_has_its_type() -> None:
    raw = '{"error":{"message":"no such tool","type":"invalid_request_error"}}'
    with pytest.raises(LLMConfigurationError, match="no such tool"):
        await openai(raw, JSON)
    with pytest.raises(LLMConfigurationError, match="no such tool"):
        await anthropic(Reply(raw=raw.encode(), headers=JSON))


async def test_done_without_a_reason_ends_the_reply() -> None:
    answer, text, _ = await openai(sse('{"choices":[{"delta":{"content":"yes"}}]}'))
    assert (answer.stop, answer.message.text, text) == ("end", "yes", ["yes"])
    answer, _, _ = await openai(sse(f'{{"choices":[{{"delta":{piece("read_file", "{}", index=0, id="x")}}}]}}'))
    assert (answer.stop, answer.message.tool_calls) == ("tools", (ToolCall(id="x", name="read_file"),))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (sse(), "ended before the reply was complete"),
        (sse('{"choices":[{"delta":{"content":"yes"}}]}', done=False), "ended before the reply was complete"),
        (deltas('{"content":"ye"}', finish="error"), r"broke off the reply \(error\)"),
    ],
    ids=["nothing", "no end", "an error as the reason"],
)
async def test_replies_without_an_end_are_refused(raw: str, says: str) -> None:
    with pytest.raises(LLMUnavailableError, match=says):
        await openai(raw)


@pytest.mark.parametrize("delta", ['{"content":{"a":1}}', '{"reasoning":{"a":1}}', '{"content":[{"type":"text"}]}'])
async def test_content_of_another_shape_is_refused(delta: str) -> None:
    with pytest.raises(LoomError, match="not a model's reply"):
        await openai(deltas(delta))
