"""The program of docs/audit.md finds whatever somebody does to an export of the audit log."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from loom.cli.commands.audit import exported_line
from loom.domain.audit.chain import AuditRow, Checkpoint, OmittedRows, next_row
from loom.domain.audit.entries import AuditEntry
from tests.docs_pages import blocks

(PROGRAM,) = [block.text for block in blocks("python") if block.page == "docs/audit.md"]
AT: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)
TEXTS: Final = [field.name for field in fields(AuditEntry) if field.name != "at"]


def check(lines: list[str], kept: str | None = None) -> tuple[list[str], int, int]:
    namespace: dict[str, Any] = {"__name__": "check_export"}
    exec(PROGRAM, namespace)
    found: tuple[list[str], int, int] = namespace["check"](lines, kept)
    return found


def log(*, secret: bytes | None = None, eve_from: int | None = None, proven: int = 3) -> list[AuditRow]:
    """Six rows, of which the first ones have proofs. From one on, they may be another person's."""
    rows: list[AuditRow] = []
    for number in range(1, 7):
        texts = {name: f"{name} {number} é\u2028\x85" for name in TEXTS}
        entry = AuditEntry(**texts, at=AT + timedelta(seconds=number))
        if number > proven:
            entry = replace(entry, proof="")
        if eve_from is not None and number >= eve_from:
            entry = replace(entry, by="eve")
        after = rows[-1].checkpoint if rows else Checkpoint()
        rows.append(next_row(after, entry, AT, key_id="k-1" if secret else "", secret=secret))
    return rows


def export(rows: list[AuditRow], chosen: set[int]) -> list[str]:
    """The lines of an export of these rows."""
    lines: list[AuditRow | OmittedRows | Checkpoint] = []
    for row in rows:
        before = lines[-1] if lines and isinstance(lines[-1], OmittedRows) else None
        if row.sequence in chosen:
            lines.append(row)
        else:
            lines[len(lines) - bool(before) :] = [OmittedRows.with_row(row, before)]
    return [json.dumps(exported_line(each)) for each in (*lines, rows[-1].checkpoint)]


def edited(line: str, **changes: Any) -> str:
    return json.dumps({**json.loads(line), **changes})


def changed(name: str) -> Callable[[list[str]], list[str]]:
    """Change one field of the second line, which is a row in all exports."""

    def change(lines: list[str]) -> list[str]:
        old = json.loads(lines[1])[name]
        return [lines[0], edited(lines[1], **{name: old + (1 if name == "row" else "0")}), *lines[2:]]

    return change


def without_proof(line: str) -> str:
    return json.dumps({name: value for name, value in json.loads(line).items() if name != "proof"})


def exchanged(lines: list[str]) -> list[str]:
    """Exchange what two rows say, but not their places in the chain."""
    one, other = json.loads(lines[1]), json.loads(lines[2])
    said = {"by", "run_id", "key"}
    return [
        lines[0],
        edited(lines[1], **{name: other[name] for name in said}),
        edited(lines[2], **{name: one[name] for name in said}),
        *lines[3:],
    ]


FIELDS: Final = list(exported_line(log()[0]))
TAMPERING: Final[dict[str, Callable[[list[str]], list[str]]]] = {
    **{f"changed {name}": changed(name) for name in FIELDS},
    "left out a field": lambda lines: [lines[0], lines[1].replace('"by": ', '"of": '), *lines[2:]],
    "left out the proof": lambda lines: [lines[0], without_proof(lines[1]), *lines[2:]],
    "gave an empty proof": lambda lines: [lines[0], edited(lines[1], proof=""), *lines[2:]],
    **{
        f"said {name} twice": lambda lines, name=name: [  # type: ignore[misc]
            lines[0],
            lines[1].replace(f'"{name}": ', f'"{name}": "eve", "{name}": '),
            *lines[2:],
        ]
        for name in ("by", "proof")
    },
    "added a field": lambda lines: [lines[0], edited(lines[1], note="eve"), *lines[2:]],
    "removed the first line": lambda lines: lines[1:],
    "removed a line": lambda lines: [lines[0], *lines[2:]],
    "removed the last row": lambda lines: [*lines[:-2], lines[-1]],
    "removed all rows": lambda lines: lines[-1:],
    "removed the checkpoint": lambda lines: lines[:-1],
    "removed everything": lambda lines: [],
    "reordered lines": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "exchanged what two rows say": exchanged,
    "doubled a line": lambda lines: [*lines[:2], *lines[1:]],
    "added a line after the end": lambda lines: [*lines, lines[1]],
    "inserted a row": lambda lines: [*lines[:2], edited(lines[1], row=4, key="eve"), *lines[2:]],
    "renumbered the rows": lambda lines: [*(edited(each, row=9) for each in lines[:-1]), lines[-1]],
}
EXPORTS: Final = {
    "whole": {1, 2, 3, 4, 5, 6},
    "from the middle": {3, 4, 5, 6},
    "filtered": {2, 3, 5},
}


@pytest.mark.parametrize("chosen", EXPORTS.values(), ids=EXPORTS)
def test_whatever_somebody_does_to_an_export_is_found(chosen: set[int]) -> None:
    lines = export(log(), chosen)
    assert check(lines, str(log()[-1].checkpoint)) == ([], 0, 6 - len(chosen))
    for name, tampered in TAMPERING.items():
        try:
            problems, sealed, _ = check(tampered(lines))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue  # the program ends with an error, because a line isn't what it must be
        assert problems or (name == "changed key_id" and sealed), name


def test_an_export_with_new_hashes_is_found_by_a_checkpoint() -> None:
    kept = str(log()[-1].checkpoint)
    for name, lines in {
        "computed anew": export(log(eve_from=3), EXPORTS["whole"]),
        "cut off": export(log()[:4], EXPORTS["whole"]),
    }.items():
        assert check(lines) == ([], 0, 0), name
        assert check(lines, kept) == ([f"no row matches the checkpoint {kept}"], 0, 0), name


def test_rows_whose_content_the_program_cannot_check_are_counted() -> None:
    sealed = export(log(secret=b"s" * 32), {2, 3})
    assert check(sealed) == ([], 2, 4)
    assert check(changed("by")(sealed)) == ([], 2, 4)  # only a signature of the file reveals this
    assert check(changed("hash")(sealed))[0]


def test_the_hash_of_a_row_stays_as_it_was_released() -> None:
    """Rows of earlier releases must stay valid."""
    hashes = [log(secret=secret, proven=0)[-1].hash.hex()[:16] for secret in (None, b"s" * 32)]
    assert hashes == ["2ee3ff767b891db5", "08804f6403f0afca"]
