"""A run's time, where its budget has `seconds`: everything counts, waiting for people and pauses included.

    began ──────────────────────────────▶ last call ────────▶ deadline
           turns, tools, sub-agents, asks            one last       the run is ended, wherever it stands
                                                     answer

The time between is what a run keeps for itself, as it keeps tokens: its sub-agents have to be done by its last call.
"""

from datetime import datetime, timedelta
from typing import Final

from loom.domain.run.state import RunState

LAST_PART: Final = 0.1
"""Of a run's time: for its last answer."""
LONGEST: Final = timedelta(seconds=30)
"""More than that is not kept for it."""


def deadline(state: RunState) -> datetime | None:
    """When the run's time is over."""
    if state.tree.lineage is not None:
        return state.tree.lineage.deadline
    seconds = state.request.budget.seconds
    return None if seconds is None else state.started_at + timedelta(seconds=seconds)


def hard_end(state: RunState) -> datetime | None:
    """When the run is ended wherever it stands; never one that was prepared before there was such an end."""
    return None if state.tree.limits is None else deadline(state)


def last_call(state: RunState) -> datetime | None:
    """From when on the run begins nothing but its last answer."""
    end = hard_end(state)
    if end is None:
        return deadline(state)
    whole = max(timedelta(), end - state.started_at)
    return end - min(LAST_PART * whole, LONGEST)
