"""Intervals of pass rates and comparisons of evals: published values, and what holds for all of them."""

from fractions import Fraction
from itertools import product
from math import comb

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from loom.domain.evals.intervals import Tally, effective_runs, paired_difference, pass_rate, sign_flip_test


@some.composite
def tallies(draw: some.DrawFn, most: int = 8) -> Tally:
    runs = draw(some.integers(1, most))
    return Tally(passed=draw(some.integers(0, runs)), runs=runs)


@pytest.mark.parametrize(
    ("passed", "runs", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_the_one_in_the_table_of_newcombe(passed: int, runs: int, low: float, high: float) -> None:
    found = pass_rate([Tally(passed=passed, runs=runs)])
    assert found is not None
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_the_paired_interval_is_the_one_in_the_table_of_newcombe() -> None:
    once = {outcome: Tally(passed=int(outcome), runs=1) for outcome in (True, False)}
    pairs = [(once[True], once[True])] * 36 + [(once[True], once[False])] * 12 + [(once[False], once[True])] * 2
    found = paired_difference(pairs)
    assert found is not None
    assert (round(found.rate.value, 4), round(found.rate.low, 4), round(found.rate.high, 4)) == (0.2, 0.0569, 0.3404)
    assert (found.better, found.worse) == (12, 2)


def test_no_runs_have_no_rate_and_no_pairs_no_difference() -> None:
    assert (pass_rate([]), paired_difference([])) == (None, None)


@given(some.lists(tallies(), min_size=1, max_size=30))
def test_a_rate_lies_in_its_interval_and_failures_mirror_it(cases: list[Tally]) -> None:
    found = pass_rate(cases)
    mirrored = pass_rate([Tally(passed=case.runs - case.passed, runs=case.runs) for case in cases])
    assert found is not None
    assert mirrored is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high
    assert mirrored.low == pytest.approx(1 - found.high)
    assert mirrored.high == pytest.approx(1 - found.low)


@given(some.lists(tallies(), min_size=1, max_size=30))
def test_repeats_say_at_least_as_much_as_their_cases_and_at_most_as_much_as_their_runs(cases: list[Tally]) -> None:
    runs = sum(case.runs for case in cases)
    assert min(len(cases), runs) <= effective_runs(cases) <= runs


@given(some.integers(2, 20), some.integers(2, 10))
def test_cases_that_always_end_alike_gain_nothing_from_repeats(cases: int, repeats: int) -> None:
    alike = [Tally(passed=repeats if number % 2 else 0, runs=repeats) for number in range(cases)]
    assert effective_runs(alike) == pytest.approx(cases)


@given(some.integers(0, 15), some.integers(0, 15), some.integers(0, 5))
def test_with_one_run_a_case_the_test_is_mcnemars_exact_one(better: int, worse: int, ties: int) -> None:
    changed = better + worse
    fewer = min(better, worse)
    exact = min(1.0, 2 * sum(comb(changed, wins) for wins in range(fewer + 1)) / 2**changed)
    signs = [Fraction(1)] * better + [Fraction(-1)] * worse + [Fraction(0)] * ties
    assert sign_flip_test(signs) == pytest.approx(exact)


@given(some.lists(some.tuples(tallies(4), tallies(4)), min_size=1, max_size=8))
def test_the_test_counts_the_signs_that_give_as_large_a_difference(pairs: list[tuple[Tally, Tally]]) -> None:
    differences = [a.rate - b.rate for a, b in pairs]
    flipped = [
        abs(sum((sign * each for sign, each in zip(signs, differences, strict=True)), Fraction()))
        for signs in product((1, -1), repeat=len(pairs))
    ]
    as_large = sum(each >= abs(sum(differences, Fraction())) for each in flipped)
    assert sign_flip_test(differences) == pytest.approx(as_large / len(flipped))


@given(some.lists(some.tuples(tallies(), tallies()), min_size=1, max_size=12))
def test_the_order_of_two_evals_changes_only_the_sign(pairs: list[tuple[Tally, Tally]]) -> None:
    there, back = paired_difference(pairs), paired_difference([(b, a) for a, b in pairs])
    assert there is not None
    assert back is not None
    assert (there.better, there.worse, there.p) == (back.worse, back.better, back.p)
    assert there.rate.low <= there.rate.value <= there.rate.high
    assert back.rate.value == pytest.approx(-there.rate.value)
    assert back.rate.low == pytest.approx(-there.rate.high)


@given(some.lists(tallies(), min_size=1, max_size=12))
def test_an_eval_does_not_differ_from_itself(cases: list[Tally]) -> None:
    assume(any(case.passed for case in cases))
    found = paired_difference([(case, case) for case in cases])
    assert found is not None
    assert (found.rate.value, found.p, found.better, found.worse) == (0, 1, 0, 0)
