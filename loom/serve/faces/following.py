"""Follow a run until it ends or waits for a person, and pass on the person's decision. Each protocol translates these
values into its own.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.domain.core.tasks import Task
from loom.serve.caller_runs import CallerRuns
from loom.serve.run_streams import or_silence
from loom.watching import Streamed, closing

SILENCE: Final = 0.5
"""Seconds without an event after which the run is asked whether it waits for a person. No event says so for all runs:
the calls of sub-agents wait at the root of their tree.
"""
NO_ANSWER: Final = "(The user did not answer.)"
"""What the agent reads if a person has turned its question or its call away without a word."""
RESULT_WITHIN: Final = 30.0
"""Seconds that the server has to close a run that has published its last event."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The run waits for a person's decision on a call, or for an answer."""

    calls: tuple[JsonObject, ...]
    """The pending calls, as in the `pending_approvals` of the run's status."""
    question: str
    """The agent's question. Empty if there is none."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended."""

    result: RunResult


Followed: TypeAlias = Streamed | Waits | Ended


def waits_in(status: JsonObject) -> Waits | None:
    """Return what a run with this status waits for, or None."""
    calls, question = tuple(status.get("pending_approvals") or ()), str(status.get("question") or "")
    return Waits(calls, question) if calls or question else None


class Decision(BaseModel):
    """A person's decision on a call, as clients send it."""

    model_config = ConfigDict(extra="forbid", title="Decision")

    approved: bool
    reason: str = ""
    """Why the call is denied. The agent reads it."""
    arguments: dict[str, Any] | None = None
    """Other arguments for the call."""
    scope: Literal["once", "run"] = "once"


async def decide(runs: CallerRuns, run_id: str, decision: Decision, *, call_id: str, digest: str | None) -> None:
    """Approve or deny a pending call. An approval counts only for a call with this digest."""
    if decision.approved:
        scope, arguments = decision.scope, decision.arguments
        await runs.approve(run_id, call_id, scope=scope, arguments=arguments, digest=digest)
    else:
        await runs.deny(run_id, call_id, reason=decision.reason)


def about_call(call: JsonObject) -> str:
    """Return what a pending call is about, in a line for people."""
    return str(call.get("question") or f"{call['tool']}: {call.get('reason') or 'needs approval'}")


def progress(task: Task) -> str:
    """Return an event in a few words."""
    about = task.parameters.get("tool") or task.parameters.get("model") or ""
    return f"{task.action.removeprefix('node.').replace('_', ' ')} {about}".strip()


async def follow(
    runs: CallerRuns, run_id: str, *, after: int = 0, knows_waits: bool = False
) -> AsyncIterator[Followed]:
    """Yield the run's events after this offset. The last value is `Waits` or `Ended`.

    The other arguments, and the errors, are those of `follow_to_end`.
    """
    async with closing(follow_to_end(runs, run_id, after=after, knows_waits=knows_waits)) as followed:
        async for each in followed:
            yield each
            if isinstance(each, Waits):
                return


async def follow_to_end(
    runs: CallerRuns, run_id: str, *, after: int = 0, knows_waits: bool = False
) -> AsyncIterator[Followed]:
    """Yield the run's events after this offset, and `Waits` whenever it begins to wait. The last value is `Ended`.

    With `knows_waits`, the caller knows what the run waits for now, for example because it has just answered it. The
    run counts as waiting again only after another event: until it has read the answer, it still shows its question.

    Without the live stream, there are only `Waits` and `Ended`. Raises the errors of `CallerRuns`.
    """
    known: Waits | None = None
    async with runs.watch(run_id, after=after) as events, closing(or_silence(events, SILENCE)) as watched:
        async for event in watched:
            if isinstance(event, Streamed):
                knows_waits = False
                yield event
            elif event is not None or not knows_waits:
                waits = waits_in(await runs.status(run_id))
                if waits is not None and waits != known:
                    yield waits
                known, knows_waits = waits, waits is not None
    result = await runs.result(run_id, wait=RESULT_WITHIN)
    if result is not None:
        yield Ended(result)
