"""The results of an eval: each check of each run, the totals, and the comparison with another eval."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loom.domain.core.requests import RunStatus
from loom.domain.evals.intervals import Difference, Interval, Tally, paired_difference, pass_rate
from loom.domain.history.recorded_calls import RecordedCall


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRun:
    """A run that has ended, as a rule sees it."""

    run_id: str
    """The run's id, which is also its Workflow ID."""
    case: str
    """The name of the case."""
    repeat: int
    """From 1."""
    task: str
    """The task that the case gives to the agent."""
    status: RunStatus
    """How the run ended."""
    output: str
    """The text of the answer. Empty if there is none."""
    structured_output: Any
    """The answer as a value if the run has an output schema, else None."""
    calls: tuple[RecordedCall, ...]
    """The run's tool calls, without those of its sub-agents. Secrets in arguments are masked."""
    workspace: str
    """The run's own copy of the case's workspace. Empty if the case has none."""
    cost: float | None
    """US dollars. None if the model's price is unknown."""
    tokens: int
    """Input and output tokens, including those of sub-agents. 0 if they are unknown."""
    turns: int
    """The number of the run's own turns."""
    seconds: float
    """From the run's start to its end, including all waits."""
    error: str = ""
    """Why the run didn't complete."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The outcome of one check of one run."""

    check: str
    """What was checked, in a few words."""
    passed: bool
    reason: str = ""
    """Why it failed. A judge also gives a reason if it passes."""
    score: float | None = None
    """A judge's score, from 0 to 1."""
    judge: str = ""
    """The id of the judge's run."""
    cost: float | None = 0.0
    """What judging cost in US dollars. None if the price is unknown."""
    tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedRun:
    """A run and its checks."""

    run: EvalRun
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether the run completed and all checks passed."""
        return self.run.status is RunStatus.COMPLETED and all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the run didn't pass."""
        ended = () if self.run.status is RunStatus.COMPLETED else (f"{self.run.status}: {self.run.error}".strip(": "),)
        return (*ended, *(f"{check.check}: {check.reason}" for check in self.checks if not check.passed))


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """The figures of several runs."""

    runs: int
    passed: int
    rate: Interval | None
    """The pass rate. None if there are no runs."""
    cost: float | None
    """US dollars for the runs and their judges. None if a price is unknown."""
    tokens: int
    turns: float
    """Turns per run."""
    seconds: float
    """Seconds per run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseReport:
    """The runs of one case."""

    name: str
    runs: tuple[CheckedRun, ...]
    not_run: int = 0
    """The number of repeats that the total budget didn't allow."""

    @property
    def tally(self) -> Tally:
        """How many runs passed."""
        return Tally(passed=sum(each.passed for each in self.runs), runs=len(self.runs))

    @property
    def totals(self) -> Totals:
        """The figures of this case."""
        return totals([self])


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalReport:
    """All cases of an eval, in the order of the file."""

    name: str
    cases: tuple[CaseReport, ...]

    @property
    def totals(self) -> Totals:
        """The figures of all cases."""
        return totals(self.cases)

    @property
    def not_run(self) -> int:
        """The number of runs that the total budget didn't allow."""
        return sum(case.not_run for case in self.cases)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """An eval beside another one, on the cases that have runs in both."""

    a: EvalReport
    b: EvalReport
    cases: int
    """The number of cases that have runs in both."""
    difference: Difference | None
    """`a` minus `b`. None if no case has runs in both."""
    better: tuple[str, ...]
    """The cases that passed more often in `a`."""
    worse: tuple[str, ...]
    unpaired: tuple[str, ...]
    """The cases that don't have runs in both."""


def totals(cases: Sequence[CaseReport]) -> Totals:
    """Add up the runs of these cases."""
    checked = [each for case in cases for each in case.runs]
    costs = [cost for each in checked for cost in (each.run.cost, *(check.cost for check in each.checks))]
    return Totals(
        runs=len(checked),
        passed=sum(each.passed for each in checked),
        rate=pass_rate([case.tally for case in cases]),
        cost=None if None in costs else sum(cost for cost in costs if cost is not None),
        tokens=sum(each.run.tokens + sum(check.tokens for check in each.checks) for each in checked),
        turns=_mean(each.run.turns for each in checked),
        seconds=_mean(each.run.seconds for each in checked),
    )


def compared(a: EvalReport, b: EvalReport) -> Comparison:
    """Compare two evals case by case."""
    theirs: Mapping[str, Tally] = {case.name: case.tally for case in b.cases if case.runs}
    both = {case.name: (case.tally, theirs[case.name]) for case in a.cases if case.runs and case.name in theirs}
    return Comparison(
        a=a,
        b=b,
        cases=len(both),
        difference=paired_difference([*both.values()]),
        better=tuple(name for name, (ours, other) in both.items() if ours.rate > other.rate),
        worse=tuple(name for name, (ours, other) in both.items() if ours.rate < other.rate),
        unpaired=tuple(case.name for case in a.cases if case.name not in both),
    )


def _mean(values: Iterable[float]) -> float:
    listed = [*values]
    return sum(listed) / len(listed) if listed else 0.0
