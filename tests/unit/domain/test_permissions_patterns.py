"""What patterns mean: commands, paths, hosts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions import patterns
from loom.domain.permissions.judge import judge
from loom.domain.permissions.subjects import Place, Subject

PLACE = Place(workspace="/work/here", home="/home/ann")


def path(text: str) -> Subject:
    return Subject(text=text, loose=text if text.startswith("/") else f"/work/here/{text}".removesuffix("/."))


def is_allowed(pattern: str, text: str) -> bool:
    rules = {f"read_file({pattern})": "allow", "read_file": "ask"}
    return judge("read_file", (path(text),), rules, place=PLACE).verdict is Verdict.ALLOW


def is_denied(pattern: str, text: str) -> bool:
    return judge("read_file", (path(text),), {f"read_file({pattern})": "deny"}, place=PLACE).verdict is Verdict.DENY


@pytest.mark.parametrize(
    ("pattern", "text", "allowed", "denied"),
    [
        ("src/**", "src/a/b.py", True, True),
        ("src/**", "lib/src/a.py", False, True),
        ("src/**", "src", False, True),
        ("src/*", "src/a.py", True, True),
        ("src/*", "src/a/b.py", False, True),
        ("/src/**", "src/a.py", True, True),
        ("/src/**", "lib/src/a.py", False, False),
        ("./src/**", "src/a.py", True, True),
        ("./src/**", "lib/src/a.py", False, False),
        ("src", "src/a/b.py", True, True),
        ("src/", "src/a/b.py", True, True),
        ("src", "srcs/a.py", False, False),
        (".env", ".env", True, True),
        (".env", "app/.env", False, True),
        (".env", "/other/.env", False, True),
        ("*.pem", "a.pem", True, True),
        ("*.pem", "keys/a.pem", False, True),
        ("**/*.pem", "keys/old/a.pem", True, True),
        ("**", "a/b", True, True),
        ("**", ".", True, True),
        ("*", ".", False, True),
        ("a/**/b", "a/b", True, True),
        ("a/**/b", "a/x/y/b", True, True),
        ("a?c", "abc", True, True),
        ("a?c", "a/c", False, False),
        ("[ab].txt", "a.txt", True, True),
        ("[!ab].txt", "a.txt", False, False),
        ("[!ab].txt", "c.txt", True, True),
        ("[:--].txt", ":.txt", False, False),
        ("[+--].txt", ",.txt", True, True),
        ("[z-a].txt", "b.txt", False, False),
        ("a[.txt", "a[.txt", True, True),
        (r"\*.txt", "*.txt", True, True),
        (r"\*.txt", "a.txt", False, False),
        ("//work/here/src/**", "src/a.py", True, True),
        ("//etc/**", "/etc/passwd", True, True),
        ("//etc", "/etc/ssh/key", True, True),
        ("//etc/**", "etc/passwd", False, False),
        ("~/.ssh/**", "/home/ann/.ssh/id", True, True),
        ("~", "/home/ann/x", True, True),
        ("~/.ssh/**", "/home/bob/.ssh/id", False, False),
        ("etc/**", "/etc/passwd", False, True),
        ("/etc/**", "/etc/passwd", False, False),
    ],
)
def test_a_path_is_allowed_where_it_is_named_and_denied_at_any_depth(
    pattern: str, text: str, allowed: bool, denied: bool
) -> None:
    assert (is_allowed(pattern, text), is_denied(pattern, text)) == (allowed, denied)


def test_without_a_known_home_a_pattern_below_it_matches_nothing() -> None:
    rules = {"read_file(~/**)": "deny"}
    assert judge("read_file", (path("/home/ann/x"),), rules, place=Place()).verdict is Verdict.ALLOW


def test_an_allow_needs_the_path_as_named_and_as_it_is_and_a_deny_either() -> None:
    named, real = path("link/a"), path("secret/a")
    allowed = {"read_file": "ask", "read_file(link/**)": "allow"}
    assert judge("read_file", (named, real), allowed).verdict is Verdict.ASK
    assert judge("read_file", (named, real), {**allowed, "read_file(secret/**)": "allow"}).verdict is Verdict.ALLOW
    for denied in ("read_file(link/**)", "read_file(secret/**)"):
        assert judge("read_file", (named, real), {"read_file": "allow", denied: "deny"}).verdict is Verdict.DENY


@pytest.mark.parametrize(
    ("rule", "tool", "verdict"),
    [
        ("read_file(.env)", "grep", Verdict.DENY),
        ("read_file(.env)", "glob", Verdict.DENY),
        ("read_file(.env)", "list_dir", Verdict.DENY),
        ("read_file(.env)", "write_file", Verdict.ASK),
        ("grep(.env)", "read_file", Verdict.ALLOW),
        ("write_file(.env)", "edit_file", Verdict.DENY),
        ("edit_file(.env)", "write_file", Verdict.DENY),
        ("edit_file(.env)", "read_file", Verdict.ALLOW),
    ],
)
def test_who_protects_a_file_protects_it_from_every_file_tool(rule: str, tool: str, verdict: Verdict) -> None:
    assert judge(tool, (path(".env"),), {rule: "deny"}, place=PLACE).verdict is verdict


def test_searching_a_folder_asks_where_a_denied_file_may_be_in_it() -> None:
    def searched(folder: str, rule: str) -> Verdict:
        subject = Subject(text=folder, loose=f"/work/here/{folder}", reaches=True)
        return judge("grep", (subject,), {rule: "deny"}, place=PLACE).verdict

    assert searched(".", "read_file(.env)") is Verdict.ASK
    assert searched("src", "read_file(.env)") is Verdict.ASK
    assert searched("src", "read_file(/secret/**)") is Verdict.ALLOW
    assert searched("src", "read_file(/src/secret/**)") is Verdict.ASK
    assert searched("src", "read_file(/**/key)") is Verdict.ASK
    assert searched("src", "read_file(/src/**)") is Verdict.DENY


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("example.com", "example.com", True),
        ("example.com", "www.example.com", False),
        ("EXAMPLE.com", "Example.COM.", True),
        ("example.com.", "example.com:8080", True),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.c.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("example.*", "example.org", True),
        ("example.*", "example.evil.com", False),
        ("api-*.example.com", "api-1.example.com", True),
        ("api-*.example.com", "api-1.evil.example.com", False),
        ("*.*.com", "a.b.com", True),
        ("::1", "::1", True),
        ("*", "localhost", True),
        ("*", "example.com", False),
    ],
)
def test_a_star_in_front_is_any_depth_and_any_other_stays_in_its_label(pattern: str, host: str, matches: bool) -> None:
    rules = {f"http_fetch(domain:{pattern})": "allow", "http_fetch": "ask"}
    for text in (host, f"domain:{host}"):
        verdict = judge("http_fetch", (Subject(text=text),), rules).verdict
        assert verdict is (Verdict.ALLOW if matches else Verdict.ASK)


def test_a_host_pattern_without_its_word_matches_nothing() -> None:
    rules = {"http_fetch(example.com)": "allow", "http_fetch": "ask"}
    assert judge("http_fetch", (Subject(text="domain:example.com"),), rules).verdict is Verdict.ASK


TEXT = st.text(alphabet="ab*?[]\\~!: /.\n", min_size=1, max_size=12)


@given(TEXT, TEXT)
def test_an_escaped_command_means_itself_and_nothing_else(text: str, other: str) -> None:
    pattern = patterns.command(patterns.escaped(text))
    assert pattern.fullmatch(text)
    assert bool(pattern.fullmatch(other)) is (other == text)


@given(
    st.text(alphabet="ab*?[]\\~!-", min_size=1, max_size=8), st.text(alphabet="ab*?[]\\~!-/", min_size=1, max_size=8)
)
def test_an_escaped_path_means_itself_and_nothing_else(text: str, other: str) -> None:
    pattern = patterns.escaped(text, "*?[~")
    assert patterns.covers_path(pattern, text, f"/w/{text}", home="/h", exact=True)
    assert patterns.covers_path(pattern, other, f"/w/{other}", home="/h", exact=True) is (other == text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("bash(" + "*a" * 30 + "*b)", "a" * 10_000),
        ("bash(" + "*a" * 30 + " *)", "a" * 10_000),
        ("read_file(" + "**/" * 20 + "*a" * 20 + "b)", "a" * 3000 + "/a" * 500),
        ("http_fetch(domain:" + "*a" * 20 + "b.*)", "a" * 5000),
    ],
)
def test_no_pattern_takes_long_on_any_text(pattern: str, text: str) -> None:
    begun = time.process_time()
    judge(pattern.partition("(")[0], (Subject(text=text, loose="/w/" + text),), {pattern: "deny"}, place=PLACE)
    assert time.process_time() - begun < 60  # a matcher that goes back would be at it for ever
