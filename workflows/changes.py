"""Changes of the workflow code that executions started by an earlier release don't have.

`workflow.patched` records a change when an execution first asks for it. This can be too late: if the end of a local
activity is recorded with the workflow task before the one that delivers it, a replay asks one task earlier, and the SDK
doesn't know the change there yet (TMPRL1100). An execution therefore has all changes of the release that starts it. A
flag in the completion of its first workflow task says so, and adds no event to the history. Only executions that an
earlier release started ask `workflow.patched`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from temporalio import workflow

LENIENT_STOPS: Final = "lenient-stops"
"""An abort or a pause with an invalid payload is followed as far as it can be read."""
CALLS_NOT_RUN: Final = "calls-not-run"
"""The stream is told of calls that weren't executed."""
ONE_TIMER: Final = "one-timer-a-wait"
"""A wait keeps its timer until it ends, and has one even if its time has come."""
NOTICES_BY_ACTIVITIES: Final = "notices-by-activities"
"""While a run waits, no local activity publishes its notices."""
NOTIFY_BY_ACTIVITY: Final = "notify-beside-local-activities"
"""No local activity starts the workflow that notifies people."""
COUNTED_REQUESTS: Final = "counted-requests"
"""A run that has had many requests continues as new."""
UPGRADE_ON_REQUEST: Final = "upgrade-on-request"
"""A run that is asked to upgrade continues as new, even if its worker's version is the current one."""
CHILDREN_NOT_BEGUN: Final = "children-not-begun"
"""The stream is told of calls for which no sub-agent may be started."""
DETACHED_CHILDREN: Final = "detached-children"
"""Sub-agents outlive the execution that started them."""
RUNS_THAT_ARE_GONE: Final = "runs-that-are-gone"
"""Memory upkeep aborts orphaned sub-agents and deletes the data of runs that have left the server."""
ONE_ACTIVITY_KEEPS: Final = "one-activity-keeps-memories"
"""A round of memory upkeep promotes, expires and embeds memories in one activity."""

STARTED_WITH: Final[Mapping[int, frozenset[str]]] = {
    # 0.4.0
    0x4C6F6F6E: frozenset(
        {
            LENIENT_STOPS,
            CALLS_NOT_RUN,
            ONE_TIMER,
            NOTICES_BY_ACTIVITIES,
            NOTIFY_BY_ACTIVITY,
            COUNTED_REQUESTS,
            UPGRADE_ON_REQUEST,
            DETACHED_CHILDREN,
        }
    ),
    # 0.4.0, for executions that began after the others had these changes
    0x4C6F6F70: frozenset({CHILDREN_NOT_BEGUN}),
}
"""The changes of each release, by the flag in the first workflow tasks that it completes. Released entries never
change: a later change gets a flag of its own.
"""

OF_EXECUTION: Final = "loom_changes"
"""The name of the worker's function that returns the changes that the execution has had from its start."""


def has_change(name: str) -> bool:
    """Return whether the execution has this change, and record that it has if an earlier release has started it."""
    of_execution: Callable[[], Collection[str]] | None = workflow.extern_functions().get(OF_EXECUTION)
    return (of_execution is not None and name in of_execution()) or workflow.patched(name)
