"""What the events of a run count: whatever happens to it, its counters add up to the figures of its state."""

from dataclasses import replace
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.domain.core import metrics
from loom.domain.core.metrics import Measurement, Metric
from loom.domain.core.requests import RunRequest, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.machine.measurements import measured, measured_at_end
from loom.domain.machine.transitions import evolve, start
from loom.domain.run.events import Event, ModelFailed, RetryRequested
from loom.domain.run.state import Outcome, RunState, result_of
from tests.unit.domain.story import AT, BEGAN, LOST, READS, SPEC, WEEK, call, fails, returned, told, wants
from tests.unit.domain.test_run_properties import MAX_TURNS, SEEDS, anything

RAN: Final = ("success", "warning", "error")


class Counted:
    """A run and everything that its events have counted."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.seen: list[Measurement] = []
        self.fallbacks: set[str] = set()
        """The notices that tell that another model took over."""

    def add(self, event: Event) -> None:
        before, self.state = self.state, evolve(self.state, event)
        if before is not self.state:
            self.seen += measured(before, event, self.state, AT)
            told = [each for each in self.state.notices.pending if each.action is Action.FALLBACK]
            self.fallbacks |= {each.key for each in told if each.parameters["because"] != "retry"}

    def end(self) -> None:
        result = result_of(self.state, self.state.outcome or Outcome(status=RunStatus.ABORTED))
        self.seen += measured_at_end(self.state, result, AT)

    def of(self, metric: Metric, *last: str) -> float:
        """The sum of a counter, of the last labels given; the number of a histogram's values."""
        found = [each for each in self.seen if each.metric is metric and (not last or each.labels[-1] in last)]
        return len(found) if metric.kind == "histogram" else sum(each.value for each in found)


@settings(max_examples=settings().max_examples // 3)
@given(seed=SEEDS, steps=st.integers(1, 60))
def test_whatever_happens_to_a_run_its_counters_add_up_to_its_state(seed: int, steps: int) -> None:
    dice = Random(seed)
    run = Counted(start("run-1", RunRequest(task="Do it.", max_turns=MAX_TURNS), AT))
    for _ in range(steps):
        run.add(anything(dice, run.state))
    run.end()

    spent, usage = run.state.spending, run.state.spending.usage
    assert run.of(metrics.ITERATIONS) == run.state.turns
    assert run.of(metrics.RUNS_STARTED) == run.of(metrics.FIRST_TURN) == (run.state.turn > 0)
    assert run.of(metrics.RUNS) == run.of(metrics.RUN_DURATION) == 1
    assert run.of(metrics.LLM_CALLS, "answered") == usage.model_calls
    assert run.of(metrics.TOKENS, "input") == usage.input_tokens
    assert run.of(metrics.TOKENS, "output") == usage.output_tokens
    assert run.of(metrics.TOKENS, "cached") == usage.cached_tokens
    assert run.of(metrics.TOKENS, "cache_write") == usage.cache_write_tokens
    assert spent.cost_micros is None or run.of(metrics.COST) == spent.cost_micros
    assert run.of(metrics.TOOL_CALLS, *RAN) == spent.tool_calls
    assert run.of(metrics.ASKS) == run.of(metrics.ASK_WAIT)
    assert run.of(metrics.PARKED) == run.of(metrics.PARKED_TIME) + (run.state.parked is not None)
    assert run.of(metrics.FALLBACKS) == len(run.fallbacks)
    compressed = run.of(metrics.COMPRESSIONS, "compressed")
    assert compressed == run.of(metrics.COMPRESSION_RATIO) == run.state.window.compressions
    assert all(each.value >= 0 and len(each.labels) == len(each.metric.labels) for each in run.seen)


def test_an_attempt_that_was_lost_with_its_worker_is_a_recovery_and_a_retry() -> None:
    model, tool = Counted(told(BEGAN)), Counted(told(BEGAN, wants((call("a"), READS))))
    model.add(ModelFailed(failure=LOST, at=AT))
    tool.add(returned(a=LOST))
    for run, kind, calls in ((model, "model", metrics.LLM_CALLS), (tool, "tool", metrics.TOOL_CALLS)):
        assert (run.of(metrics.RECOVERIES, kind), run.of(metrics.RETRIES, kind)) == (1, 1)
        assert run.of(calls) == (calls is metrics.LLM_CALLS)  # the tool's call isn't over


@pytest.mark.parametrize(
    ("error", "outcome"), [("LLMUnavailableError", "LLMUnavailableError"), ("SomethingOfAnApp", "other")]
)
def test_a_failed_model_call_is_labelled_with_an_error_of_loom_only(error: str, outcome: str) -> None:
    run = Counted(told(BEGAN))
    run.add(fails(error))
    assert run.of(metrics.LLM_CALLS, outcome) == run.of(metrics.LLM_CALLS) == 1
    assert (run.of(metrics.RECOVERIES), run.of(metrics.RETRIES)) == (0, outcome != "other")


def test_a_model_that_took_over_is_a_fallback_and_one_that_a_person_chose_is_not() -> None:
    run = Counted(told(BEGAN, spec=replace(SPEC, fallbacks=("openai:b", "openai:c"))))
    for model, fallbacks in (("openai:b", 1), ("openai:c", 2)):
        run.add(fails("CircuitBreakerOpenError"))
        assert run.state.agent.model == model
        assert run.of(metrics.FALLBACKS, model.removeprefix("openai:")) == 1
        assert run.of(metrics.FALLBACKS) == len(run.fallbacks) == fallbacks

    run = Counted(told(BEGAN, spec=replace(SPEC, patience=WEEK)))
    run.add(fails("CircuitBreakerOpenError"))
    assert run.state.parked is not None
    run.add(RetryRequested(at=AT))
    run.add(RetryRequested(model="openai:b", at=AT))
    run.add(fails("CircuitBreakerOpenError"))
    assert run.state.agent.model == "openai:b"
    assert run.of(metrics.FALLBACKS) == len(run.fallbacks) == 0
