"""What a run hands to its activities and gets back: small frozen payloads, one per activity.

Every byte here enters history, so defaults are left out when they are written down (`workflows/payload_converter.py`),
a conversation goes by name (`transcript`), and an agent's spec by digest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loom.domain.agents.hook_steps import HookStep
from loom.domain.agents.reflection import Stage
from loom.domain.agents.spec import AgentSpec
from loom.domain.context.compression import KnownFacts
from loom.domain.context.model_context import Measures
from loom.domain.core.messages import Group, JsonObject, Message, ToolCall, Usage
from loom.domain.core.messages import arguments_digest as digest_of
from loom.domain.core.output_schema import CheckedAnswer
from loom.domain.core.requests import RunRequest, RunResult
from loom.domain.core.tasks import Notice, Origin
from loom.domain.core.tool_calls import CallPlan, Effect, ToolSpec
from loom.domain.core.transcript import Tail
from loom.domain.run.window import TooLong, Trigger
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
    """Of a run that another one has started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """What a forked run begins with: the conversation of another run up to some turn, and what that run then had."""

    messages: tuple[Message, ...]
    todos: Todos = field(default_factory=Todos)
    artifacts: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The agent as pinned into the run, and which search attributes the server knows."""

    spec: AgentSpec
    search_attributes: tuple[str, ...] = ()
    ledger: bool = False
    """The workers keep account of effects: a lost call is asked after instead of being given up as unknown."""
    limits: TreeLimits | None = None
    """How far the run's tree may grow; None: recorded before there were trees."""
    earlier: Earlier | None = None
    """Of a forked run, which workers have under its name by now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HookRequest:
    """Ask one hook around the run."""

    origin: Origin
    turn: int = 0
    step: HookStep
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
    """Inline only when a worker did not know the digest."""
    tail: Tail
    grants: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    measures: Measures = field(default_factory=Measures)
    compresses: bool = False
    """The run compresses its conversation when it is told that it is too long; else the call is made all the same."""
    allowance: Share | None = None
    """What of a budget is left for the call; None: nothing limits it."""
    wrap_up: bool = False
    """The run's last answer: no tools."""
    refused: bool = False
    """It has done so for this call already, since the provider refused it."""
    pieces: int = 0
    """Answers before this one that belong to it, since they were cut."""
    stage: Stage = ""
    """What the turn is for, in a run that reflects."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConductRequest:
    """The same for a crew, as far as its history tells the stream."""

    origin: Origin
    turn: int
    attempt: int = 1
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReply:
    """The model's answer with a plan for each of its tool calls, in their order."""

    message: Message | None = None
    """None: the worker does not know the transcript or the spec; send them whole."""
    plans: tuple[CallPlan, ...] = ()
    stop: StopReason = "end"
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = None
    """Millionths of a US dollar; None when the price is unknown."""
    estimated: int = 0
    """Tokens of the context by Loom's own count, to be held against the provider's."""
    collapsed: int = 0
    """Messages at the conversation's beginning whose results the model saw shortened."""
    recalled: tuple[Message, ...] = ()
    """What memory brought to what people had just said; it stands in the conversation before the answer."""
    uncovered: Spend | None = None
    """There is no answer, and nothing was sent: the call might have taken this, which is more than it was allowed."""
    reserved: Spend | None = None
    """What the call might have taken at most, of one that has an allowance."""
    too_long: TooLong | None = None
    """There is no answer: the conversation has to be compressed first."""
    checked: CheckedAnswer | None = None
    """What the output schema says of a final answer; None: there is no schema, or this is none."""
    approves: bool = False
    """Of a critique: the draft can go out as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressRequest:
    """Make a conversation shorter."""

    origin: Origin
    turn: int
    attempt: int = 1
    trigger: Trigger
    tokens: int
    """Of the context that was too long."""
    spec_digest: str
    spec: AgentSpec | None = None
    tail: Tail
    measures: Measures = field(default_factory=Measures)
    facts: KnownFacts = field(default_factory=KnownFacts)
    plain: bool = False
    """Without a model."""
    allowance: Share | None = None
    """What of a budget is left for it; None: nothing limits it."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Compressed:
    """The shorter conversation: a message for what is gone, and what stays, by its place in the longer one."""

    summary: Message | None = None
    """None: the worker does not know the transcript or the spec; send them whole."""
    kept: tuple[Group, ...] = ()
    tokens: int = 0
    """Of the context that is left."""
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateRequest:
    """Have a final answer rated by the agent's model."""

    origin: Origin
    turn: int
    attempt: int = 1
    spec_digest: str
    spec: AgentSpec | None = None
    tail: Tail
    answer: str
    ratio: float = 1.0
    """Tokens of the provider for one of ours, as far as the run has learned it."""
    allowance: Share | None = None
    """What of a budget is left for it; None: nothing limits it."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """What the model said of it."""

    metrics: Mapping[str, float] | None = None
    """Each from 0 to 1; None: it said nothing that could be read."""
    why: str = ""
    """Why there are none."""
    uncovered: Spend | None = None
    """Nothing was sent: the call might have taken this, which is more than it was allowed."""
    resend: bool = False
    """The worker does not know the transcript or the spec; send them whole."""
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """Plan calls again because rules or arguments changed since their plan was made."""

    origin: Origin
    turn: int
    spec: AgentSpec
    calls: tuple[ToolCall, ...]
    grants: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPlans:
    """One plan per call of the request, in its order."""

    plans: tuple[CallPlan, ...]


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
    """None: as in the model's answer, which the worker has under `call_id`; if not, it asks to resend."""
    arguments_digest: str = ""
    """Set when `arguments` is None: only arguments with this digest are meant."""
    made: ToolSpec | None = None
    """The tool itself, where the run alone has it: the agent made it, or it is a script of a skill."""
    skill: SkillUse | None = None
    """The skill that the call is about."""
    effect: Effect = Effect.ONCE
    begun: bool = False
    """An earlier attempt may have begun: without an account of effects, nobody knows what came of it."""
    accounted: bool = True
    """Its effect is reserved and finished; False after the account was away for too long."""
    timeout: float = 120.0
    workspace: str = ""
    note: str = ""
    """Put before the tool's output, for the model: what a person changed."""
    execution: str = ""
    """Start of the id of the run's first execution: the same across continue-as-new, another after a new start."""
    notices: tuple[Notice, ...] = ()

    @property
    def key(self) -> str:
        """Idempotency key: the same for every attempt at this call with these arguments, different for any other."""
        named = self.arguments_digest or digest_of(self.arguments or {})
        return f"{self.origin.run_id}/{self.execution}/t{self.turn}/{self.call_id}/{named}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishRequest:
    """Write notices to the live stream."""

    origin: Origin
    turn: int
    notices: tuple[Notice, ...]
