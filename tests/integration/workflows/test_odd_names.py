"""Runs with a model that writes odd names of tools, on a server that is strict about what comes back."""

import json
import re

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import Reply, SeenRequest, status, text
from tests.integration.activities.test_provider_state import SIGNED, piece, reply
from tests.integration.workflows.conftest import Working

NAMES = ("list_dir<|channel|>commentary", "functions.list_dir", "", "x" * 200, "列出目录", "no such tool 🙂", "a\0b")


def strict(request: SeenRequest) -> Reply:
    """Calls one odd name after the other. Rejects a call with such a name, or without its signature."""
    made = [call for message in request.messages for call in message.get("tool_calls", ())]
    if not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]) for call in made):
        return status(400, message="Invalid 'messages[1].tool_calls[0].function.name'")
    if any(call.get("extra_content") != SIGNED["extra_content"] for call in made):
        return status(400, message="Function call is missing a thought_signature in functionCall parts.")
    if len(made) == len(NAMES):
        return text("finished")
    function = {"name": NAMES[len(made)], "arguments": json.dumps({"path": "."})}
    return reply({"tool_calls": [{**piece(**SIGNED), "function": function}]})


async def test_odd_names_are_understood_or_told_and_the_run_goes_on(working: Working) -> None:
    loom, model = await working(strict)
    result = await loom.run()
    assert (result.status, result.output) == (RunStatus.COMPLETED, "finished")
    last = model.requests[len(NAMES)].messages
    names = [call["function"]["name"] for message in last for call in message.get("tool_calls", ())]
    results = [message["content"] for message in last if message["role"] == "tool"]
    assert names[:2] == ["list_dir", "list_dir"]
    assert not any("there is no tool" in result for result in results[:2])
    assert all("there is no tool" in result for result in results[2:])
