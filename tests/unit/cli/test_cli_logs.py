"""`loom logs`: the last lines of a part of the stack, and those that follow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loom.exit_codes import COMPLETED, UNREACHABLE, USAGE
from tests.commands import Commands, commands_in


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / ".loom" / "logs" / "worker.log"
    path.parent.mkdir(parents=True)
    path.write_text("first\nsecond\n\x1b[31mthird\x1b[0m\n")
    return path


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    with commands_in(tmp_path, monkeypatch) as command:
        yield command


def test_the_worker_s_last_lines_are_printed_without_colors(loom: Commands, log: Path) -> None:
    ran = loom("logs", "-n", "2")
    assert (ran.code, ran.out, ran.err) == (COMPLETED, "second\nthird\n", f"{log}:\n")


def test_new_lines_follow_until_ctrl_c(loom: Commands, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = ["fourth\n", "fifth\n"]

    def a_moment_later(_: float) -> None:
        if not new:
            raise KeyboardInterrupt
        with log.open("a") as file:
            file.write(new.pop(0))

    monkeypatch.setattr("loom.cli.commands.logs.time.sleep", a_moment_later)
    ran = loom("logs", "worker", "--lines", "1", "--follow")
    assert (ran.code, ran.out) == (COMPLETED, "third\nfourth\nfifth\n")


def test_an_unknown_part_is_answered_with_the_one_that_was_meant(loom: Commands) -> None:
    ran = loom("logs", "wroker")
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.err == "the stack has no part 'wroker': did you mean 'worker'?"


def test_without_a_stack_the_way_out_is_said(loom: Commands) -> None:
    ran = loom("logs", "redis")
    assert (ran.code, ran.out) == (UNREACHABLE, "")
    assert "logs/redis.log can't be read: No such file or directory: start the stack with `loom up`" in ran.err
