"""Who may approve what: pure rules."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import AccessDeniedError, BadRequest
from loom.serve.access.approval_policy import ApprovalPolicy, ApprovalRule, JudgedCall, Requirement, read_policy

NAMES = st.sampled_from(("ann", "bob", "eve@acme"))
PATTERNS = st.sampled_from(("*", "ann", "bob", "bash", "write_*", "*@acme")).map(lambda pattern: (pattern,))
CALLS = st.builds(
    JudgedCall,
    tool=st.sampled_from(("bash", "write_file")),
    agent=st.sampled_from(("default", "deployer")),
    tenant=st.sampled_from(("", "acme")),
    risk=st.sampled_from(("reads only", "may destroy work (guard)", None)),
)
RULES = st.builds(
    ApprovalRule,
    tools=PATTERNS,
    risks=st.sampled_from((("*",), ("*destroy*",))),
    approvers=st.none() | PATTERNS,
    approvals=st.integers(1, 3),
    own_runs=st.booleans(),
)
POLICIES = st.lists(RULES, max_size=4).map(lambda rules: ApprovalPolicy(rules=tuple(rules)))

POLICY = """
[[rules]]
tools = ["bash"]
risks = ["*destroy*"]
approvals = 2

[[rules]]
agents = ["deployer"]
approvers = ["ann", "*@ops.example"]
own_runs = false
"""


def is_allowed(needed: Requirement, name: str, started_by: str) -> bool:
    try:
        needed.refuse(name, started_by=started_by)
    except AccessDeniedError:
        return False
    return True


def test_all_rules_that_match_apply_together(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    policy, digest = read_policy(tmp_path / "policy.toml")
    assert digest == sha256(POLICY.encode()).hexdigest()
    harmless = JudgedCall(tool="bash", agent="default", tenant="", risk="reads only")
    assert policy.requirement(harmless) == Requirement()
    grave = JudgedCall(tool="bash", agent="deployer", tenant="", risk="may destroy work (guard)")
    expected = Requirement(approvals=2, approvers=(("ann", "*@ops.example"),), own_runs=False)
    assert policy.requirement(grave) == expected
    assert [is_allowed(expected, name, "ann") for name in ("ann", "bob", "bob@ops.example")] == [False, False, True]


def test_nobody_approves_a_run_whose_starter_is_unknown_where_its_starter_may_not() -> None:
    others = Requirement(own_runs=False)
    assert [is_allowed(others, "ann", starter) for starter in ("bob", "ann", "")] == [True, False, False]


@given(POLICIES, RULES, CALLS, NAMES, NAMES)
def test_a_rule_more_never_makes_approving_easier(
    policy: ApprovalPolicy, rule: ApprovalRule, call: JudgedCall, name: str, starter: str
) -> None:
    before = policy.requirement(call)
    after = ApprovalPolicy(rules=(*policy.rules, rule)).requirement(call)
    assert after.approvals >= before.approvals
    assert is_allowed(before, name, starter) or not is_allowed(after, name, starter)


@given(POLICIES, CALLS, NAMES, NAMES)
def test_an_unknown_risk_or_agent_is_judged_like_the_worst_one(
    policy: ApprovalPolicy, call: JudgedCall, name: str, starter: str
) -> None:
    known = policy.requirement(call)
    for any_call in (replace(call, risk=None), replace(call, agent=None), replace(call, risk=None, agent=None)):
        unknown = policy.requirement(any_call)
        assert unknown.approvals >= known.approvals
        assert is_allowed(known, name, starter) or not is_allowed(unknown, name, starter)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[rules]]\napproval = 2", "rules.0.approval is not a known field"),
        ("[[rules]]\napprovals = 0", "rules.0.approvals must be at least 1"),
        ("[[rules]", "Expected ']]'"),
        *(
            (f"[[rules]]\n{field} = []", f"rules.0.{field} must not be empty")
            for field in ("tools", "risks", "agents", "tenants", "approvers")
        ),
        ('[[rules]]\nrisks = ["*may destory*"]', "rules.0.risks '*may destory*' matches no risk; the risks are: "),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(BadRequest, match="LOOM_APPROVAL_POLICY") as refused:
        read_policy(tmp_path / "policy.toml")
    assert why in refused.value.message


def test_patterns_that_match_no_known_tool_or_agent_are_found() -> None:
    rules = ApprovalRule(tools=("bash", "wirte_*")), ApprovalRule(agents=("deploy*", "*"))
    unmatched = ApprovalPolicy(rules=rules).unmatched(tools={"bash", "write_file"}, agents={"default"})
    assert list(unmatched) == [("rules.0.tools", "wirte_*"), ("rules.1.agents", "deploy*")]
