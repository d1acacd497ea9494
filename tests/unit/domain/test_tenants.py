"""A run of a tenant: it waits until it is admitted, and ends with a last answer when the tenant's day is spent."""

from dataclasses import replace

from loom.domain.core.requests import RunRequest, RunStatus
from loom.domain.machine.activity_requests import origin_of
from loom.domain.machine.transitions import next_action, start
from loom.domain.run.actions import AwaitAdmission, AwaitResume, BeginTurn, CallModel, Finish
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import AbortRequested, PauseRequested, ResumeRequested, RunAdmitted, RunPrepared
from loom.domain.run.state import RunState, waiting_on
from loom.domain.tree.lineage import TreeLimits
from tests.unit.domain.story import AT, BEGAN, READS, SPEC, after, call, fails, returned, says, wants

WAITS = RunPrepared(prepared=Prepared(spec=SPEC, admission="waiting", limits=TreeLimits()))
UNLIMITED = replace(WAITS, prepared=replace(WAITS.prepared, admission=""))
NEW = start("run-1", RunRequest(task="Do it.", tenant="acme", priority=1), AT)
SPENT = fails("BudgetExceededError", tenant="acme", limit="tokens_per_day")


def test_a_run_that_waits_for_its_tenant_begins_when_it_is_admitted() -> None:
    waiting = after(NEW, WAITS)
    assert next_action(waiting) == AwaitAdmission()
    assert waiting_on(waiting) == "other runs of tenant acme"

    admitted = after(waiting, RunAdmitted())
    assert next_action(admitted) == BeginTurn()
    assert waiting_on(admitted) is None
    assert after(admitted, RunAdmitted()) is admitted


def test_a_waiting_run_can_be_paused_and_aborted() -> None:
    paused = after(NEW, WAITS, PauseRequested(by="ann", at=AT))
    assert next_action(paused) == AwaitResume()
    assert next_action(after(paused, RunAdmitted())) == AwaitResume()
    assert next_action(after(paused, RunAdmitted(), ResumeRequested(by="ann", at=AT))) == BeginTurn()

    aborted = after(NEW, WAITS, AbortRequested(reason="enough", at=AT))
    assert after(aborted, RunAdmitted()) is aborted
    assert aborted.admission == "waiting"  # so that it leaves the queue


def ended(state: RunState) -> tuple[RunStatus, str, str]:
    action = next_action(state)
    assert isinstance(action, Finish)
    assert action.outcome.error is not None
    return action.outcome.status, action.outcome.output, action.outcome.error.type


def test_a_run_gives_a_last_answer_when_its_tenants_day_is_spent() -> None:
    reading = after(NEW, WAITS, RunAdmitted(), BEGAN, wants((call("c1", "read_file"), READS)), returned(c1="text"))
    stopped = after(reading, BEGAN, SPENT)
    assert next_action(stopped) == CallModel()
    assert stopped.transcript.messages[-1].text.startswith("<system-reminder>This is your last answer: no")

    assert ended(after(stopped, says("So far."))) == (RunStatus.BUDGET_EXHAUSTED, "So far.", "BudgetExceededError")
    assert ended(after(stopped, SPENT)) == (RunStatus.BUDGET_EXHAUSTED, "", "BudgetExceededError")


def test_a_budget_error_of_a_provider_still_fails_the_run() -> None:
    status, _, error = ended(after(NEW, UNLIMITED, BEGAN, fails("BudgetExceededError")))
    assert (status, error) == (RunStatus.FAILED, "BudgetExceededError")


def test_activities_know_the_tenant() -> None:
    assert origin_of(after(NEW, WAITS)).tenant == "acme"
