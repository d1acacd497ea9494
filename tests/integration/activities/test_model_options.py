"""Options and prices of model calls: what each provider is sent, and what is refused by name."""

import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
from loom.activities.adapters.models.openai_provider import OpenAIProvider
from loom.activities.adapters.models.prices import GenaiPrices
from loom.activities.adapters.models.providers import ConfiguredProviders
from loom.activities.adapters.models.responses_provider import ResponsesProvider
from loom.activities.ports import ModelCall
from loom.composition.settings import Settings
from loom.domain.core.errors import BadRequest, LLMConfigurationError
from loom.domain.core.messages import Message, ToolCall, Usage, user
from loom.domain.core.model_options import read_model_options
from loom.domain.core.model_prices import ModelPrice
from loom.domain.core.requests import ModelOptions
from loom.domain.core.tool_calls import ToolSpec
from loom.testing import model_server as served
from loom.testing.model_server import ModelServer, Reply, SeenRequest, serving

READ = ToolSpec(name="read_file", description="Read a file.", parameters={"type": "object", "properties": {}})
HELLO = ModelCall(model="m-1", system="Be brief.", messages=(user("hello"),), tools=(READ,))
EXTRA: dict[str, Any] = {"extra_body": {"service_tier": "flex"}, "extra_headers": {"X-Team": "research"}}


async def sent(
    kind: type[OpenAIProvider | AnthropicProvider],
    call: ModelCall = HELLO,
    *,
    reply: Reply | None = None,
    **options: Any,
) -> SeenRequest:
    """The request that a provider sends for a call with these options."""
    async with serving(reply or served.text("ok")) as server:
        url = server.openai_url if kind is OpenAIProvider else server.anthropic_url
        provider = kind(api_key="k", base_url=url)
        try:
            await provider.answer(replace(call, options=read_model_options(options, "options")), lambda _: None)
        finally:
            await provider.aclose()
    return server.requests[0]


async def test_openai_is_sent_each_option_under_its_name() -> None:
    options: dict[str, Any] = {
        "reasoning_effort": "high",
        "top_p": 0.9,
        "seed": 7,
        "stop": ["END"],
        "parallel_tool_calls": False,
    }
    seen = await sent(OpenAIProvider, **options, **EXTRA)
    assert {name: seen.body[name] for name in options} == options
    assert (seen.body["service_tier"], seen.headers["x-team"]) == ("flex", "research")


async def test_anthropic_is_sent_each_option_in_its_words() -> None:
    seen = await sent(
        AnthropicProvider,
        reasoning_effort="high",
        thinking_budget=2048,
        top_p=0.95,
        stop=["END"],
        **{"parallel_tool_calls": False, **EXTRA},
    )
    assert seen.body["output_config"] == {"effort": "high"}
    assert seen.body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert (seen.body["top_p"], seen.body["stop_sequences"]) == (0.95, ["END"])
    assert seen.body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert (seen.body["service_tier"], seen.headers["x-team"]) == ("flex", "research")
    assert seen.headers["anthropic-version"] == "2023-06-01"  # later versions accept no `top_p`


@pytest.mark.parametrize("kind", [OpenAIProvider, AnthropicProvider])
async def test_without_options_the_request_is_as_before(kind: type[OpenAIProvider | AnthropicProvider]) -> None:
    known = {"model", "messages", "stream", "stream_options", "max_tokens", "system", "tools"}
    assert set((await sent(kind)).body) <= known


async def test_parallel_tool_calls_go_out_only_with_tools() -> None:
    for kind in (OpenAIProvider, AnthropicProvider):
        seen = await sent(kind, replace(HELLO, tools=()), parallel_tool_calls=True)
        assert not {"parallel_tool_calls", "tool_choice"} & set(seen.body)
    last = await sent(AnthropicProvider, replace(HELLO, may_call=False), parallel_tool_calls=True)
    assert last.body["tool_choice"] == {"type": "none"}


async def test_extra_objects_are_merged_into_those_of_an_option() -> None:
    form = {"format": {"type": "json_schema"}}
    seen = await sent(AnthropicProvider, reasoning_effort="low", extra_body={"output_config": form})
    assert seen.body["output_config"] == {"effort": "low", **form}


@pytest.mark.parametrize(("room", "thinks"), [(8192, 4096), (4096, 4095), (1025, 1024), (1024, None)])
async def test_thinking_fits_into_the_answer_s_tokens(room: int, thinks: int | None) -> None:
    seen = await sent(AnthropicProvider, replace(HELLO, max_output_tokens=room), thinking_budget=4096)
    assert seen.body.get("thinking", {}).get("budget_tokens") == thinks


