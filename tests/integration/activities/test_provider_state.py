"""What a server puts beside a reply's calls comes back to it over HTTP, in the same place, and to no other server."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from loom.activities.adapters.models import provider_state
from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.adapters.models.responses_provider import ResponsesProvider
from loom.activities.ports import ModelAnswer, ModelCall
from loom.domain.core.messages import Message, ToolCall, user
from loom.domain.core.tool_calls import ToolSpec
from loom.testing.model_server import ModelServer, Reply, SeenRequest, serving, status, text
from tests.integration.activities.test_odd_answers import SSE, blocks, deltas

Json = dict[str, Any]
READ = ToolSpec(name="read_file", description="Read a file.", parameters={"type": "object"})
FIRST = ModelCall(model="m-1", system="", messages=(user("go"),), tools=(READ,))
SIGNED: Json = {"extra_content": {"google": {"thought_signature": "U0lH"}}}


def piece(index: int = 0, **beside: Any) -> Json:
    """A whole call of a tool."""
    function = {"name": "read_file", "arguments": "{}"}
    return {"index": index, "id": f"c{index}", "type": "function", "function": function, **beside}


def reply(*each: Json) -> Reply:
    """A stream of these deltas."""
    return Reply(raw=deltas(*map(json.dumps, each), finish="tool_calls").encode(), headers=SSE)


def after(call: ModelCall, answer: ModelAnswer) -> ModelCall:
    """The next request of a run, in which the calls have other ids."""
    made = tuple(replace(each, id=f"{each.id}-2") for each in answer.message.tool_calls)
    results = (Message(role="tool", tool_call_id=each.id, content="text") for each in made)
    return replace(call, messages=(*call.messages, replace(answer.message, tool_calls=made), *results))


async def goes_on(
    *replies: Reply, change: Callable[[str], str] = str, **changes: Any
) -> tuple[ModelAnswer, Sequence[Json]]:
    """Two turns. Return the first answer, and the requests after it. `change` gives the second turn's URL."""
    async with serving(*replies, text("ok")) as server:
        provider = OpenAIProvider(api_key="k", base_url=server.openai_url)
        answer = await provider.answer(FIRST, lambda _: None)
        if change is not str:
            await provider.aclose()
            provider = OpenAIProvider(api_key="k", base_url=change(server.openai_url))
        await provider.answer(replace(after(FIRST, answer), **changes), lambda _: None)
        await provider.aclose()
        return answer, [request.body["messages"][1] for request in server.requests[1:]]


def needs_signature(request: SeenRequest) -> Reply:
    """A server that rejects a call without its signature, as Gemini 3 does."""
    made = [call for message in request.messages for call in message.get("tool_calls", ())]
    if any("thought_signature" not in call.get("extra_content", {}).get("google", {}) for call in made):
        return status(400, message="Function call is missing a thought_signature in functionCall parts.")
    return text("finished") if made else reply({"tool_calls": [piece(**SIGNED)]})


async def test_a_server_gets_its_signature_back() -> None:
    async with ModelServer(needs_signature) as server:
        provider = OpenAIProvider(api_key="k", base_url=server.openai_url)
        answer = await provider.answer(FIRST, lambda _: None)
        last = await provider.answer(after(FIRST, answer), lambda _: None)
        await provider.aclose()
    assert last.message.text == "finished"


async def test_calls_of_another_server_go_without_a_check_of_their_signature() -> None:
    made = ToolCall(id="1", name="read_file")
    talk = (user("go"), Message(role="assistant", tool_calls=(made, replace(made, id="2"))))
    results = (Message(role="tool", tool_call_id=number, content="text") for number in ("1", "2"))
    async with ModelServer(needs_signature) as server:
        provider = OpenAIProvider(api_key="k", base_url=server.openai_url)
        answer = await provider.answer(replace(FIRST, messages=(*talk, *results)), lambda _: None)
        await provider.aclose()
    assert (answer.message.text, len(server.requests)) == ("finished", 2)


OPEN = {**piece(), "function": {"name": "read_file", "arguments": "{"}}
ENDED = {"index": 0, "function": {"arguments": "}"}}


