"""Which rule decides, as a table."""

import pytest

from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import Judgement, Mode, judge, matching
from loom.domain.permissions.rules import parse_rules
from loom.domain.permissions.subjects import Subject

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


def of(*texts: str) -> tuple[Subject, ...]:
    return tuple(Subject(text=text) for text in texts)


RULES_IN_ORDER = [
    ("a deny beats the mode", {"bash(rm:*)": "deny"}, Mode.BYPASS, "rm x", DENY, "bash(rm:*)"),
    ("a bare deny beats a scoped allow", {"bash": "deny", "bash(ls:*)": "allow"}, Mode.DEFAULT, "ls", DENY, "bash"),
    ("a bare deny beats the mode", {"bash": "deny"}, Mode.BYPASS, "ls", DENY, "bash"),
    (
        "a deny beats a narrower allow",
        {"bash(aws s3 ls)": "allow", "bash(aws *)": "deny"},
        Mode.DEFAULT,
        "aws s3 ls",
        DENY,
        "bash(aws *)",
    ),
    ("a deny beats an ask", {"bash(rm:*)": "ask", "bash(rm -rf:*)": "deny"}, Mode.DEFAULT, "rm -rf x", DENY, None),
    ("a scoped ask beats the mode", {"bash(git push:*)": "ask"}, Mode.BYPASS, "git push", ASK, "bash(git push:*)"),
    (
        "a scoped ask beats a scoped allow",
        {"bash(git:*)": "allow", "bash(git push:*)": "ask"},
        Mode.DEFAULT,
        "git push",
        ASK,
        None,
    ),
    ("the mode beats a bare ask", {"bash": "ask"}, Mode.BYPASS, "ls", ALLOW, "mode bypass"),
    ("the mode beats a scoped allow", {"bash(ls:*)": "allow"}, Mode.READ_ONLY, "ls", DENY, "mode read-only"),
    (
        "a scoped allow beats a bare ask",
        {"bash": "ask", "bash(ls:*)": "allow"},
        Mode.DEFAULT,
        "ls",
        ALLOW,
        "bash(ls:*)",
    ),
    ("a bare rule beats the default", {"bash": "ask", "default": "allow"}, Mode.DEFAULT, "ls", ASK, "bash"),
    ("a given default beats the built-in one", {"default": "allow"}, Mode.DEFAULT, "ls", ALLOW, "default"),
    ("else the built-in default decides", {}, Mode.DEFAULT, "ls", ASK, "built-in"),
    ("accepting edits says nothing of commands", {}, Mode.ACCEPT_EDITS, "ls", ASK, "built-in"),
]


@pytest.mark.parametrize(
    ("rules", "mode", "command", "verdict", "rule"),
    [case[1:] for case in RULES_IN_ORDER],
    ids=[case[0] for case in RULES_IN_ORDER],
)
def test_rules_decide_in_their_order(
    rules: dict[str, str], mode: Mode, command: str, verdict: Verdict, rule: str | None
) -> None:
    judged = judge("bash", of(command), rules, mode=mode)
    assert judged.verdict is verdict
    assert rule is None or judged.rule == rule


@pytest.mark.parametrize(
    ("tool", "verdict"),
    [
        ("read_file", ALLOW),
        ("list_dir", ALLOW),
        ("glob", ALLOW),
        ("grep", ALLOW),
        ("done", ALLOW),
        ("write_file", ASK),
        ("edit_file", ASK),
        ("bash", ASK),
        ("python", ASK),
        ("http_fetch", ASK),
        ("never_heard_of", DENY),
    ],
)
def test_without_a_rule_reading_is_allowed_changing_asked_and_the_unknown_denied(tool: str, verdict: Verdict) -> None:
    assert judge(tool, (), {}).verdict is verdict


