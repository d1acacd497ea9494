"""What holds for any rules and any call; and sub-agents, of which the same is true for any ancestry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.agents.sub_agent import SUB_AGENT
from loom.domain.core.tool_calls import ToolSpec, Verdict
from loom.domain.permissions.dead_rules import dead_rules
from loom.domain.permissions.judge import BUILT_IN, Judgement, Level, Mode, judge, judge_by_hand, judge_under
from loom.domain.permissions.subjects import Place, Subject

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY
STRICT = {ALLOW: 0, ASK: 1, DENY: 2}
PLACE = Place(workspace="/home/ann/work", home="/home/ann")


def under(*levels: Level) -> Judgement:
    return judge_under("bash", (Subject(text="ls"),), levels, place=PLACE)


def test_a_deny_anywhere_above_is_a_deny_and_says_whose() -> None:
    root = Level(whose="root", rules={"bash": "allow", "bash(ls:*)": "deny"})
    child = Level(whose="helper", rules={"bash": "allow"}, mode=Mode.BYPASS, grants=("bash(ls)",))
    found = under(root, child, child)
    assert (found.verdict, found.rule, found.whose) == (DENY, "bash(ls:*)", "root")


def test_what_a_parent_would_ask_about_is_asked_although_the_child_allows_it() -> None:
    found = under(Level(whose="root", rules={"bash": "ask"}), Level(whose="helper", rules={"bash": "allow"}))
    assert (found.verdict, found.rule, found.whose) == (ASK, "bash", "root")


def test_a_child_may_be_stricter_than_its_parent() -> None:
    found = under(Level(whose="root", rules={"bash": "allow"}), Level(whose="helper", rules={"bash": "deny"}))
    assert (found.verdict, found.whose) == (DENY, "helper")


def test_a_parents_mode_holds_for_its_children() -> None:
    found = under(Level(whose="root", mode=Mode.READ_ONLY), Level(whose="helper", mode=Mode.BYPASS))
    assert (found.verdict, found.rule, found.whose) == (DENY, "mode read-only", "root")


def test_without_any_rules_given_nothing_is_allowed() -> None:
    assert judge_under("read_file", (), ()).verdict is DENY


@pytest.mark.parametrize(
    ("tool", "verdict"),
    [
        ("read_file", ALLOW),
        ("glob", ALLOW),
        ("grep", ALLOW),
        ("write_file", DENY),
        ("bash", ASK),
        ("edit_file", DENY),
        ("http_fetch", DENY),
        ("mcp__a__b", DENY),
    ],
)
def test_a_sub_agent_without_rules_of_its_own_reads_and_asks(tool: str, verdict: Verdict) -> None:
    root = Level(whose="root", mode=Mode.BYPASS)
    assert judge_under(tool, (), (root, Level(whose="helper", rules=SUB_AGENT))).verdict is verdict


WIDE = st.dictionaries(st.sampled_from(["*", "b*", "mcp__*"]), st.sampled_from(["ask", "deny"]), max_size=1)
KEYS = [
    "bash",
    "bash(ls:*)",
    "bash(*)",
    "bash(rm:*)",
    "bash(timeout:5)",
    "default",
    "mcp__a",
    "mcp__a__*",
    "read_file(x)",
]
VERDICTS = st.sampled_from(["allow", "ask", "deny"])
RULES = st.builds(
    lambda wide, rest: {**wide, **rest}, WIDE, st.dictionaries(st.sampled_from(KEYS), VERDICTS, max_size=5)
)
SUBJECTS = st.lists(
    st.builds(
        Subject,
        text=st.sampled_from(["ls", "rm x", "> f", "x", "git reset --hard"]),
        opaque=st.booleans(),
        words=st.sampled_from([(), ("ls",), ("rm", "/"), ("git", None), ("git", "reset", "--hard")]),
        passive=st.booleans(),
    ),
    max_size=3,
)
MODES = st.sampled_from(list(Mode))
TOOL = st.sampled_from(["bash", "read_file", "write_file", "mcp__a__b", "http_fetch", "other"])
GRANTS = st.lists(st.sampled_from(["bash", "bash(ls)", "bash(*)", "bash(rm x)", "read_file(x)", "mcp__a"]), max_size=3)


@given(TOOL, SUBJECTS, st.lists(st.tuples(RULES, MODES, GRANTS), min_size=1, max_size=4))
def test_a_longer_ancestry_is_never_more_lenient(
    tool: str, subjects: list[Subject], levels: list[tuple[dict[str, str], Mode, list[str]]]
) -> None:
    chain = [
        Level(whose=str(depth), rules=rules, mode=mode, grants=tuple(grants))
        for depth, (rules, mode, grants) in enumerate(levels)
    ]
    verdicts = [judge_under(tool, subjects, chain[:length]).verdict for length in range(1, len(chain) + 1)]
    assert verdicts == sorted(verdicts, key=STRICT.__getitem__)


@given(TOOL, SUBJECTS, RULES, MODES, GRANTS)
def test_a_deny_is_never_lifted_by_anything(
    tool: str, subjects: list[Subject], rules: dict[str, str], mode: Mode, grants: list[str]
) -> None:
    for key in (tool, "*"):
        denied = judge(tool, subjects, {**rules, key: "deny"}, mode=mode, grants=grants, reads=True, declared=ALLOW)
        assert denied.verdict is DENY


@given(TOOL, SUBJECTS, RULES, MODES, GRANTS)
def test_one_more_deny_never_makes_a_call_more_lenient(
    tool: str, subjects: list[Subject], rules: dict[str, str], mode: Mode, grants: list[str]
) -> None:
    before = judge(tool, subjects, rules, mode=mode, grants=grants).verdict
    for key in ("bash(ls)", "bash(git *)", "*(x:1)", "read_file(**)"):
        after = judge(tool, subjects, {**rules, key: "deny"}, mode=mode, grants=grants).verdict
        assert STRICT[after] >= STRICT[before]


@given(TOOL, SUBJECTS, RULES, MODES, GRANTS)
def test_the_order_in_which_rules_are_written_changes_no_verdict(
    tool: str, subjects: list[Subject], rules: dict[str, str], mode: Mode, grants: list[str]
) -> None:
    turned = dict(reversed(rules.items()))
    verdict = judge(tool, subjects, rules, mode=mode, grants=grants).verdict
    assert judge(tool, subjects, turned, mode=mode, grants=grants).verdict is verdict


@given(
    st.lists(st.sampled_from(["aws *", "aws s3 *", "aws s3 ls", "aws s3 ls:*", "*"]), min_size=2, unique=True),
    st.sampled_from(["deny", "ask"]),
)
def test_that_a_rule_is_narrower_changes_nothing(patterns: list[str], strict: str) -> None:
    """One of them is strict, all others allow: whichever it is, it wins."""
    for chosen in patterns:
        rules = {"bash": "allow", **{f"bash({each})": strict if each == chosen else "allow" for each in patterns}}
        assert judge("bash", (Subject(text="aws s3 ls"),), rules).verdict is Verdict(strict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = [*BUILT_IN, "mcp__a__b", "other"]
PATTERN = st.text(alphabet="ab*?[]\\:/.~!- x\n", min_size=1, max_size=10)
ANY_RULES = st.dictionaries(st.builds("{}({})".format, st.sampled_from(NAMES), PATTERN), VERDICTS, max_size=4)
TOOLS = tuple(ToolSpec(name=name, description="", parameters={"properties": {"a": {}}}) for name in NAMES)


@given(
    st.sampled_from(NAMES),
    st.text(alphabet="ab*?[]\\:/.~!- x\n", max_size=8) | st.text(max_size=4),
    ANY_RULES,
    st.dictionaries(st.sampled_from(["a", "b"]) | st.text(max_size=2), JSON, max_size=3),
    MODES,
)
def test_every_rule_and_every_argument_gets_an_answer(
    tool: str, text: str, rules: dict[str, str], arguments: dict[str, object], mode: Mode
) -> None:
    subject = Subject(text=text, loose=f"/w/{text}", words=tuple(text.split()), reaches=True)
    judged = judge(tool, (subject,), rules, arguments=arguments, mode=mode, place=PLACE)
    assert judged.rule
    assert judged.reason
    assert all(complaint.startswith("permission rule ") for complaint in dead_rules(rules, TOOLS, place=PLACE))


PATHS = st.sampled_from(["conftest.py", ".env", ".github/workflows/a.yml", "src/a.py"])
PATTERNS = st.sampled_from(["*", "**", "conftest.py", ".env", "src/**", ".github/**", "path:.env"])
WRITES = st.just("write_file") | st.just("*") | PATTERNS.map(lambda pattern: f"write_file({pattern})")
OF_FILES = st.dictionaries(WRITES, VERDICTS, max_size=5).filter(lambda rules: rules.get("*") != "allow")


def by_hand(path: str, *levels: Level) -> bool:
    """Whether a person who may approve calls may write this file."""
    subjects, arguments = (Subject(text=path, loose=f"/home/ann/work/{path}"),), {"path": path, "content": ""}
    return judge_by_hand("write_file", subjects, levels, arguments=arguments, place=PLACE).verdict is not DENY


@given(PATHS, st.lists(st.tuples(OF_FILES, MODES), min_size=1, max_size=3), st.data())
def test_no_stricter_rule_and_no_further_ancestor_lets_a_person_write_a_file(
    path: str, levels: list[tuple[dict[str, str], Mode]], data: st.DataObject
) -> None:
    chain = [Level(whose="agent", rules=rules, mode=mode) for rules, mode in levels]
    rules, mode = levels[-1]
    scoped = data.draw(PATTERNS.map(lambda pattern: f"write_file({pattern})"))
    stricter = [{**rules, scoped: verdict} for verdict in ("ask", "deny") if rules.get(scoped) != "deny"]
    stricter += [{**rules, key: "ask"} for key, verdict in rules.items() if verdict == "allow"]
    for changed in stricter:
        last = Level(whose="agent", rules=changed, mode=mode)
        assert by_hand(path, *chain) or not by_hand(path, *chain[:-1], last)
    assert by_hand(path, *chain) or not by_hand(path, Level(whose="root", rules={scoped: "ask"}), *chain)


@pytest.mark.parametrize("rule", ["write_file(**)", "write_file(*)", "write_file(conftest.py)", "write_file"])
def test_a_guard_holds_for_a_person_whatever_else_the_rules_ask(rule: str) -> None:
    asks, names_it = Level(whose="a", rules={rule: "ask"}), Level(whose="b", rules={"write_file(conftest.py)": "allow"})
    assert not by_hand("conftest.py", asks)
    assert not by_hand("conftest.py", asks, names_it)
    assert by_hand("conftest.py", names_it)
    assert by_hand("src/a.py", asks)
