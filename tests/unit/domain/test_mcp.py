"""Configuration, names and trust: what is made of a server before anybody speaks to it."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import Effect, Verdict
from loom.domain.tools.mcp_servers import (
    DESCRIPTION_LIMIT,
    NAME_LIMIT,
    Hints,
    ListedTool,
    McpServer,
    ToolTraits,
    description,
    expand,
    read_servers,
    tool_name,
    traits_of,
    variables,
)

SERVER = McpServer(name="files", command=("serve",))
READ = ToolTraits(effect=Effect.READ, parallel=True, declared=Verdict.ALLOW)
ONCE = ToolTraits(effect=Effect.ONCE, parallel=False, declared=Verdict.ASK)
IDEMPOTENT = ToolTraits(effect=Effect.IDEMPOTENT, parallel=False, declared=Verdict.ASK)
BESIDE = ToolTraits(effect=Effect.ONCE, parallel=True, declared=Verdict.ASK)


@pytest.mark.parametrize(
    ("name", "hints", "stands"),
    [
        ("go", Hints(read_only=True), READ),
        ("go", Hints(read_only=True, destructive=True), READ),
        ("go", Hints(destructive=True), ONCE),
        ("get_it", Hints(destructive=True), ONCE),
        ("get_it", Hints(read_only=False), ONCE),
        ("go", Hints(idempotent=True), IDEMPOTENT),
        ("go", Hints(idempotent=True, destructive=True), IDEMPOTENT),
        ("go", Hints(), ONCE),
        ("get_it", Hints(), BESIDE),
    ],
)
def test_a_trusted_server_is_believed(name: str, hints: Hints, stands: ToolTraits) -> None:
    assert traits_of(ListedTool(name=name, hints=hints), trust=True) == stands


@given(st.builds(Hints, **{name: st.sampled_from([None, True, False]) for name in ("read_only", "idempotent")}))
def test_what_an_untrusted_server_says_decides_nothing(hints: Hints) -> None:
    assert traits_of(ListedTool(name="go", hints=hints), trust=False) == ONCE


@pytest.mark.parametrize(
    "name", ["read_x", "GET_x", "List_x", "ls", "lsof", "grep", "find", "Search", "query", "fetch", "view", "findAll"]
)
def test_a_name_that_reads_gives_parallelism_and_nothing_else(name: str) -> None:
    assert traits_of(ListedTool(name=name), trust=False) == BESIDE


@pytest.mark.parametrize("name", ["reader", "getting", "do_read_x", "listen", "write"])
def test_other_names_give_nothing(name: str) -> None:
    assert traits_of(ListedTool(name=name), trust=False) == ONCE


def test_a_plain_name_is_kept() -> None:
    assert tool_name("files", "read_text-2") == "mcp__files__read_text-2"


def test_a_changed_or_cut_name_carries_a_digest_of_what_it_was() -> None:
    assert re.fullmatch(r"mcp__files__a_b_[0-9a-f]{12}", tool_name("files", "a.b"))
    cut = tool_name("files", "x" * 80)
    assert re.fullmatch(r"mcp__files__x{39}_[0-9a-f]{12}", cut)
    assert len(cut) == NAME_LIMIT


@given(st.lists(st.tuples(st.sampled_from(["a", "a-b", "ab", "a_b"]), st.text(min_size=1, max_size=90)), unique=True))
def test_no_two_tools_of_any_servers_share_a_name(tools: list[tuple[str, str]]) -> None:
    names = [tool_name(*tool) for tool in tools]
    assert len(set(names)) == len(tools)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)


def test_a_description_is_cut_and_hides_nothing_and_says_whose_it_is() -> None:
    listed = ListedTool(name="go", description="a\u202eb\U000e0041c\x1b" + "x" * 5000, hints=Hints(read_only=True))
    words = description(SERVER, listed)
    first, last = words.split("\n")
    assert first == "abc" + "x" * (DESCRIPTION_LIMIT - 4) + "…"
    assert last == "(From the MCP server files. It says of the tool, unverified: read-only.)"


def test_a_trusted_server_needs_no_doubt() -> None:
    trusted = McpServer(name="files", command=("serve",), trust=True)
    told = description(trusted, ListedTool(name="go", hints=Hints(read_only=True)))
    assert told == "go\n(From the MCP server files.)"


def test_variables_come_from_the_environment() -> None:
    headers = {"Authorization": "Bearer ${TOKEN}", "X-Plain": "$HOME ${no-name}"}
    assert variables(headers) == ("TOKEN",)
    assert expand(headers, {"TOKEN": "t${TOKEN}"}) == {
        "Authorization": "Bearer t${TOKEN}",
        "X-Plain": "$HOME ${no-name}",
    }
    with pytest.raises(BadRequest, match="the variable TOKEN is not set in the worker's environment: set it"):
        expand(headers, {})


def test_tables_become_servers() -> None:
    tables = {
        "time": {"command": "mcp-server-time", "args": ["--local-timezone", "UTC"], "trust": True, "timeout": 5},
        "docs": {"url": "https://docs.example/mcp", "headers": {"X-Key": "${KEY}"}, "disabled_tools": ["drop"]},
    }
    assert read_servers(tables) == (
        McpServer(name="docs", url="https://docs.example/mcp", headers={"X-Key": "${KEY}"}, disabled_tools=("drop",)),
        McpServer(name="time", command=("mcp-server-time", "--local-timezone", "UTC"), trust=True, timeout=5.0),
    )


@pytest.mark.parametrize(
    ("name", "table", "complaint"),
    [
        ("a", {}, "mcp.a: give either `command`"),
        ("a", {"command": "x", "url": "http://x"}, "mcp.a: give either `command`"),
        ("a", {"comand": "x"}, "mcp.a: unknown key 'comand'; did you mean 'command'?"),
        ("a", {"command": "x", "trust": "yes"}, "mcp.a.trust must be true or false"),
        ("a", {"command": "x", "timeout": True}, "mcp.a.timeout must be a number of seconds"),
        ("a", {"command": "x", "timeout": 0}, "mcp.a: `timeout` must be over 0 and at most 3600 seconds"),
        ("a", {"command": "x", "env": {"A": 1}}, "mcp.a.env must be a table of strings"),
        ("a", {"command": "x", "headers": {"A": "b"}}, "mcp.a: `headers` are for servers with `url`"),
        ("a", {"url": "http://x", "env": {"A": "b"}}, "mcp.a: `env` is for servers with `command`"),
        ("a", {"url": "ftp://x"}, "mcp.a: `url` must begin with http:// or https://"),
        ("a__b", {"command": "x"}, "mcp.a__b: a server's name is"),
        ("a_", {"command": "x"}, "mcp.a_: a server's name is"),
        ("ä", {"command": "x"}, "mcp.ä: a server's name is"),
        ("a", "x", "mcp.a must be a table"),
    ],
)
def test_a_wrong_table_is_refused_with_its_key(name: str, table: Any, complaint: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_servers({name: table})
    assert refused.value.message.startswith(complaint)
    assert refused.value.context["field"].startswith(f"mcp.{name}")
