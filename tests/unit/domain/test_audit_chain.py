"""The chain of the audit log: no two logs have the same hashes, and every difference is found."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.audit.chain import AuditRow, ChainCheck, Checkpoint, encoded, next_row, read_checkpoint
from loom.domain.audit.entries import STEERING, AuditEntry, content_digest
from loom.domain.core.errors import BadRequest
from loom.workflows import validation

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
TEXTS = tuple(f.name for f in fields(AuditEntry) if f.type == "str" or f.type is str)
SECRETS = {"k-1": b"1" * 32, "k-2": b"2" * 32}

words = st.text(alphabet="ab\0é", max_size=3)
times = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001 - made aware
entries = st.builds(AuditEntry, at=times, **dict.fromkeys(TEXTS, words))
logs = st.lists(entries, min_size=1, max_size=6)


def log(acts: list[AuditEntry], *, key_id: str = "") -> list[AuditRow]:
    rows: list[AuditRow] = []
    for act in acts:
        after = rows[-1].checkpoint if rows else Checkpoint()
        rows.append(next_row(after, act, AT, key_id=key_id, secret=SECRETS.get(key_id)))
    return rows


def problems(rows: list[AuditRow], kept: Checkpoint | None = None) -> list[str]:
    check = ChainCheck(SECRETS.get, kept)
    found = [each for row in rows for each in check.findings(row)]
    return [each.problem for each in (*found, *check.findings_at_end())]


@given(logs, st.sampled_from(["", "k-1"]))
def test_a_log_that_nobody_has_touched_is_intact(acts: list[AuditEntry], key_id: str) -> None:
    rows = log(acts, key_id=key_id)
    assert problems(rows, rows[-1].checkpoint) == []


@given(entries, entries, words, words)
def test_different_rows_have_different_encodings(a: AuditEntry, b: AuditEntry, key_a: str, key_b: str) -> None:
    same = (a, key_a) == (b, key_b)
    assert (encoded(1, AT, a, key_a, b"") == encoded(1, AT, b, key_b, b"")) == same


@given(logs, st.data())
def test_a_change_of_any_field_is_found(acts: list[AuditEntry], data: st.DataObject) -> None:
    rows = log(acts)
    index = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from([*TEXTS, "at"]))
    old = getattr(rows[index].entry, name)
    new = old + (timedelta(microseconds=1) if name == "at" else "x")
    rows[index] = replace(rows[index], entry=replace(rows[index].entry, **{name: new}))
    assert problems(rows) == ["it was changed: its hash doesn't match its content"]


@given(logs, st.data())
def test_rows_that_are_missing_moved_or_doubled_are_found(acts: list[AuditEntry], data: st.DataObject) -> None:
    rows = log([*acts, *acts])
    kept = rows[-1].checkpoint
    order = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=len(rows) + 1))
    changed = [rows[index] for index in order]
    assert bool(problems(changed, kept)) == (changed != rows)


@given(logs, entries)
def test_a_log_that_was_written_anew_is_found_by_a_checkpoint_or_by_the_key(
    acts: list[AuditEntry], other: AuditEntry
) -> None:
    sealed, plain = log([*acts, other], key_id="k-1"), log([*acts, other])
    forged = log([*acts, replace(other, by=other.by + "x")])
    assert problems(forged) == []  # without a checkpoint and without keys, nobody could know
    assert problems(forged, plain[-1].checkpoint)
    guessed = [replace(row, key_id="k-1") for row in forged]
    assert problems(guessed)
    assert problems([*sealed, next_row(sealed[-1].checkpoint, other, AT)]) == [
        "it isn't sealed by a key, but rows before it are"
    ]


def test_a_row_can_be_checked_as_long_as_its_key_exists() -> None:
    act = AuditEntry(key="a", at=AT, act="start", source="temporal")
    old = log([act], key_id="k-1")
    new = next_row(old[-1].checkpoint, replace(act, key="b"), AT, key_id="k-2", secret=SECRETS["k-2"])
    assert problems([*old, new]) == []
    lost = ChainCheck({"k-2": SECRETS["k-2"]}.get)
    assert [each.problem for row in (*old, new) for each in lost.findings(row)] == [
        "it can't be checked: LOOM_ENCRYPTION_KEYS doesn't contain the key k-1"
    ]


def test_a_cut_end_is_found_by_a_checkpoint() -> None:
    rows = log([AuditEntry(key=str(n), at=AT, act="start", source="temporal") for n in range(5)])
    assert problems(rows[:3], rows[-1].checkpoint) == [
        "the end was cut off: the log ends before the checkpoint, so rows 4 to 5 are missing"
    ]


def test_a_checkpoint_is_read_as_it_was_printed() -> None:
    (row,) = log([AuditEntry(key="a", at=AT, act="start", source="temporal")])
    assert read_checkpoint(f" {row.checkpoint}\n") == row.checkpoint
    for wrong in ("", "1", "1:", f"01:{'0' * 64}", f"1:{'0' * 63}", f"-1:{'0' * 64}"):
        with pytest.raises(BadRequest, match="is not a checkpoint"):
            read_checkpoint(wrong)


def test_the_digest_depends_on_the_content_and_not_on_the_order_of_its_fields() -> None:
    assert content_digest({"a": 1, "b": "é"}) == content_digest({"b": "é", "a": 1})
    assert content_digest({"a": 1}) != content_digest({"a": "1"})


def test_every_signal_of_a_run_is_an_act() -> None:
    assert frozenset(validation.STEERING) == STEERING
