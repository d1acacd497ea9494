"""Hooks before a tool call: code of a user's that may object to what the rules would let through.

A hook answers None (no objection), `Deny` or `Ask`. It can only make a verdict stricter: what the rules deny stays
denied, whatever a hook says. A hook that fails or does not answer objects.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from loom_domain.messages import ToolCall
from loom_domain.permissions import Judgement
from loom_domain.tool_calls import Verdict


@dataclass(frozen=True, slots=True)
class Deny:
    """The call must not run."""

    reason: str
    """The model reads it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A person has to allow the call."""

    reason: str
    """The person reads it."""


Answer: TypeAlias = Deny | Ask | None

ToolCallHook: TypeAlias = Callable[[ToolCall, str], Answer | Awaitable[Answer]]
"""Asked with the call and the run's id before the rules are; async or not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Objection:
    """What a hook has against a call."""

    hook: str
    answer: Deny | Ask

    @property
    def rule(self) -> str:
        """As it is recorded in the place of a rule."""
        return f"hook {self.hook}"


_STRICTNESS: Final = (Verdict.ALLOW, Verdict.ASK, Verdict.DENY)


def strictest(objections: Iterable[Objection]) -> Objection | None:
    """The first denial, else the first ask, else none."""
    raised = list(objections)
    return next((each for each in raised if isinstance(each.answer, Deny)), next(iter(raised), None))


def tightened(judged: Judgement, objection: Objection | None) -> Judgement:
    """The verdict of the rules, or the objection where that is stricter."""
    if objection is None:
        return judged
    verdict = Verdict.DENY if isinstance(objection.answer, Deny) else Verdict.ASK
    if _STRICTNESS.index(verdict) <= _STRICTNESS.index(judged.verdict):
        return judged
    # An approval for the rest of the run adds rules, and no rule answers a hook: it would be asked again.
    return Judgement(verdict=verdict, rule=objection.rule, reason=objection.answer.reason, can_be_granted=False)
