"""What a server refuses, told from its words: the content of the request, or the account, the model or a setting."""

from typing import Any

import pytest

from loom.activities.adapters.models.error_responses import Server, error_of, error_response_of
from loom.domain.core.errors import LLMConfigurationError, LLMUnavailableError, LoomError

SERVER = Server(name="the server", key_name="KEY", url_name="URL", url="http://host", secret="sk-secret-key")


def told(message: str, status: int, **fields: Any) -> LoomError:
    return error_of(error_response_of({"error": {"message": message, **fields}}, status, {}, "no reason"), SERVER, "m")


ACCOUNT = [
    "This organization has been disabled.",
    "Your organization must be verified to stream this model.",
    "User location is not supported for the API use.",
    "Country, region, or territory not supported",
    "Budget has been exceeded! Current cost: 1.2, Max budget: 1.0",
    "ExceededBudget: User=u over budget. Spend=2.0, budget_exceeded",
    "Account is suspended due to insufficient balance",
    "Your account has been deactivated, please contact support",
    "Access to this model requires a paid plan",
    "This feature isn't included in your current plan",
    "Your trial has expired",
    "The provided API token is invalid",
    "Invalid access token",
    "Auth token has expired",
    "Your credit balance is too low to access the API",
    "Daily token limit exceeded",
    "You exceeded your current quota",
    "账户余额不足，请充值",
    "您的帐号已欠费",
    "无权限访问该模型",
]
MODEL = [
    "The model `llama-3.1-70b-versatile` has been decommissioned and is no longer supported.",
    "The model m-1 has been deprecated, learn more here",
    "The model x.y is not available in your region",
    "model m-2 reached its end of life",
    "LLM Provider NOT provided. Pass in the LLM provider you are trying to call. You passed model=m",
    "Invocation of model ID anthropic.m-v1:0 with on-demand throughput isn’t supported.",
    "Invocation of model ID anthropic.m-v1:0 with on-demand throughput isn't supported.",
    "Retry with the ID of an inference profile that contains this model",
    "The provided model identifier is invalid.",
    "No endpoints found for vendor/m",
    "There are no healthy deployments for this group",
    "This is not a chat model and thus not supported in the v1/chat/completions endpoint",
    "registry/m does not support tools",
    "m doesn’t support function calling",
]
SETTING = [
    "Unexpected value(s) `x-2025` for the `anthropic-beta` header.",
    "Missing required header: version",
    "Reasoning effort 'xhigh' is not supported",
    "Unsupported value: 'reasoning.effort' does not support 'minimal' with this model.",
    "stop: at most 4 stop sequences",
    "stop: must be a list of at most 4",
    "Thinking is not enabled",
    "This model does not support thinking",
    "thinking.type: Input should be 'enabled' or 'disabled'",
    "parameter.enable_thinking must be set to false for non-streaming calls",
    "Streaming is not supported for this deployment type",
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    "'tool_choice' is only allowed when 'tools' are specified.",
    "The maximum tokens you requested exceeds the model limit of 4096",
    "body.top_logprobs: ensure this value is less than 20",
    "seed: must be positive",
]


@pytest.mark.parametrize("message", [*ACCOUNT, *MODEL, *SETTING])
@pytest.mark.parametrize("status", [400, 422])
def test_words_about_the_account_the_model_or_a_setting_are_no_refused_content(message: str, status: int) -> None:
    error = told(message, status, type="invalid_request_error")
    assert type(error) is LLMConfigurationError
    assert error.context == {"model": "m"}


CONTENT = [
    "This model does not support image input",
    "Your current plan does not allow images",
    "Images need an account in good standing",
    "The model m does not support system messages",
    "messages.3: thinking is not enabled, so that a thinking block can't be sent",
    "When `thinking` is enabled, a final `assistant` message must start with a thinking block",
    "Unknown parameter: 'messages[2].reasoning_content'",
    "tool_use ids were found without tool_result blocks immediately after",
    "An assistant message with 'tool_calls' must be followed by tool messages; temperature is ignored",
    "The content of a message is not supported by this model",
    "Invalid schema for function 'get_weather': property 'temperature' has no type",
    "Invalid JSON schema: parameters.properties.x has no type",
    "Please ensure that a function call turn comes immediately after a user turn",
    "tools.0.custom.name: String should match pattern",
    "Invalid schema for tool 'x': unexpected field 'anyOf'",
    "Function call is missing a thought_signature in functionCall parts.",
    "Unterminated string starting at: line 1 column 9",
    "Multiple system prompts are not accepted",
]


