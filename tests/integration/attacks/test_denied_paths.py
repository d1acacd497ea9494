"""A denied path is denied to every program: what the rules allow neither reads nor writes it, in the real sandbox."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from loom.activities.adapters.sandbox.bubblewrap import find_sandbox
from loom.domain.core.tool_calls import Verdict
from tests.integration.attacks.denied_paths import CANARY, READ, RULES, WRITTEN, Lines, given_lines
from tests.integration.attacks.shell_fuzz.hunt import Judge

LONG = pytest.mark.slow

_DRIVER = r"""
while IFS= read -r -d '' line; do
  (ulimit -f 1000; exec timeout -s KILL 2 bash -c "$line") </dev/null >/tmp/output 2>&1
  kill -KILL -1 2>/dev/null
  output=$(head -c 100000 /tmp/output | tr -d '\0')
  if [[ $output == *CANARY=''5ec2e7* || ! -f locked.txt || $(<locked.txt) != locked ]]; then
    printf '%s\0' "$line"
    rm -rf locked.txt; echo locked >locked.txt
  fi
  echo x >x
done
"""


def workspace(folder: Path) -> Path:
    place = folder.resolve() / "work"
    (place / "sub").mkdir(parents=True)
    (place / READ).write_text(f"{CANARY}\n")
    (place / WRITTEN).write_text("locked\n")
    (place / "x").write_text("x\n")
    return place


def allowed(lines: Sequence[tuple[str, str]], place: Path) -> list[str]:
    judge = Judge(place)
    return [line for use, line in lines if judge.verdict(judge.subjects(line), RULES[use]).verdict is Verdict.ALLOW]


async def leaking(lines: Sequence[str], place: Path) -> list[str]:
    """Run the lines, and return those that printed the denied file or changed the other one."""
    sandbox, why_not = find_sandbox("on")
    assert sandbox is not None, why_not
    done = await sandbox.run(
        ["/bin/bash", "-c", _DRIVER],
        workspace=place,
        timeout=30 + len(lines),
        max_output=10_000_000,
        on_output=lambda _: None,
        stdin="".join(f"{line}\0" for line in lines).encode(),
    )
    assert done.exit_code == 0, done
    return done.output.split("\0")[:-1]


@pytest.mark.parametrize("use", RULES)
def test_a_use_of_a_denied_path_is_not_allowed(tmp_path: Path, use: str) -> None:
    lines = [each for each in given_lines() if each[0] == use]
    assert len(lines) > 600
    assert allowed(lines, workspace(tmp_path)) == []


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=LONG)])
async def test_what_is_allowed_neither_reads_nor_writes_a_denied_path(tmp_path: Path, count: int) -> None:
    place = workspace(tmp_path)
    lines = allowed(list(Lines(Random("denied")).some(count)), place)
    assert len(lines) > count / 50
    assert await leaking(lines, place) == []


async def test_the_sandbox_shows_what_reads_or_writes(tmp_path: Path) -> None:
    leaks = [f"fmt {READ}", f"sed 'r {READ}' x", f"xargs -a {READ} echo", f"tee {WRITTEN}", f"rm {WRITTEN}"]
    assert await leaking(["echo x", *leaks, f"ls {READ}"], workspace(tmp_path)) == leaks


HARMLESS = [
    *(
        "fmt x",
        "make test",
        "npm test",
        "black src",
        "git log --oneline",
        "git status",
        "git commit -m x",
        "git diff x",
    ),
    *("echo .env", "ls -la .env", "test -f .env", "stat .env", "[ -e .env ]", "printf '%s' .env", "mkdir -p build"),
    *("cat x.env", "python3 -m pytest tests", "sed -n 1p x", "cp x y", "pytest tests/*.py", "docker build -t x .env.d"),
    *("cat locked.txt | wc -l", "grep x locked.txt", "git diff locked.txt", "head locked.txt.md"),
]


@pytest.mark.parametrize("command", HARMLESS)
def test_what_leaves_a_denied_path_alone_stays_allowed(command: str, tmp_path: Path) -> None:
    use = "writes" if "locked" in command else "reads"
    assert allowed([(use, command)], workspace(tmp_path)) == [command]
