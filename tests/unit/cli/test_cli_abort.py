"""`loom abort --all` before it aborts anything."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loom.cli import abort_all
from loom.cli.main import build_app
from loom.exit_codes import FAILED, USAGE
from loom.run_overviews import RunOverview
from loom.running_runs import Running
from loom.visibility import RunSummary
from tests.commands import commands_in


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "name one run, or use --all"),
        ("a-run --all --yes", "name one run, or use --all"),
        ("a-run --tenant acme", "are for --all"),
        ("a-run --yes", "are for --all"),
        ("--tenant acme", "name one run, or use --all"),
        ("--all", "use --yes"),
        ("--all --tenant acme --json", "use --yes"),
        *((f"--all --yes --{name}=", f"--{name} is empty") for name in ("agent", "session", "tenant", "user")),
    ],
)
def test_unclear_requests_and_those_that_nobody_confirms_reach_no_server(
    words: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(*_: object, **__: object) -> None:
        raise AssertionError("connected")

    monkeypatch.setattr("temporalio.client.Client.connect", connect)
    with commands_in(tmp_path, monkeypatch, TEMPORAL_ADDRESS="127.0.0.1:1") as loom:
        ran = loom("abort", *words.split())
    assert (ran.code, ran.out) == (USAGE, "")
    assert why in ran.err


@pytest.mark.parametrize("answer", ["n\n", "\n", ""], ids=["no", "Enter", "Ctrl-C"])
def test_a_person_sees_what_would_end_and_can_decline(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began = datetime.now(UTC)
    runs = [
        RunOverview(
            summary=RunSummary(
                run_id=f"run-{number}",
                status="running",
                agent="default",
                model="demo",
                waiting_on="",
                started_at=began,
                closed_at=None,
                cost=None,
                tenant="",
            ),
            task="Paint \x1b[2Jit",
        )
        for number in range(23)
    ]
    asked = iter([Running(runs=tuple(runs), unread=())])  # a second request to the server would raise StopIteration

    def found(_: Any) -> Running:
        return next(asked)

    monkeypatch.setattr(abort_all, "at_terminal", lambda: True)
    monkeypatch.setattr(abort_all, "with_client", found)
    ran = CliRunner().invoke(build_app(), ["abort", "--all"], input=answer)
    assert ran.exit_code == FAILED
    assert ran.stdout.splitlines()[0] == "run-0 · default · Paint it · 0s · running"
    last, rest, question = ran.stdout.splitlines()[19:22]
    assert (last, rest) == ("run-19 · default · Paint it · 0s · running", "and 3 other runs")
    assert question.startswith("Abort these 23 runs? [y/N]: ")
    assert ran.stderr == "nothing was aborted\n"