@pytest.mark.parametrize("message", CONTENT)
@pytest.mark.parametrize("status", [400, 422])
def test_words_about_a_part_of_the_conversation_are_refused_content(message: str, status: int) -> None:
    error = told(message, status, type="invalid_request_error")
    assert type(error) is LLMConfigurationError
    assert error.context == {"model": "m", "refused": status}


@pytest.mark.parametrize(
    "message",
    [
        "The selected model is at capacity. Please try a different model.",
        "We are over capacity",
        "The model is overloaded",
        "This model is temporarily unavailable",
        "The server is currently busy",
        "The model is experiencing high demand",
        "服务繁忙，请稍后再试",
    ],
)
@pytest.mark.parametrize("status", [400, 422])
def test_a_model_that_has_too_much_to_do_is_unavailable(message: str, status: int) -> None:
    assert type(told(message, status)) is LLMUnavailableError


def test_content_that_is_named_isnt_taken_for_a_busy_server() -> None:
    assert told("messages.3.content: 'The server is busy' is no valid block", 400).context["refused"] == 400


VAGUE: list[object] = [
    *(
        "Bad Request",
        "Bad request.",
        "",
        "Error code: 400",
        "400 Bad Request",
        "Error code: 400 - Bad Request",
        "error",
    ),
    *("Upstream request failed", "Invalid input", "Invalid prompt", "Invalid request", "Invalid request body"),
    *("Provider returned error", "invalid_request_error", "BadRequestError", "Request contains an invalid argument."),
    *("litellm.BadRequestError: OpenAIException - ", "Unprocessable Entity", "Unprocessable Content", "unknown error"),
    *("Something went wrong, please try again", "Your request could not be processed", "Input validation error"),
    *("参数有误", "请求参数错误", "null", "HTTP 400", "no reason given", "The request was rejected by the upstream"),
    "<html><head><title>400 Bad Request</title></head><body><center>nginx</center></body></html>",
    "\n<!DOCTYPE html>\n<html lang=en><title>Error</title><p>" + "That is an error. " * 50,
    *(None, {}, [], {"error": None}, {"error": {"code": 400}}, {"code": "1210", "message": "参数有误"}),
    {"error": {"message": "Bad Request", "type": "invalid_request_error", "param": None, "code": None}},
    {"error": {"code": 400, "message": "Provider returned error", "metadata": {"raw": "ERROR"}}},
    {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "Request contains an invalid argument."}},
]


@pytest.mark.parametrize("body", VAGUE)
@pytest.mark.parametrize("status", [400, 422])
def test_a_refusal_without_a_reason_is_vague(body: object, status: int) -> None:
    error = error_of(error_response_of(body, status, {}, f"Error code: {status}"), SERVER, "m")
    assert type(error) is LLMConfigurationError
    assert error.context == {"model": "m", "refused": status, "is_vague": True}


@pytest.mark.parametrize(
    "body",
    [
        {"message": "Invalid input", "param": "messages[3]"},
        {"message": "Invalid input", "code": "invalid_image_format"},
        {"message": "Invalid input: messages[3]"},
        {"message": "Invalid prompt: your prompt was flagged"},
        {"message": "Invalid tool call"},
        {"message": "Request contains an invalid argument: thought_signature"},
        {"message": "图片参数错误"},
    ],
)
def test_a_refusal_that_names_something_is_not_vague(body: object) -> None:
    assert error_of(error_response_of(body, 400, {}, ""), SERVER, "m").context == {"model": "m", "refused": 400}


def test_an_html_page_about_the_account_is_no_refused_content() -> None:
    page = "<html><title>Access denied</title><p>You are unable to access this host</html>"
    assert error_of(error_response_of(page, 400, {}, ""), SERVER, "m").context == {"model": "m"}
