"""Mend the messages of MCP servers, so that one malformed value costs neither a whole list of tools nor a result.

The library validates each message as a whole. If any part of it is malformed, it rejects the whole message, and a call
whose answer isn't valid JSON waits until its timeout.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    REQUEST_TIMEOUT,
    ContentBlock,
    ErrorData,
    jsonrpc_message_adapter,
)
from pydantic import TypeAdapter, ValidationError

from loom.activities.toolbox.schema_forms import mended
from loom.domain.core.json_text import with_whole_escapes

SHOWN: Final = 20_000
"""Maximum number of characters of malformed content that a result shows."""

_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_OF_CALLS: Final = frozenset({"content", "structuredContent", "isError"})
_OF_OTHERS: Final = frozenset(
    {
        "protocolVersion", "capabilities", "serverInfo", "instructions", "nextCursor", "tools", "prompts", "resources",
        "resourceTemplates", "messages", "contents", "completion", "inputRequests", "requestState", "resultType",
        "task", "tasks", "roots", "action", "model", "role",
    }
)  # fmt: skip
"""Fields of results that aren't results of calls."""
_LIBRARY_CODES: Final = (CONNECTION_CLOSED, REQUEST_TIMEOUT)
_LIBRARY_WORDS: Final = ("SSE stream failed: ", "SSE stream ended ", "Connection closed")
_SERVER_ERROR: Final = -32099
"""A code of the range that JSON-RPC reserves for servers, which means nothing to the library."""
_BOM: Final = "\ufeff"
_VERSION: Final = {"jsonrpc": "2.0"}
_FIELD: Final = 2
"""The number of steps to a field of a message: the kind of the message, and the field."""


def reread(error: Exception) -> SessionMessage | None:
    """Return the message that the library couldn't read, or None if the line isn't a message.

    It contains a control character, half a character, a result that isn't an object, or no valid `jsonrpc`, for
    example.
    """
    if not isinstance(error, ValidationError) or not (found := error.errors(include_url=False, include_context=False)):
        return None
    # The error about a missing field has the whole message, and the error about a wrong value only this value.
    whole = next((each for each in found if each["type"] == "missing" and len(each["loc"]) == _FIELD), found[0])
    given = whole["input"]
    try:
        if isinstance(given, str | bytes) and whole["type"] == "json_invalid":
            text = given if isinstance(given, str) else given.decode("utf-8", "replace")
            given = json.loads(with_whole_escapes(text.removeprefix(_BOM)), strict=False)
        if isinstance(given, list) and len(given) == 1:  # a batch, which earlier versions of the protocol had
            given = given[0]
        if isinstance(given, dict):
            given = _answer(given) if _is_answer(given) else {**given, **_VERSION} if "jsonrpc" in given else given
        return SessionMessage(jsonrpc_message_adapter.validate_python(given, by_name=False))
    except (ValueError, RecursionError):
        return None


def _is_answer(message: Mapping[str, Any]) -> bool:
    """A line of a log may have an id, too."""
    is_sent = message.get("id") is not None and "method" not in message
    return is_sent and not message.keys().isdisjoint(("jsonrpc", "result", "error"))


