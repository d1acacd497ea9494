"""The error responses of model servers and the typed errors that they become."""

import json
import re
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loom.activities.adapters.models.error_responses import Server, error_of, error_response_of, quote
from loom.domain.core.errors import (
    LLMBadResponseError,
    LLMConfigurationError,
    LLMContextLengthError,
    LLMRateLimitError,
    LLMRefusedError,
    LLMUnavailableError,
    LoomError,
)

SECRET = "sk-a-secret-of-the-tests"
SERVER = Server(name="the server", key_name="KEY", url_name="URL", url="http://localhost/v1", secret=SECRET)


def told(body: object, status: int = 400, headers: dict[str, str] | None = None) -> LoomError:
    """The error for a response with this body. The SDKs pass on what is inside `error`."""
    return error_of(error_response_of(body, status, headers or {}, "no reason given"), SERVER, "m-1")


GEMINI = {
    "error": {
        "code": 400,
        "message": "The input token count (17000) exceeds the maximum number of tokens allowed (16000).",
    }
}
LLAMA = {
    "error": {
        "code": 400,
        "message": "the request exceeds the available context size, try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 17000,
        "n_ctx": 16000,
    }
}
XAI = "This model's maximum prompt length is 16000 but the request contains 17000 tokens."
SHAPES: dict[str, object] = {
    "an object": GEMINI,
    "the inner object": GEMINI["error"],
    "a list": [GEMINI],
    "an empty list first": [[], [GEMINI]],
    "a code and a text": {"code": "Client specified an invalid argument", "error": XAI},
    "a plain text": XAI,
    "bytes": XAI.encode(),
    "a text of JSON": json.dumps(GEMINI),
    "a text of a text": json.dumps(json.dumps([GEMINI])),
    "JSON in the message": {"error": {"message": json.dumps(GEMINI)}},
    "a detail": {"detail": XAI},
    "a detail in parts": {
        "detail": [{"loc": ["body", "messages"], "msg": XAI, "type": "value_error", "input": "max" * 99}]
    },
    "details in an object": {"detail": {"error": {"message": XAI}}},
    "a message": {"message": XAI},
    "an object that calls itself an error": {"object": "error", "message": XAI, "type": "BadRequestError", "code": 400},
    "an error of a web framework": {"errors": [XAI]},
    "fields": LLAMA,
    "a wrapped error": {
        "error": {
            "message": "Provider returned error",
            "code": 400,
            "metadata": {"raw": json.dumps({"error": {"message": XAI}}), "provider_name": "X"},
        }
    },
    "an unknown name": {"status": "failed", "description": XAI},
}


