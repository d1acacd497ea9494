"""Runs with a provider that refuses at random what real ones refuse. `make refusing` tries a thousand."""

from pathlib import Path

import pytest

from loom.testing.harness import Addresses, replay_all
from tests.refusing.runs import conversations, meeting, report, run_all


@pytest.mark.parametrize("runs", [20, pytest.param(200, marks=pytest.mark.slow)])
async def test_every_run_ends_with_an_answer_and_nothing_refused_is_sent_again(
    addresses: Addresses, workspace: Path, runs: int
) -> None:
    talks = conversations(runs, "ci")
    async with meeting(addresses, workspace, talks) as (loom, server, outside):
        ended = await run_all(loom, server, outside, talks)
        await replay_all(loom)
    assert sum(bool(each.heard.refusals) for each in ended) > runs / 2
    at_once = [each for each in ended if any(refusal.request == 0 for refusal in each.heard.refusals)]
    assert all(each.talk.agent == "odd" for each in at_once), "a task and sound tools are never refused"
    wrong = [str(each) for each in ended if each.faults]
    assert not wrong, "\n".join((*wrong, report(ended)))