@pytest.mark.parametrize(
    ("mode", "tool", "reads", "verdict"),
    [
        (Mode.READ_ONLY, "write_file", False, DENY),
        (Mode.READ_ONLY, "read_file", True, ALLOW),
        (Mode.READ_ONLY, "done", False, ALLOW),
        (Mode.ACCEPT_EDITS, "write_file", False, ALLOW),
        (Mode.ACCEPT_EDITS, "edit_file", False, ALLOW),
        (Mode.BYPASS, "never_heard_of", False, ALLOW),
    ],
)
def test_modes_decide_for_tools_without_rules(mode: Mode, tool: str, reads: bool, verdict: Verdict) -> None:
    assert judge(tool, (), {}, mode=mode, reads=reads).verdict is verdict


@pytest.mark.parametrize(
    ("pattern", "command", "matches"),
    [
        ("ls *", "ls -la", True),
        ("ls *", "ls", True),
        ("ls *", "lsof", False),
        ("ls:*", "ls -la", True),
        ("ls:*", "lsof", False),
        ("ls*", "lsof", True),
        ("git * main", "git push origin main", True),
        ("npm test", "npm test", True),
        ("npm test", "npm test --watch", False),
        ("echo a.c", "echo abc", False),
        ("*", "anything\nat all", True),
    ],
)
def test_command_patterns_end_words_where_they_say_so(pattern: str, command: str, matches: bool) -> None:
    verdict = judge("bash", of(command), {f"bash({pattern})": "allow", "bash": "ask"}).verdict
    assert verdict is (ALLOW if matches else ASK)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("src/**", "src/a/b.py", True),
        ("src/*", "src/a/b.py", False),
        ("./src/*", "src/a.py", True),
        ("**/*.py", "a.py", True),
        ("*.py", "src/a.py", False),
        ("src/?.py", "src/a.py", True),
        ("src/**", "srcs/a.py", False),
    ],
)
def test_path_patterns_cross_folders_with_two_stars_only(pattern: str, path: str, matches: bool) -> None:
    verdict = judge("write_file", of(path), {f"write_file({pattern})": "allow"}).verdict
    assert verdict is (ALLOW if matches else ASK)


def test_an_allow_has_to_cover_every_part_and_names_the_rules_that_do() -> None:
    rules = {"bash(ls:*)": "allow", "bash(cat:*)": "allow", "bash": "ask"}
    assert judge("bash", of("ls", "rm x"), rules).verdict is ASK
    assert judge("bash", of("ls", "cat x"), rules) == Judgement(
        verdict=ALLOW, rule="bash(ls:*), bash(cat:*)", reason="allowed by bash(ls:*), bash(cat:*)"
    )


def test_a_deny_needs_one_part_only_and_sees_through_assignments() -> None:
    rules = {"bash": "allow", "bash(rm:*)": "deny"}
    assert judge("bash", of("ls", "rm x"), rules).verdict is DENY
    assert judge("bash", (Subject(text="X=1 rm x", loose="rm x"),), rules).verdict is DENY


def test_no_allow_pattern_covers_what_nobody_can_see_into() -> None:
    hidden = (Subject(text="eval x", opaque=True),)
    assert judge("bash", hidden, {"bash(*)": "allow"}).verdict is ASK
    assert judge("bash", hidden, {"bash": "allow"}).verdict is ALLOW


def test_a_wide_allow_asks_where_a_deny_might_be_hidden() -> None:
    hidden = (Subject(text="eval x", opaque=True),)
    judged = judge("bash", hidden, {"bash": "allow", "bash(rm:*)": "deny"})
    assert (judged.verdict, judged.rule) == (ASK, "bash(rm:*)")
    assert judge("bash", hidden, {"bash(rm:*)": "deny"}, mode=Mode.BYPASS).verdict is ALLOW


