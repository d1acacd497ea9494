"""One test many times, half of them on a machine that is busy and stands still now and then: `make flaky TEST=… N=20`.

    python -m tests.flaky TEST [--times 20] [--seed 1]

In every second round, two busy loops run beside the test, and all of its processes are frozen together for 0.3 to
0.7 seconds every few seconds. The output of failed rounds is shown. The exit code is 1 if there is one.
"""

import argparse
import subprocess
import sys
import time

from tests.adversity import busy_loops, freezing


def main() -> int:
    """Run the rounds and say how many failed."""
    parser = argparse.ArgumentParser(description="Run one test many times, half of them on a busy machine.")
    parser.add_argument("test", help="what pytest accepts, such as FILE::NAME")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    failed = {"idle": 0, "busy": 0}
    for number in range(given.times):
        kind, began = ("idle", "busy")[number % 2], time.monotonic()
        if kind == "idle":
            done = _round(given.test)
        else:
            with busy_loops(), freezing(every=(1.0, 5.0), seed=given.seed + number):
                done = _round(given.test)
        outcome = "failed" if done.returncode else "passed"
        print(f"{number + 1:>3}. {kind}: {outcome} in {time.monotonic() - began:.1f} s", flush=True)
        if done.returncode:
            failed[kind] += 1
            print(done.stdout, flush=True)
    busy = given.times // 2
    print(f"failed: {failed['idle']} of {given.times - busy} idle rounds, {failed['busy']} of {busy} busy ones")
    return 1 if any(failed.values()) else 0


def _round(test: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", test]
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


if __name__ == "__main__":
    sys.exit(main())
