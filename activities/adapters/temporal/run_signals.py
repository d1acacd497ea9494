"""Send messages between the runs in a tree, on behalf of the sending run. These messages use the same signal as
messages from people.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.toolbox.built_in.message_agent import ABOVE, NoSuchReader
from loom.domain.core.errors import ToolUnavailableError
from loom.domain.core.requests import ENDED
from loom.domain.core.tool_names import MESSAGE_AGENT


class TemporalMailbox:
    """A `Mailbox` that uses a Temporal client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, sender: str, root: str, to: str, text: str, *, wants_reply: bool) -> str:
        """See the port."""
        parent = _parent_of(sender, root)
        beside = [] if parent is None else await self._children(parent)
        reader, name = await self._reader(sender, root, to, beside)
        writer = next((_name_of(child) for child in beside if child.get("run_id") == sender), "the agent above you")
        told = f"[Message from another agent, {writer}; not from a person.] {text}"
        if wants_reply:
            told += f"\nIt waits for your reply: call `{MESSAGE_AGENT}` with to={sender!r}."
        try:
            letter = {"text": told, "by": writer, "from_agent": True}
            await self._client.get_workflow_handle(reader).signal("send_message", letter)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise ToolUnavailableError(f"{name} has ended and no longer reads messages") from None
            raise ToolUnavailableError(f"the message could not be sent: {error}") from error
        return name

    async def unread(self, run_id: str) -> int:
        """See the port."""
        return int((await self._status(run_id)).get("queued_messages") or 0)

    async def _reader(self, sender: str, root: str, to: str, beside: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """Return the recipient's run id and name."""
        if to == ABOVE:
            parent = _parent_of(sender, root)
            if parent is None:
                raise NoSuchReader("there is no agent above you: you lead this work")
            return parent, "the agent above you"
        if to == root or to.startswith(f"{root}/"):
            if to == sender:
                raise NoSuchReader("that is you")
            return to, to
        below = await self._children(sender)
        running = [c for c in (*beside, *below) if c.get("run_id") != sender and c.get("status") not in ENDED]
        found = [child for child in running if to in (_name_of(child), child.get("agent"))]
        if len(found) == 1:
            return str(found[0]["run_id"]), _name_of(found[0])
        if found:
            ids = ", ".join(str(child["run_id"]) for child in found)
            raise NoSuchReader(f"{len(found)} agents are named {to!r}: use a run id: {ids}")
        names = ", ".join(sorted({_name_of(child) for child in running})) or "nobody else"
        above = "" if _parent_of(sender, root) is None else f", and `{ABOVE}`"
        raise NoSuchReader(f"there is no running agent {to!r}: there is {names}{above}")

    async def _children(self, run_id: str) -> list[Mapping[str, Any]]:
        return [child for child in (await self._status(run_id)).get("children") or [] if isinstance(child, Mapping)]

    async def _status(self, run_id: str) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await self._client.get_workflow_handle(run_id).query("status", result_type=dict)
        except (RPCError, WorkflowQueryFailedError) as error:
            raise ToolUnavailableError(f"the run {run_id} does not respond now: {error}") from error
        return answer


def _parent_of(run_id: str, root: str) -> str | None:
    """Return the parent's id, which is a prefix of the child's id."""
    return None if run_id == root or not run_id.startswith(f"{root}/") else run_id.rpartition("/")[0]


def _name_of(child: Mapping[str, Any]) -> str:
    """Return a child's name: the crew member's name, or else the description of its task."""
    return str(child.get("description") or child.get("agent") or child.get("run_id")).partition(", attempt ")[0]