@pytest.mark.parametrize(
    ("rules", "grant", "command", "verdict"),
    [
        ({"bash": "ask"}, "bash(npm test)", "npm test", ALLOW),
        ({"bash": "ask"}, "bash(npm test)", "npm publish", ASK),
        ({"bash(git push:*)": "ask"}, "bash(git push origin)", "git push origin", ALLOW),
        ({"bash(git push:*)": "ask"}, "bash(git push origin)", "git push --force", ASK),
        ({"bash(git push:*)": "ask", "bash(git:*)": "allow"}, "bash(npm:*)", "git push", ASK),
        ({"bash": "ask"}, "bash", "ls", ALLOW),
        ({"bash(git push:*)": "ask"}, "bash", "git push", ASK),
        ({"bash": "deny"}, "bash", "ls", DENY),
        ({"bash(rm:*)": "deny"}, "bash(rm x)", "rm x", DENY),
        ({"default": "deny"}, "bash(ls)", "ls", ALLOW),
    ],
)
def test_what_a_person_granted_outranks_asks_but_no_deny(
    rules: dict[str, str], grant: str, command: str, verdict: Verdict
) -> None:
    assert judge("bash", of(command), rules, grants=(grant,)).verdict is verdict


def test_a_grant_does_not_leave_read_only_mode() -> None:
    assert judge("bash", of("ls"), {}, mode=Mode.READ_ONLY, grants=("bash(ls)",)).verdict is DENY


@pytest.mark.parametrize("text", ["", "bash(", "bash()", "bash(a)b", "*", "ba sh", "(x)", "b*", "mcp__*", "mcp__g*__x"])
def test_a_rule_that_cannot_be_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadRequest, match="permission rule"):
        parse_rules({text: "allow"})


def test_a_verdict_that_is_none_of_three_is_refused() -> None:
    with pytest.raises(BadRequest, match="must be allow, ask or deny"):
        parse_rules({"bash": "maybe"})


def bare(tool: str, rules: dict[str, str]) -> Verdict:
    return judge(tool, (), {"default": "allow", **rules}).verdict


@pytest.mark.parametrize(
    ("rule", "tool", "is_meant"),
    [
        ("mcp__github", "mcp__github__get_issue", True),
        ("mcp__github", "mcp__github2__get_issue", False),
        ("mcp__github", "mcp__github", True),
        ("mcp__github__get_*", "mcp__github__get_issue", True),
        ("mcp__github__get_*", "mcp__github__delete", False),
        ("mcp__*", "mcp__github__get_issue", True),
        ("mcp__*", "read_file", False),
        ("*_file", "write_file", True),
        ("*_file", "bash", False),
        ("*", "anything", True),
    ],
)
def test_a_rule_names_tools_by_name_by_server_or_by_glob(rule: str, tool: str, is_meant: bool) -> None:
    assert bare(tool, {rule: "ask"}) is (ASK if is_meant else ALLOW)
    assert bare(tool, {rule: "deny"}) is (DENY if is_meant else ALLOW)


def test_a_server_may_be_allowed_with_a_glob_after_its_name() -> None:
    assert judge("mcp__github__get_issue", (), {"mcp__github__get_*": "allow"}).verdict is ALLOW
    assert judge("mcp__github__delete", (), {"mcp__github__get_*": "allow"}).verdict is DENY


def test_of_several_bare_rules_the_strictest_counts_whichever_is_narrower() -> None:
    assert bare("mcp__a__x", {"mcp__a": "ask", "mcp__a__x": "allow"}) is ASK
    assert bare("mcp__a__x", {"mcp__a__x": "ask", "mcp__a": "allow"}) is ASK
    assert bare("read_file", {"*": "deny", "read_file": "allow"}) is DENY


ARGUMENTS = {"timeout": 600, "force": True, "to": "boss", "tags": ["a"], "note": None, "ratio": 0.5}