@pytest.mark.parametrize("body", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("status", [200, 400, 413, 422, 500])
def test_too_long_is_recognized_in_a_body_of_any_shape(body: object, status: int) -> None:
    error = told(body, status)
    assert type(error) is LLMContextLengthError
    assert error.context == {"model": "m-1", "tokens": 17000, "limit": 16000}


def test_a_request_above_the_limit_per_minute_is_too_long_and_not_too_soon() -> None:
    text = "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 7012"
    body = {"error": {"type": "tokens", "code": "rate_limit_exceeded", "message": text}}
    for status in (413, 429):
        error = told(body, status)
        assert type(error) is LLMContextLengthError
        assert error.context == {"model": "m-1", "tokens": 7012, "limit": 6000}


SOON: list[tuple[str, dict[str, str]]] = [
    ("Token limit exceeded", {"retry-after": "20"}),
    ("Request limit reached", {"retry-after": "9"}),
    ("You have exceeded the 5-hour token limit for your plan", {"retry-after": "3600"}),
    ("Prompt is too long", {"retry-after-ms": "500"}),
    ("The context window is exceeded", {"retry-after": "1"}),
    ("Daily token limit exceeded", {}),
    ("Daily token limit exceeded: 105000/100000", {}),
    ("Too many tokens", {}),
    ("Too many input tokens in the last 60 seconds", {}),
    ("Too many tokens/min", {}),
    ("Input tokens exceed the limit", {}),
    ("Your messages exceed the allowance", {}),
    ("Free-plan message limit reached, come back tomorrow", {}),
    ("Request too large for organization x on tokens per min (TPM): Limit 250000, Requested 546", {}),
    ("This request would exceed your organization's limit of 30,000 input tokens per minute", {}),
    ("请求数超过上限", {}),
    ("今日token用量已超出上限", {}),
]


@pytest.mark.parametrize(("text", "headers"), SOON)
@pytest.mark.parametrize(("status", "code"), [(429, None), (200, "rate_limit_exceeded"), (400, "RateLimitError")])
def test_a_rate_limit_isnt_too_long_unless_no_wait_can_help(
    text: str, headers: dict[str, str], status: int, code: str | None
) -> None:
    error = told({"error": {"message": text, "code": code}}, status, headers)
    assert type(error) is LLMRateLimitError
    waits = {"20": 20.0, "9": 9.0, "3600": 3600.0, "500": 0.5, "1": 1.0}
    assert error.context["retry_after"] == waits.get(next(iter(headers.values()), ""))


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "Prompt is too long",
        "The request exceeds the context window",
        "输入过长",
    ],
)
@pytest.mark.parametrize("status", [200, 400, 429, 500, 503])
def test_clear_words_are_too_long_with_any_status(text: str, status: int) -> None:
    assert type(told({"error": {"message": text}}, status)) is LLMContextLengthError


@pytest.mark.parametrize(
    "text",
    [
        "prompt processing exceeded time",
        "Too many messages waiting for the model",
        "Too many messages waiting: 120, limit 100",
        "The request exceeded 30 seconds",
        "processing the prompt took too long",
        "Token limit exceeded",
        "message too large for the upstream's buffer of files",
        "Too many input connections",
    ],
)
@pytest.mark.parametrize("status", [200, 500, 503])
def test_a_server_that_fails_isnt_taken_for_a_long_conversation(text: str, status: int) -> None:
    assert type(told({"error": {"message": text}}, status)) is LLMUnavailableError


KINDS: list[tuple[object, int, type[LoomError]]] = [
    (
        {"error": {"message": "Rate limit reached: try again in 5s", "code": "rate_limit_exceeded"}},
        429,
        LLMRateLimitError,
    ),
    ({"message": "Too many tokens, please wait before trying again."}, 429, LLMRateLimitError),
    ([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "quota"}}], 429, LLMRateLimitError),
    ({"error": {"code": 429, "message": "slow down"}}, 200, LLMRateLimitError),
    ({"error": {"code": "insufficient_quota", "message": "x"}}, 429, LLMConfigurationError),
    ({"error": "the prompt is too long"}, 401, LLMConfigurationError),
    ({"error": {"code": 503, "message": "overloaded"}}, 200, LLMUnavailableError),
    ({"error": "went away"}, 200, LLMUnavailableError),
    ({"text": "**NETWORK ERROR**", "error_code": 50002}, 200, LLMUnavailableError),
    ({"error": {"code": 400, "message": "bad"}}, 200, LLMConfigurationError),
    ({"error": {"message": "filtered", "innererror": {"code": "content_filter"}}}, 400, LLMRefusedError),
    (None, 400, LLMConfigurationError),
    (None, 413, LLMContextLengthError),
    (b"\xff<html>\x00", 502, LLMUnavailableError),
]


@pytest.mark.parametrize(("body", "status", "kind"), KINDS)
def test_each_kind_of_error_has_its_type(body: object, status: int, kind: type[LoomError]) -> None:
    assert type(told(body, status)) is kind


