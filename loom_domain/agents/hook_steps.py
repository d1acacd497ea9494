"""A user's code around a run, step by step: interceptors before and after, hooks at its start and its end.

    before …  on_start …  ⟨the run⟩  … after  on_complete … or on_error …

Interceptors go in their order before the run and backwards after it. Which steps a run has is pinned into its spec when
it is prepared, so a run without any pays nothing. What stands between a run and its start is a gate: it stops the run
when it says so, and when it fails. What comes once the run has ended changes nothing of its outcome by failing, except
`after`: a result that an interceptor could not look at is withheld.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from loom.domain.core.requests import RunStatus

DEFAULT_HOOK_TIMEOUT: Final = 10.0
"""Seconds that a hook has to answer, where its registration says nothing."""


class Moment(StrEnum):
    """When a step is due."""

    BEFORE = "before"
    START = "on_start"
    TOOL_CALL = "on_tool_call"
    """Inside the activities that judge tool calls; never a step of its own."""
    AFTER = "after"
    COMPLETE = "on_complete"
    ERROR = "on_error"


BEFORE_FIRST_TURN: Final = (Moment.BEFORE, Moment.START)


@dataclass(frozen=True, kw_only=True, slots=True)
class HookStep:
    """One hook, or one side of an interceptor, at one moment of a run."""

    moment: Moment
    name: str
    timeout: float = DEFAULT_HOOK_TIMEOUT

    def __str__(self) -> str:
        return f"{self.moment} · {self.name}"


HookVerdict: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HookAnswer:
    """What a step came to."""

    verdict: HookVerdict = "allow"
    reason: str = ""
    text: str | None = None
    """In the place of the task before the run, of the result after it; None leaves them as they are."""
    instead: bool = False
    """`text` is the result: the run does not take place."""


def steps_before_run(steps: Sequence[HookStep]) -> tuple[HookStep, ...]:
    """What is due before the first turn: interceptors, then hooks, each in the order of their registration."""
    return tuple(step for moment in BEFORE_FIRST_TURN for step in steps if step.moment is moment)


def steps_after_run(steps: Sequence[HookStep], left: Sequence[HookStep]) -> tuple[HookStep, ...]:
    """What may be due once the run has an outcome; interceptors that were never reached (`left`) are not asked."""
    unreached = {step.name for step in left if step.moment is Moment.BEFORE}
    after = [step for step in steps if step.moment is Moment.AFTER and step.name not in unreached]
    return (*reversed(after), *(step for step in steps if step.moment in (Moment.COMPLETE, Moment.ERROR)))


def next_step_after_run(left: Sequence[HookStep], status: RunStatus) -> HookStep | None:
    """The next of these that fits how the run ends."""
    unfit = Moment.COMPLETE if status is RunStatus.FAILED else Moment.ERROR
    return next((step for step in left if step.moment is not unfit), None)
