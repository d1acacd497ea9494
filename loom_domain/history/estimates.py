"""Estimate what a run will take, from the completed runs of the same agent."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from loom.domain.core.requests import RunResult

LOW: Final = 0.1
HIGH: Final = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How a figure is distributed over past runs."""

    low: float
    """One run in ten stayed below it."""
    median: float
    high: float
    """One run in ten exceeded it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastRun:
    """A completed run."""

    result: RunResult
    seconds: float
    """Its duration, with everything that it waited for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEstimate:
    """What a run will probably take. All figures include sub-agents. They are None if no past run has them."""

    agent: str
    """The agent whose runs were examined."""
    model: str | None
    """The model that the past runs are limited to, if any."""
    runs: int
    """The number of past runs that the estimate is based on."""
    cost: Spread | None
    """US dollars, from the runs with a known cost."""
    unknown: int
    """The number of these runs whose cost is unknown."""
    tokens: Spread | None
    """Input and output tokens together."""
    turns: Spread | None
    """Turns of the run itself."""
    seconds: Spread | None
    """The time from start to end, with everything that the run waited for."""


def estimate_of(agent: str, model: str | None, runs: Sequence[PastRun]) -> RunEstimate:
    """Return the estimate for a run of an agent whose past runs are these."""

    def spread(figure: Callable[[PastRun], float | None]) -> Spread | None:
        return spread_of(known for run in runs if (known := figure(run)) is not None)

    return RunEstimate(
        agent=agent,
        model=model,
        runs=len(runs),
        cost=spread(lambda run: run.result.cost),
        unknown=sum(run.result.cost is None for run in runs),
        tokens=spread(lambda run: run.result.usage.get("total_tokens")),
        turns=spread(lambda run: run.result.turns),
        seconds=spread(lambda run: run.seconds),
    )


def spread_of(figures: Iterable[float]) -> Spread | None:
    """Return the spread of these figures, or None if there are none. Its ends are figures themselves."""
    ranked = sorted(figures)
    if not ranked:
        return None
    low, high = (ranked[round(share * (len(ranked) - 1))] for share in (LOW, HIGH))
    middle = (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2
    return Spread(low=low, median=middle, high=high)
