"""A run carries the proof of an approval to its worker, and asks again if the worker refuses it."""

from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from loom.activities.approval_keys import ApprovalKey
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunRequest
from loom.domain.core.tool_calls import Effect, PreparedCall, ToolResult
from loom.domain.machine.activity_requests import tool_request
from loom.domain.machine.steering import refusal
from loom.domain.machine.transitions import start
from loom.domain.run.activity_payloads import Prepared, ToolRequest
from loom.domain.run.events import Approved, RunPrepared, RunReset
from loom.domain.run.pending_approvals import open_asks
from loom.domain.run.state import RunState
from loom.domain.run.status import status_view
from loom.pending_approvals import PendingApproval, read_approval
from tests.unit.domain.story import (
    AT,
    BEGAN,
    LOST,
    SPEC,
    WRITES,
    after,
    asked,
    asks,
    at,
    call,
    judged,
    judging,
    notices,
    returned,
    running,
    wants,
    yes,
)

KEY = ApprovalKey(Ed25519PrivateKey.generate())
LS = call("c1", command="ls")


def run(*planned: PreparedCall) -> RunState:
    """A run that waits for the approval of a call, and whose worker needs proofs."""
    prepared = RunPrepared(prepared=Prepared(spec=SPEC, proofs=True, execution="e1", approvals_are_named=True))
    state = start("run-1", RunRequest(task="Do it."), AT)
    return after(state, prepared, BEGAN, wants((LS, planned[0] if planned else asks("d" * 32, "bash(ls)"))))


def pending(state: RunState) -> PendingApproval:
    return read_approval(status_view(state)["pending_approvals"][0])


def approval(state: RunState, **how: Any) -> Approved:
    """An approval as a client with the key sends it."""
    scope, arguments = how.get("scope", "once"), how.get("arguments")
    seen = pending(state)
    proof = KEY.proof(seen.proven("run-1", seen.digest), by="ann", scope=scope, arguments=arguments)
    return yes(seen.call_id, digest=seen.digest, **{"proof": proof, **how})


def request(state: RunState) -> ToolRequest:
    return tool_request(state, state.calls.open[0], "e1", with_notices=False)


def test_a_client_learns_that_a_call_needs_a_proof_and_a_worker_gets_it() -> None:
    state = run()
    assert pending(state).execution == "e1"
    given = approval(state)
    state = after(state, given)

    assert running(state) == ["c1"]
    assert (request(state).asked, request(state).proof) == (True, given.proof)


def test_the_next_attempt_at_a_lost_call_has_the_same_proof() -> None:
    state = run(replace(asks("d" * 32), effect=Effect.IDEMPOTENT))
    given = approval(state)
    state = after(state, given, returned(c1=LOST))

    assert running(state) == ["c1"]
    assert (request(state).attempt, request(state).proof) == (2, given.proof)


def test_nothing_changes_for_runs_whose_workers_need_no_proofs() -> None:
    prepared = RunPrepared(prepared=Prepared(spec=SPEC, execution="e1"))
    state = after(start("run-1", RunRequest(task="Do it."), AT), prepared, BEGAN, wants((LS, asks())))
    assert "execution" not in status_view(state)["pending_approvals"][0]

    state = after(state, yes())
    assert (running(state), request(state).asked, request(state).proof) == (["c1"], False, "")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"proof": ""}, "isn't proven"),
        ({"proof": "a.b"}, "can't be read"),
        ({"proof": "a.b.c"}, "can't be read"),
        ({"proof": f"a.{'W10' * 9}.c"}, "can't be read"),
        ({"by": "eve"}, "another by"),
        ({"arguments": {"command": "rm -rf /"}}, "another arguments"),
        ({"scope": "run"}, "another scope"),
    ],
    ids=str,
)
def test_a_run_refuses_an_approval_that_its_proof_is_not_for_and_goes_on_waiting(other: JsonObject, why: str) -> None:
    state = run()
    forged = replace(approval(state), **other)

    assert why in str(refusal(state, forged))
    refused = after(state, forged)
    assert asked(refused) == ["c1"]
    assert notices(refused)[-1][0] == "node.ignored"
    assert running(after(refused, approval(refused))) == ["c1"]


