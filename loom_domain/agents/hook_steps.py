"""Steps that run user code before and after a run: interceptors, and hooks that are called when the run starts or ends.

    before …  on_start …  ⟨the run⟩  … after  on_complete … or on_error …

Interceptors run in registration order before the run and in reverse order after it. The list of hooks is pinned into
the spec when the run is prepared, so a run without hooks has no overhead. A hook that runs before the run can stop it.
If such a hook fails, the run also stops. A hook that fails after the run doesn't change the run's outcome. The only
exception is an interceptor's `after` function. If this function fails, the result is withheld, because nothing has
checked it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from loom.domain.core.requests import RunStatus

DEFAULT_HOOK_TIMEOUT: Final = 10.0
"""The timeout, in seconds, for a hook that was registered without one."""


class Moment(StrEnum):
    """The moment when a hook is called."""

    BEFORE = "before"
    START = "on_start"
    TOOL_CALL = "on_tool_call"
    """Called inside the activities that judge tool calls, never in a separate activity."""
    AFTER = "after"
    COMPLETE = "on_complete"
    ERROR = "on_error"


BEFORE_FIRST_TURN: Final = (Moment.BEFORE, Moment.START)


@dataclass(frozen=True, kw_only=True, slots=True)
class HookPoint:
    """A hook, or one side of an interceptor, at one point in a run."""

    moment: Moment
    name: str
    timeout: float = DEFAULT_HOOK_TIMEOUT

    def __str__(self) -> str:
        return f"{self.moment} · {self.name}"


HookVerdict: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HookResult:
    """A hook's result."""

    verdict: HookVerdict = "allow"
    reason: str = ""
    text: str | None = None
    """The text that replaces the task before the run, or the result after it. None means no replacement."""
    instead: bool = False
    """Whether the run is skipped and `text` is used as its result."""


def steps_before_run(steps: Sequence[HookPoint]) -> tuple[HookPoint, ...]:
    """Return the steps before the first turn: interceptors, then hooks, each in registration order."""
    return tuple(step for moment in BEFORE_FIRST_TURN for step in steps if step.moment is moment)


def steps_after_run(steps: Sequence[HookPoint], left: Sequence[HookPoint]) -> tuple[HookPoint, ...]:
    """Return the steps that may run once the run has an outcome. Interceptors whose `before` function was never called
    (`left`) are skipped.
    """
    unreached = {step.name for step in left if step.moment is Moment.BEFORE}
    after = [step for step in steps if step.moment is Moment.AFTER and step.name not in unreached]
    return (*reversed(after), *(step for step in steps if step.moment in (Moment.COMPLETE, Moment.ERROR)))


def next_step_after_run(left: Sequence[HookPoint], status: RunStatus) -> HookPoint | None:
    """Return the first of these steps that applies to a run with this status."""
    unfit = Moment.COMPLETE if status is RunStatus.FAILED else Moment.ERROR
    return next((step for step in left if step.moment is not unfit), None)
