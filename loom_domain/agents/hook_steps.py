"""The hooks around a run, step by step: interceptors before and after, hooks at the start and at the end.

    before …  on_start …  ⟨the run⟩  … after  on_complete … or on_error …

Interceptors are called in order before the run and in reverse order after it. The steps of a run are pinned into its
spec when it is prepared, so a run without hooks pays nothing. A step before the run is a gate: it stops the run if it
denies or fails. A step after the run does not change the outcome if it fails, except `after`: a result that an
interceptor could not check is withheld.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from loom.domain.core.requests import RunStatus

DEFAULT_HOOK_TIMEOUT: Final = 10.0
"""Seconds that a hook has to answer, unless its registration says otherwise."""


class Moment(StrEnum):
    """When a step is called."""

    BEFORE = "before"
    START = "on_start"
    TOOL_CALL = "on_tool_call"
    """Called inside the activities that judge tool calls, never as a step of its own."""
    AFTER = "after"
    COMPLETE = "on_complete"
    ERROR = "on_error"


BEFORE_FIRST_TURN: Final = (Moment.BEFORE, Moment.START)


@dataclass(frozen=True, kw_only=True, slots=True)
class HookStep:
    """A hook, or one side of an interceptor, at one moment of a run."""

    moment: Moment
    name: str
    timeout: float = DEFAULT_HOOK_TIMEOUT

    def __str__(self) -> str:
        return f"{self.moment} · {self.name}"


HookVerdict: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HookAnswer:
    """The result of a step."""

    verdict: HookVerdict = "allow"
    reason: str = ""
    text: str | None = None
    """Replaces the task before the run, or the result after it; None leaves them unchanged."""
    instead: bool = False
    """Whether `text` is the result and the run is skipped."""


def steps_before_run(steps: Sequence[HookStep]) -> tuple[HookStep, ...]:
    """The steps before the first turn: interceptors, then hooks, each in the order of registration."""
    return tuple(step for moment in BEFORE_FIRST_TURN for step in steps if step.moment is moment)


def steps_after_run(steps: Sequence[HookStep], left: Sequence[HookStep]) -> tuple[HookStep, ...]:
    """The steps after the run has an outcome, without interceptors that were never reached (`left`)."""
    unreached = {step.name for step in left if step.moment is Moment.BEFORE}
    after = [step for step in steps if step.moment is Moment.AFTER and step.name not in unreached]
    return (*reversed(after), *(step for step in steps if step.moment in (Moment.COMPLETE, Moment.ERROR)))


def next_step_after_run(left: Sequence[HookStep], status: RunStatus) -> HookStep | None:
    """The next of these steps that applies to this status."""
    unfit = Moment.COMPLETE if status is RunStatus.FAILED else Moment.ERROR
    return next((step for step in left if step.moment is not unfit), None)
