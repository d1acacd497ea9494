"""What providers say when they refuse a request, helpful or not."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Words:
    """An error response."""

    status: int
    body: bytes
    content_type: str = "application/json"


def _json(status: int, body: Any) -> Words:
    return Words(status, json.dumps(body).encode())


def openai(message: str, code: str | None = None, *, status: int = 400, kind: str = "invalid_request_error") -> Words:
    """OpenAI's form, which most compatible servers have, too."""
    return _json(status, {"error": {"message": message, "type": kind, "param": None, "code": code}})


def anthropic(message: str, *, status: int = 400, kind: str = "invalid_request_error") -> Words:
    """Anthropic's form."""
    return _json(
        status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011CTHqbwYVamgreVYtN"}
    )


def vllm(message: str, *, status: int = 400) -> Words:
    """vLLM's form, and SGLang's."""
    return _json(
        status, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": status}
    )


def mistral(message: str, code: str = "3051", *, status: int = 400) -> Words:
    """Mistral's form."""
    kind = "invalid_request_message_order" if code == "3230" else "invalid_request_error"
    return _json(status, {"object": "error", "message": message, "type": kind, "param": None, "code": code})


def google(message: str) -> Words:
    """The form of Gemini's compatible API: a list."""
    return _json(400, [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}])


def fastapi(*location: str, message: str = "Input should be a valid string") -> Words:
    """The form of servers that are built with FastAPI."""
    return _json(422, {"detail": [{"type": "string_type", "loc": ["body", *location], "msg": message}]})


def plain(text: str, *, status: int = 400) -> Words:
    """No JSON at all."""
    return Words(status, text.encode(), "text/plain")


def page(status: int, title: str) -> Words:
    """The page of a proxy."""
    html = f"<html>\r\n<head><title>{status} {title}</title></head>\r\n<body>\r\n<center><h1>{status} {title}</h1>"
    return Words(
        status, f"{html}</center>\r\n<hr><center>nginx/1.27.4</center>\r\n</body>\r\n</html>".encode(), "text/html"
    )


UNHELPFUL: Final[Sequence[Words]] = (
    _json(400, {"error": {"message": "Provider returned error", "code": 400}}),
    _json(400, {"error": "unknown error"}),
    _json(400, {"error": {"message": "", "type": "invalid_request_error"}}),
    _json(422, {"message": "Unprocessable Entity"}),
    _json(400, {"code": "Client specified an invalid argument", "error": "Invalid request content."}),
    _json(400, {"detail": "There was an error parsing the body"}),
    anthropic("Invalid input"),
    openai("Upstream request failed", "upstream_error"),
    openai(
        "The server had an error processing your request. (request id: 20250107215942236269603)", "do_request_failed"
    ),
    google("Request contains an invalid argument."),
    plain("bad request"),
    plain(""),
    page(400, "Bad Request"),
)
"""Refusals that don't say what is refused."""

TOO_LARGE: Final[Sequence[Words]] = (
    page(413, "Request Entity Too Large"),
    anthropic("Request exceeds the maximum size", status=413, kind="request_too_large"),
    plain("Payload Too Large", status=413),
    openai("Request body too large", "request_too_large", status=413),
    _json(413, {"message": "length limit exceeded"}),
)
"""Refusals of what has too many bytes, without a word on what that is."""

TOO_LONG: Final[Sequence[Words]] = (
    openai(
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9411 tokens. Please"
        " reduce the length of the messages.",
        "context_length_exceeded",
    ),
    openai("Your input exceeds the context window of this model. Please adjust your input and try again."),
    openai("Please reduce the length of the messages or completion.", "context_length_exceeded"),
    openai(
        "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9411, please reduce your"
        " message size and try again.",
        "rate_limit_exceeded",
        status=413,
        kind="tokens",
    ),
    anthropic("prompt is too long: 9411 tokens > 8192 maximum"),
    anthropic(
        "input length and `max_tokens` exceed context limit: 9411 + 4096 > 8192, decrease input length and try again"
    ),
    vllm("The input (9411 tokens) is longer than the model's context length (8192 tokens)."),
    vllm("Input length (9411) exceeds the maximum allowed length (8191). Truncate the input."),
    mistral("Prompt contains 9411 tokens and 0 draft tokens, too large for model with 8192 maximum context length"),
    google("The input token count (9411) exceeds the maximum number of tokens allowed (8192)."),
    _json(
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 8192 but the request contains 9411 tokens.",
        },
    ),
    _json(400, {"message": "Input is too long for requested model."}),
    _json(400, {"error": "input length exceeds maximum context length"}),
    _json(
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 9411,
                "n_ctx": 8192,
            }
        },
    ),
    _json(
        400,
        {
            "error": "Trying to keep the first 9411 tokens when context the overflows. However, the model is loaded"
            " with context length of only 8192 tokens, which is not enough."
        },
    ),
    _json(
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192.",
            "error_type": "validation",
        },
    ),
    _json(
        400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 8192 - received 9411."}
    ),
    plain("Das Gespräch ist zu lang."),
)
"""Refusals of a conversation that is too long."""
