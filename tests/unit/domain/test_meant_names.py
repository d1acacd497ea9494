"""The tool that a model means by an odd name, and the names and ids that servers see."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.messages import Message, ToolCall
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.tools.meant_names import tool_meant_by, with_meant_names
from loom.domain.tools.wire_names import chat_id, wire_id, wire_name

TOOLS = ("list_dir", "read_file", "mcp__git-hub__listIssues", "bash", "search_tools")
ANY = st.text(st.characters(), max_size=90) | st.text("a._-:x0 ", max_size=90)


@pytest.mark.parametrize(
    "name",
    [
        "list_dir",
        " list_dir\n",
        '"list_dir"',
        "`list_dir`",
        "list_dir\0",
        "list_dir<|channel|>commentary",
        "list_dir<|constrain|>json",
        "list_dir <|message|>" + "x" * 200,
        "list_dir</tool_call>",
        "list_dir<tool_call>",
        "list_dir[ARGS]",
        "list_dir()",
        'list_dir(path=".")',
        "functions.list_dir",
        "functions.list_dir:0",
        "functions/list_dir",
        "functions.functions.list_dir",
        "functions::list_dir",
        "to=functions.list_dir",
        "tools.list_dir",
        "default_api.list_dir",
        "default_api:list_dir",
        "call:list_dir",
        "list_dir.",
        "list_dir:",
        "<|channel|>list_dir",
        "<|channel|>commentary to=functions.list_dir<|message|>",
        "<|start|>assistant<|channel|>commentary to=functions.list_dir",
        "assistant to=functions.list_dir",
        "commentary to=list_dir",
        "functions.list_dir:3",
        "<function=list_dir>",
        "<function=list_dir><parameter=path>",
        "function=list_dir",
        '<invoke name="list_dir">',
        "<tool_call>list_dir</tool_call>",
        "[TOOL_CALLS]list_dir[ARGS]{}",
        "tools.list_dir<|channel|>commentary",
        "functions.List-Dir",
        "LIST_DIR",
        "list-dir",
        "List_Dir",
    ],
)
def test_a_name_with_additions_means_its_tool(name: str) -> None:
    assert tool_meant_by(name, TOOLS) == "list_dir"


def test_the_tool_of_a_server_is_meant_in_any_case() -> None:
    assert tool_meant_by("functions.mcp__git_hub__listissues", TOOLS) == "mcp__git-hub__listIssues"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            " ",
            "list",
            "listdir",
            "list_dirs",
            "lst_dir",
            "dir",
            "ls",
            "列出目录",
            "🙂",
            "functions.",
            "functions.x",
        ),
        *(
            "mcp.list_dir",
            "tool_list_dir",
            "tool_search_tools",
            "<|channel|>commentary",
            "<|channel|>list_dir list_dir",
            "<function=>list_dir",
            "other.list_dir",
            "list_dir.bash",
            "bash list_dir",
            "mcp__git-hub",
            "(list_dir)",
            "\0",
        ),
        *("list_dir " * 30, "x" * 200, "functions." * 200_000, "\ud83d", "list_dir" + "()" * 600),
    ],
)
def test_any_other_name_stays_as_it_is(name: str) -> None:
    assert tool_meant_by(name, TOOLS) == name


@pytest.mark.parametrize(
    ("name", "known", "tool"),
    [
        ("tool_x", ("tool_x", "x"), "tool_x"),
        ("tools.tool_x", ("tool_x", "x"), "tool_x"),
        ("functions.x", ("functions.x", "x"), "functions.x"),
        ("READ", ("Read", "read"), "READ"),
        ("functions.Read", ("Read", "read"), "Read"),
        ("functions.READ", ("Read", "read"), "functions.READ"),
        ("a-b", ("a_b", "A-B"), "a-b"),
        ("tool_x", ("x",), "tool_x"),
        ("tool_search", ("search", "search_tools"), "tool_search"),
        ("<|channel|>commentary", ("commentary",), "<|channel|>commentary"),
        ("<|channel|>final_answer", ("final_answer", "final"), "final_answer"),
        ("mcp.x", ("x", "mcp__a__x"), "mcp__a__x"),
        ("functions.mcp:X", ("x", "mcp__a__x"), "mcp__a__x"),
        ("mcp.a.x", ("mcp__a__x", "mcp__b__x"), "mcp__a__x"),
        ("mcp.x", ("mcp__a__x", "mcp__b__x"), "mcp.x"),
        ("mcp.x", ("x", "mcp__a__y__x"), "mcp.x"),
        ("mcp.x", ("mcp.x", "mcp__a__x"), "mcp.x"),
    ],
)
def test_the_closest_tool_is_meant_and_none_among_several(name: str, known: tuple[str, ...], tool: str) -> None:
    assert tool_meant_by(name, known) == tool


@given(st.lists(ANY, min_size=1, max_size=6, unique=True), st.data())
def test_each_tool_is_meant_by_its_own_name_and_by_the_one_that_servers_see(
    tools: list[str], data: st.DataObject
) -> None:
    tool = data.draw(st.sampled_from(tools))
    assert tool_meant_by(tool, tools) == tool
    assert tool_meant_by(wire_name(tool), tools) == tool


@given(ANY, st.lists(ANY, max_size=6))
def test_a_name_means_a_known_tool_or_itself(name: str, tools: list[str]) -> None:
    assert tool_meant_by(name, tools) in {name, *tools}


def test_the_calls_of_a_reply_name_the_tools_that_they_mean() -> None:
    specs = [ToolSpec(name=name, description="", parameters={}) for name in TOOLS]
    calls = (ToolCall(id="1", name="functions.bash"), ToolCall(id="2", name="nothing"))
    said = with_meant_names(Message(role="assistant", tool_calls=calls, metadata={"a": 1}), specs)
    assert [call.name for call in said.tool_calls] == ["bash", "nothing"]
    assert (said.metadata, [call.id for call in said.tool_calls]) == ({"a": 1}, ["1", "2"])


@given(ANY | st.just("x" * 500), ANY)
def test_names_and_ids_are_accepted_and_stay_different(one: str, other: str) -> None:
    for form, accepted in (
        (wire_name, r"[a-zA-Z0-9_-]{1,64}"),
        (wire_id, r"[a-zA-Z0-9_-]{1,64}"),
        (chat_id, r"[a-zA-Z0-9_.:-]{1,40}"),
    ):
        assert re.fullmatch(accepted, form(one))
        assert (form(one) == form(other)) == (one == other)


@pytest.mark.parametrize("name", ["list_dir", "mcp__git-hub__listIssues", "a" * 64, "-", "toolu_01AbC", "call_0-t3-2"])
def test_accepted_names_and_ids_stay_as_they_are(name: str) -> None:
    assert (wire_name(name), wire_id(name)) == (name, name)


def test_one_text_can_t_take_the_form_of_another() -> None:
    taken = wire_name("a.b")
    assert taken != wire_name(taken)


def test_ids_of_chat_keep_a_tool_and_its_number() -> None:
    assert chat_id("functions.read_file:0") == "functions.read_file:0"