async def test_a_call_after_another_model_s_calls_does_without_thinking() -> None:
    calling = Message(role="assistant", tool_calls=(ToolCall(id="a", name="read_file"),))
    talk = (user("hello"), calling, Message(role="tool", tool_call_id="a", content="text"))
    thought = {"reasoning": {"model": "m-1", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}}
    without = await sent(AnthropicProvider, replace(HELLO, messages=talk), thinking_budget=2048)
    own = (talk[0], replace(calling, metadata=thought), talk[2])
    with_own = await sent(AnthropicProvider, replace(HELLO, messages=own), thinking_budget=2048)
    assert ("thinking" in without.body, "thinking" in with_own.body) == (False, True)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("openai:m", {"thinking_budget": 2048}, "openai:m doesn't support `thinking_budget`: set `reasoning_effort`"),
        ("anthropic:m", {"seed": 1}, "anthropic:m doesn't support `seed`: remove it"),
        ("anthropic:m", {"reasoning_effort": "none"}, "the reasoning_effort 'none': use one of low, medium"),
        ("own:m", {"top_p": 0.5}, r"own:m doesn't support `top_p`.*supported options: seed"),
    ],
)
async def test_an_option_that_a_provider_lacks_is_refused_by_name(model: str, options: Any, says: str) -> None:
    class Own:
        supported_options = ("seed",)

        async def answer(self, *_: Any) -> Any:
            raise NotImplementedError

    providers = ConfiguredProviders(openai_api_key="k", anthropic_api_key="k")
    providers.register({"own": Own()})
    given = read_model_options(options, "options")
    with pytest.raises(BadRequest, match=says):
        providers.check_options(model, given)
    providers.check_options("demo", given)
    providers.check_options("own:m", ModelOptions(seed=1))


@pytest.mark.parametrize(
    ("kind", "built_in", "other"),
    [
        (OpenAIProvider, "openai", "thinking_budget"),
        (ResponsesProvider, "openai-responses", "seed"),
        (AnthropicProvider, "anthropic", "seed"),
    ],
)
def test_a_registered_provider_has_the_options_of_the_built_in_prefix(kind: Any, built_in: str, other: str) -> None:
    values = {
        "reasoning_effort": "low",
        "top_p": 0.5,
        "parallel_tool_calls": False,
        "seed": 1,
        "stop": ["x"],
        "thinking_budget": 2048,
        "extra_body": {"a": 1},
        "extra_headers": {"b": "c"},
    }
    providers = ConfiguredProviders(openai_api_key="k", anthropic_api_key="k")
    providers.register({"mine": kind(api_key="k", base_url="http://127.0.0.1:1/v1")})

    def takes(prefix: str, name: str) -> bool:
        try:
            providers.check_options(f"{prefix}:m", read_model_options({name: values[name]}, "options"))
        except BadRequest:
            return False
        return True

    assert {name: takes("mine", name) for name in values} == {name: takes(built_in, name) for name in values}
    assert (takes("mine", "reasoning_effort"), takes("mine", other)) == (True, False)


def test_a_provider_that_names_no_options_is_given_none() -> None:
    class Own:
        async def answer(self, *_: Any) -> Any:
            raise NotImplementedError

    providers = ConfiguredProviders()
    providers.register({"own": Own()})
    with pytest.raises(BadRequest, match=r"own:m doesn't support `seed`.*supported options: none"):
        providers.check_options("own:m", ModelOptions(seed=1))


async def test_an_option_that_a_provider_lacks_fails_the_call_too() -> None:
    with pytest.raises(LLMConfigurationError, match="m-1 doesn't support `seed`"):
        await sent(AnthropicProvider, seed=1)


async def test_an_error_repeats_no_extra_header_and_no_extra_field() -> None:
    echo = served.status(400, message="bad header abcd-1234-secret, bad field 5678-secret")
    with pytest.raises(LLMConfigurationError) as caught:
        await sent(
            OpenAIProvider,
            reply=echo,
            extra_headers={"X-Gateway": "abcd-1234-secret"},
            extra_body={"gateway": {"keys": ["5678-secret"]}},
        )
    assert "bad header ***, bad field ***" in caught.value.message


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"effort": "high"}, r"options.effort is not an option.*reasoning_effort"),
        ({"reasoning_effort": "huge"}, "must be one of none, minimal, low"),
        ({"thinking_budget": 100}, "must be at least 1024"),
        ({"top_p": 0}, "above 0 and up to 1"),
        ({"top_p": True}, "above 0 and up to 1"),
        ({"seed": 1.5}, "whole number"),
        ({"stop": []}, "1 to 16 strings"),
        ({"stop": ["a", ""]}, "1 to 16 strings"),
        ({"parallel_tool_calls": "no"}, "true or false"),
        ({"extra_body": []}, "must be an object"),
        ({"extra_body": {"messages": []}}, "must not contain `messages`: Loom sends the conversation"),
        ({"extra_body": {"tools": []}}, "tools run under the rules"),
        ({"extra_body": {"top_p": 1}}, "set `top_p` instead"),
        ({"extra_body": {"a": float("nan")}}, "only JSON"),
        ({"extra_headers": {"Authorization": "Bearer x"}}, "must not contain Authorization"),
        ({"extra_headers": {"X-A": "a\r\nX-B: b"}}, "a string for X-A"),
        ({"extra_headers": {"X A": "a"}}, "not a valid header name"),
    ],
)
def test_what_is_wrong_with_an_option_is_said(options: Any, says: str) -> None:
    with pytest.raises(BadRequest, match=says) as caught:
        read_model_options(options, "options")
    assert "X-B: b" not in caught.value.message


