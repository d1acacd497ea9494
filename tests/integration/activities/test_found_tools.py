"""Tools on demand over HTTP: each provider's own form, the form for all others, and prompts with the same beginning."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.adapters.models.responses_provider import ResponsesProvider
from loom.activities.found_tools import WithFoundTools
from loom.activities.ports import ModelAnswer, ModelCall
from loom.domain.core.errors import LLMConfigurationError
from loom.domain.core.messages import Message, ToolCall, user
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.tools.tool_search import found_text
from loom.testing.model_server import ModelServer, Reply, SeenRequest, ToolUse, calls, status, text

Json = dict[str, Any]
OBJECT: Json = {"type": "object", "properties": {"title": {"type": "string"}}}
SHOWN = tuple(ToolSpec(name=name, description=name, parameters=OBJECT) for name in ("bash", "search_tools"))
DEFERRED = tuple(
    ToolSpec(name=f"mcp__forge__{verb}", description=verb, parameters=OBJECT) for verb in ("create", "list")
)
START = ModelCall(model="m-1", system="Be brief.", messages=(user("go"),), tools=SHOWN, deferred=DEFERRED)
FOUND = found_text(DEFERRED[:1])


def after(call: ModelCall, made: ToolCall, result: str) -> ModelCall:
    """The next request of a run that has made this call."""
    said = Message(role="assistant", tool_calls=(made,))
    came = Message(role="tool", name=made.name, tool_call_id=made.id, content=result)
    return replace(call, messages=(*call.messages, said, came))


SEARCHED = after(START, ToolCall(id="s1", name="search_tools", arguments={"query": "new"}), FOUND)
CREATED = after(SEARCHED, ToolCall(id="c1", name="mcp__forge__create", arguments={"title": "t"}), "ok")
NOTHING = after(CREATED, ToolCall(id="s2", name="search_tools", arguments={"query": "zzz"}), "No tool fits 'zzz'.")


async def answered(
    make: Callable[[ModelServer], Any], replies: Callable[[SeenRequest], Reply], *requests: ModelCall
) -> tuple[list[ModelAnswer], list[Json]]:
    async with ModelServer(replies) as server:
        provider = make(server)
        asking = WithFoundTools(provider)
        answers = [await asking.answer(each, lambda _: None) for each in requests]
        await provider.aclose()
        return answers, [request.body for request in server.requests]


def chat(server: ModelServer) -> OpenAIProvider:
    return OpenAIProvider(api_key="k", base_url=server.openai_url)


def claude(server: ModelServer, **given: Any) -> AnthropicProvider:
    return AnthropicProvider(api_key="k", base_url=server.anthropic_url, **given)


def without_marks(value: Any) -> Any:
    """The same without the marks of where the cache ends, which move."""
    if isinstance(value, dict):
        return {key: without_marks(each) for key, each in value.items() if key != "cache_control"}
    return [without_marks(each) for each in value] if isinstance(value, list) else value


def assert_same_beginning(bodies: list[Json], messages: str) -> None:
    for first, second in pairwise(bodies):
        assert without_marks(second["tools"]) == without_marks(first["tools"])
        begun = without_marks(first[messages])
        assert without_marks(second[messages])[: len(begun)] == begun


async def test_any_server_gets_call_tool_and_loom_gets_the_call_that_it_means() -> None:
    reply = calls(ToolUse("call_tool", {"name": "mcp__forge__create", "arguments": {"title": "t"}}, "c1"))
    answers, bodies = await answered(chat, lambda _: reply, START, SEARCHED, CREATED, NOTHING)

    assert answers[0].message.tool_calls == (ToolCall(id="c1", name="mcp__forge__create", arguments={"title": "t"}),)
    assert [each["function"]["name"] for each in bodies[0]["tools"]] == ["bash", "search_tools", "call_tool"]
    assert_same_beginning(bodies, "messages")
    sent = bodies[2]["messages"][4]["tool_calls"][0]["function"]
    assert sent["name"] == "call_tool"
    assert json.loads(sent["arguments"]) == {"name": "mcp__forge__create", "arguments": {"title": "t"}}


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"name": "a", "arguments": '{"x": 1}'}, ToolCall(id="c", name="a", arguments={"x": 1})),
        ({"name": "a", "x": 1}, ToolCall(id="c", name="a", arguments={"x": 1})),
        ({"name": "a", "arguments": "{x"}, ToolCall(id="c", name="a", malformed="{x")),
        ({"name": "a", "arguments": [1]}, ToolCall(id="c", name="a", malformed="[1]")),
        ({"arguments": {}}, ToolCall(id="c", name="call_tool", arguments={"arguments": {}})),
    ],
)
async def test_odd_calls_are_read_or_reported(arguments: Json, meant: ToolCall) -> None:
    answers, _ = await answered(chat, lambda _: calls(ToolUse("call_tool", arguments, "c")), START)
    assert answers[0].message.tool_calls == (meant,)


async def test_anthropic_gets_references_and_its_cached_prompt_stays() -> None:
    reply = calls(ToolUse("mcp__forge__create", {"title": "t"}, "c1"))
    answers, bodies = await answered(
        lambda server: claude(server, loads_tools=True), lambda _: reply, START, SEARCHED, CREATED, NOTHING
    )

    assert answers[1].message.tool_calls[0].name == "mcp__forge__create"
    assert [(each["name"], each.get("defer_loading", False)) for each in bodies[0]["tools"]] == [
        ("bash", False), ("search_tools", False), ("mcp__forge__create", True), ("mcp__forge__list", True)
    ]  # fmt: skip
    assert ["cache_control" in each for each in bodies[0]["tools"]] == [False, True, False, False]
    assert_same_beginning(bodies, "messages")
    result = without_marks(bodies[1]["messages"][2]["content"][0])
    assert result["content"] == [{"type": "tool_reference", "tool_name": "mcp__forge__create"}]
    assert without_marks(bodies[3]["messages"][6]["content"][0])["content"] == "No tool fits 'zzz'."


async def test_openai_gets_searches_of_its_own_kind() -> None:
    search = {
        "type": "tool_search_call",
        "id": "ts",
        "call_id": "s1",
        "execution": "client",
        "status": "completed",
        "arguments": {"query": "new"},
    }
    whole = {"id": "r", "model": "m-1", "status": "completed", "output": [search], "usage": {}}
    raw = json.dumps(whole).encode()
    answers, bodies = await answered(
        lambda server: ResponsesProvider(api_key="k", base_url=server.openai_url, loads_tools=True),
        lambda _: Reply(raw=raw, headers={"content-type": "application/json"}),
        *(START, SEARCHED, CREATED, NOTHING),
    )

    assert answers[0].message.tool_calls == (ToolCall(id="s1", name="search_tools", arguments={"query": "new"}),)
    assert [each["type"] for each in bodies[0]["tools"]] == ["function", "tool_search"]
    assert_same_beginning(bodies, "input")
    asked, output = bodies[1]["input"][1:3]
    assert (asked["type"], asked["arguments"], asked["call_id"]) == ("tool_search_call", {"query": "new"}, "s1")
    assert (output["type"], [each["name"] for each in output["tools"]]) == (
        "tool_search_output",
        ["mcp__forge__create"],
    )
    assert bodies[3]["input"][-2]["tools"] == []
    assert bodies[3]["input"][-1] == {"role": "developer", "content": "No tool fits 'zzz'."}


async def test_a_model_without_the_providers_own_form_gets_call_tool_from_then_on() -> None:
    def reply(request: SeenRequest) -> Reply:
        own = any(each.get("defer_loading") for each in request.body["tools"])
        return status(400, message="'defer_loading' is not supported by this model") if own else text("fine")

    answers, bodies = await answered(lambda server: claude(server, loads_tools=True), reply, START, SEARCHED)
    assert [each.message.text for each in answers] == ["fine", "fine"]
    assert [any(each.get("defer_loading") for each in body["tools"]) for body in bodies] == [True, False, False]


async def test_other_errors_and_other_servers_change_nothing() -> None:
    with pytest.raises(LLMConfigurationError, match="no such field"):
        await answered(
            lambda server: claude(server, loads_tools=True), lambda _: status(400, message="no such field"), START
        )
    _, bodies = await answered(claude, lambda _: text("fine"), SEARCHED)
    assert [each["name"] for each in bodies[0]["tools"]] == ["bash", "search_tools", "call_tool"]
