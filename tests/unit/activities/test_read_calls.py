"""Calls as providers read them from the argument texts of models."""

import pytest

from loom.activities.adapters.models.wire import arguments_of, read_call
from loom.activities.found_tools import direct
from loom.activities.ports import ModelAnswer
from loom.domain.core.messages import Message, ToolCall, Usage


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        (" \n", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": "one\ntwo\tthree\x00"}', {"a": "one\ntwo\tthree\0"}),
        ('"{\\"a\\": 1}"', {"a": 1}),
    ],
)
def test_arguments_are_read(text: str, arguments: dict[str, object]) -> None:
    assert read_call("c", "t", text) == ToolCall(id="c", name="t", arguments=arguments)


@pytest.mark.parametrize("text", ['{"a": NaN}', '"{\\"a\\": NaN}"', '{"a": [1e999]}', '{"a": 1', "[]", '{"a":1,"a":2}'])
def test_arguments_that_cannot_be_used_are_kept_as_they_were_sent(text: str) -> None:
    call = read_call("c", "t", text)
    assert call == ToolCall(id="c", name="t", malformed=text)
    assert arguments_of(call) == {"malformed_arguments": text}


@pytest.mark.parametrize(
    ("inner", "meant"),
    [
        ('{"a": "x\ny"}', ToolCall(id="c", name="t", arguments={"a": "x\ny"})),
        ('{"a": NaN}', ToolCall(id="c", name="t", malformed='{"a": NaN}')),
    ],
)
def test_the_arguments_of_a_found_tool_are_read_in_the_same_way(inner: str, meant: ToolCall) -> None:
    sent = ToolCall(id="c", name="call_tool", arguments={"name": "t", "arguments": inner})
    answer = ModelAnswer(message=Message(role="assistant", tool_calls=(sent,)), stop="tools", usage=Usage(), model="m")
    assert direct(answer, ()).message.tool_calls == (meant,)
