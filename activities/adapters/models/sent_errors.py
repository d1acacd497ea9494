"""Find the errors that servers send within a reply with status 200.

OpenAI and Anthropic send `{"error": {…}}`. Gateways and other servers have shapes of their own.
"""

from collections.abc import Mapping
from typing import Any, Final

from loom.activities.adapters.models.error_responses import Server, error_of, error_response_of
from loom.activities.adapters.models.event_stream import Event, reading

_NO_ERROR: Final = (None, "", 0, "0", 200, "200", "ok", "success")
"""The codes of replies that aren't errors."""

_ERRORS: Final = ("error", "errors", "error_code", "error_msg", "error_message", "errorMessage", "exception", "Error")
_WORDS: Final = (
    *("message", "msg", "text", "detail", "title", "error_msg", "error_message", "status_msg", "errors", "error"),
    *("errorMessage", "exception", "Error", "Message"),
)


def not_an_error(event: Event, headers: Mapping[str, str], server: Server, model: str) -> Any:
    """Return the value of an event that doesn't report an error. Raises the typed error of one that does."""
    with reading():
        if (error := error_in(event.name, event.value)) is None:
            return event.value
        sent = error_response_of(error, 200, headers, words_of(error) or "no reason given")
    raise error_of(sent, server, model)


def error_in(name: str, value: Any) -> Any:
    """Return the body of the error that an event with this name and value reports, or None."""
    if name == "error":
        return {} if value is None else value
    if isinstance(value, list):  # Gemini
        value = value[0] if value else None
    if not isinstance(value, Mapping):
        return None
    if any(value.get(field) for field in _ERRORS) or _is_called_error(value):
        return value
    choices = value.get("choices")
    if not choices:
        base = value.get("base_resp")  # MiniMax
        return base if isinstance(base, Mapping) and _is_bare_error(base) else value if _is_bare_error(value) else None
    inner = choices[0].get("error") if isinstance(choices, list) and isinstance(choices[0], Mapping) else None
    return {"error": inner} if inner else None


def words_of(error: Any) -> str:
    """Return what the body of an error says."""
    if isinstance(error, str):
        return error
    if isinstance(error, list):
        return "; ".join(filter(None, map(words_of, error)))
    if not isinstance(error, Mapping):
        return ""
    return next(filter(None, (words_of(error.get(field)) for field in _WORDS)), "")


def _is_called_error(value: Mapping[str, Any]) -> bool:
    """Whether the value's own type says that it is an error, such as `error`, `server_error` or `BadRequestError`."""
    names = (value.get("type"), value.get("object"))
    return any(isinstance(name, str) and name.lower().endswith("error") for name in names)


def _is_bare_error(value: Mapping[str, Any]) -> bool:
    """Whether a value without any part of a reply consists of an error's code or words."""
    if type(status := value.get("status")) is int and status >= 400:
        return True
    said = any(isinstance(value.get(field), str) and value[field] for field in ("message", "msg", "status_msg"))
    code = next((value[field] for field in ("code", "status_code") if field in value), None)
    if isinstance(value.get("type"), str):  # such as a ping, or an event that Loom doesn't know
        return said and isinstance(code, int) and code >= 400
    if code not in _NO_ERROR or value.get("detail"):
        return said or bool(value.get("detail"))
    return said and code is None and value.keys().isdisjoint(("id", "object", "model", "usage"))
