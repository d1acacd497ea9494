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
    """Tokens that models wrote, including their thinking."""
    cached_tokens: int | None
    """Prompt tokens that the provider read from its cache."""
    total_tokens: int | None
    """The sum of `input_tokens` and `output_tokens`."""
    model_calls: int | None
    """Answered model calls."""
    cache_write_tokens: NotRequired[int]
    """Prompt tokens that the provider wrote to its cache, if there were any."""


class ErrorFields(TypedDict):
    """Why a run or an attempt failed."""

    type: str
    """The name of an error in `loom.errors`, or of a limit."""
    message: str
    """What was wrong, and what to do, in a sentence."""
    context: JsonObject
    """The details of the error, such as the name of a setting. May be empty."""


class ApprovalFields(TypedDict):
    """A call of the run or of a sub-agent that waits for a person."""

    call_id: str
    """What `approve` and `deny` take."""
    run_id: str
    """The run that made the call, which may be a sub-agent."""
    agent: str
    """The agent that made the call."""
    depth: int
    """How many levels the run that made the call is below the root."""
    tool: str
    """The name of the tool."""
    arguments: JsonObject
    """The arguments of the call, by name. Secrets are masked."""
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
    """When the call began to wait. None if the worker doesn't know."""
    expires_at: str | None
    """None if the approval doesn't expire, or while the run is paused."""
    question: NotRequired[str]
    """The question of an MCP server, which the approval's `arguments` answer."""
    schema: NotRequired[JsonObject]
    """The JSON Schema of the answer's fields."""
    url: NotRequired[str]
    """The address that the MCP server asks a person to open."""
    execution: NotRequired[str]
    """The execution of the run, which the proof of an approval must name. Only if the call needs a proof."""


class ParkedFields(TypedDict):
    """Why a run is parked, and when it continues."""

    waiting_on: str
    """`provider` or `operator`."""
    since: str
    """When the run was parked."""
    error: ErrorFields
    """The error of the last attempt."""
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
    """The id of the sub-agent's run, which takes requests of its own."""
    agent: str
    """The name of the agent."""
    description: str
    """The work that the sub-agent was given, in a few words."""
    status: str
    """A value of `RunStatus`."""
    waiting_on: str | None
    """What the sub-agent waits for, in a few words. None if it waits for nothing."""
    turn: int
    """The number of its current turn, from 1. 0 before the first."""
    all_turns: int
    """The turns of the sub-agent and of those below it."""
    sub_agents: int
    """The number of sub-agents below it."""
    tool_calls: int
    """Its tool calls so far, with those of the sub-agents below it."""
    usage: UsageFields
    """Its tokens so far, with those of the sub-agents below it."""
    cost: float | None
    """US dollars so far, with those of the sub-agents below it. None if a price is unknown."""
    children: NotRequired[list["ChildFields"]]
    """The sub-agents below it. Only a sub-agent that was asked itself names them."""


class BoundFields(TypedDict):
    """A limit, and how much of it is used. None as the limit: there is none."""

    spent: NotRequired[float | None]
    """What is used, with all delegated work. None if it is unknown, and absent for seconds."""
    limit: float | None
    """The limit. None if there is none."""


class BudgetsFields(TypedDict):
    """The limits of the run and of all work that it delegates."""

    tokens: BoundFields
    """Input and output tokens."""
    cost_usd: BoundFields
    """US dollars."""
    tool_calls: BoundFields
    """Calls of tools."""
    seconds: BoundFields
    """Seconds since the run started, including pauses and waits."""
    turns: BoundFields
    """Turns of the run, without those of its sub-agents."""


class ContextFields(TypedDict):
    """How full the model's context is, in tokens."""

    tokens: int | None
    """Tokens in the conversation, as far as they are known."""
    window: int | None
    """The size of the model's context window."""
    compressions: int | None
    """How often the conversation has been compressed."""


class TodoFields(TypedDict):
    """A task on the agent's own list."""

    task: str
    """The task, in the agent's words."""
    status: str
    """`pending`, `in_progress` or `completed`."""