@pytest.mark.parametrize("status", [429, 500, 503, 529])
@pytest.mark.parametrize(
    ("body", "headers", "wait"),
    [
        ({"error": {"message": "loading model"}}, {"retry-after": "17"}, 17.0),
        ({"error": {"message": "Please try again in 6.5s."}}, {}, 6.5),
        ([{"error": {"message": "x", "details": [{"@type": "…RetryInfo", "retryDelay": "37s"}]}}], {}, 37.0),
        (
            {
                "error": {
                    "message": "x",
                    "metadata": {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "9"}},
                }
            },
            {},
            9.0,
        ),
    ],
)
def test_the_wait_that_a_server_names_is_kept(status: int, body: object, headers: dict[str, str], wait: float) -> None:
    error = told(body, status, headers)
    assert isinstance(error, LLMRateLimitError | LLMUnavailableError)
    assert error.context["retry_after"] == wait


CONTENT: list[object] = [
    "Function call is missing a thought_signature in functionCall parts.",
    {
        "error": {
            "message": "Invalid 'messages[3].tool_calls[0].function.name': string too long.",
            "param": "messages[3]",
        }
    },
    {"error": {"message": "messages.1.content.0.type: Expected `thinking`, but found `text`. When `thinking` is on …"}},
    {"error": {"message": "messages.2.content.0.image.source: Could not process image"}},
    {"error": {"message": "This model does not support image input", "param": None}},
    {"error": {"message": "Invalid schema for function 'f'", "param": "tools[0].function.parameters"}},
    {"error": {"message": "tool_use ids were found without tool_result blocks immediately after"}},
    {"detail": [{"loc": ["body", "messages", 0, "content"], "msg": "Input should be a valid string"}]},
    {"error": {"message": "image exceeds 5 MB maximum"}},
    {"code": "1210", "message": "参数有误"},
    "",
    None,
]


@pytest.mark.parametrize("body", CONTENT)
@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_the_content_of_a_request_says_so_in_the_context(body: object, status: int) -> None:
    error = told(body, status)
    assert type(error) is LLMConfigurationError
    assert error.context["refused"] == status


NOT_CONTENT: list[tuple[object, int]] = [
    ({"error": {"message": "max_tokens is too large: 8192.", "param": "max_tokens"}}, 400),
    ({"error": {"message": "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens"}}, 400),
    ({"error": {"message": "Range of max_tokens should be [1, 2000]"}}, 400),
    ({"error": {"message": "Unsupported parameter", "param": "top_k"}}, 400),
    ({"error": {"message": "Unsupported value: 'temperature' does not support 0.2 with this model."}}, 400),
    ({"detail": [{"loc": ["body", "max_tokens"], "msg": "Input should be less than 9"}]}, 422),
    ({"error": {"message": "Model Not Exist"}}, 400),
    ({"error": {"message": "x-1 is not a valid model ID"}}, 400),
    ({"error": {"message": "The model `x` does not exist", "param": "model"}}, 400),
    ({"error": {"message": "registry/x does not support tools"}}, 400),
    ({"error": {"message": "模型不存在，请检查模型代码。", "code": "1211"}}, 400),
    ({"error": {"message": "API key not valid. Please pass a valid API key."}}, 400),
    ({"error": {"message": "Your credit balance is too low to access the API"}}, 400),
    ({"error": {"message": "bad messages"}}, 401),
    ({"error": {"message": "bad messages"}}, 402),
    ({"error": {"message": "bad messages"}}, 403),
    ({"error": {"message": "bad messages"}}, 404),
    ({"error": {"message": "bad messages"}}, 405),
]


@pytest.mark.parametrize(("body", "status"), NOT_CONTENT)
def test_a_wrong_key_model_or_setting_is_no_refusal_of_the_content(body: object, status: int) -> None:
    error = told(body, status)
    assert type(error) is LLMConfigurationError
    assert "refused" not in error.context


