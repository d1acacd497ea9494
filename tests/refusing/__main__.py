"""Hold many conversations with a provider that refuses at random what real ones refuse.

python -m tests.refusing --runs 1000 --seed 1 [--show 20] [--most SECONDS] [--only 17,233]
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

import pytest
import structlog

from loom.testing.harness import Addresses
from loom.testing.stack import running_stack
from loom.workflows import options
from tests.refusing.conversations import Conversation
from tests.refusing.runs import Ended, conversations, meeting, report, run_all, sample

CHUNK: Final = 100
"""Conversations between two reports of progress."""


async def _held(addresses: Addresses, root: Path, talks: Sequence[Conversation], most: float) -> list[Ended]:
    began, ended = monotonic(), list[Ended]()
    async with meeting(addresses, root, talks) as (loom, server, outside):
        for start in range(0, len(talks), CHUNK):
            if monotonic() - began > most:
                print(f"stopped after {start} of {len(talks)} runs", file=sys.stderr)
                break
            ended += await run_all(loom, server, outside, talks[start : start + CHUNK])
            wrong = sum(bool(each.faults) for each in ended)
            print(f"{len(ended):>6} runs, {wrong} with faults, {monotonic() - began:.0f} s", file=sys.stderr)
    return ended


def main() -> int:
    """Return 1 if anything is wrong with a run."""
    asked = argparse.ArgumentParser(prog="python -m tests.refusing", description=__doc__)
    asked.add_argument("--runs", type=int, default=1000)
    asked.add_argument("--seed", default="1")
    asked.add_argument("--show", type=int, default=20, help="runs with faults to show")
    asked.add_argument("--most", type=float, default=3600.0, help="seconds after which no more runs are started")
    asked.add_argument("--only", default="", help="the numbers of the runs to try, of those that --runs names")
    given = asked.parse_args()
    talks = conversations(given.runs, given.seed)
    chosen = [talks[int(number)] for number in given.only.split(",")] if given.only else talks
    logging.disable(logging.CRITICAL)  # each refusal would be logged, by Temporal's SDK and by Loom
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # A busy machine may stand still for the usual 1.8 seconds. The call would then be made again, in the middle of
        # a script that goes on with each reply.
        patch.setattr(options, "LEASED_HEARTBEAT", timedelta(minutes=1))
        root = Path(folder).resolve()
        (root / "work").mkdir()
        with running_stack(root / ".loom") as addresses:
            ended = asyncio.run(_held(addresses, root / "work", chosen, given.most))
    print(*sample(ended, given.show, given.seed), sep="\n")
    print(report(ended))
    return 1 if any(each.faults for each in ended) else 0


if __name__ == "__main__":
    sys.exit(main())