class ForkedFromFields(TypedDict):
    """The run and turn that a fork started from."""

    run_id: str
    """The id of the other run."""
    turn: int
    """The fork starts at the end of this turn. 0 is the start of the other run."""


class ChatFields(TypedDict):
    """Which messages of a chat are answered."""

    received: int
    """The number of messages that the chat has received."""
    answered: int
    """The number of messages that it has answered."""
    answering: list[str]
    """The ids of the messages that are being answered."""
    queue: list[str]
    """The ids of the messages that wait."""
    since: str
    """When the chat began."""


class FaultFields(TypedDict):
    """Why no worker can continue the run, until `loom repair` does."""

    error: str
    """What the worker reported."""
    since: str | None
    """When the fault began. None if it isn't known."""


class RepositoryFields(TypedDict):
    """The repository that a run works on. The fields after `commit` are set once the change has been stored."""

    git: NotRequired[str]
    """The repository's URL. Not set for an archive."""
    revision: NotRequired[str]
    """The branch, the tag or the commit that was cloned. Not set for an archive."""
    archive: NotRequired[str]
    """The SHA-256 of the archive that the run works on."""
    name: NotRequired[str | None]
    """The archive's name."""
    left_out: NotRequired[list[str]]
    """The `.git` folders in the archive, which the run doesn't see: the first 20, and how many more."""
    commit: str
    """The commit that the run began with."""
    files: NotRequired[int]
    """The number of files that differ from this commit."""
    patch: NotRequired[str | None]
    """The id of the artifact with the patch. None if nothing has changed, or if it isn't stored."""
    branch: NotRequired[str | None]
    """The branch that has the change. None if it wasn't pushed."""
    pushed: NotRequired[str | None]
    """The commit on this branch."""
    problem: NotRequired[str | None]
    """Why the patch isn't stored, or the branch wasn't pushed."""


class StatusFields(TypedDict):
    """What a run is doing and has used."""

    run_id: str
    """The run's id, which is also its Workflow ID."""
    status: str
    """A value of `RunStatus`, which is a text, too: `status["status"] == RunStatus.RUNNING`."""
    agent: str
    """The name of the run's agent."""
    model: str | None
    """The model as `prefix:name`. None until a worker has chosen it."""
    turn: int | None
    """The number of the current turn, from 1. 0 before the first."""
    max_turns: int | None
    """The maximum number of turns. None until a worker has prepared the run."""
    waiting_on: str | None
    """What the run waits for, in a few words."""
    parked: ParkedFields | None
    """Set while the run waits for its provider or its operator."""
    pending_approvals: list[ApprovalFields]
    """What waits for a person, in the run and in all sub-agents."""
    question: str | None
    """The agent's question, which `send` answers."""
    usage: UsageFields
    """Tokens and model calls so far, with those of all sub-agents."""
    cost: float | None
    """US dollars so far, with those of all sub-agents. None if a price is unknown."""
    budget: BudgetsFields
    """The run's limits, and how much of them is used."""
    priority: int | None
    """1 is the highest, 5 the lowest. None if nobody has set one."""
    session_id: str | None
    """The session that the run belongs to. None if it belongs to none."""
    tenant: str | None
    """The tenant that the run works for. None if the request named none."""
    context: ContextFields
    """How full the model's context is."""
    tool_calls: int | None
    """Tool calls so far, with those of all sub-agents."""
    queued_messages: int | None
    """Messages that the agent hasn't read."""
    todos: list[TodoFields]
    """The agent's own list of tasks. Empty if it keeps none."""
    children: list[ChildFields]
    """The sub-agents directly below the run."""
    choice: JsonObject | None
    """A crew's latest choice, as in the event `node.planning`."""
    chat: ChatFields | None
    """None unless the run is a chat."""
    forked_from: ForkedFromFields | None
    """The run and turn that the run started from. None unless it is a fork."""
    workspace: RepositoryFields | None
    """The repository that the run works on, and the change to it. None if the run works in a folder."""
    error: ErrorFields | None
    """None unless the run has ended with an error."""
    stale: NotRequired[bool]
    """True if no worker answered. The values then come from the server."""
    fault: NotRequired[FaultFields]
    """Set if no worker can continue the run."""
