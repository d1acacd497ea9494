"""A signature holds for one request to one run, once, and only the owner of the key can make one. No server."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.signing.key_file import KeyFile
from loom.activities.signatures import rejection_of, signature_in
from loom.activities.start_gate import SigningKey, StartGate
from loom.domain.core.errors import BadRequest
from loom.domain.core.signatures import (
    REMEMBERED,
    TOLERANCE,
    Signature,
    SignatureChecks,
    SignedStart,
    Statement,
    digest_of_arguments,
    fingerprint_of,
    microseconds,
)

OWNER, OUTSIDER = SigningKey(Ed25519PrivateKey.generate()), SigningKey(Ed25519PrivateKey.generate())
CHECKS = SignatureChecks(signed=True, key=OWNER.public)
BEGAN = datetime(2026, 5, 1, 12, tzinfo=UTC)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=6,
)
statements = st.builds(
    Statement,
    kind=st.sampled_from(["start", "signal", "update"]),
    name=st.sampled_from(["approve", "deny", "set_permissions", "send_message", "AgentRun"]),
    run_id=st.sampled_from(["run-1", "run-2", "run-1/d1-1-abcd"]),
    arguments=st.lists(json_values, max_size=2).map(digest_of_arguments),
)
moments = st.timedeltas(timedelta(0), timedelta(days=30)).map(lambda after: BEGAN + after)


def signed(statement: Statement, at: datetime, key: SigningKey = OWNER) -> Signature:
    signature = signature_in(key.header(statement, at))
    assert signature is not None
    return signature


def rejection(
    statement: Statement, signature: Signature, checks: SignatureChecks = CHECKS, *, now: datetime
) -> str | None:
    return rejection_of(statement, signature, checks, began_at=BEGAN, now=now)


@given(statements, moments, st.timedeltas(timedelta(0), timedelta(days=30)))
def test_the_owners_request_counts_however_long_it_waits_for_a_worker(
    statement: Statement, at: datetime, later: timedelta
) -> None:
    assert rejection(statement, signed(statement, at), now=at + later) is None


@given(statements, statements, moments)
def test_a_signature_holds_for_no_other_request(statement: Statement, other: Statement, at: datetime) -> None:
    assert (rejection(other, signed(statement, at), now=at) is None) is (other == statement)


@given(statements, moments, st.integers(-(10**9), 10**9).filter(bool))
def test_a_signature_holds_for_no_other_time(statement: Statement, at: datetime, shift: int) -> None:
    signature = signed(statement, at)
    moved = replace(signature, at=signature.at + shift)

    assert rejection(statement, moved, now=at + timedelta(days=1)) == "carries a signature that isn't valid for it"


@given(statements, moments, st.integers(0, 511))
def test_a_signature_with_one_bit_changed_is_none(statement: Statement, at: datetime, bit: int) -> None:
    signature = signed(statement, at)
    tampered = f"{int(signature.value, 16) ^ (1 << bit):0128x}"

    assert rejection(statement, replace(signature, value=tampered), now=at)


@given(statements, moments, st.text() | st.binary(max_size=70).map(bytes.hex))
def test_what_is_no_signature_of_the_owner_is_refused(statement: Statement, at: datetime, value: str) -> None:
    assert rejection(statement, Signature(at=microseconds(at), value=value), now=at)
    assert rejection(statement, signed(statement, at, OUTSIDER), now=at)


@given(statements, moments)
def test_a_recorded_request_counts_once(statement: Statement, at: datetime) -> None:
    signature = signed(statement, at)
    after = CHECKS.with_used(fingerprint_of(statement, signature.at))

    assert rejection(statement, signature, after, now=at) == "was accepted before, or is too old to tell"


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=3 * REMEMBERED, unique=True), st.data())
def test_no_request_counts_twice_although_a_run_remembers_few(seconds: list[int], data: st.DataObject) -> None:
    statement = Statement(kind="signal", name="approve", run_id="run-1", arguments="")
    checks = CHECKS
    for second in seconds:
        if not checks.refused(fingerprint := fingerprint_of(statement, second)):
            checks = checks.with_used(fingerprint)
    again = data.draw(st.sampled_from(seconds))

    assert checks.refused(fingerprint_of(statement, again))
    assert not checks.refused(fingerprint_of(statement, max(seconds) + 1))
    assert len(checks.used) <= REMEMBERED


@given(statements)
def test_a_request_from_before_the_run_or_from_the_future_is_refused(statement: Statement) -> None:
    early, late = BEGAN - TOLERANCE - timedelta(seconds=1), BEGAN + TOLERANCE + timedelta(seconds=1)

    assert rejection(statement, signed(statement, early), now=BEGAN) == "was signed before this run started"
    assert "future" in str(rejection(statement, signed(statement, late), now=BEGAN))


# ---- the start of a run ----------------------------------------------------------------------------------------


def start(at: datetime = BEGAN, *, key: SigningKey = OWNER, execution: str = "e1", **said: Any) -> SignedStart:
    """A signed start. `said` is what its statement says in place of what was signed."""
    statement = Statement(kind="start", name="AgentRun", run_id="run-1", arguments=digest_of_arguments([{"task": "x"}]))
    return SignedStart(
        statement=replace(statement, **said),
        signature=signed(statement, at, key),
        began_at=microseconds(BEGAN),
        execution=execution,
    )


FORGED = {
    "unsigned": None,
    "signed by somebody else": start(key=OUTSIDER),
    "another request": start(arguments=digest_of_arguments([{"task": "x", "mode": "bypass"}])),
    "another run": start(run_id="run-2"),
    "another kind": start(kind="signal"),
    "eleven minutes old": start(BEGAN - timedelta(minutes=11)),
    "eleven minutes early": start(BEGAN + timedelta(minutes=11)),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_a_start_that_the_owner_has_not_signed_is_a_strangers(forged: SignedStart | None) -> None:
    assert not StartGate(OWNER, requires_signature=False).is_signed_by_owner(forged)
    with pytest.raises(BadRequest, match="LOOM_REQUIRE_SIGNED"):
        StartGate(OWNER, requires_signature=True).is_signed_by_owner(forged)


def test_a_recorded_start_counts_for_one_execution_and_all_its_attempts() -> None:
    gate = StartGate(OWNER, requires_signature=False)

    assert gate.is_signed_by_owner(start())
    assert gate.is_signed_by_owner(start()), "an attempt of the same execution"
    assert not gate.is_signed_by_owner(start(execution="e2"))


def test_a_worker_without_a_key_has_no_owner() -> None:
    assert not StartGate(None, requires_signature=False).is_signed_by_owner(start())
    assert StartGate(None, requires_signature=False).steering_key(widened=True) == ""


@pytest.mark.parametrize(("requires", "widened"), [(True, False), (False, True), (True, True), (False, False)])
def test_requests_need_a_signature_if_all_do_or_if_only_one_made_the_run_possible(
    requires: bool, widened: bool
) -> None:
    gate = StartGate(OWNER, requires_signature=requires)

    assert gate.steering_key(widened=widened) == (OWNER.public if requires or widened else "")


# ---- the file of the key ---------------------------------------------------------------------------------------


def test_a_key_is_created_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "home" / "signing.key"
    created = KeyFile(path).created()

    assert os.stat(path).st_mode & 0o777 == 0o600
    assert KeyFile(path).created().public == created.public
    assert os.listdir(path.parent) == ["signing.key"]


def test_without_a_file_there_is_no_key(tmp_path: Path) -> None:
    assert KeyFile(tmp_path / "signing.key").read() is None


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    KeyFile(path).created()
    path.chmod(0o640)

    with pytest.raises(BadRequest, match="chmod 600"):
        KeyFile(path).read()


@pytest.mark.parametrize("content", [b"", b"secret", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "signing.key"
    path.touch(mode=0o600)
    path.write_bytes(content)

    with pytest.raises(BadRequest, match="LOOM_SIGNING_KEY"):
        KeyFile(path).read()