@pytest.mark.parametrize(
    ("sent", "beside"),
    [
        ([{"tool_calls": [piece(**SIGNED)]}], [SIGNED]),
        ([{"tool_calls": [piece()]}, {"tool_calls": [{"index": 0, **SIGNED}]}], [SIGNED]),
        ([{"tool_calls": [{**OPEN, **SIGNED}]}, {"tool_calls": [ENDED]}], [SIGNED]),
        ([{"tool_calls": [OPEN]}, {"tool_calls": [{**ENDED, **SIGNED}]}], [SIGNED]),
        ([{"tool_calls": [piece(0, **SIGNED), piece(1)]}], [SIGNED, {}]),
        ([{"tool_calls": [piece(0), piece(1, **SIGNED)]}], [{}, SIGNED]),
        ([{"tool_calls": [piece(state={"a": {"b": 1}})]}, {"tool_calls": [{"index": 0, "state": {"a": {"c": 2}}}]}],
         [{"state": {"a": {"b": 1, "c": 2}}}]),
        ([{"tool_calls": [piece(number=1)]}, {"tool_calls": [{"index": 0, "number": 2}]}], [{"number": 2}]),
        ([{"tool_calls": [piece(state="AB")]}, {"tool_calls": [{"index": 0, "state": "CD"}]}], [{"state": "ABCD"}]),
        ([{"tool_calls": [piece(empty="", nothing=None, none={}, number=0)]}], [{"number": 0}]),
    ],
)  # fmt: skip
async def test_fields_beside_a_call_come_back_beside_it(sent: list[Json], beside: list[Json]) -> None:
    _, (message,) = await goes_on(reply(*sent))
    known = ("id", "type", "function")
    assert [{k: v for k, v in call.items() if k not in known} for call in message["tool_calls"]] == beside
    assert [call["id"] for call in message["tool_calls"]] == [f"c{n}-2" for n in range(len(beside))]


async def test_fields_beside_a_function_s_name_come_back_there() -> None:
    call = piece()
    call["function"]["provider_specific_fields"] = {"thought_signature": "s"}
    _, (message,) = await goes_on(reply({"tool_calls": [call]}))
    assert message["tool_calls"][0]["function"] == call["function"]


async def test_fields_beside_the_text_come_back_without_flags() -> None:
    thinks = {"content": "hm", "extra_content": {"google": {"thought": True}}}
    _, (message,) = await goes_on(reply(thinks, SIGNED, {"tool_calls": [piece()]}))
    assert message["extra_content"] == SIGNED["extra_content"]


async def test_a_field_beside_the_text_that_comes_in_pieces_comes_back_whole() -> None:
    pieces = ({"state": {"blob": text, "type": "sealed"}} for text in ("AB", "CD", "EF"))
    _, (message,) = await goes_on(reply(*pieces, {"tool_calls": [piece()]}))
    assert message["state"] == {"blob": "ABCDEF", "type": "sealed"}


async def test_fields_that_only_tell_something_do_not_come_back() -> None:
    told = {"role": "assistant", "annotations": [{"url": "x"}], "executed_tools": [1], "audio": None, "refusal": None}
    _, (message,) = await goes_on(reply({**told, "tool_calls": [piece()]}))
    assert sorted(message) == ["content", "role", "tool_calls"]


async def test_another_model_of_the_server_gets_the_state_too() -> None:
    _, (message,) = await goes_on(reply({"tool_calls": [piece(**SIGNED)]}), model="m-2")
    assert message["tool_calls"][0]["extra_content"] == SIGNED["extra_content"]


async def test_another_server_does_not_get_the_state() -> None:
    sent = reply({**SIGNED, "tool_calls": [piece(**SIGNED)]})
    _, (message,) = await goes_on(sent, change=lambda url: url.replace("127.0.0.1", "localhost"))
    assert "extra_content" not in json.dumps(message)


async def test_a_reply_without_calls_and_without_state_has_no_note() -> None:
    async with serving(reply({"content": "hi", **SIGNED}), reply({"tool_calls": [piece()]})) as server:
        provider = OpenAIProvider(api_key="k", base_url=server.openai_url)
        answers = [await provider.answer(FIRST, lambda _: None) for _ in range(2)]
        await provider.aclose()
    assert [answer.message.metadata for answer in answers] == [{}, {}]


async def test_a_state_that_is_too_large_is_not_kept() -> None:
    large = piece(state="x" * provider_state.MOST_STATE)
    answer, (message,) = await goes_on(reply({"tool_calls": [large]}))
    assert answer.message.metadata == {}
    assert "state" not in message["tool_calls"][0]


async def test_a_state_is_well_formed_text() -> None:
    answer, _ = await goes_on(reply({"tool_calls": [piece(state="\ud83d")]}))
    assert json.dumps(answer.message.metadata, ensure_ascii=False).encode()


async def test_fields_that_the_server_rejects_are_left_out_from_then_on() -> None:
    rejects = status(400, message="'messages.1' : property 'odd' is unsupported")
    sent = reply({"odd": {"a": 1}, "tool_calls": [piece(**SIGNED)]})
    _, messages = await goes_on(sent, rejects)
    assert ["odd" in message for message in messages] == [True, False]
    assert all("extra_content" in message["tool_calls"][0] for message in messages)


