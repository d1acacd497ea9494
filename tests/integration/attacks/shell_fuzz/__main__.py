"""Hunt for shell lines that run what their rules don't name.

python -m tests.integration.attacks.shell_fuzz --lines 200000 --seed 1 [--at-once 2] [--shrink 5]
"""

import argparse
import sys
from collections import Counter
from multiprocessing import get_context
from time import monotonic
from typing import Final

from tests.integration.attacks.shell_fuzz.hunt import Finding, Report, hunted, shape_of
from tests.integration.attacks.shell_fuzz.rule_sets import RULE_SETS

_CHUNK: Final = 2_000
"""Lines of one seed. What is found doesn't depend on how many chunks run at once."""


def main() -> int:
    """Return 1 if a line ran what its rules don't name."""
    options = argparse.ArgumentParser(prog="python -m tests.integration.attacks.shell_fuzz", description=__doc__)
    options.add_argument("--lines", type=int, default=200_000)
    options.add_argument("--seed", default="1")
    options.add_argument("--at-once", type=int, default=2)
    options.add_argument("--shrink", type=int, default=5, help="findings to shrink in each 2,000 lines")
    given = options.parse_args()
    sizes = [min(_CHUNK, given.lines - start) for start in range(0, given.lines, _CHUNK)]
    chunks = [(f"{given.seed}/{number}", size, given.shrink) for number, size in enumerate(sizes)]
    total, shortest, began = Report(), dict[str, Finding](), monotonic()
    with get_context("spawn").Pool(given.at_once) as pool:
        for report, shrunk in pool.imap(hunted, chunks):
            total.add(report)
            new = {shape_of(each.line): each for each in shrunk if shape_of(each.line) not in shortest}
            shortest |= new
            print(*new.values(), sep="\n", end="\n" * bool(new), flush=True)
            print(
                f"{total.lines:>7} lines, {len(total.findings)} findings, {monotonic() - began:.0f} s", file=sys.stderr
            )
    for name, count in Counter(finding.under.partition(":")[0] for finding in total.findings).most_common():
        print(f"{count:>6} findings under {name}")
    lines = {finding.line for finding in total.findings}
    print(
        f"{total.lines} lines under {len(RULE_SETS)} rule sets and grants for the run, seed {given.seed}: "
        f"{total.allowed} verdicts allow, {total.executed} lines executed, "
        f"{len(lines)} lines ran what their rules don't name ({monotonic() - began:.0f} s)"
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