@pytest.mark.parametrize(
    ("pattern", "is_meant"),
    [
        ("timeout:600", True),
        ("timeout:600.0", True),
        ("timeout:60", False),
        ("timeout:6*", True),
        ("force:true", True),
        ("force:True", False),
        ("force:1", False),
        ("ratio:0.5", True),
        ("to:boss", True),
        ("to:Boss", False),
        (r"to:b\*", False),
        ("tags:a", False),
        ("note:null", False),
        ("absent:*", False),
    ],
)
def test_an_argument_can_ask_or_deny_by_its_literal_value(pattern: str, is_meant: bool) -> None:
    rules = {"default": "allow", f"mcp__mail__send({pattern})": "deny"}
    assert judge("mcp__mail__send", (), rules, arguments=ARGUMENTS).verdict is (DENY if is_meant else ALLOW)


def test_an_argument_never_allows_and_its_ask_is_answered_once_only() -> None:
    allowed = judge("mcp__mail__send", (), {"mcp__mail__send(to:boss)": "allow"}, arguments=ARGUMENTS)
    asked = judge("mcp__mail__send", (), {"mcp__mail__send(to:boss)": "ask"}, arguments=ARGUMENTS)
    assert allowed.verdict is DENY
    assert (asked.verdict, asked.can_be_granted) == (ASK, False)


def test_the_main_argument_is_left_to_the_tools_own_patterns() -> None:
    rules = {"bash": "allow", "bash(command:ls -la)": "deny"}
    assert judge("bash", of("ls -la"), rules, arguments={"command": "ls -la"}).verdict is ALLOW


@pytest.mark.parametrize(
    ("rules", "verdict", "rule"),
    [
        ({}, ALLOW, "declared"),
        ({"default": "ask"}, ASK, "default"),
        ({"mcp__a__x": "deny"}, DENY, "mcp__a__x"),
    ],
)
def test_what_a_tool_declares_comes_after_a_given_default(rules: dict[str, str], verdict: Verdict, rule: str) -> None:
    judged = judge("mcp__a__x", (), rules, declared=ALLOW)
    assert (judged.verdict, judged.rule) == (verdict, rule)


def test_read_only_goes_by_the_effect_not_by_what_a_tool_declares() -> None:
    assert judge("mcp__a__x", (), {}, mode=Mode.READ_ONLY, declared=ALLOW).verdict is DENY
    assert judge("mcp__a__x", (), {}, mode=Mode.READ_ONLY, declared=ALLOW, reads=True).verdict is ALLOW


def test_a_grant_for_a_program_does_not_answer_what_a_rule_asks_about() -> None:
    rules = {"bash": "ask", "bash(cat secret:*)": "ask"}
    assert judge("bash", of("cat secret"), rules, grants=("bash(cat:*)",)).verdict is ASK
    assert judge("bash", of("cat secret"), rules, grants=("bash(cat secret)",)).verdict is ALLOW
    assert judge("bash", of("cat other"), rules, grants=("bash(cat:*)",)).verdict is ALLOW


def test_every_rule_that_has_a_say_can_be_listed() -> None:
    rules = {
        "bash(ls:*)": "allow",
        "bash(rm:*)": "deny",
        "bash(timeout:5)": "ask",
        "bash": "ask",
        "grep": "deny",
        "default": "deny",
    }
    found = matching("bash", of("ls -la"), rules, arguments={"timeout": 5})
    assert [rule.text for rule in found] == ["bash(ls:*)", "bash(timeout:5)", "bash", "default"]


@pytest.mark.parametrize(
    ("pattern", "text", "allowed"),
    [
        ("ls*", "ls -l", True),
        ("ls*", "ls= id", False),
        ("a=1 ls*", "a=1 ls -l", True),
        ("a=1 ls*", "a=1 ls+=2 id", False),
        ("ls=*", "ls= id", True),
        ("git config x*", "git config x=1", True),
        ("*", "ls= id", True),
    ],
)
def test_a_star_does_not_turn_the_name_of_a_program_into_an_assignment(pattern: str, text: str, allowed: bool) -> None:
    assert (judge("bash", of(text), {f"bash({pattern})": "allow"}).verdict is ALLOW) == allowed