async def test_what_one_model_rejects_still_goes_to_others_of_the_same_server() -> None:
    def gateway(request: SeenRequest) -> Reply:
        if request.body["model"] != "strict":
            return needs_signature(request)
        if "stream_options" in request.body:
            return status(400, message="stream_options: Extra inputs are not permitted")
        if "extra_content" in json.dumps(request.messages):
            return status(400, message="messages.1.tool_calls.0.extra_content: Extra inputs are not permitted")
        return text("ok")

    async with ModelServer(gateway) as server:
        provider = OpenAIProvider(api_key="k", base_url=server.openai_url)
        answer = await provider.answer(FIRST, lambda _: None)
        talk = after(FIRST, answer)
        unsigned = replace(talk, messages=tuple(replace(message, metadata={}) for message in talk.messages))
        await provider.answer(unsigned, lambda _: None)
        with pytest.raises(Exception, match="extra_content"):
            await provider.answer(replace(talk, model="strict"), lambda _: None)
        for call in (replace(talk, model="strict"), talk, replace(unsigned, model="strict"), unsigned):
            await provider.answer(call, lambda _: None)
        await provider.aclose()
    seen = [
        (each.body["model"], "extra_content" in json.dumps(each.body), "stream_options" in each.body)
        for each in server.requests[1:]
    ]
    assert seen == [
        ("m-1", False, True),
        ("m-1", True, True),
        ("strict", True, True),
        ("strict", True, False),
        ("strict", True, False),
        ("strict", False, False),
        ("m-1", True, True),
        ("strict", False, False),
        ("m-1", True, True),
    ]


async def test_a_model_that_rejects_a_made_up_signature_gets_none() -> None:
    def unsure(request: SeenRequest) -> Reply:
        if "extra_content" in json.dumps(request.body):
            return status(400, message="Unknown name 'extra_content': Cannot find field.")
        return status(400, message="a thought_signature is missing") if len(server.requests) == 1 else text("ok")

    made = Message(role="assistant", tool_calls=(ToolCall(id="1", name="read_file"),))
    result = Message(role="tool", tool_call_id="1", content="text")
    call = replace(FIRST, messages=(user("go"), made, result))
    async with ModelServer(unsure) as server:
        provider = OpenAIProvider(api_key="k", base_url=server.openai_url)
        with pytest.raises(Exception, match="extra_content"):
            await provider.answer(call, lambda _: None)
        for _ in range(2):
            await provider.answer(call, lambda _: None)
        await provider.aclose()
    assert ["extra_content" in json.dumps(each.body) for each in server.requests] == [False, True, True, False, False]


async def test_a_server_with_anthropic_s_messages_gets_its_state_back() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "read_file", "input": {}, "signature": "s", "caller": {"type": "x"}}
    async with serving(blocks(use, stop="tool_use"), text("ok"), text("ok")) as server:
        provider = AnthropicProvider(api_key="k", base_url=server.anthropic_url)
        answer = await provider.answer(FIRST, lambda _: None)
        await provider.answer(after(FIRST, answer), lambda _: None)
        await provider.aclose()
        provider = AnthropicProvider(api_key="k", base_url=server.anthropic_url.replace("127.0.0.1", "localhost"))
        await provider.answer(after(FIRST, answer), lambda _: None)
        await provider.aclose()
    blocks_sent = [request.messages[1]["content"][0] for request in server.requests[1:]]
    assert blocks_sent[0] == {"type": "tool_use", "id": "t1-2", "name": "read_file", "input": {}, "signature": "s"}
    assert "signature" not in blocks_sent[1]


@pytest.mark.parametrize("kind", [OpenAIProvider, AnthropicProvider, ResponsesProvider])
async def test_any_text_of_a_conversation_can_be_sent(kind: Any) -> None:
    half = "\ud83d\0"
    made = ToolCall(id=half, name=half, arguments={half: [half, float("nan")]})
    messages = (user(half), Message(role="assistant", content=half, tool_calls=(made,)))
    result = Message(role="tool", tool_call_id=half, name=half, content=half)
    tool = ToolSpec(name=half, description=half, parameters={"properties": {half: {"description": half}}})
    call = ModelCall(model="m", system=half, messages=(*messages, result), tools=(tool,))
    async with serving(status(400)) as server:
        url = server.anthropic_url if kind is AnthropicProvider else server.openai_url
        provider = kind(api_key="k", base_url=url)
        with pytest.raises(Exception, match="rejected the request"):
            await provider.answer(call, lambda _: None)
        await provider.aclose()
    assert "\0" not in json.dumps(server.requests[0].body, ensure_ascii=False).encode().decode()
