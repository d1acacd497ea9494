"""Messages of MCP servers that the library can't read, and the words for the end of a connection."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError

from loom.activities.adapters.mcp.error_text import SecretReplacer, readable
from loom.activities.adapters.mcp.mending import reread
from loom.domain.tools.mcp_servers import ListedTool, McpServer


def read(line: str) -> Any:
    """The message of a line, as the library or `reread` reads it. None if it isn't a message."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        found = reread(error)
        return None if found is None else found.message


ABSENT = "absent"
VERSIONS: st.SearchStrategy[Any] = st.sampled_from([ABSENT, "2.0", "1.0", 2.0, 2, None, "", [], {"a": 1}])
RESULTS: st.SearchStrategy[Any] = st.sampled_from(
    [{"content": []}, {"id": 9, "jsonrpc": "x", "error": {}}, "bare", None, [1], 7]
)


@given(VERSIONS, st.integers(0, 10**6), st.booleans(), RESULTS)
def test_an_answer_is_read_whatever_its_version_and_its_kind_of_number(
    version: Any, number: int, is_float: bool, result: Any
) -> None:
    sent = {"jsonrpc": version, "id": float(number) if is_float else number, "result": result}
    made = read(json.dumps({key: value for key, value in sent.items() if value != ABSENT}))
    assert isinstance(made, JSONRPCResponse)
    assert (made.id, type(made.id)) == (number, int)
    expected = result if isinstance(result, dict) else {"content": [] if result is None else result}
    assert made.result == expected


@given(VERSIONS, st.sampled_from([{"code": 7, "message": "no"}, {"code": 7.5, "message": "no"}, "no"]))
def test_an_error_is_read_whatever_its_version(version: Any, error: Any) -> None:
    sent = {"jsonrpc": version, "id": 3.0, "error": error}
    made = read(json.dumps({key: value for key, value in sent.items() if value != ABSENT}))
    assert isinstance(made, JSONRPCError)
    assert (made.id, made.error.message) == (3, "no")


def test_a_notification_of_another_version_is_read() -> None:
    made = read('{"jsonrpc": "1.0", "method": "notifications/tools/list_changed"}')
    assert isinstance(made, JSONRPCNotification)


@pytest.mark.parametrize(
    "line",
    [
        "ready",
        "5",
        "[1]",
        "{}",
        '{"level": "info", "message": "started"}',
        '{"id": 1, "message": "started"}',
        '{"method": "GET", "path": "/"}',
        '{"jsonrpc": "2.0", "id": 1.5, "result": {}}',
        '{"jsonrpc": "2.0", "id": true, "result": {}}',
        '{"jsonrpc": "2.0", "id": {}, "result": {}}',
        '{"jsonrpc": 2.0, "result": {}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_message_is_left_out(line: str) -> None:
    assert read(line) is None


def test_each_error_of_a_group_is_named_in_one_line() -> None:
    ended = ExceptionGroup("tasks", [ConnectionError("it has ended")])
    assert readable(ended) == "it has ended"
    several = ExceptionGroup("tasks", [ended, ConnectionError("it has ended"), ValueError("two\nlines"), KeyError()])
    assert readable(several) == "it has ended; ValueError: two lines; KeyError"
    assert len(readable(ExceptionGroup("many", [ValueError(f"{n}" + "x" * 5000) for n in range(100)]))) < 2000


def test_a_secret_is_replaced_in_texts_of_a_tool_and_no_rule_is_changed() -> None:
    schema = {
        "type": "object",
        "properties": {
            "object": {"$ref": "#/$defs/object"},
            "b": {"default": {"a": ["an object"]}, "enum": ["object"]},
        },
        "required": ["object"],
        "description": "An object",
        "$defs": {"object": {"type": "object", "title": "object"}},
    }
    replacer = SecretReplacer(McpServer(name="a", command=("a",), env={"KEY": "${KEY}"}), {"KEY": "object"})
    made = replacer.tool(ListedTool(name="t", description="object", schema=schema))
    hidden = "[REDACTED]"
    assert made.description == hidden
    assert made.schema == {
        **schema,
        "properties": {
            "object": {"$ref": "#/$defs/object"},
            "b": {"default": {"a": [f"an {hidden}"]}, "enum": [hidden]},
        },
        "description": f"An {hidden}",
        "$defs": {"object": {"type": "object", "title": hidden}},
    }
