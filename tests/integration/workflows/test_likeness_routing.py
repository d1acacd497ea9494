"""Crews routed by embedding, with the offline embedder: who gets which request, in English and in Chinese, and why."""

import re
from typing import Any, Final

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import Harness
from loom.testing.model_server import text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_crews import start, team, you
from tests.trees import by_task

MEMBERS: Final = (
    {"name": "clerk", "description": "Answers questions about invoices, payments, prices and refunds."},
    {"name": "engineer", "description": "Finds the cause of errors and crashes in the software."},
    {"name": "courier", "description": "Knows where parcels are, and when they are delivered."},
)
REQUESTS: Final = {
    "I paid twice, please give me my money back.": "clerk",
    "The program stops with a traceback when I open it.": "engineer",
    "Where is my parcel? It should have come yesterday.": "courier",
    "我付了两次款，请把钱退给我。": "clerk",
    "程序一打开就崩溃并且报错。": "engineer",
    "我的包裹还没有送到，它在哪里？": "courier",
}
FOREIGN: Final = ("Who won the football match last night?", "昨晚的足球比赛谁赢了？")


async def chosen(loom: Harness, request: str, **router: Any) -> tuple[dict[str, str] | None, Any]:
    """Why the request went where it went, and what came of it."""
    run_id = await start(loom, team("routed", *MEMBERS, router={"by": "embedding", **router}), request)
    result = await loom.client.result(run_id)
    plans = [e.task.parameters for e in await told(loom.client, run_id) if e.task.action is Action.PLANNING]
    return (plans[0]["choice"] if plans else None), result


@pytest.mark.slow
async def test_the_member_whose_description_is_most_like_the_request_gets_it(working: Working) -> None:
    replies = {you(member["name"]): [text(f"by {member['name']}")] for member in MEMBERS}
    loom, _ = await working(by_task(replies), embedder="offline")

    for request, member in REQUESTS.items():
        choice, result = await chosen(loom, request)
        assert choice is not None, result.error
        assert (choice["member"], choice["by"], result.output) == (member, "embedding", f"by {member}"), request
        assert re.fullmatch(r"likeness 0\.8\d, the next has 0\.[78]\d", choice["reason"]), choice


@pytest.mark.parametrize("asked", FOREIGN)
async def test_a_request_that_is_like_none_goes_to_the_fallback_or_to_nobody(working: Working, asked: str) -> None:
    loom, model = await working(by_task({you("courier"): [text("not mine")]}), embedder="offline")

    _, refused = await chosen(loom, asked)
    assert model.requests == []
    choice, taken = await chosen(loom, asked, fallback="courier")

    assert (refused.status, refused.error.type) == (RunStatus.FAILED, "NoMemberFitsError")
    assert re.search(r"the closest is '\w+' with 0\.\d\d, 0\.80 are needed", refused.error.message)
    assert (taken.output, choice and choice["member"], choice and choice["by"]) == ("not mine", "courier", "fallback")
    assert choice is not None
    assert "the closest is" in choice["reason"]


async def test_a_threshold_of_ones_own_counts_in_the_place_of_the_models(working: Working) -> None:
    loom, _ = await working(by_task({you(member["name"]): [text("taken")] for member in MEMBERS}), embedder="offline")

    _, lax = await chosen(loom, FOREIGN[0], threshold=0.3)
    _, strict = await chosen(loom, next(iter(REQUESTS)), threshold=0.99)

    assert lax.output == "taken"
    assert "0.99 are needed" in strict.error.message
