"""`message_agent`: send a message to another running agent in the same tree. The recipient can reply."""

import asyncio
from typing import Final, Protocol

from pydantic import Field

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.core.errors import ToolUnavailableError, ToolValidationError
from loom.domain.core.tool_calls import Effect, Scope, Verdict
from loom.domain.core.tool_names import MESSAGE_AGENT

LONGEST_WAIT: Final = 300.0
ABOVE: Final = "parent"
"""Recipient name for the agent that delegated the work. That agent waits until the work is done."""
NO_RUNS: Final = "agents can message each other only in runs, and there is no server here"
_LOOK: Final = 0.5
"""Seconds between checks for a reply."""


class NoSuchReader(Exception):
    """Raised if no agent has that name. The message lists the available agents."""


class Mailbox(Protocol):
    """Sends messages between runs in the same tree."""

    async def send(self, sender: str, root: str, to: str, text: str, *, wants_reply: bool) -> str:
        """Send a message to a run in the tree and return the run's name. Raises NoSuchReader if no agent has that name,
        and ToolUnavailableError if the message can't be delivered.
        """
        ...

    async def unread(self, run_id: str) -> int:
        """Return the number of messages that a run's agent hasn't read."""
        ...


class MessageAgent(Arguments):
    """Arguments of message_agent."""

    to: str = Field(
        min_length=1,
        max_length=500,
        description="`parent`, an agent that works beside you or for you, or a run id of your tree",
    )
    text: str = Field(min_length=1, max_length=20_000, description="They see nothing else")
    wait: float = Field(0.0, ge=0, le=LONGEST_WAIT, description="Seconds to wait for an answer")


def message_tool(mailbox: Mailbox | None) -> Tool:
    """Return the tool. Messages stay within the tree of runs."""

    async def send(arguments: MessageAgent, context: ToolContext) -> str:
        if mailbox is None:
            raise ToolUnavailableError(NO_RUNS)
        root = context.root_run_id or context.run_id
        waits_for_us = arguments.to == ABOVE or context.run_id.startswith(f"{arguments.to}/")
        wait = 0.0 if waits_for_us else arguments.wait
        before = await mailbox.unread(context.run_id) if wait else 0
        try:
            reader = await mailbox.send(context.run_id, root, arguments.to, arguments.text, wants_reply=wait > 0)
        except NoSuchReader as error:
            raise ToolValidationError(str(error)) from None
        if waits_for_us:
            return f"Sent to {reader}, who waits for your answer and reads the message with it: expect no reply."
        if not wait:
            return f"Sent to {reader}, who reads it when their next turn begins."
        return f"Sent to {reader}. {await _answered(mailbox, context, before, wait)}"

    description = (
        "Send a message or a question to another agent that works on the same task. It reads the message in its next"
        " turn and may answer. You read the answer in your next turn."
    )
    return FunctionTool(
        spec=tool_spec(
            MESSAGE_AGENT,
            description,
            MessageAgent,
            effect=Effect.ONCE,
            scope=Scope.CONTEXT,
            declared=Verdict.ALLOW,
            timeout=LONGEST_WAIT + 30,
        ),
        arguments=MessageAgent,
        function=send,
        missing=None if mailbox is not None else NO_RUNS,
    )


async def _answered(mailbox: Mailbox, context: ToolContext, before: int, seconds: float) -> str:
    try:
        async with asyncio.timeout(seconds):
            while await mailbox.unread(context.run_id) <= before:  # noqa: ASYNC110 - the message arrives on the server
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        return f"No answer within {seconds:g} s. If one comes later, you will read it in a later turn."
    return "A message has come in: you read it when your next turn begins."