def test_a_call_whose_proof_the_worker_refuses_waits_again_as_the_model_has_made_it() -> None:
    state = run()
    state = after(state, approval(state, arguments={"command": "rm -rf /"}))
    state = replace(state, calls=state.calls.changed(lambda c: replace(c, stale=0)))  # judged again
    assert request(state).arguments == {"command": "rm -rf /"}

    state = after(state, returned(c1=ToolResult(content="", unproven="its signature isn't valid")))
    assert asked(state) == ["c1"]
    (ask,) = open_asks(state)
    assert (ask.arguments, ask.reason) == ({"command": "ls"}, "its signature isn't valid")
    assert notices(state)[-1] == (
        "node.ignored",
        {"signal": "approve", "call_id": "c1", "why": "its signature isn't valid"},
    )
    state = after(state, approval(state))
    assert (running(state), request(state).attempt) == (["c1"], 2)


def test_a_call_that_waits_again_has_the_interceptors_arguments_and_its_whole_time() -> None:
    state = run(replace(asks("d" * 32), arguments={"command": "ls -l"}))
    state = after(state, approval(state, arguments={"command": "rm -rf /"}), judged(c1=asks("e" * 32)))
    assert request(state).arguments == {"command": "rm -rf /"}

    state = after(state, replace(returned(c1=ToolResult(content="", unproven="forged")), at=at(3600)))
    assert open_asks(state)[0].arguments == {"command": "ls -l"}
    assert pending(state).asked_at == at(3600).isoformat()
    state = after(state, approval(state))
    assert request(state).arguments == {"command": "ls -l"}


def test_a_call_that_only_the_run_allows_waits_for_a_proven_approval() -> None:
    prepared = RunPrepared(prepared=Prepared(spec=SPEC, execution="e1"))  # by a worker that needs no proofs
    state = after(start("run-1", RunRequest(task="Do it."), AT), prepared, BEGAN, wants((LS, WRITES)))
    state = after(state, returned(c1=ToolResult(content="", unproven="needs a proof")))

    assert asked(state) == ["c1"]
    seen = pending(state)
    assert (seen.execution, seen.rule, seen.reason) == ("e1", "proof", "needs a proof")
    assert running(after(state, approval(state))) == ["c1"]


def test_what_was_approved_for_the_run_goes_along_until_a_worker_refuses_it() -> None:
    state = run()
    given = approval(state, scope="run")
    state = after(state, given)
    assert (state.calls.grants, request(state).grant_proofs) == (("bash(ls)",), (given.proof,))
    state = after(state, returned(c1="out"), BEGAN, wants((call("c2", command="ls"), WRITES)))
    assert (request(state).asked, request(state).grant_proofs) == (False, (given.proof,))

    state = after(state, returned(c2=ToolResult(content="", unproven="no key has this id")))
    assert asked(state) == ["c2"]
    assert (state.calls.grants, state.calls.grant_proofs) == ((), ())


def test_a_reset_makes_everything_void_that_was_approved_before() -> None:
    state = run()
    before = approval(state, scope="run")
    approved = after(state, before, RunReset(at=at(60)))
    assert (approved.calls.grants, approved.calls.grant_proofs) == ((), ())
    assert request(approved).origin.reset_at, "the proof is for the run before the reset"

    waiting = after(state, RunReset(at=at(60)))
    assert judging(waiting) == ["c1"]
    waiting = after(waiting, judged(c1=asks("e" * 32, "bash(ls)")))
    assert "digest" in str(refusal(waiting, before))
    assert "before it was reset" in str(refusal(waiting, replace(before, digest="e" * 32)))
    assert running(after(waiting, approval(waiting))) == ["c1"]