def _answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer in the form that the library requires."""
    number = message["id"]
    number = int(number) if isinstance(number, float) and number.is_integer() else number
    made = {**_VERSION, "id": number}
    if (error := message.get("error")) is not None:
        given = error if isinstance(error, dict) else {"message": error}
        code, said = given.get("code"), given.get("message")
        code = code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR
        said = said if isinstance(said, str) else _json(given)
        return {**made, "error": {"code": code, "message": said, "data": given.get("data")}}
    result = message.get("result")
    return {**made, "result": result if isinstance(result, dict) else {"content": [] if result is None else result}}


def mended_error(error: ErrorData) -> ErrorData:
    """Return an error whose code isn't one by which the library tells that it lost the connection, or the patience, if
    the server itself sent the error.
    """
    is_own = error.code in _LIBRARY_CODES and not error.message.startswith(_LIBRARY_WORDS)
    return error.model_copy(update={"code": _SERVER_ERROR}) if is_own else error


def mend_result(result: dict[str, Any]) -> None:
    """Mend the result of a call, of a prompt or of a resource in place."""
    if not isinstance(result.get("instructions", ""), str):
        del result["instructions"]
    if not isinstance(result.get("_meta", {}), dict):
        del result["_meta"]
    if isinstance(result.get("task"), dict):
        result.setdefault("content", [])  # the library knows no other results of calls
    if isinstance(result.get("taskId"), str) and "status" in result:
        if isinstance(result.get("result"), dict):
            _mend_call(result["result"])
    else:
        _mend_content(result)


def _mend_content(result: dict[str, Any]) -> None:
    told = result.keys() - {"_meta"}
    if told and told.isdisjoint(_OF_CALLS | _OF_OTHERS):  # a call's value without its frame
        result["structuredContent"] = {name: result.pop(name) for name in sorted(told)}
    if not result.keys().isdisjoint(_OF_CALLS) or not result.keys() - {"_meta", "resultType"}:
        _mend_call(result)
    for message in result["messages"] if isinstance(result.get("messages"), list) else ():
        if isinstance(message, dict) and "content" in message:
            first, *others = _blocks(message["content"]) or [_text("")]
            message["content"] = first if not others else _text("\n".join(_json(each) for each in (first, *others)))
    if "contents" in result:
        contents = result["contents"]
        result["contents"] = [_resource(each) for each in (contents if isinstance(contents, list) else [contents])]


def _mend_call(result: dict[str, Any]) -> None:
    result["content"] = _blocks(result.get("content"))
    if "isError" in result:
        result["isError"] = result["isError"] not in (None, False, 0, "", "false", "False")
    structured = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        result["structuredContent"] = {"result": structured}


def _blocks(content: Any) -> list[Any]:
    if content is None:
        return []
    return [_block(each) for each in (content if isinstance(content, list) else [content])]


def _block(block: Any) -> Any:
    """Return a block of content that the library accepts. Another one becomes a text."""
    if isinstance(block, dict):
        plain = {key: value for key, value in block.items() if key not in ("annotations", "_meta", "icons", "size")}
        for each in (block, plain):
            if _is_block(each):
                return each
        if isinstance(block.get("text"), str):
            return _text(block["text"])
        return _text(f"[content of the type {str(block.get('type'))[:60]!r}, shown as JSON] {_json(block)}")
    return _text(block if isinstance(block, str) else _json(block))


def _is_block(block: dict[str, Any]) -> bool:
    try:
        _block_type().validate_python(block, by_name=False)
    except ValidationError:
        return False
    return "type" in block


@cache
def _block_type() -> TypeAdapter[Any]:
    return TypeAdapter(ContentBlock)


def _resource(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        return {"uri": "", "text": content if isinstance(content, str) else _json(content)}
    uri, kind = content.get("uri"), content.get("mimeType")
    made = {"uri": uri if isinstance(uri, str) else "", **({"mimeType": kind} if isinstance(kind, str) else {})}
    for key in ("text", "blob"):
        if isinstance(content.get(key), str):
            return {**made, key: content[key]}
    return {**made, "text": _json(content)}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def well_formed_tools(listed: object, malformed: list[str]) -> list[dict[str, Any]]:
    """Return the tools of a list that the library accepts, reduced to what Loom uses.

    The reasons for the others are added to `malformed`. Output schemas are left out: the library would reject a result
    that doesn't match its schema, and a schema could make it block the worker.
    """
    if not isinstance(listed, list):
        malformed.append("the list of tools is not a list")
        return []
    kept = []
    for entry in listed:
        try:
            kept.append(_tool(entry))
        except ValueError as error:
            malformed.append(str(error))
        except RecursionError:
            malformed.append(f"{str(entry['name'])[:60]!r}: its schema is nested too deeply")
    return kept


def _tool(entry: Any) -> dict[str, Any]:
    """Reduce a listed tool to the fields that Loom uses. Raises ValueError if the tool is malformed."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError("a tool without a name")
    schema = entry.get("inputSchema")
    schema = mended(schema) if isinstance(schema, dict) else {"type": "none"}
    kinds = schema.get("type", "object")
    if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
        raise ValueError(f"{name[:60]!r}: its schema does not describe an object")
    described = entry.get("description")
    return {
        "name": name,
        "description": described if isinstance(described, str) else "",
        "inputSchema": {**schema, "type": "object"},
        "annotations": _annotations(entry.get("annotations")),
        **_execution(entry.get("execution")),
    }


def _execution(given: Any) -> dict[str, Any]:
    """Return whether the tool runs only as a task. No other value matters to Loom."""
    needs_task = isinstance(given, dict) and given.get("taskSupport") == "required"
    return {"execution": {"taskSupport": "required"}} if needs_task else {}


def _annotations(given: Any) -> dict[str, bool]:
    """Return the hints that are true or false, and ignore all other values."""
    known = given if isinstance(given, dict) else {}
    return {hint: known[hint] for hint in _HINTS if isinstance(known.get(hint), bool)}
