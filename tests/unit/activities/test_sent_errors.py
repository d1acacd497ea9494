"""Errors that servers send with status 200, in a stream or instead of one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.models.error_responses import Server
from loom.activities.adapters.models.event_stream import Event
from loom.activities.adapters.models.sent_errors import not_an_error
from loom.domain.core.errors import (
    LLMConfigurationError,
    LLMContextLengthError,
    LLMRateLimitError,
    LLMRefusedError,
    LLMUnavailableError,
    LoomError,
)

SERVER = Server(name="the server", key_name="KEY", url_name="URL", url="http://host", secret="sk-secret-key")

ERRORS = [
    ({"error": {"message": "CUDA is full", "type": "server_error"}}, "CUDA is full"),
    ({"error": "CUDA is full"}, "CUDA is full"),
    ({"error": True, "message": "CUDA is full"}, "CUDA is full"),
    ({"error": ["CUDA is full"]}, "CUDA is full"),
    ({"error": {"code": 500}}, "no reason given"),
    ({"text": "CUDA is full", "error_code": 50002}, "CUDA is full"),
    ({"object": "error", "message": "CUDA is full", "code": 40303}, "CUDA is full"),
    ({"type": "error", "error": {"type": "overloaded_error", "message": "CUDA is full"}}, "CUDA is full"),
    ({"type": "error", "code": "server_error", "message": "CUDA is full", "param": None}, "CUDA is full"),
    ({"type": "BadGatewayError", "message": "CUDA is full"}, "CUDA is full"),
    ({"type": "failure", "code": 500, "message": "CUDA is full"}, "CUDA is full"),
    ({"detail": "CUDA is full"}, "CUDA is full"),
    ({"detail": [{"loc": ["body"], "msg": "CUDA is full"}]}, "CUDA is full"),
    ({"code": 500, "message": "CUDA is full"}, "CUDA is full"),
    ({"code": "Internal", "msg": "CUDA is full", "data": None}, "CUDA is full"),
    ({"message": "CUDA is full"}, "CUDA is full"),
    ({"exception": "CUDA is full"}, "CUDA is full"),
    ({"errorMessage": "CUDA is full", "errorType": "Runtime"}, "CUDA is full"),
    ({"Error": {"Message": "CUDA is full"}}, "CUDA is full"),
    ({"status": 500, "title": "CUDA is full"}, "CUDA is full"),
    ({"type": "about:blank", "status": 503, "title": "CUDA is full"}, "CUDA is full"),
    ({"base_resp": {"status_code": 1004, "status_msg": "CUDA is full"}}, "CUDA is full"),
    ({"choices": None, "error_msg": "CUDA is full"}, "CUDA is full"),
    ({"choices": [{"delta": {"content": "a"}, "error": {"code": 502, "message": "CUDA is full"}}]}, "CUDA is full"),
    ([{"error": {"code": 503, "message": "CUDA is full", "status": "UNAVAILABLE"}}], "CUDA is full"),
]

PARTS = [
    {"choices": [{"delta": {"content": "a"}}], "error": None, "error_code": 0},
    {"choices": [], "usage": {"prompt_tokens": 1}},
    {"choices": [], "usage": None, "code": 0, "message": ""},
    {"choices": None, "id": "c", "object": "chat.completion.chunk", "message": "queued"},
    {"choices": [], "base_resp": {"status_code": 0, "status_msg": "success"}},
    {"code": 200, "msg": "success"},
    {"status": 200, "title": "OK"},
    {"status": "in_progress", "exception": None},
    {"type": "ping", "message": "still here"},
    {"type": "message_start", "message": {"model": "m"}},
    {"type": "response.completed", "response": {"error": None}},
    {"type": "content_block_start", "content_block": {"type": "tool_result_error", "error_code": "x"}},
    {},
    [],
    "text",
    5,
]


@pytest.mark.parametrize(("value", "said"), ERRORS)
def test_an_error_of_any_shape_is_another_attempt(value: Any, said: str) -> None:
    with pytest.raises(LLMUnavailableError, match=said):
        not_an_error(Event("message", value), {}, SERVER, "m")


@pytest.mark.parametrize("value", ["CUDA is full", {"a": 1}, ["CUDA"], 5, None, {}])
def test_an_event_that_is_named_error_is_one_whatever_it_contains(value: Any) -> None:
    with pytest.raises(LLMUnavailableError):
        not_an_error(Event("error", value), {}, SERVER, "m")


@pytest.mark.parametrize("value", PARTS)
def test_parts_of_a_reply_are_no_errors(value: Any) -> None:
    assert not_an_error(Event("message", value), {}, SERVER, "m") is value


REFUSED: list[dict[str, object]] = [
    {"code": "invalid_base64_image", "message": "The image data you provided does not represent a valid image"},
    {"code": "invalid_image_format", "message": "x"},
    {"code": "image_parse_error", "message": "x"},
    {"code": "image_too_large", "message": "x"},
    {"code": "unsupported_image_media_type", "message": "x"},
    {"code": "empty_image_file", "message": "x"},
    {"code": "failed_to_download_image", "message": "x"},
    {"code": "invalid_prompt", "message": "x"},
    {"type": "BadRequestError", "code": None},
    {"type": "bad_request", "message": "x"},
    {"type": "None", "code": "bad_request_error", "message": "x"},
    {"status": "INVALID_ARGUMENT"},
    {"status": "INVALID_ARGUMENT", "message": "Request contains an invalid argument."},
    {"type": "invalid_request_error", "message": "messages: text content blocks must be non-empty"},
    {"code": "InvalidParameter", "message": "x"},
    {"code": "unsupported_content", "message": "x"},
    {"code": "ValidationException", "message": "x"},
    {"code": 400, "message": "x"},
    {"code": "400", "message": "x"},
]


@pytest.mark.parametrize("error", REFUSED)
@pytest.mark.parametrize("is_inside", [True, False])
def test_refused_content_is_recognized_by_the_codes_within_a_stream(error: dict[str, object], is_inside: bool) -> None:
    event = Event("message", {"error": error}) if is_inside else Event("error", error)
    with pytest.raises(LLMConfigurationError) as caught:
        not_an_error(event, {}, SERVER, "m")
    assert caught.value.context["refused"] == 400


KINDS: list[tuple[object, type[LoomError]]] = [
    ({"type": "invalid_request_error", "code": "server_error", "message": "x"}, LLMUnavailableError),
    ({"type": "invalid_response_error", "message": "x"}, LLMUnavailableError),
    ({"type": "InternalServerError", "message": "x"}, LLMUnavailableError),
    ({"code": "vector_store_timeout", "message": "x"}, LLMUnavailableError),
    ({"type": "overloaded_error", "message": "x"}, LLMUnavailableError),
    ({"type": "api_error", "message": "invalid image"}, LLMUnavailableError),
    ({"type": "invalid_request_error", "code": 502, "message": "x"}, LLMUnavailableError),
    ({"type": "invalid_request_error", "code": "503", "message": "x"}, LLMUnavailableError),
    ({"status": 504, "message": "x"}, LLMUnavailableError),
    ({"type": "invalid_request_error", "code": "rate_limit_exceeded", "message": "x"}, LLMRateLimitError),
    ({"type": "RateLimitError", "code": None, "message": "x"}, LLMRateLimitError),
    ({"status": "RESOURCE_EXHAUSTED", "message": "x"}, LLMRateLimitError),
    ({"type": "invalid_request_error", "code": 429, "message": "x"}, LLMRateLimitError),
    ({"code": "429", "message": "x"}, LLMRateLimitError),
    ({"code": 429.0, "message": "x"}, LLMRateLimitError),
    ({"status_code": 429, "message": "x"}, LLMRateLimitError),
    ({"code": "content_filter", "message": "x"}, LLMRefusedError),
    ({"code": "context_length_exceeded", "message": "x"}, LLMContextLengthError),
]


@pytest.mark.parametrize(("error", "kind"), KINDS)
def test_codes_of_rates_and_of_failing_servers_count_first(error: object, kind: type[LoomError]) -> None:
    with pytest.raises(LoomError) as caught:
        not_an_error(Event("message", {"error": error}), {}, SERVER, "m")
    assert type(caught.value) is kind


@pytest.mark.parametrize("code", ["invalid_api_key", "invalid_model", "unsupported_parameter", "unsupported_country"])
def test_a_wrong_key_model_or_setting_is_no_refused_content_within_a_stream(code: str) -> None:
    with pytest.raises(LLMConfigurationError) as caught:
        not_an_error(Event("message", {"error": {"code": code, "message": "x"}}), {}, SERVER, "m")
    assert "refused" not in caught.value.context


def test_an_error_keeps_its_kind_and_the_wait_of_the_headers() -> None:
    value = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
    with pytest.raises(LLMRateLimitError) as caught:
        not_an_error(Event("message", value), {"retry-after": "7"}, SERVER, "m")
    assert caught.value.context["retry_after"] == 7


NAMES = st.sampled_from(["error", "code", "message", "detail", "type", "object", "choices", "errors", "base_resp"])
JSON = st.recursive(
    st.sampled_from([None, True, 0, 5, 0.5, "", "no", "\ud83d"]),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(NAMES, inside, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(["message", "error", "ping"]), JSON)
def test_any_value_is_a_part_of_a_reply_or_a_typed_error(name: str, value: Any) -> None:
    try:
        assert not_an_error(Event(name, value), {}, SERVER, "m") is value
    except LoomError as error:
        assert error.message  # noqa: PT017 - a value that is no error raises nothing
