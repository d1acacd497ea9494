"""A short, seeded hunt for shell lines that run what their rules don't name. `make fuzz-shell` hunts longer."""

from pathlib import Path
from random import Random

import pytest

from loom.activities.adapters.shell.options_that_run import RUNS, Runs
from tests.integration.attacks.shell_fuzz.arena import Arena
from tests.integration.attacks.shell_fuzz.hunt import Hunt, seeds
from tests.integration.attacks.shell_fuzz.manuals import MANUALS
from tests.integration.attacks.shell_fuzz.options import written

LONG = pytest.mark.slow


@pytest.mark.parametrize("lines", [150, pytest.param(700, marks=LONG)])
def test_no_line_that_the_rules_allow_runs_what_they_do_not_name(tmp_path: Path, lines: int) -> None:
    report = Hunt(tmp_path.resolve(), seeds()).run("ci", lines)
    assert report.executed > lines / 20
    assert not report.findings, "\n".join(map(str, report.findings))


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=LONG)])
def test_no_line_with_which_the_hunt_begins_runs_what_its_rules_do_not_name(tmp_path: Path, every: int) -> None:
    begins = seeds()[::every]
    report, allowed = Hunt(tmp_path.resolve()).tried(begins)
    assert len(allowed) > len(begins) / 10
    assert not report.findings, "\n".join(map(str, report.findings))


def test_the_arena_has_a_manual_of_every_program_whose_options_run_something() -> None:
    without = {"apk", "brew", "dot", "gofmt", "rustup", "ssh-agent"}  # what these run, no stub can show
    assert RUNS.keys() - MANUALS.keys() == without


def test_the_hunt_tries_the_options_of_every_program() -> None:
    lines = [
        written(
            Random(seed),
            "id",
        )
        for seed in range(8_000)
    ]
    tried = {word for line in lines for word in line.split()}
    assert not {program for program, runs in RUNS.items() if runs != Runs()} - tried


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Arena:
    return Arena(tmp_path_factory.mktemp("arena").resolve())


@pytest.mark.parametrize(
    ("line", "programs"),
    [
        ("ls x", ["ls"]),
        ("ls ${x:-$(id)}", ["id", "ls"]),
        ("for PATH in 5; do ls; done", ["ls"]),
        ("/lib64/ld-linux-x86-64.so.2 /usr/bin/rm x", ["ld-linux-x86-64.so.2", "rm"]),
        ("ls & id &", ["id", "ls"]),
        ("sudo -u root env rm x", ["env", "rm", "sudo"]),
        ("GIT_PAGER=id git log", ["git", "id"]),
        ("tar x --to-command=id", ["id", "tar"]),
        ("ssh -o ProxyCommand='rm y' x", ["rm", "ssh"]),
        ("make SHELL=id", ["id", "make"]),
        ("tar -C -- -I id", ["id", "tar"]),
        ("curl -#K y", ["curl", "id"]),
        ("curl -o -K y", ["curl"]),
        ("gcc -wrapper id x", ["gcc", "id"]),
        ("npm x --script-s id", ["id", "npm"]),
        ("echo x", []),
    ],
)
def test_the_arena_sees_what_a_line_runs(arena: Arena, line: str, programs: list[str]) -> None:
    (ran,) = arena.run([line])
    names = {each[0].rpartition("/")[2] for each in ran}
    assert sorted(names - {"sh"}) == programs  # the shell through which the real `ssh` and `make` run a command
