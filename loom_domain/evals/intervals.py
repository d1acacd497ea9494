"""Intervals for pass rates, and the comparison of two evals on the same cases.

Each case is a cluster: its repeats share a task, so they tell less than the same number of different cases (Miller
2024, "Adding Error Bars to Evals", arXiv:2411.00640). Each case contributes its finished runs, and those that passed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm, sqrt
from typing import Final

Z: Final = 1.959963984540054
"""The standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """How many runs of a case have ended, and how many of these passed."""

    passed: int
    runs: int

    @property
    def rate(self) -> Fraction:
        """The share of runs that passed."""
        return Fraction(self.passed, self.runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A value and its 95 % interval. Rates are from 0 to 1, differences of rates from -1 to 1."""

    value: float
    low: float
    high: float


def pass_rate(tallies: Sequence[Tally]) -> Interval | None:
    """Return the share of all runs that passed, or None if there are no runs.

    The interval is the score interval of Wilson (1927), "Probable Inference, the Law of Succession, and Statistical
    Inference", JASA 22:209-212. It is valid for few runs, and at 0 and 100 %. For cases with repeats, it uses the
    effective number of runs, as Dean and Pagano (2015) recommend: "Evaluating Confidence Interval Methods for Binomial
    Proportions in Clustered Surveys", Journal of Survey Statistics and Methodology 3:484-503.
    """
    runs = sum(tally.runs for tally in tallies)
    if runs == 0:
        return None
    return wilson(sum(tally.passed for tally in tallies) / runs, effective_runs(tallies))


def wilson(rate: float, runs: float) -> Interval:
    """Return the Wilson score interval for a rate that was observed in this many independent runs."""
    spread = Z * Z / runs
    middle = (rate + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * sqrt(rate * (1 - rate) / runs + spread / (4 * runs))
    # Rounding must not exclude the rate itself at 0 and 1.
    return Interval(value=rate, low=max(0.0, min(middle - half, rate)), high=min(1.0, max(middle + half, rate)))


def effective_runs(tallies: Sequence[Tally]) -> float:
    """Return how many independent runs would be as precise as these, from the number of cases to the number of runs.

    This is the number of runs divided by the design effect (Kish 1965, "Survey Sampling"). If all runs had the same
    outcome, the design effect is unknown, and each case counts once.
    """
    counted = [tally for tally in tallies if tally.runs]
    runs, cases = sum(tally.runs for tally in counted), len(counted)
    if cases < 2 or runs == cases:
        return runs
    rate = sum(tally.passed for tally in counted) / runs
    if rate in (0.0, 1.0):
        return cases
    squares = sum((tally.passed - rate * tally.runs) ** 2 for tally in counted)
    clustered = cases / (cases - 1) * squares / runs**2
    independent = rate * (1 - rate) / runs
    return runs if clustered <= independent else max(float(cases), runs * independent / clustered)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The difference between the pass rates of two evals on the same cases. Each case has the same weight."""

    rate: Interval
    p: float
    """How likely a difference as large as this, or larger, is by chance alone."""
    better: int
    """The number of cases that passed more often in the first eval."""
    worse: int


def paired_difference(pairs: Sequence[tuple[Tally, Tally]]) -> Difference | None:
    """Compare two evals case by case. Return None if there are no pairs. Each pair needs at least one run on each side.

    The interval is that of Newcombe (1998), "Improved Confidence Intervals for the Difference Between Binomial
    Proportions Based on Paired Data", Statistics in Medicine 17:2635-2650, which combines the Wilson intervals of the
    two rates. Zou and Donner (2008), Statistics in Medicine 27:1693-1702, extend it to intervals of other kinds.
    """
    if not pairs:
        return None
    ours, theirs = [float(a.rate) for a, _ in pairs], [float(b.rate) for _, b in pairs]
    a = wilson(sum(ours) / len(pairs), effective_runs([a for a, _ in pairs]))
    b = wilson(sum(theirs) / len(pairs), effective_runs([b for _, b in pairs]))
    together = _correlation(ours, theirs)
    difference = a.value - b.value
    down = _combined(a.value - a.low, b.high - b.value, together)
    up = _combined(a.high - a.value, b.value - b.low, together)
    differences = [a.rate - b.rate for a, b in pairs]
    return Difference(
        rate=Interval(value=difference, low=max(-1.0, difference - down), high=min(1.0, difference + up)),
        p=sign_flip_test(differences),
        better=sum(each > 0 for each in differences),
        worse=sum(each < 0 for each in differences),
    )


def sign_flip_test(differences: Sequence[Fraction]) -> float:
    """Return the exact two-sided p-value of paired differences, if each could equally well have had the opposite sign.

    This is Fisher's randomization test for pairs (1935, "The Design of Experiments", section 21). If each case ran
    once, it is McNemar's exact test: the sign test on the cases with different results (McNemar 1947, "Note on the
    Sampling Error of the Difference Between Correlated Proportions or Percentages", Psychometrika 12:153-157).
    """
    unit = lcm(*(each.denominator for each in differences))
    sizes = [abs(int(each * unit)) for each in differences if each]
    observed = abs(int(sum(differences) * unit))
    ways = Counter({0: 1})
    for size in sizes:
        flipped: Counter[int] = Counter()
        for total, count in ways.items():
            flipped[total + size] += count
            flipped[total - size] += count
        ways = flipped
    return float(Fraction(sum(count for total, count in ways.items() if abs(total) >= observed), 2 ** len(sizes)))


def _combined(one: float, other: float, correlation: float) -> float:
    return sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))


def _correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the correlation of the cases' rates, or 0 if the rates of one side are all the same."""
    mean_a, mean_b = sum(ours) / len(ours), sum(theirs) / len(theirs)
    spread = sqrt(sum((a - mean_a) ** 2 for a in ours) * sum((b - mean_b) ** 2 for b in theirs))
    if spread < 1e-12:
        return 0.0
    return sum((a - mean_a) * (b - mean_b) for a, b in zip(ours, theirs, strict=True)) / spread