def test_options_are_merged_by_name_and_extra_fields_by_key() -> None:
    agent = ModelOptions(top_p=0.5, seed=1, extra_headers={"A": "1", "B": "1"})
    request = ModelOptions(seed=0, parallel_tool_calls=False, extra_headers={"B": "2"})
    assert request.or_else(agent) == ModelOptions(
        top_p=0.5, seed=0, parallel_tool_calls=False, extra_headers={"A": "1", "B": "2"}
    )


async def test_models_behind_one_server_may_differ_in_the_name_of_the_limit() -> None:
    def reply(request: SeenRequest) -> Reply:
        if request.body["model"] == "new" and "max_tokens" in request.body:
            return served.status(400, message="'max_tokens' is not supported: use 'max_completion_tokens'")
        return served.text("ok")

    async with (
        ModelServer(reply) as server,
        aclosing(OpenAIProvider(api_key="k", base_url=server.openai_url)) as provider,
    ):
        for model in ("new", "old", "new"):
            await provider.answer(replace(HELLO, model=model, max_output_tokens=77), lambda _: None)
    limits = [
        {name: value for name, value in request.body.items() if name.startswith("max_")} for request in server.requests
    ]
    new, old = {"max_completion_tokens": 77}, {"max_tokens": 77}
    assert limits == [old, new, old, new]


WRITTEN = {"input_tokens": 10, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 30, "output_tokens": 5}


async def test_cache_writes_are_counted_and_priced_as_such() -> None:
    body = {"type": "message", "model": "m", "content": [], "stop_reason": "end_turn", "usage": WRITTEN}
    raw = Reply(raw=json.dumps(body).encode(), headers={"content-type": "application/json"})
    async with (
        serving(raw) as server,
        aclosing(AnthropicProvider(api_key="k", base_url=server.anthropic_url)) as provider,
    ):
        answer = await provider.answer(HELLO, lambda _: None)
    assert answer.usage == Usage(
        input_tokens=60, output_tokens=5, cached_tokens=20, cache_write_tokens=30, model_calls=1
    )
    read, written, plain = [
        await GenaiPrices().cost_micros("anthropic:claude-sonnet-4-5", Usage(input_tokens=100_000, **kind))
        for kind in ({"cached_tokens": 100_000}, {"cache_write_tokens": 100_000}, {})
    ]
    assert (read, written, plain) == (30_000, 375_000, 300_000)


async def test_prices_of_one_s_own_models_apply_by_the_longest_name() -> None:
    prices = GenaiPrices(
        own={
            "acme:*": ModelPrice(input=1, output=2),
            "acme:big-*": ModelPrice(input=10, output=20, cached=1, cache_write=12),
            "openai:gpt-5": ModelPrice(input=0, output=0),
        }
    )
    used = Usage(input_tokens=100, cached_tokens=50, cache_write_tokens=20, output_tokens=10)
    assert await prices.cost_micros("acme:small", used) == 120
    assert await prices.cost_micros("acme:big-1", used) == 30 * 10 + 50 * 1 + 20 * 12 + 10 * 20
    assert await prices.cost_micros("openai:gpt-5", used) == 0
    assert await prices.cost_micros("other:x", used) is None


@pytest.mark.parametrize(
    ("prices", "says"),
    [
        ({"acme": {"input": 1, "output": 1}}, "is not a model: write PREFIX:NAME"),
        ({"acme:*": {"input": -1, "output": 1}}, "must be dollars per million tokens"),
        ({"acme:*": {"input": 1, "output": 1, "cash": 1}}, r"unknown price acme:\*.cash; known: input, output"),
        ({"acme:*": {"input": 1}}, "output"),
    ],
)
def test_a_price_that_cannot_be_is_refused(prices: Any, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        Settings(prices=prices)
