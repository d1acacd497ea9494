"""Workers die around tool calls: a few seeds of `make chaos-tools`, and the rules by which they are judged."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from loom.testing.harness import Addresses
from tests.chaos.plans import ANSWER, Call, Kind, Moment, Plan, plan_of
from tests.chaos.rules import UNKNOWN, Facts, Outcome, Stage, violations
from tests.chaos.tool_kills import distribution, line, survive_all

FEW: Final = (3,)
MORE: Final = (4, 18, 26, 79)
"""One kill each: begun, done, ended, claimed, of both kinds of tools; `make chaos-tools` runs more, with more kills."""


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MORE, marks=pytest.mark.slow)], ids=["few", "more"])
async def test_no_effect_is_lost_or_doubled_by_kills(
    addresses: Addresses, tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    reports = await survive_all(seeds, addresses, tmp_path, at_once=3, told=lambda report: print(line(report)))
    print(distribution(reports))
    assert {report.plan.seed: report.violations for report in reports} == dict.fromkeys(seeds, ())
    assert [report.plan.seed for report in reports if not report.hits] == []


# ---- the rules themselves --------------------------------------------------------------------------------------

ONCE: Final = Call(id="o", kind=Kind.ONCE, turn=0, before=0, after=0)
BOOK: Final = Call(id="i", kind=Kind.IDEMPOTENT, turn=0, before=0, after=0)
LOOK: Final = Call(id="r", kind=Kind.READ, turn=0, before=0, after=0)
PLAN: Final = Plan(seed=0, turns=((ONCE, BOOK, LOOK),), kills=())
FINE: Final = Outcome(
    status="completed",
    output=ANSWER,
    results={call.id: [call.finished] for call in PLAN.calls},
    effects={"o": 1, "i": 1},
    keys={"i": 1},
    kills=[{"o": Stage.ENDED, "i": Stage.BEGUN}],
    lost={"o": 1, "i": 1},
)
DOUBTED: Final = replace(
    FINE,
    results={**FINE.results, "o": [UNKNOWN]},
    kills=[{"o": Stage.BEGUN, "i": Stage.BEFORE}],
    effects={"o": 0, "i": 1},
)


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        (FINE, []),
        (DOUBTED, []),
        (replace(DOUBTED, effects={"o": 1, "i": 1}), []),
        (replace(FINE, status="failed"), ["the run ended failed"]),
        (replace(FINE, effects={"o": 2, "i": 1}), ["o (bash): took effect 2 times"]),
        (replace(DOUBTED, effects={"o": 2, "i": 1}), ["o (bash): took effect 2 times"]),
        (replace(FINE, effects={"o": 0, "i": 1}), ["o (bash): is told as a success and took no effect"]),
        (replace(FINE, effects={"o": 1, "i": 2}, keys={"i": 2}), [
            "i (credit): took effect 2 times", "i (credit): was run under 2 keys"
        ]),
        (replace(DOUBTED, kills=FINE.kills), ["o (bash): is told as unknown, and the ledger knows"]),
        (replace(DOUBTED, kills=FINE.kills, lost={"o": 2, "i": 1}), []),
        (replace(FINE, kills=DOUBTED.kills), ["o (bash): was in doubt and was run again"]),
        (replace(FINE, results={**FINE.results, "r": []}), ["r (read_file): has 0 results"]),
        (replace(FINE, results={**FINE.results, "o": ["finished o", "finished o"]}), ["o (bash): has 2 results"]),
        (replace(FINE, results={**FINE.results, "i": [UNKNOWN]}), [
            "i (credit): is told as unknown, and could have been run again"
        ]),
    ],
)  # fmt: skip
def test_the_rules_see_what_is_wrong(outcome: Outcome, wrong: list[str]) -> None:
    assert violations(PLAN, outcome) == wrong


@pytest.mark.parametrize(
    ("facts", "stage"),
    [
        (Facts(), Stage.BEFORE),
        (Facts(claimed=True), Stage.CLAIMED),
        (Facts(claimed=True, begun=1), Stage.BEGUN),
        (Facts(claimed=True, begun=1, effects=1), Stage.DONE),
        (Facts(claimed=True, begun=1, effects=1, ended=True), Stage.ENDED),
        (Facts(claimed=True, begun=1, effects=1, ended=True, told=True), Stage.TOLD),
        (Facts(claimed=True, ended=True), Stage.ENDED),
    ],
)
def test_a_stage_is_the_furthest_that_the_facts_show(facts: Facts, stage: Stage) -> None:
    assert facts.stage is stage


def test_a_seed_always_says_the_same() -> None:
    assert [plan_of(seed) for seed in range(50)] == [plan_of(seed) for seed in range(50)]
    assert {kill.moment for seed in range(7) for kill in plan_of(seed).kills[:1]} == set(Moment)
