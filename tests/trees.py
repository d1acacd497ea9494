"""Trees of runs in tests: a scripted model for each run of the tree, told apart by its task."""

from collections.abc import Mapping, Sequence
from typing import Any

from loom.testing.model_server import Reply, Script, SeenRequest, ToolUse, status


def by_task(replies: Mapping[str, Sequence[Reply]]) -> Script:
    """Replies for each run, in order; the run is the one whose first message has the key in it."""

    def reply(request: SeenRequest) -> Reply:
        task = next(str(message["content"]) for message in request.messages if message["role"] == "user")
        for key, script in replies.items():
            if key in task:
                return script[min(request.turn, len(script) - 1)]
        return status(418, message=f"no script for {task!r}")

    return reply


def delegate(description: str, prompt: str, call_id: str | None = None, **given: Any) -> ToolUse:
    """A call that hands over work."""
    return ToolUse("delegate_task", {"description": description, "prompt": prompt, **given}, call_id)
