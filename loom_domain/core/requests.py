"""The types of requests and results in the public contract."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.messages import JsonObject, Part
from loom.domain.core.repositories import Workspace

AGENT_RUN: Final = "AgentRun"
CREW_RUN: Final = "CrewRun"
"""The workflow types for runs of a single agent and of a crew."""
STARTED_BY: Final = "started_by"
"""The field in a run's memo that names who started it."""
IN_LINE: Final = "loom-in-line"
"""The field in a large payload's metadata that keeps the payload in history. A codec has to keep the field."""


class RunStatus(StrEnum):
    """A run's status in the public contract."""

    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_INPUT = "waiting_for_input"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"
    LIMIT_REACHED = "limit_reached"
    BUDGET_EXHAUSTED = "budget_exhausted"
    FAILED = "failed"


ENDED: Final = frozenset(
    {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.ABORTED, RunStatus.LIMIT_REACHED, RunStatus.BUDGET_EXHAUSTED}
)


class ParkedOn(StrEnum):
    """What a parked run waits for."""

    PROVIDER = "provider"
    OPERATOR = "operator"


LONGEST_RUN: Final = 10 * 366 * 24 * 3600.0
"""The maximum time that a budget can specify, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The limits of a run. None means unlimited."""

    tokens: int | None = None
    cost_usd: float | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    """Wall-clock time since the run started, including pauses and waiting times."""
    turns: int | None = None
    """The maximum total number of turns of the run and all its sub-agents. In contrast, `max_turns` applies to the run
    alone.
    """
    depth: int | None = None
    """The maximum number of sub-agent levels."""
    children: int | None = None
    """The maximum total number of sub-agents."""

    def or_else(self, other: "Budget") -> "Budget":
        """Return this budget, with missing limits taken from the other budget."""
        mine = {name: value for name in self.__dataclass_fields__ if (value := getattr(self, name)) is not None}
        return replace(other, **mine)


ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model thinks before it answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """Options of an agent's model calls. The provider's defaults apply to options that aren't set."""

    reasoning_effort: ReasoningEffort | None = None
    thinking_budget: int | None = None
    """The maximum number of tokens for thinking, which count as output tokens. Anthropic only."""
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts at which the model stops. They aren't part of the answer."""
    parallel_tool_calls: bool | None = None
    """Whether the model may make several tool calls in one turn."""
    extra_body: JsonObject = field(default_factory=dict)
    """Fields to add to the body of each request."""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    # Not in the `repr`, from which manifests of earlier releases were made: an upgrade must not change them.
    accepts: tuple[str, ...] = field(default=(), repr=False)
    """What the model takes besides text: `image`, `pdf`, `audio`, or `text` if it takes nothing else. If empty, Loom
    decides by the provider and the model's name.
    """

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the options that are set."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) not in (None, (), {}))

    def or_else(self, other: "ModelOptions") -> "ModelOptions":
        """Return these options, with missing ones taken from the other options. Extra fields and headers are merged."""
        mine = {name: getattr(self, name) for name in self.given}
        return replace(
            other,
            **{
                **mine,
                "extra_body": {**other.extra_body, **self.extra_body},
                "extra_headers": {**other.extra_headers, **self.extra_headers},
            },
        )

    @property
    def for_short_answers(self) -> "ModelOptions":
        """The options for calls of Loom's own, such as summaries and ratings, whose answers have another form."""
        return replace(self, thinking_budget=None, stop=(), parallel_tool_calls=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkedFrom:
    """A turn of another run. This run starts after that turn."""

    run_id: str
    turn: int
    """The number of the turn. If 0, the fork starts before the first turn."""
    message: str | None = None
    """A message to send to the agent at that point."""


def fork_view(forked: ForkedFrom | None) -> JsonObject | None:
    """Return the run and turn that a fork starts from."""
    return None if forked is None else {"run_id": forked.run_id, "turn": forked.turn}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """The input of the `AgentRun` workflow. Only the `task` field is required."""

    task: str
    agent: str = "default"
    session_id: str | None = None
    model: str | None = None
    workspace: Workspace | None = None
    """A folder on the worker's machine, or a repository or an archive of which the worker makes a clone."""
    permissions: Mapping[str, str] = field(default_factory=dict)
    mode: str | None = None
    max_turns: int | None = None
    """If None, the agent's default applies."""
    patience: float | None = None
    """The number of seconds to wait for a provider or an operator. If None, the agent's default applies."""
    budget: Budget = field(default_factory=Budget)
    require_done_tool: bool | None = None
    skills: tuple[str, ...] = ()
    """Skills that are active when the run starts, in addition to the skills that the agent can load."""
    output_schema: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)
    forked_from: ForkedFrom | None = None
    crew: str | JsonObject | None = None
    """The crew that works on the task instead of an agent: either the name of a registered crew or a crew definition.
    """
    priority: int | None = None
    """From 1, which goes first, to 5. If None, the server's default applies, which is 3."""
    tenant: str | None = None
    """The customer, team or project that the run works for. Sub-agents work for the same tenant."""
    user_id: str | None = None
    """The person that the run works for. What Loom remembers of the person is there in each of the person's sessions.
    """
    model_options: ModelOptions = field(default_factory=ModelOptions)
    """Options of this run's model calls, which are merged over the agent's. Sub-agents have those of their agents."""
    parts: tuple[Part, ...] = ()
    """Images, recordings and files that belong to the task. Once the run is prepared, they are stored."""
    chat: bool = False
    """Whether the run answers messages one after the other and waits in between. The task is the first message."""
    message_id: str | None = None
    """The id of a chat's first message. If None, it is `m1`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunError:
    """The reason that a run failed. `type` is either the name of an error type in `loom.domain.core.errors` or the name
    of a limit.
    """

    type: str
    """The name of an error in `loom.errors`, or of a limit."""
    message: str
    """What was wrong, and what to do."""
    context: JsonObject = field(default_factory=dict)
    """The facts, such as `field` or `tool`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of a run."""

    status: RunStatus
    """How the run ended."""
    output: str
    """The final answer. Empty if there is none."""
    structured_output: Any
    """The answer as JSON, if the request has an output schema. None if the run didn't produce one."""
    completed_explicitly: bool
    """Whether the agent called a tool to end the run."""
    turns: int
    """The number of turns, each of which is one reply of a model."""
    usage: JsonObject
    """The tokens and model calls: `input_tokens`, `output_tokens`, `cached_tokens`, `total_tokens` and `model_calls`.

    """
    cost: float | None
    """The cost in US dollars. None if the model's price is unknown."""
    quality_metrics: JsonObject | None
    """The rating of the answer, if the agent's answers are rated."""
    tool_calls: int
    """The number of tool calls."""
    artifacts: tuple[JsonObject, ...]
    """What the run has stored in full. `LoomClient.artifact` reads one by its `id`."""
    error: RunError | None
    """Why the run failed, or which limit ended it. None if it completed."""
    children: tuple[JsonObject, ...] = ()
    """The runs that this run delegated work to. `usage`, `cost` and `tool_calls` include the amounts that these runs
    used.
    """
    own: JsonObject | None = None
    """The usage, cost, and tool calls of this run alone. None if there are no child runs."""
    retries: int = 0
    """How often the run has gone on after its end, because a person retried it."""
    workspace: JsonObject | None = None
    """The run's repository and its change: `git`, `revision`, `commit`, `files`, `patch`, `branch`, `pushed` and
    `problem`. None if the run worked in a folder.
    """

    @property
    def end_key(self) -> str:
        """The key of the run's last task. A run that goes on has another last task."""
        return f"end-{self.retries + 1}" if self.retries else "end"
