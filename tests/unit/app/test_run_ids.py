"""A client's methods refuse an empty run ID themselves, before they ask a server."""

import inspect
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from temporalio.client import Client

from loom import LoomClient
from loom.domain.core.errors import BadRequest

ARGUMENTS: Final = {
    "text": "go on",
    "rules": {"bash": "deny"},
    "turn": 0,
    "artifact_id": "a1",
    "ended_at": datetime(2026, 1, 1, tzinfo=UTC),
}
ASK_NO_SERVER: Final = {"events", "latest_offset", "upload", "upload_archive"}
"""The first two read the live stream only, and the others store files for a run that begins later."""
OF_A_RUN: Final = sorted(
    name
    for name, method in inspect.getmembers(LoomClient, inspect.isfunction)
    if not name.startswith("_") and name not in ASK_NO_SERVER
    if (run_id := inspect.signature(method).parameters.get("run_id")) and run_id.default is run_id.empty
)


@pytest.mark.parametrize("blank", ["", " \t"])
@pytest.mark.parametrize("name", OF_A_RUN)
async def test_a_blank_run_id_is_refused_in_words(name: str, blank: str) -> None:
    method = getattr(LoomClient(await Client.connect("127.0.0.1:1", lazy=True)), name)
    wanted = {each: value for each, value in ARGUMENTS.items() if each in inspect.signature(method).parameters}

    with pytest.raises(BadRequest, match=r"the run's id is blank: name a run; `loom list` shows all runs"):
        await _answer(method(blank, **wanted))


async def _answer(called: Any) -> object:
    return await (anext(called) if inspect.isasyncgen(called) else called)
