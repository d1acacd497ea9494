"""Activity payloads: the input and result of each activity, as small frozen values.

Every byte of a payload enters history. To keep payloads small, `workflows/payload_converter.py` omits default values, a
conversation is passed by reference (`transcript`), and an agent's spec is passed by digest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from loom.domain.agents.hook_steps import HookPoint
from loom.domain.agents.reflection import Stage
from loom.domain.agents.spec import AgentSpec
from loom.domain.context.compression import KnownFacts
from loom.domain.context.model_context import Measures
from loom.domain.core.messages import Group, JsonObject, Message, Part, Tail, ToolCall, Usage
from loom.domain.core.notifications import NotifyPlan
from loom.domain.core.output_schema import CheckedAnswer
from loom.domain.core.repositories import Checkout, Repository
from loom.domain.core.requests import ModelOptions, RunError, RunRequest, RunResult
from loom.domain.core.run_files import FilesRequest
from loom.domain.core.signatures import SignedStart
from loom.domain.core.tasks import Notice, Origin
from loom.domain.core.tenants import Admission
from loom.domain.core.tool_calls import Effect, PreparedCall, ToolSpec, Verdict
from loom.domain.core.tool_input import InputAnswer
from loom.domain.permissions.judge import Mode
from loom.domain.run.conversation import TooLong, Trigger
from loom.domain.skills.catalog import SkillUse
from loom.domain.tools.todos import Todos
from loom.domain.tree.budget import Share, Spend
from loom.domain.tree.lineage import Lineage, TreeLimits

StopReason: TypeAlias = Literal["end", "tools", "length"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareRequest:
    """The request to resolve the agent and check that the run can start."""

    origin: Origin
    request: RunRequest
    lineage: Lineage | None = None
    """Set if another run has started this run."""
    start: SignedStart | None = None
    """The signature of the run's start, if it has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """The starting point of a forked run: another run's conversation and state up to a turn."""

    messages: tuple[Message, ...]
    todos: Todos = field(default_factory=Todos)
    artifacts: tuple[JsonObject, ...] = ()
    execution: str = ""
    """The execution of the forked run, under which its artifacts are stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The agent that is pinned into the run, and the search attributes that are registered on the server."""

    spec: AgentSpec
    search_attributes: tuple[str, ...] = ()
    ledger: bool = False
    """Whether the workers record effects. If they do, the outcome of a lost call can be looked up."""
    quick_reads: bool = False
    """Whether quick reads run in the activity that called the model."""
    limits: TreeLimits | None = None
    """The maximum size of the run's tree. None in histories from older versions that don't support run trees."""
    earlier: Earlier | None = None
    """Set for a forked run. Workers have already cached its transcript."""
    signed: bool = False
    """Whether the owner of the worker's key signed the run's start."""
    signed_at: int = 0
    """The time at which the start was signed, in microseconds since the epoch, or 0."""
    steering_key: str = ""
    """The public key that requests to the run must be signed with. Empty if they need no signature."""
    widened: bool = False
    """Whether only a signature made the run, or a run above it, possible. Requests to it then need a signature."""
    approvals_are_named: bool = False
    """Whether the run refuses a signed approval that names neither its call nor the call's digest. Earlier releases
    accepted it.
    """
    execution: str = ""
    """Tells runs apart that use the same id one after the other. Ids in stores contain it."""
    admission: Admission = ""
    parts: tuple[Part, ...] = ()
    """The images, recordings and files of the request, stored."""
    notify: NotifyPlan | None = None
    """Whom the worker tells of what waits for people. None if it tells nobody."""
    proofs: bool = False
    """Whether the workers run calls only with proven approvals."""
    archive: str = ""
    """The digest of the archive that the run works on, which is stored. Empty if it works on something else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkspaceRequest:
    """The request to clone the run's repository."""

    origin: Origin
    workspace: Repository
    folder: str
    """The clone's path, which is pinned in the run's spec."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunWorkspace:
    """Where a run works, and the rules for its files. A run answers the query `workspace` with it."""

    origin: Origin
    spec: AgentSpec
    checkout: Checkout | None = None
    """Set if the run works in a clone."""
    steering_key: str = ""
    """The public key that requests to the run must be signed with. Empty if they need no signature."""
    is_returning: bool = False
    """Whether the run is storing or pushing the change in its clone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesCall:
    """A person's request to list, read or write files of a run."""

    request: FilesRequest
    start: SignedStart | None = None
    """The signature that came with the request, if there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeRequest:
    """The request to store the change to the run's repository."""

    origin: Origin
    checkout: Checkout


