"""Runs that wait for their provider or their operator, at the command line."""

import asyncio
import json

import pytest

from loom.testing.harness import Harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, status, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import command_line, new_id, said

LOOK = calls(ToolUse("list_dir", {"path": "."}))


def without_openai(lost: Reply) -> object:
    """Two turns of any model, and an answer of Anthropic's only."""
    return lambda request: LOOK if request.turn < 2 else text("finished") if request.provider == "anthropic" else lost


async def listed(loom: Harness, waiting: str) -> list[str]:
    """The runs that `loom list` says wait for this party."""
    found = json.loads((await command_line(loom)("list", "--waiting", waiting, "--json")).out)
    return [run["run_id"] for run in found]


@pytest.mark.slow
async def test_a_run_that_lost_its_access_says_how_it_goes_on_and_goes_on_with_another_model(working: Working) -> None:
    loom, _ = await working(without_openai(status(401, message="no such key")))
    cli, run_id = command_line(loom), new_id()
    running = await cli.begun("run", "look", "--id", run_id, "--json")

    hint = await said(running.stderr, "MODEL`.")
    watching = await cli.begun("watch", run_id)
    shown = await said(watching.stdout, "MODEL`.")
    seen = (await cli("status", run_id)).out

    for output in (hint, shown, seen):
        assert "OPENAI_API_KEY" in output
        assert f"`loom retry {run_id} --model MODEL`" in output
    assert "waiting on operator" in seen.splitlines()

    async def is_listed() -> bool:
        return run_id in await listed(loom, "operator") and run_id not in await listed(loom, "provider")

    await eventually(is_listed)
    retried = await cli("retry", run_id, "--model", "anthropic:backup", "--json")
    assert retried.json["accepted"]
    (result, _), _ = await asyncio.gather(running.communicate(), watching.communicate())
    assert (running.returncode, watching.returncode, json.loads(result)["output"]) == (0, 0, "finished")
    assert (await cli("retry", run_id)).code != 0


@pytest.mark.slow
async def test_all_runs_that_wait_are_retried_together(working: Working) -> None:
    is_back, later = asyncio.Event(), status(429, retry_after=600)

    def replies(request: SeenRequest) -> Reply:
        return LOOK if request.turn < 2 else text("finished") if is_back.is_set() else later

    loom, _ = await working(replies, model_attempts=1)
    cli = command_line(loom)
    run_ids = {await loom.start() for _ in range(3)}

    for run_id in run_ids:
        await loom.until(run_id, lambda status: status["waiting_on"] == "provider")

    async def are_listed() -> bool:  # the list follows the runs a moment later
        return run_ids <= {*await listed(loom, "provider")}

    await eventually(are_listed)
    is_back.set()
    receipts = (await cli("retry", "--all", "--waiting", "provider", "--json")).json
    assert {receipt["run_id"]: receipt["accepted"] for receipt in receipts} == dict.fromkeys(run_ids, True)
    for run_id in run_ids:
        assert (await loom.client.result(run_id)).output == "finished"


@pytest.mark.slow
async def test_a_run_that_has_ended_goes_on_and_is_watched_through_its_ends(working: Working) -> None:
    loom, _ = await working(lambda request: LOOK if request.turn < 3 else text("finished"))
    cli, run_id = command_line(loom), new_id()
    assert (await cli("run", "look", "--id", run_id, "--max-turns", "2")).code == 4
    assert "--max-turns" in (await cli("retry", "--all", "--max-turns", "9")).err
    assert "name a larger one with `max_turns`" in (await cli("retry", run_id)).err

    retried = await cli("retry", run_id, "--max-turns", "9", "--message", "hurry")

    assert f"it was limit_reached; watch it with: loom watch {run_id}" in retried.out
    watched = await cli("watch", run_id)
    assert (watched.code, "the run continues after it was limit_reached" in watched.out) == (0, True)
    result = (await cli("result", run_id, "--json")).json
    assert (result["output"], result["retries"]) == ("finished", 1)
    refused = await cli("retry", run_id)
    assert (refused.code, "it has since completed" in refused.err) == (2, True)


async def test_a_run_whose_key_is_rejected_from_the_start_fails_and_names_the_key(working: Working) -> None:
    loom, _ = await working(lambda _: status(401, message="no such key"))
    ran = await command_line(loom)("run", "look")
    assert (ran.code, "check OPENAI_API_KEY" in ran.out) == (1, True)
