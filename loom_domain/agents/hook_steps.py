"""A user's code around a run: interceptors before and after it, hooks at its start and its end.

    before …  on_start …  ⟨the run⟩  … after  on_complete … or on_error …

Interceptors run in their order before the run and in reverse after it. The list of hooks is pinned into the spec when
the run is prepared, so a run without hooks pays nothing. A hook before the run can stop it, and stops it if it fails. A
hook after the run cannot change its outcome by failing, except `after`: a result that an interceptor could not check is
withheld.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from loom.domain.core.requests import RunStatus

DEFAULT_HOOK_TIMEOUT: Final = 10.0
"""Timeout in seconds of a hook whose registration sets none."""


class Moment(StrEnum):
    """When a hook is called."""

    BEFORE = "before"
    START = "on_start"
    TOOL_CALL = "on_tool_call"
    """Inside the activities that judge tool calls, never separately."""
    AFTER = "after"
    COMPLETE = "on_complete"
    ERROR = "on_error"


BEFORE_FIRST_TURN: Final = (Moment.BEFORE, Moment.START)


@dataclass(frozen=True, kw_only=True, slots=True)
class HookPoint:
    """A hook, or one side of an interceptor, at one moment of a run."""

    moment: Moment
    name: str
    timeout: float = DEFAULT_HOOK_TIMEOUT

    def __str__(self) -> str:
        return f"{self.moment} · {self.name}"


HookVerdict: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HookResult:
    """The result of a hook."""

    verdict: HookVerdict = "allow"
    reason: str = ""
    text: str | None = None
    """Replaces the task before the run, or the result after it; None leaves them unchanged."""
    instead: bool = False
    """`text` is the result, and the run does not take place."""


def steps_before_run(steps: Sequence[HookPoint]) -> tuple[HookPoint, ...]:
    """What runs before the first turn: interceptors, then hooks, each in order of registration."""
    return tuple(step for moment in BEFORE_FIRST_TURN for step in steps if step.moment is moment)


def steps_after_run(steps: Sequence[HookPoint], left: Sequence[HookPoint]) -> tuple[HookPoint, ...]:
    """What may run once the run has an outcome. Interceptors that were never reached (`left`) are not called."""
    unreached = {step.name for step in left if step.moment is Moment.BEFORE}
    after = [step for step in steps if step.moment is Moment.AFTER and step.name not in unreached]
    return (*reversed(after), *(step for step in steps if step.moment in (Moment.COMPLETE, Moment.ERROR)))


def next_step_after_run(left: Sequence[HookPoint], status: RunStatus) -> HookPoint | None:
    """The next of these steps that applies to this status."""
    unfit = Moment.COMPLETE if status is RunStatus.FAILED else Moment.ERROR
    return next((step for step in left if step.moment is not unfit), None)