@dataclass(frozen=True, kw_only=True, slots=True)
class PushRequest:
    """The request to push the stored change to a branch."""

    origin: Origin
    checkout: Checkout
    tree: str
    """The id of the Git tree with the changed files."""
    branch: str
    title: str
    """The first line of the commit's message."""
    at: datetime
    """The time of the commit. It is the same in each attempt, so that they all make the same commit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """What has become of a push."""

    commit: str = ""
    """The commit on the branch. Empty if it wasn't pushed."""
    problem: str = ""
    """Why it wasn't pushed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorePartsRequest:
    """The request to read and store the parts of messages."""

    origin: Origin
    parts: tuple[Part, ...]
    spec: AgentSpec | None = None
    """Set if a part is a path or a URL, which is read under the agent's rules."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredParts:
    """The stored parts, in order. A text takes the place of a part that can't be used."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HookRequest:
    """The request to run one hook before the first turn or after the run has ended."""

    origin: Origin
    turn: int = 0
    step: HookPoint
    spec_digest: str = ""
    task: str
    metadata: JsonObject = field(default_factory=dict)
    result: RunResult | None = None
    """Set once the run has ended."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """The request to call the model with a transcript."""

    origin: Origin
    turn: int
    attempt: int = 1
    spec_digest: str
    spec: AgentSpec | None = None
    """The spec itself, which is sent only if a worker did not have the spec with this digest."""
    tail: Tail
    grants: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    measures: Measures = field(default_factory=Measures)
    compresses: bool = False
    """Whether the run compresses a conversation that is too long. If False, the model is called even if the
    conversation is too long.
    """
    allowance: Share | None = None
    """The remaining budget for the call. None means no limit."""
    wrap_up: bool = False
    """Whether this call produces the run's last answer, without tools."""
    refused: bool = False
    """Whether the provider rejected this call as too long and the conversation was then compressed."""
    pieces: int = 0
    """The number of truncated answers directly before this call. This call's answer continues them."""
    stage: Stage = ""
    """The stage of a run that uses the `reflect` pattern."""
    insists: bool = False
    """Whether a person has asked to try now, even if the model's circuit breaker is open."""
    begun: bool = False
    """Whether an attempt was lost. Perhaps its worker is alive, and it has a reply or will have one."""
    quick_read_execution: str = ""
    """The chain of executions that the run consists of (`ToolRequest.execution`), if the activity may also run the
    quick reads that the model asks for. Otherwise empty.
    """
    checkout: Checkout | None = None
    """Set if the run's workspace is a clone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConductRequest:
    """A crew's equivalent of a model request. It contains only the fields that are needed to rebuild stream events."""

    origin: Origin
    turn: int
    attempt: int = 1
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReply:
    """The model's answer and one prepared call for each of its tool calls, in order."""

    message: Message | None = None
    """None if the worker doesn't have the transcript or the spec. In that case, send both in full."""
    plans: tuple[PreparedCall, ...] = ()
    stop: StopReason = "end"
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = None
    """The cost in millionths of a US dollar. None if the price is unknown."""
    estimated: int = 0
    """Loom's own count of the context's tokens, for comparison with the provider's count."""
    collapsed: int = 0
    """The number of messages whose results were shortened for the model, counted from the beginning of the
    conversation.
    """
    recalled: tuple[Message, ...] = ()
    """Memories recalled for the latest messages. They are inserted into the conversation before the answer."""
    person_facts: tuple[int, ...] = ()
    """The facts about the person that the call contained. Histories don't record their text, so that it can be
    forgotten.
    """
    uncovered: Spend | None = None
    """The amount that the call might use. Set only if the call was not sent because it might exceed its allowance."""
    reserved: Spend | None = None
    """The maximum amount that a call with an allowance might have used."""
    too_long: TooLong | None = None
    """Set if there is no answer because the conversation must be compressed first."""
    checked: CheckedAnswer | None = None
    """The final answer, checked against the output schema. None if there is no schema or no final answer."""
    approves: bool = False
    """Whether the reply is a critique that approves the draft."""
    broken_off: str = ""
    """The text that the model had written when the run was stopped. There is then no message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressRequest:
    """The request to compress a conversation."""

    origin: Origin
    turn: int
    attempt: int = 1
    trigger: Trigger
    tokens: int
    """The number of tokens in the context that was too long."""
    spec_digest: str
    spec: AgentSpec | None = None
    tail: Tail
    measures: Measures = field(default_factory=Measures)
    facts: KnownFacts = field(default_factory=KnownFacts)
    plain: bool = False
    """Whether to compress without a model."""
    allowance: Share | None = None
    """The remaining budget for this request. None means no limit."""
    notices: tuple[Notice, ...] = ()
    insists: bool = False
    """Whether a person has asked to try now, even if the model's circuit breaker is open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compressed:
    """The shorter conversation: a summary of the removed messages, and the positions of the remaining messages."""

    summary: Message | None = None
    """None if the worker does not have the transcript or the spec. In that case, send both in full."""
    kept: tuple[Group, ...] = ()
    tokens: int = 0
    """The number of tokens in the remaining context."""
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateRequest:
    """The request to have the agent's model rate a final answer."""

    origin: Origin
    turn: int
    attempt: int = 1
    spec_digest: str
    spec: AgentSpec | None = None
    tail: Tail
    answer: str
    ratio: float = 1.0
    """The ratio of the provider's token count to Loom's, as measured by the run so far."""
    allowance: Share | None = None
    """The remaining budget for this request. None means no limit."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """The model's ratings of a final answer."""

    metrics: Mapping[str, float] | None = None
    """The ratings, each from 0 to 1. None if they could not be read."""
    why: str = ""
    """The reason that there are no ratings."""
    uncovered: Spend | None = None
    """The amount that the call might use. Set only if the call was not sent because it might exceed its allowance."""
    resend: bool = False
    """Whether the worker lacks the transcript or the spec. If so, send both in full."""
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareCallsRequest:
    """The request to prepare calls again after rules or arguments have changed."""

    origin: Origin
    turn: int
    spec: AgentSpec
    calls: tuple[ToolCall, ...]
    grants: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    checkout: Checkout | None = None
    """Set if the run's workspace is a clone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedCalls:
    """One prepared call for each call in the request, in order."""

    plans: tuple[PreparedCall, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRequest:
    """The request to run one tool call."""

    origin: Origin
    turn: int
    attempt: int = 1
    call_id: str
    tool: str
    spec_digest: str = ""
    arguments: JsonObject | None = None
    """None if workers have cached the arguments from the model's answer under `call_id`. A worker that doesn't have
    them asks for a resend.
    """
    arguments_digest: str = ""
    """The digest of the arguments. Set if `arguments` is None."""
    made: ToolSpec | None = None
    """The tool's definition, if it isn't registered on workers: the agent created it, or it is a skill's script."""
    skill: SkillUse | None = None
    """The skill that the call uses, if any."""
    effect: Effect = Effect.ONCE
    begun: bool = False
    """Whether an earlier attempt may have started. Without a record of effects, its outcome is unknown."""
    failures: int = 0
    """The number of earlier attempts whose tool failed. Each attempt after them has a record of its own."""
    accounted: bool = True
    """Whether the call's effect is recorded. False for a quick attempt, and if the record was unavailable for too
    long.
    """
    quick: bool = False
    """Whether this attempt is part of the activity that called the model, or a local activity. If it takes too long, an
    activity makes the next attempt.
    """
    timeout: float = 120.0
    workspace: str = ""
    checkout: Checkout | None = None
    """Set if the workspace is a clone."""
    note: str = ""
    """Text that is prepended to the tool's output to inform the model about a person's changes."""
    execution: str = ""
    """The first part of the id of the run's first execution. It stays the same across continue-as-new. If a new run is
    started with the same run id, this part differs.
    """
    notices: tuple[Notice, ...] = ()
    sampling: Verdict = Verdict.DENY
    """Whether the tool's MCP server may call the run's model."""
    found: tuple[str, ...] = ()
    """The names of the tools that a search has found."""
    session: str = ""
    """The interpreter that has run the run's earlier calls of `python`. Empty if there were none."""
    round: int = 0
    """How often the call has asked for input. If this isn't 0, the request continues a call."""
    answers: tuple[InputAnswer, ...] = ()
    """The answers to the latest requests for input."""
    earlier_answers: tuple[InputAnswer, ...] = ()
    server_state: str = ""
    """The MCP server's own state of the call."""
    server_task: str = ""
    """The ID of the task as which the MCP server runs the call."""
    asked: bool = False
    """Whether the rules of the run ask a person, and this person's approval must be proven."""
    proof: str = ""
    """The proof of the call's approval."""
    grant_proofs: tuple[str, ...] = ()
    """The proofs of the approvals that were given for the rest of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRequest:
    """The request to call the run's model for an MCP server."""

    origin: Origin
    turn: int
    call_id: str
    attempt: int = 1
    tool: str
    model: str
    call: JsonObject
    """`messages`, `system`, `max_tokens` and `temperature`."""
    max_output_tokens: int
    options: ModelOptions = field(default_factory=ModelOptions)
    rpm: int | None = None
    tpm: int | None = None
    timeout: float | None = None
    """The number of seconds without data after which the call fails. If None, the provider's setting applies."""
    ratio: float = 1.0
    """The ratio of the provider's token count to Loom's, as measured by the run so far."""
    allowance: Share | None = None
    """The remaining budget for this request. None means no limit."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """The model's answer to an MCP server."""

    text: str = ""
    stop: StopReason = "end"
    uncovered: Spend | None = None
    """The amount that the call might use. Set only if the call was not sent because it might exceed its allowance."""
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildRequest:
    """The request to wait for a child that an earlier execution of its parent has started."""

    run_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildOutcome:
    """How a child has ended: with a result, or with the reason why there is none."""

    result: RunResult | None = None
    error: RunError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishRequest:
    """The request to write notices to the live stream."""

    origin: Origin
    turn: int
    notices: tuple[Notice, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedRunRequest:
    """What of a moved run decides whether this worker serves it."""

    start: SignedStart | None
    workspace: str
    mode: Mode
    checkout: Checkout | None = None
    """Set if the workspace is a clone."""
    origin: Origin | None = None
    """The run. Set if the workspace is a clone."""
    widened: bool = False
    """Whether the run already accepted only signed requests where it was, because only a signature made it possible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmittedRun:
    """What the run has to know of the server and the workers that it continues on."""

    search_attributes: tuple[str, ...]
    ledger: bool
    steering_key: str
    notify: NotifyPlan | None = None
    """Whom the workers here tell of what waits for people. None if they tell nobody."""
    widened: bool = False
    """Whether only a signature makes the run possible. See `Prepared`."""
