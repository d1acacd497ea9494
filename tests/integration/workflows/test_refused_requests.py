"""A provider that refuses a part of the conversation doesn't stop the run, and nothing refused is sent twice."""

import json
from typing import Any

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.model_replies import SeenRequest
from loom.testing.model_server import Reply, ToolUse, calls, status, text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working

LOOK = ToolUse("list_dir", {"path": "."})
ODD = "a\ufdd0b"


def refusing_noncharacters(turns: int) -> Any:
    """A provider that refuses each request that contains a noncharacter, without saying why."""

    def reply(request: SeenRequest) -> Reply:
        if "\\ufdd0" in json.dumps(request.messages):
            return status(400, message="Bad Request")
        return (
            calls(ToolUse("list_dir", {"path": f"{ODD}{request.turn}"})) if request.turn < turns else text("finished")
        )

    return reply


@pytest.mark.parametrize("model", ["openai:scripted", "anthropic:scripted"])
async def test_what_a_provider_refuses_is_left_out_for_the_rest_of_the_run(working: Working, model: str) -> None:
    loom, server = await working(refusing_noncharacters(3), model=model)
    run_id = await loom.start()
    result = await loom.client.result(run_id)
    events = await told(loom.client, run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "finished")
    bodies = [json.dumps(request.body, sort_keys=True) for request in server.requests]
    assert len(set(bodies)) == len(bodies)
    assert len(bodies) == 5  # one of four requests was refused
    said = [event.task.parameters for event in events if event.task.action is Action.MODEL_CALL]
    assert [call.get("left_out") for call in said] == [None, ["characters"], None, None]
    assert "Bad Request" in said[1]["because"]
