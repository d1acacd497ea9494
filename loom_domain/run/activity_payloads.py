"""Activity payloads: what the workflow sends to each activity and gets back, as small frozen values.

Every byte here enters history, so defaults are left out when they are written down (`workflows/payload_converter.py`),
a conversation goes by name (`transcript`), and an agent's spec by digest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loom.domain.agents.hook_steps import HookPoint
from loom.domain.agents.reflection import Stage
from loom.domain.agents.spec import AgentSpec
from loom.domain.context.compression import KnownFacts
from loom.domain.context.model_context import Measures
from loom.domain.core.messages import Group, JsonObject, Message, Tail, ToolCall, Usage
from loom.domain.core.output_schema import CheckedAnswer
from loom.domain.core.requests import RunRequest, RunResult
from loom.domain.core.tasks import Notice, Origin
from loom.domain.core.tool_calls import Effect, PreparedCall, ToolSpec
from loom.domain.run.conversation import TooLong, Trigger
from loom.domain.skills.catalog import SkillUse
from loom.domain.tools.todos import Todos
from loom.domain.tree.budget import Share, Spend
from loom.domain.tree.lineage import Lineage, TreeLimits

StopReason: TypeAlias = Literal["end", "tools", "length"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareRequest:
    """Resolve the agent and check that the run can start."""

    origin: Origin
    request: RunRequest
    lineage: Lineage | None = None
    """Set for a run that another run has started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """What a forked run starts from: the conversation of another run up to a turn, and what that run had by then."""

    messages: tuple[Message, ...]
    todos: Todos = field(default_factory=Todos)
    artifacts: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The agent as pinned into the run, and which search attributes the server knows."""

    spec: AgentSpec
    search_attributes: tuple[str, ...] = ()
    ledger: bool = False
    """The workers record effects, so the outcome of a lost call can be looked up instead of being unknown."""
    limits: TreeLimits | None = None
    """How far the run's tree may grow. None in histories from before there were trees."""
    earlier: Earlier | None = None
    """Set for a forked run; workers keep its transcript under its name by now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HookRequest:
    """Run one hook before the first turn or after the end."""

    origin: Origin
    turn: int = 0
    step: HookPoint
    spec_digest: str = ""
    task: str
    metadata: JsonObject = field(default_factory=dict)
    result: RunResult | None = None
    """Once the run has ended."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """Call the model with a transcript."""

    origin: Origin
    turn: int
    attempt: int = 1
    spec_digest: str
    spec: AgentSpec | None = None
    """Sent only when a worker did not know the digest."""
    tail: Tail
    grants: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    measures: Measures = field(default_factory=Measures)
    compresses: bool = False
    """Whether the run compresses a conversation that is too long; otherwise the call is made in any case."""
    allowance: Share | None = None
    """The budget that is left for the call; None without a limit."""
    wrap_up: bool = False
    """This is the run's last answer, without tools."""
    refused: bool = False
    """The provider has refused this call as too long, and the conversation was compressed for it."""
    pieces: int = 0
    """How many cut answers before this one belong to it."""
    stage: Stage = ""
    """The stage of a run that reflects."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConductRequest:
    """The same call for a crew: the part of the request from which stream events are rebuilt."""

    origin: Origin
    turn: int
    attempt: int = 1
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReply:
    """The model's answer, with a plan for each of its tool calls in order."""

    message: Message | None = None
    """None when the worker does not know the transcript or the spec: send them whole."""
    plans: tuple[PreparedCall, ...] = ()
    stop: StopReason = "end"
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = None
    """Millionths of a US dollar; None when the price is unknown."""
    estimated: int = 0
    """Tokens of the context by Loom's own count, to compare with the provider's."""
    collapsed: int = 0
    """How many of the first messages the model saw with shortened results."""
    recalled: tuple[Message, ...] = ()
    """Memories recalled for the latest messages; they are inserted into the conversation before the answer."""
    uncovered: Spend | None = None
    """Set when nothing was sent, as the call might have used this much, which is more than its allowance."""
    reserved: Spend | None = None
    """The most that a call with an allowance might have used."""
    too_long: TooLong | None = None
    """Set when nothing was answered, as the conversation has to be compressed first."""
    checked: CheckedAnswer | None = None
    """A final answer checked against the output schema; None without a schema or a final answer."""
    approves: bool = False
    """In a critique: the draft is approved as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressRequest:
    """Compress a conversation."""

    origin: Origin
    turn: int
    attempt: int = 1
    trigger: Trigger
    tokens: int
    """Tokens of the context that was too long."""
    spec_digest: str
    spec: AgentSpec | None = None
    tail: Tail
    measures: Measures = field(default_factory=Measures)
    facts: KnownFacts = field(default_factory=KnownFacts)
    plain: bool = False
    """Compress without a model."""
    allowance: Share | None = None
    """The budget that is left for it; None without a limit."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Compressed:
    """The shorter conversation: a summary of what was removed, and what stays, by its place in the longer one."""

    summary: Message | None = None
    """None when the worker does not know the transcript or the spec: send them whole."""
    kept: tuple[Group, ...] = ()
    tokens: int = 0
    """Tokens of the context that is left."""
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateRequest:
    """Have the agent's model rate a final answer."""

    origin: Origin
    turn: int
    attempt: int = 1
    spec_digest: str
    spec: AgentSpec | None = None
    tail: Tail
    answer: str
    ratio: float = 1.0
    """The provider's tokens for one of Loom's own count, as the run has measured it so far."""
    allowance: Share | None = None
    """The budget that is left for it; None without a limit."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """The model's ratings of a final answer."""

    metrics: Mapping[str, float] | None = None
    """Each from 0 to 1; None when the ratings could not be read."""
    why: str = ""
    """Why there are no ratings."""
    uncovered: Spend | None = None
    """Set when nothing was sent, as the call might have used this much, which is more than its allowance."""
    resend: bool = False
    """The worker does not know the transcript or the spec; send them whole."""
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareCallsRequest:
    """Plan calls again after rules or arguments have changed."""

    origin: Origin
    turn: int
    spec: AgentSpec
    calls: tuple[ToolCall, ...]
    grants: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedCalls:
    """One prepared call for each call of the request, in order."""

    plans: tuple[PreparedCall, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRequest:
    """Run one tool call."""

    origin: Origin
    turn: int
    attempt: int = 1
    call_id: str
    tool: str
    spec_digest: str = ""
    arguments: JsonObject | None = None
    """None when the worker has them from the model's answer, under `call_id`; a worker without them asks to resend."""
    arguments_digest: str = ""
    """Set when `arguments` is None: the digest of the arguments to use."""
    made: ToolSpec | None = None
    """The tool itself, when no worker has it registered: the agent made it, or it is a script of a skill."""
    skill: SkillUse | None = None
    """The skill that the call uses."""
    effect: Effect = Effect.ONCE
    begun: bool = False
    """An earlier attempt may have begun; without a record of effects, its outcome is unknown."""
    accounted: bool = True
    """Its effect is recorded; False after the record was unavailable for too long."""
    timeout: float = 120.0
    workspace: str = ""
    note: str = ""
    """Prepended to the tool's output, to tell the model what a person changed."""
    execution: str = ""
    """Start of the id of the run's first execution: the same across continue-as-new, another after a new start."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishRequest:
    """Write notices to the live stream."""

    origin: Origin
    turn: int
    notices: tuple[Notice, ...]