NAMES = [
    *("error", "message", "code", "type", "status", "detail", "details", "errors", "metadata", "raw", "headers"),
    *("retryDelay", "retry_after", "n_ctx", "n_prompt_tokens", "param", "loc", "msg", "innererror"),
]
TELLING = [XAI, "try again in 5s", f"key {SECRET}", json.dumps(LLAMA)]
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner | st.sampled_from(TELLING), max_size=5)
    ),
    max_leaves=12,
)
STATUSES = st.sampled_from([200, 400, 401, 402, 403, 404, 408, 413, 422, 429, 500, 529]) | st.integers(-1, 999)
HEADERS = st.dictionaries(
    st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset", "anthropic-ratelimit-tokens-reset"]),
    st.text(),
)


@given(body=VALUES | st.binary() | VALUES.map(json.dumps), status=STATUSES, headers=HEADERS)
@example(body=[[[[]]]] * 40, status=400, headers={})
@example(body="[" * 100_000, status=400, headers={})
@example(body={"error": {"code": 10**5000, "n_ctx": 10**5000}}, status=400, headers={})
@example(body={"error": {"message": f"a\ud800\u2028b\r\n\x00\x1b[31m{SECRET} " + "x" * 999}}, status=400, headers={})
@example(body={"error": {"code": 10**5000, "loc": [10**5000, []], "msg": "x"}}, status=200, headers={})
@example(body={"message": "x"}, status=429, headers={"retry-after": "9" * 400})
def test_any_body_becomes_a_typed_error_with_one_printable_line(
    body: object, status: int, headers: dict[str, str]
) -> None:
    error = told(body, status, headers)
    assert type(error) in {
        *(LLMConfigurationError, LLMContextLengthError, LLMRateLimitError),
        *(LLMRefusedError, LLMUnavailableError, LLMBadResponseError),
    }
    assert error.message.isprintable()
    assert SECRET not in error.message
    assert len(error.message) < 600
    wait = error.context.get("retry_after")
    assert wait is None or 0 <= wait < float("inf")
    error.message.encode()


def test_a_quote_is_one_line_without_the_key() -> None:
    text = f"Incorrect API key\n\tprovided:\x1b {SECRET}. " + "y" * 500
    said = quote(text, SERVER)
    assert said.startswith("Incorrect API key provided: ***. yyy")
    assert len(said) == 400


HOSTILE = [
    "context length " * 7000,
    "maximum " + " " * 100_000 + "8192",
    "1," * 50_000,
    "8192 > " * 15_000,
    "1 + " * 25_000,
    "9" * 100_000,
    "tokens 12 " * 10_000,
    "a_" * 50_000,
    "limit: " * 15_000,
    "input " * 17_000 + "exceeds",
    "。" * 100_000,
    "range of input length should be [" * 3000,
    "try again in " * 8000,
    "wait " + "1 " * 50_000,
    "1s" * 50_000,
    "retry" + " " * 100_000 + "in 5s",
    "model " * 17_000,
    "messages." * 11_000,
    "max_" * 25_000,
    "\n" * 100_000,
    "{" * 100_000,
    "[0," * 33_000,
    "tools[" * 16_000,
    "auth" * 25_000,
    "exceed" * 17_000,
    "exceed a b " * 9000,
    "prompt tokens " * 7000,
    "prompt" + " tokens" * 14_000,
    "model a.b" * 11_000,
    "bad request " * 8000,
    "badrequest" * 25 + "!x",
    "no such " * 12_000,
    "location " * 11_000,
]


@pytest.fixture(scope="module")
def one_pass() -> float:
    """The processor time in seconds in which a pattern finds each character of such a text on this machine."""
    begun = process_time()
    assert sum(1 for _ in re.finditer(r"\w|\W", "a" * 100_000)) == 100_000
    return process_time() - begun


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("status", [400, 429])
def test_no_body_takes_long_to_read(text: str, status: int, one_pass: float) -> None:
    body = {"error": {"message": text, "code": text, "param": text, "retryDelay": text}}
    for _ in range(5):
        begun = process_time()  # what others do on this machine is hardly counted
        told(body, status, {"retry-after": text, "x-ratelimit-reset": text})
        if process_time() - begun < 5 * one_pass:
            return
    pytest.fail("a pattern tries again from each place")
