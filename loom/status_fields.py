"""The fields of a run's status, as `LoomClient.status`, the `status` query and `loom status --json` return it.

Times are texts in ISO 8601 with their offset from UTC, and costs are US dollars. A cost is None if the price of a model
is unknown. If `stale` is set, no worker answered: what only a worker knows is None or empty.
"""

from typing import NotRequired, TypedDict

from loom.domain.core.messages import JsonObject


class UsageFields(TypedDict):
    """Tokens and calls so far. The fields are None in a status that is stale."""

    input_tokens: int | None
    """Prompt tokens, including `cached_tokens`."""
    output_tokens: int | None
    cached_tokens: int | None
    """Prompt tokens that the provider read from its cache."""
    total_tokens: int | None
    model_calls: int | None
    cache_write_tokens: NotRequired[int]
    """Prompt tokens that the provider wrote to its cache, if there were any."""


class ErrorFields(TypedDict):
    """Why a run or an attempt failed."""

    type: str
    """The name of an error in `loom.errors`, or of a limit."""
    message: str
    context: JsonObject


class ApprovalFields(TypedDict):
    """A call of the run or of a sub-agent that waits for a person."""

    call_id: str
    """What `approve` and `deny` take."""
    run_id: str
    """The run that made the call, which may be a sub-agent."""
    agent: str
    depth: int
    """How many levels the run that made the call is below the root."""
    tool: str
    arguments: JsonObject
    cut: bool
    """Whether long texts in `arguments` have been cut."""
    reason: str
    """Why the call needs an approval."""
    rule: str
    """The permission rule that asks. Empty if no rule does."""
    risk: str
    """What the call can do. Empty if the worker doesn't know."""
    digest: str
    """Stands for the exact call. An approval that names it approves no other call."""
    for_run: list[str]
    """The rules that `approve(…, scope="run")` would add to the run."""
    asked_at: str | None
    expires_at: str | None
    """None if the approval doesn't expire, or while the run is paused."""
    question: NotRequired[str]
    """The question of an MCP server, which the approval's `arguments` answer."""
    schema: NotRequired[JsonObject]
    """The JSON Schema of the answer's fields."""
    url: NotRequired[str]
    """The address that the MCP server asks a person to open."""


class ParkedFields(TypedDict):
    """Why a run is parked, and when it continues."""

    waiting_on: str
    """`provider` or `operator`."""
    since: str
    error: ErrorFields
    probes: int
    """The number of failed attempts."""
    next_probe: str | None
    """None during an attempt, and if the run waits for an operator."""
    until: str
    """The run fails if the attempt at this time fails."""
    way_out: str
    """How a person can continue the run."""


class ChildFields(TypedDict):
    """A sub-agent."""

    run_id: str
    agent: str
    description: str
    status: str
    waiting_on: str | None
    turn: int
    all_turns: int
    """The turns of the sub-agent and of those below it."""
    sub_agents: int
    """The number of sub-agents below it."""
    tool_calls: int
    usage: UsageFields
    cost: float | None
    children: NotRequired[list["ChildFields"]]
    """The sub-agents below it. Only a sub-agent that was asked itself names them."""


class BoundFields(TypedDict):
    """A limit, and how much of it is used. None as the limit: there is none."""

    spent: NotRequired[float | None]
    limit: float | None


class BudgetsFields(TypedDict):
    """The limits of the run and of all work that it delegates."""

    tokens: BoundFields
    cost_usd: BoundFields
    tool_calls: BoundFields
    seconds: BoundFields
    turns: BoundFields


class ContextFields(TypedDict):
    """How full the model's context is, in tokens."""

    tokens: int | None
    window: int | None
    compressions: int | None


class TodoFields(TypedDict):
    """A task on the agent's own list."""

    task: str
    status: str
    """`pending`, `in_progress` or `completed`."""


class ForkedFromFields(TypedDict):
    """The run and turn that a fork started from."""

    run_id: str
    turn: int


class ChatFields(TypedDict):
    """Which messages of a chat are answered."""

    received: int
    answered: int
    answering: list[str]
    """The ids of the messages that are being answered."""
    queue: list[str]
    """The ids of the messages that wait."""
    since: str


class FaultFields(TypedDict):
    """Why no worker can continue the run, until `loom repair` does."""

    error: str
    since: str | None


class StatusFields(TypedDict):
    """What a run is doing and has used."""

    run_id: str
    status: str
    """A value of `RunStatus`, which is a text, too: `status["status"] == RunStatus.RUNNING`."""
    agent: str
    model: str | None
    """The model as `prefix:name`. None until a worker has chosen it."""
    turn: int | None
    """The number of the current turn, from 1. 0 before the first."""
    max_turns: int | None
    waiting_on: str | None
    """What the run waits for, in a few words."""
    parked: ParkedFields | None
    pending_approvals: list[ApprovalFields]
    """What waits for a person, in the run and in all sub-agents."""
    question: str | None
    """The agent's question, which `send` answers."""
    usage: UsageFields
    cost: float | None
    budget: BudgetsFields
    priority: int | None
    """1 is the highest, 5 the lowest. None if nobody has set one."""
    session_id: str | None
    tenant: str | None
    context: ContextFields
    tool_calls: int | None
    queued_messages: int | None
    """Messages that the agent hasn't read."""
    todos: list[TodoFields]
    children: list[ChildFields]
    choice: JsonObject | None
    """A crew's latest choice, as in the event `node.planning`."""
    chat: ChatFields | None
    """None unless the run is a chat."""
    forked_from: ForkedFromFields | None
    error: ErrorFields | None
    """None unless the run has ended with an error."""
    stale: NotRequired[bool]
    """True if no worker answered. The values then come from the server."""
    fault: NotRequired[FaultFields]
    """Set if no worker can continue the run."""
