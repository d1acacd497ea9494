"""Hunt for bodies of streamed replies that the providers read wrongly.

python -m tests.integration.activities.stream_fuzz --bodies 20000 --seed 1 [--only 17]
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import Final

from tests.integration.activities.stream_fuzz.hunt import Finding, Report, case_of, hunted, providers_and_server

_CHUNK: Final = 1_000
_SHOWN: Final = 20


def main() -> int:
    """Return 1 if a body was read wrongly."""
    options = argparse.ArgumentParser(prog="python -m tests.integration.activities.stream_fuzz", description=__doc__)
    options.add_argument("--bodies", type=int, default=20_000)
    options.add_argument("--seed", default="1")
    options.add_argument("--only", type=int, help="try the body with this number, and show it")
    given = options.parse_args()
    if given.only is not None:
        print(case_of(given.seed, given.only).body.whole.decode("utf-8", "backslashreplace"))
    numbers = range(given.bodies) if given.only is None else [given.only]
    outcomes, findings, began = Counter[str](), list[Finding](), monotonic()
    for start in range(0, len(numbers), _CHUNK):
        report = asyncio.run(_hunted(given.seed, numbers[start : start + _CHUNK]))
        outcomes += report.outcomes
        print(
            *report.findings[: max(0, _SHOWN - len(findings))], sep="\n", end="\n" * bool(report.findings), flush=True
        )
        findings += report.findings
        print(f"{outcomes.total():>7} bodies, {len(findings)} findings, {monotonic() - began:.0f} s", file=sys.stderr)
    for outcome, count in outcomes.most_common():
        print(f"{count:>7} {outcome}")
    print(
        f"{outcomes.total()} bodies over 3 protocols, seed {given.seed}: {len(findings)} read wrongly "
        f"({monotonic() - began:.0f} s)"
    )
    return 1 if findings else 0


async def _hunted(seed: str, numbers: Sequence[int]) -> Report:
    async with providers_and_server() as providers:
        return await hunted(providers, seed, numbers)


if __name__ == "__main__":
    sys.exit(main())
