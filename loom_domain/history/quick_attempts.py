"""Find the requests of quick attempts at tool calls. History has their results, but not their requests."""

from collections.abc import Iterator

from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_calls import ToolResult
from loom.domain.machine.activity_requests import quick_attempt, tool_activity_id
from loom.domain.run.activity_payloads import ModelReply, ModelRequest, ToolRequest


class LocalCalls:
    """The calls in the model's latest answer. Only these can run before its next one."""

    def __init__(self) -> None:
        self._request: ModelRequest | None = None
        self._calls: dict[str, ToolCall] = {}

    def answered(self, request: ModelRequest, reply: ModelReply) -> None:
        """Learn the calls in an answer."""
        if reply.message is None:
            return
        self._request = request
        self._calls = {tool_activity_id(request.turn, call.id, 1): call for call in reply.message.tool_calls}

    def request(self, activity_id: str) -> ToolRequest | None:
        """Return the request of the attempt with this activity id, or None if no answer asked for it."""
        call = self._calls.get(activity_id)
        return None if self._request is None or call is None else quick_attempt(self._request, call)


def quick_reads(request: ModelRequest, reply: ModelReply) -> Iterator[tuple[ToolRequest, ToolResult | None]]:
    """Yield the quick attempts that the activity made after it called the model, with their results. The result is None
    if an attempt failed or took too long.
    """
    calls = reply.message.tool_calls if reply.message else ()
    for call, plan in zip(calls, reply.plans, strict=True):
        if plan.is_quick:
            yield quick_attempt(request, call), plan.result
