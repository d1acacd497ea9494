"""Approvals that several people must give: which of them count."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from loom.domain.core.errors import AccessDeniedError, RefusedError
from loom.domain.core.messages import JsonObject
from loom.serve.access import approvals
from loom.serve.access.approval_policy import ApprovalPolicy, ApprovalRule
from loom.serve.access.approvals import Approval, Approvals
from loom.serve.access.audit_trail import AuditTrail
from loom.serve.access.roles import Caller, Role
from tests.unit.serve.test_people import DISGUISES

CALL = {"call_id": "c1", "tool": "write_file", "agent": "default", "risk": "reads only", "digest": "d1", "asked_at": ""}
TWO = ApprovalRule(approvals=2)


@dataclass
class OneRun:
    """A run that waits for the approval of a call, as its client sees it."""

    call: JsonObject = field(default_factory=lambda: dict(CALL))
    starter: str = "root"
    approved_by: list[str] = field(default_factory=list)
    is_decided: bool = False

    async def status(self, run_id: str) -> JsonObject:
        return {"run_id": run_id, "pending_approvals": [self.call]}

    async def started_by(self, run_id: str) -> str:
        del run_id
        return self.starter

    async def approve(self, run_id: str, call_id: str, *, by: str, **_: Any) -> JsonObject:
        await asyncio.sleep(0)
        if self.is_decided:
            raise RefusedError(f"call {call_id!r} is not waiting for approval")
        self.is_decided = True
        self.approved_by.append(by)
        return {"accepted": True, "run_id": run_id, "call_id": call_id}


class Kept(dict[Any, list[str]]):
    """The approvals so far, as the database keeps them."""

    async def add(self, *of: Any) -> tuple[str, ...]:
        *what, name = of
        names = self.setdefault(tuple(what), [])
        if name not in names:
            names.append(name)
        return tuple(names)

    async def approvers(self, *what: Any) -> tuple[str, ...]:
        return tuple(self.get(what, ()))

    async def forget(self, run_id: str, call_id: str, decision: bytes) -> None:
        for each in [key for key in self if (key[:2], key[-1]) == ((run_id, call_id), decision)]:
            del self[each]


@dataclass
class Deciding:
    """People who approve the call of a run."""

    run: OneRun
    approvals: Approvals

    async def approve(self, name: str, **what: Any) -> JsonObject:
        exact = {"run_id": "r", "call_id": None, "scope": "once", "arguments": None, "digest": None, **what}
        return await self.approvals.approve(Approval(**exact), Caller(name=name, role=Role.APPROVER))


def deciding(*rules: ApprovalRule) -> Deciding:
    run: Any = OneRun()
    kept: Any = Kept()
    return Deciding(run, Approvals(run, ApprovalPolicy(rules=rules), kept, AuditTrail(None)))


@pytest.mark.parametrize("name", DISGUISES)
async def test_a_person_counts_once_under_any_form_of_the_name(name: str) -> None:
    people = deciding(TWO)
    assert (await people.approve("ann"))["approved_by"] == ("ann",)
    assert (await people.approve(name))["approved_by"] == ("ann",)
    assert (await people.approve("bob"))["accepted"]
    assert people.run.approved_by == ["ann, bob"]


@pytest.mark.parametrize("name", DISGUISES)
async def test_nobody_approves_their_own_run_under_another_form_of_the_name(name: str) -> None:
    people = deciding(ApprovalRule(own_runs=False))
    people.run.starter = "ann"
    with pytest.raises(AccessDeniedError, match="started this run"):
        await people.approve(name)


async def test_an_earlier_approval_of_somebody_who_may_no_longer_approve_does_not_count() -> None:
    people = deciding(TWO)
    await people.approve("ann")
    people.approvals.policy = ApprovalPolicy(rules=(TWO, ApprovalRule(approvers=("bob", "cem"))))
    assert (await people.approve("bob"))["approved_by"] == ("bob",)
    assert (await people.approve("cem"))["accepted"]
    assert people.run.approved_by == ["bob, cem"]


@pytest.mark.parametrize(
    ("what", "rule"),
    [
        ({"scope": "run"}, ApprovalRule(risks=("*destroy*",), approvals=2)),
        ({"scope": "run"}, ApprovalRule(agents=("writer",), approvals=2)),
        ({"arguments": {"path": "b"}}, ApprovalRule(risks=("*destroy*",), approvals=2)),
    ],
)
async def test_an_approval_of_more_than_the_shown_call_needs_what_the_strictest_such_call_needs(
    what: JsonObject, rule: ApprovalRule
) -> None:
    assert not (await deciding(rule).approve("ann", **what))["accepted"]
    assert (await deciding(rule).approve("ann"))["accepted"]


@pytest.mark.parametrize("other", [{"scope": "run"}, {"arguments": {"path": "b"}}, {"arguments": {}}])
async def test_approvals_of_different_things_do_not_count_together(other: JsonObject) -> None:
    people = deciding(TWO)
    await people.approve("ann", **other)
    assert (await people.approve("bob"))["approved_by"] == ("bob",)


@pytest.mark.parametrize("changed", ["digest", "asked_at", "call_id"])
async def test_an_approval_does_not_count_for_a_call_that_has_changed_since(changed: str) -> None:
    people = deciding(TWO)
    await people.approve("ann")
    people.run.call = {**CALL, changed: "another"}
    assert (await people.approve("bob"))["approved_by"] == ("bob",)
    assert not people.run.approved_by


async def test_everybody_whose_last_approval_comes_at_the_same_time_hears_that_the_call_is_approved() -> None:
    people = deciding(TWO)
    await people.approve("ann")
    receipts = await asyncio.gather(people.approve("bob"), people.approve("cem"))
    assert [receipt["accepted"] for receipt in receipts] == [True, True]
    assert receipts[0] == {name: receipts[1][name] for name in receipts[0]}
    assert people.run.approved_by == ["ann, bob"]


async def test_a_last_approval_is_refused_if_the_call_was_denied_or_approved_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approvals, "PAUSE", 0)
    people = deciding(TWO)
    await people.approve("ann")
    await people.approve("ann", scope="run")
    accepted, refused = await asyncio.gather(
        people.approve("bob"), people.approve("cem", scope="run"), return_exceptions=True
    )
    assert isinstance(accepted, dict)
    assert isinstance(refused, RefusedError)

    denied = deciding(TWO)
    await denied.approve("ann")
    denied.run.is_decided = True
    with pytest.raises(RefusedError):
        await denied.approve("bob")
