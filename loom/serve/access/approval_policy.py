"""Who may approve which calls, and how many people must.

A policy is a TOML file. All rules that match a call apply together, so a rule can only make approving harder:

    [[rules]]
    tools = ["bash", "mcp__prod__*"]        # patterns; without `tools`, the rule is about all tools
    risks = ["*may destroy*"]               # patterns for the `risk` of a pending call
    agents = ["deployer"]
    tenants = ["acme"]
    approvers = ["*@acme.example"]          # only these people may approve
    approvals = 2                           # that many different people must approve
    own_runs = false                        # whoever started the run may not approve
"""

import tomllib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from loom.domain.core.errors import AccessDeniedError, BadRequest
from loom.domain.core.value_problems import problem_of_value
from loom.domain.permissions.risk import RISKS
from loom.serve.access.people import person

Pattern = Annotated[str, StringConstraints(min_length=1)]
Patterns = Annotated[tuple[Pattern, ...], Field(min_length=1)]


def _known_risks(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := next((each for each in patterns if not any(fnmatchcase(risk, each) for risk in RISKS)), None):
        raise ValueError(f"{unknown!r} matches no risk; the risks are: {'; '.join(sorted(RISKS))}")
    return patterns


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedCall:
    """A call, as rules see it."""

    tool: str
    agent: str | None
    """None: calls of any agent are approved, because calls of the run's sub-agents are, too."""
    tenant: str
    risk: str | None
    """None: the call may turn out to have any risk, because its arguments were edited or others like it are approved,
    too.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """What the approval of one call needs."""

    approvals: int = 1
    approvers: tuple[Patterns, ...] = ()
    """An approver's name matches at least one pattern in each of these."""
    own_runs: bool = True
    """Whether the person who started the run may approve."""

    def objection(self, name: str, *, started_by: str) -> str:
        """Return why this person may not approve the call, or an empty text."""
        if not all(_matches(patterns, name) for patterns in self.approvers):
            return f"{name!r} may not approve this call: the approval policy names other people"
        if not self.own_runs and not started_by:
            return "the service doesn't know who started this run, and that person may not approve this call"
        if not self.own_runs and person(name) == person(started_by):
            return f"{name!r} started this run and may not approve this call: another person must decide"
        return ""

    def refuse(self, name: str, *, started_by: str) -> None:
        """Raise AccessDeniedError if this person may not approve the call."""
        if why := self.objection(name, started_by=started_by):
            raise AccessDeniedError(why)


class ApprovalRule(BaseModel):
    """One rule of a policy. Each part that is left out matches every call, or demands nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: Patterns = ("*",)
    risks: Annotated[Patterns, AfterValidator(_known_risks)] = ("*",)
    agents: Patterns = ("*",)
    tenants: Patterns = ("*",)
    approvers: Patterns | None = None
    approvals: int = Field(1, ge=1, le=10)
    own_runs: bool = True

    def matches(self, call: JudgedCall) -> bool:
        """Return whether the rule is about this call."""
        return (
            _matches(self.tools, call.tool)
            and (call.agent is None or _matches(self.agents, call.agent))
            and _matches(self.tenants, call.tenant)
            and (call.risk is None or _matches(self.risks, call.risk))
        )


class ApprovalPolicy(BaseModel):
    """The rules of an installation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: tuple[ApprovalRule, ...] = ()

    def requirement(self, call: JudgedCall) -> Requirement:
        """Return what the approval of this call needs."""
        applied = [rule for rule in self.rules if rule.matches(call)]
        return Requirement(
            approvals=max((rule.approvals for rule in applied), default=1),
            approvers=tuple(rule.approvers for rule in applied if rule.approvers is not None),
            own_runs=all(rule.own_runs for rule in applied),
        )

    def unmatched(self, *, tools: Collection[str], agents: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the patterns that match none of these tools or agents, each with its place in the file."""
        for number, rule in enumerate(self.rules):
            for field, patterns, known in (("tools", rule.tools, tools), ("agents", rule.agents, agents)):
                for pattern in patterns:
                    if not any(fnmatchcase(name, pattern) for name in known):
                        yield f"rules.{number}.{field}", pattern


def read_policy(path: Path) -> tuple[ApprovalPolicy, str]:
    """Return the policy in a file, and the SHA-256 of the file in hexadecimal.

    Raises BadRequest if the file can't be read or contains something else.
    """
    try:
        content = path.read_bytes()
        policy = ApprovalPolicy.model_validate(tomllib.loads(content.decode()))
        return policy, sha256(content).hexdigest()
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))} {problem_of_value(each)}" for each in error.errors()]
        why = "; ".join(problems)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = str(error)
    raise BadRequest(f"LOOM_APPROVAL_POLICY: {path}: {why}", field="LOOM_APPROVAL_POLICY")


def _matches(patterns: Sequence[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
