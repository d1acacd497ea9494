"""All tests, then once more, alone, those that failed: `make test`.

    python -m tests.gate [--under busy|frozen] [OPTIONS OF PYTEST]

A test that fails twice fails the gate. One that passes the second time leaves it green and is named in the last lines:
it has met a race, in itself or in Loom, and whoever reads its name mends it before going on (CONTRIBUTING.md). The
report of both rounds is in `.reports/`: `tests.log`, and for programs `tests.xml` and `second-chance.xml` (JUnit).

`--under` gives the first round a hard time. `busy`: beside two busy loops; `frozen`: all of its processes stand still
together for 0.3 to 0.7 seconds, some three times a minute.
"""

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.adversity import busy_loops, freezing

REPORTS: Final = Path(".reports")
MOST: Final = 20
"""If more tests fail than this, something is broken, and a second chance would only take time."""

_FAILED: Final = 1  # of pytest's exit codes, the one that says that all tests ran, and some of them failed
_PYTEST: Final = (sys.executable, "-m", "pytest")


def main() -> int:
    """Run the tests and return the exit code of the round that decides."""
    parser = argparse.ArgumentParser(description="Run the tests, and once more those that failed.")
    parser.add_argument("--under", choices=["busy", "frozen"])
    given, options = parser.parse_known_args()
    REPORTS.mkdir(exist_ok=True)
    log, first, second = (REPORTS / name for name in ("tests.log", "tests.xml", "second-chance.xml"))
    for old in (log, first, second):
        old.unlink(missing_ok=True)
    with _hard_time(given.under):
        code = _run([*_PYTEST, "--cache-clear", f"--junit-xml={first}", *options], log)
    if first.exists():
        print(f"\nTime in tests, of all processes together: {_tiers(first)}. The report is in {log}.")
    if code != _FAILED:
        return code
    failed = _failed(first)
    if len(failed) > MOST:
        print(f"\n{len(failed)} tests failed: too many for a second chance.")
        return code
    print(f"\nA second chance, alone, for what failed:\n{_lines(failed)}\n", flush=True)
    alone = ["--numprocesses=0", "--last-failed", "--last-failed-no-failures=none", f"--junit-xml={second}"]
    code = _run([*_PYTEST, *options, *alone], log)
    again = _failed(second) if code == _FAILED else []
    if again:
        print(f"\nFailed twice:\n{_lines(again)}")
    if code in {0, _FAILED} and (passed := [name for name in failed if name not in again]):
        print(f"\nPassed at the second try. Mend these before you go on (CONTRIBUTING.md):\n{_lines(passed)}")
    return code


def _hard_time(kind: str | None) -> AbstractContextManager[None]:
    match kind:
        case "busy":
            return busy_loops()
        case "frozen":
            return freezing(every=(10, 30))
        case _:
            return nullcontext()


def _run(command: Sequence[str], log: Path) -> int:
    """Run a command, show what it says, and keep it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process, log.open("ab") as file:
        assert process.stdout is not None
        while line := process.stdout.readline():
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()
            file.write(line)
    return process.returncode


def _failed(report: Path) -> list[str]:
    """The tests in a report that failed, or whose fixtures did."""
    cases = ElementTree.parse(report).iter("testcase")
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return sorted({f"{case.get('classname')}::{case.get('name')}" for case in wrong})


def _tiers(report: Path) -> str:
    """How many tests of each tier ran, and how many seconds they took."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        tier = ".".join(case.get("classname", "").split(".")[:2])
        found[tier.replace(".", "/")].append(float(case.get("time", 0)))
    return ", ".join(f"{tier} {len(times)} in {sum(times):.0f} s" for tier, times in sorted(found.items()))


def _lines(names: Sequence[str]) -> str:
    return "\n".join(f"    {name}" for name in names)


if __name__ == "__main__":
    sys.exit(main())
