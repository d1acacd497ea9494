"""The ports of the activities, as protocols. Any class with these methods can implement a port, without
importing Loom.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from loom.domain.core.messages import JsonObject, Message, Part, Tail, Transcript, Usage
from loom.domain.core.repositories import Checkout, GitWorkspace
from loom.domain.core.requests import ModelOptions
from loom.domain.core.stored_data import Collected, StoredTree
from loom.domain.core.tasks import Origin, Segment, Task
from loom.domain.core.tenants import Owner
from loom.domain.core.tokens import text_tokens, tokens_of
from loom.domain.core.tool_calls import ToolResult, ToolSpec, Verdict
from loom.domain.core.tool_input import InputAnswer, NeededInput
from loom.domain.permissions.subjects import Subject
from loom.domain.skills.catalog import SkillUse

if TYPE_CHECKING:  # slow to import, and clients import the errors in this module
    from loom.domain.agents.spec import AgentSpec
    from loom.domain.history.past_turns import Record
    from loom.domain.run.activity_payloads import ChildOutcome, RunWorkspace, StopReason

T = TypeVar("T")

OnDelta: TypeAlias = Callable[[str], None]
"""Called with each chunk of text from the provider. It must not block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCall:
    """A complete request to a model."""

    model: str
    """The provider's name for the model, without Loom's prefix."""
    system: str
    """The system prompt."""
    messages: Sequence[Message]
    """The conversation, oldest message first."""
    tools: Sequence[ToolSpec] = ()
    """The tools that the model may call."""
    deferred: Sequence[ToolSpec] = ()
    """The tools that the model must search for. A provider that has a form of its own for such tools sets the attribute
    `loads_tools`. For other providers, Loom replaces them with `call_tool`, so that their `deferred` is empty.
    """
    may_call: bool = True
    """False if the reply must be text. The request then lists tools only if the provider requires the tools of earlier
    calls.
    """
    max_output_tokens: int = 8192
    """The maximum number of tokens of the reply."""
    temperature: float | None = None
    """The sampling temperature. If None, the provider's default applies."""
    options: ModelOptions = field(default_factory=ModelOptions)
    """Further options, such as `reasoning_effort`."""
    origin: Origin | None = None
    """The run that makes the call, if a run makes it."""
    prompt_tokens: int = 0
    """The estimated size of the prompt. 0 if the caller hasn't estimated it."""
    rpm: int | None = None
    """The agent's limit of requests per minute."""
    tpm: int | None = None
    """The agent's limit of tokens per minute."""
    timeout: float | None = None
    """The number of seconds without data after which the call fails. If None, the provider's own limit applies."""
    insists: bool = False
    """Whether a person has asked to try now."""
    is_shortened: bool = False
    """Whether the conversation has been shortened because the provider had refused it as too long."""
    is_text: bool = False
    """Whether the messages are known to be texts, without images, recordings and files."""
    has_refusals: bool = True
    """Whether a reply among the messages may say what its provider had refused."""
    called: frozenset[str] | None = None
    """The names of the tools that the messages call, if they are known."""
    on_thinking: OnDelta = field(default=lambda _text: None, compare=False)
    """Called with each chunk of the model's thinking, which isn't part of its answer. It must not block."""
    on_taken_back: Callable[[], None] = field(default=lambda: None, compare=False)
    """Called if the text so far was thinking and not the answer. The thinking follows, and then the answer."""

    @property
    def expected_prompt(self) -> int:
        """The estimated number of prompt tokens."""
        return self.prompt_tokens or (text_tokens(self.system) + tokens_of(self.messages) + tokens_of(self.tools))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAnswer:
    """A provider's reply."""

    message: Message
    """A message with the role `assistant`."""
    stop: "StopReason"
    """Why the reply ends."""
    usage: Usage
    """The tokens of this call, as the provider counts them."""
    model: str = ""
    """The name of the model that replied, as reported by the provider."""


class LLMProvider(Protocol):
    """A source of model replies.

    `answer` raises only the LLM errors in `loom.domain.core.errors`. Cancelling the call closes the connection.

    A provider that follows options of `call.options` lists their names in an attribute `supported_options`. Loom
    refuses requests with other options, and without this attribute, requests with any option.
    """

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, stream its text to `on_delta`, and return the whole reply."""
        ...


class Providers(Protocol):
    """All providers that this worker is configured for."""

    def resolve(self, model: str) -> tuple[LLMProvider, str]:
        """Return the provider for `prefix:name` and the name without the prefix. Raises BadRequest or
        LLMConfigurationError.
        """
        ...

    def check_options(self, model: str, options: ModelOptions) -> None:
        """Raise BadRequest if the provider of `prefix:name` doesn't have one of these options."""
        ...


class Prices(Protocol):
    """Prices of model calls."""

    async def cost_micros(self, model: str, usage: Usage) -> int | None:
        """Return the cost in millionths of a US dollar, or None if the price of the model `prefix:name` is unknown."""
        ...


class ContextSource(Protocol):
    """Adds text to the context that a model sees, whenever a person writes a message."""

    async def recall(self, question: str, origin: Origin) -> str | None:
        """Return what a model should know about a person's message, or None. `origin` names the run, its session, its
        user and its tenant.

        Loom waits for three seconds at most. If this method raises an exception, the model reads that the source is
        away.
        """
        ...


class ContextCompressor(Protocol):
    """Summarizes conversations that have become too long for their models."""

    async def compress(self, messages: Sequence[Message], max_tokens: int) -> str:
        """Return a summary of the conversation in about `max_tokens` tokens.

        Loom puts it in place of the older messages. The first message may be the previous summary. If this method
        raises an exception, returns no text or takes longer than a minute, Loom writes the summary itself.
        """
        ...


class StreamUnavailable(Exception):
    """The stream's store isn't responding. The run continues without it."""


class StreamAbsent(StreamUnavailable):
    """The worker has no store for the stream, so a retry can't help."""


class TaskTooLarge(StreamUnavailable):
    """The bus accepts other tasks, but not one of this size, so a retry can't help."""


class EventStream(Protocol):
    """The live stream of runs. Each run's stream is append-only, with offsets 1, 2, 3 and so on."""

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """Append one run's tasks in order, either all or none of them.

        Tasks whose `task_id` already exists are skipped. If a segment is given and a later attempt has already written
        to it, write nothing and return False. Raises StreamUnavailable.
        """
        ...


class TranscriptStore(Protocol):
    """A cache of transcripts, tool results and agent specs, stored by name. Any entry may be missing at any time, and
    no method raises an exception.
    """

    async def load(self, run_id: str, tail: Tail) -> Transcript | None:
        """Return the transcript that `tail` describes, or None if part of it is missing."""
        ...

    async def save(self, run_id: str, before: Tail, transcript: Transcript) -> None:
        """Cache a transcript under its name. `before` describes the version that was loaded, so only new messages are
        written.
        """
        ...

    async def save_result(self, run_id: str, message: Message) -> None:
        """Cache a tool message under its call id and digest."""
        ...

    async def find_arguments(self, run_id: str, call_id: str) -> JsonObject | None:
        """Return the arguments of a tool call in the run's latest cached reply."""
        ...

    async def load_spec(self, digest: str) -> "AgentSpec | None":
        """Return the spec with that digest."""
        ...

    async def save_spec(self, spec: "AgentSpec") -> None:
        """Cache a spec under its digest."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """The information that a tool has about the current call."""

    workspace: Path
    """Absolute, resolved path. File tools must stay inside this directory."""
    run_id: str
    """The run that makes the call."""
    call_id: str
    """The id of the call."""
    idempotency_key: str
    """The same in all attempts at this call, and in no other call. Pass it to services that take such a key."""
    timeout: float
    """The seconds that the call may take."""
    attempt: int = 1
    """The number of this attempt at the call. A later attempt has a higher number. An external system can store the
    highest number and reject requests with a lower one. After a workflow reset, numbers may come again.
    """
    session_id: str = ""
    """Empty if the run has its own session."""
    tenant: str = ""
    """The tenant that the run works for. Empty if there is none."""
    user_id: str = ""
    """The person that the run works for. Empty if there is none."""
    root_run_id: str = ""
    """Empty if the run is the root."""
    execution: str = ""
    """Tells runs apart that use the same id one after the other."""
    root_execution: str = ""
    """The same of the root. Empty if the run is the root."""
    state: MutableMapping[str, Any] = field(default_factory=dict)
    """State of this call. It is discarded when the call ends."""
    artifact: str = ""
    """Id of the run's artifact that stores long output in full. If empty, long output isn't stored."""
    progress: Callable[[str], None] = field(default=lambda _text: None)
    """Reports partial output to the live stream. In a thread, it also does what `check` does."""
    check: Callable[[], None] = field(default=lambda: None)
    """Raises ExecutionAbortedError if nobody wants the call any more."""
    skill: SkillUse | None = None
    """The skill for this call, as pinned to the run."""
    sampling: Verdict = Verdict.DENY
    """Whether the tool's MCP server may call the run's model."""
    found: tuple[ToolSpec, ...] = ()
    """The tools that the call's search has found."""
    session: str = ""
    """The interpreter that has run the run's earlier calls of this tool. Empty if there were none."""
    round: int = 0
    """How often the call has asked for input. If this isn't 0, the call goes on."""
    answers: tuple[InputAnswer, ...] = ()
    """The answers to the latest requests for input."""
    earlier_answers: tuple[InputAnswer, ...] = ()
    """The answers to the earlier requests for input."""
    server_state: str = ""
    """The MCP server's own state of the call."""
    server_task: str = ""
    """The ID of the task as which the MCP server runs the call."""

    @property
    def owner(self) -> Owner:
        """Whom the run works for."""
        return Owner(user_id=self.user_id, tenant=self.tenant)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOutput:
    """The output of a tool, for cases where plain text isn't enough."""

    text: str = ""
    """The complete text. If the text is too long for the model, Loom truncates it and stores the full text as an
    artifact.
    """
    parts: tuple[Part, ...] = ()
    """Images and files."""
    needs: NeededInput | None = None
    """Set if the tool needs input before it can go on. The output is then empty."""
    session: str = ""
    """The interpreter that stays for the run."""
    is_warning: bool = False
    """The call succeeded, but not exactly as requested. The text explains the difference."""


MAX_GRANTS: Final = 5
"""Maximum number of rules that one approval may add."""


class Tool(Protocol):
    """A tool that a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """The tool's name, description, argument schema, effect and limits."""
        ...

    def is_available(self) -> str | None:
        """Return None if the tool can run on this worker. Otherwise, explain what is missing and how to fix it."""
        ...

    def parse(self, arguments: JsonObject) -> object:
        """Validate the arguments. Raises a ToolValidationError that names the field and explains how to fix it."""
        ...

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """Return the subjects to match against permission patterns, such as a shell line's commands or a file tool's
        paths.
        """
        ...

    def grants(self, arguments: object) -> Sequence[str]:
        """Return the allow rules that are added if this call is approved for the rest of the run."""
        ...

    def run(self, arguments: object, context: ToolContext) -> Awaitable[str | ToolOutput]:
        """Run the call and return the output for the model. Raises the tool errors in `loom.domain.core.errors`."""
        ...


ToolSet: TypeAlias = Mapping[str, Tool]
"""The worker's tools by name. They may change while the worker is running, when MCP servers connect or change their
tools.
"""


class Definitions(Protocol):
    """The agent, crew and skill files of a worker."""

    def touched(self, paths: Collection[str]) -> Sequence[str]:
        """Return the worker's folders that a call with these absolute paths may change."""
        ...

    def attributed(self, folders: Sequence[str], *, run_id: str, call_id: str) -> AbstractAsyncContextManager[None]:
        """Record the files in these folders that the body changes, as changes of this call."""
        ...


class Redactor(Protocol):
    """Redacts secrets in text before it is stored anywhere."""

    def redact(self, text: str) -> str:
        """Return the text with every secret replaced by `[REDACTED]`. A text without secrets is returned unchanged."""
        ...

    def redact_json(self, value: JsonObject) -> JsonObject:
        """Redact secrets in every text of a JSON object. The value of a member named `password` is also treated as a
        secret.
        """
        ...


class StreamRedactor(Protocol):
    """Redacts secrets in text that arrives in chunks. It holds back text that may be the start of a secret."""

    def feed(self, piece: str) -> str:
        """Return the text that can be emitted after this chunk."""
        ...

    def pause(self) -> str:
        """Return the rest of the text so far, without text that may be the start of a secret, because something else
        follows before the next chunk.
        """
        ...

    def flush(self) -> str:
        """Return the rest of the text after the last chunk."""
        ...


class StoreUnavailable(Exception):
    """One of Loom's stores isn't responding. Callers wait for it, or report that it is missing."""


class ArtifactStore(Protocol):
    """Stores the full text of outputs that are too long for a model. All methods raise StoreUnavailable."""

    async def save(self, run_id: str, artifact: str, text: str) -> None:
        """Store the text under the run's id and the artifact's id. Saving the same text again has no effect."""
        ...

    async def replace(self, run_id: str, texts: Mapping[str, str]) -> None:
        """Store these texts in place of those with the same ids, in one step. An empty text only removes the other."""
        ...

    async def load(self, run_id: str, artifact: str) -> str | None:
        """Return the full text, or None if the run has no artifact with that id."""
        ...


class PartStore(Protocol):
    """Stores images, recordings and files under the SHA-256 of their content. All methods raise StoreUnavailable.

    A content has one or more owners: the runs whose conversations refer to it. It is deleted once all of them have left
    the server.
    """

    async def save(self, run_id: str, data: bytes, tenant: str | None) -> str:
        """Store the content, make the run one of its owners, and return its digest in hexadecimal digits.

        `tenant` is the run's tenant, or an empty string if it has none. None means that the caller doesn't know it: no
        other run may adopt the content before this run does.
        """
        ...

    async def adopt(self, run_id: str, digest: str, tenant: str) -> bool:
        """Make the run an owner of a content that was stored for it, or that a run of its tenant owns. Runs without a
        tenant form a group of their own.

        Returns False if there is no such content. Whether another tenant has stored it makes no difference.
        """
        ...

    async def load(self, digest: str) -> bytes | None:
        """Return the content, or None if there is none with this digest."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The claim of one attempt to a call."""

    key: str
    run_id: str
    attempt: int


class Ledger(Protocol[T]):
    """Records which calls have started and finished, so that no crash repeats an effect. Methods raise
    StoreUnavailable.

    A claim comes with a lease: as long as its worker renews it, the attempt is alive. A worker that is connected but
    renews nothing stands still. Its attempts count as alive for some time longer.
    """

    async def find(self, *keys: str) -> str | None:
        """Return the first of these keys that an attempt has claimed, or None."""
        ...

    async def reserve(self, key: str, run_id: str, attempt: int) -> "T | int | None":
        """Claim the call `key` for this attempt, before the call starts.

        Returns None if no attempt had claimed the call before. Returns a result if the call has already finished.
        Returns the number of another attempt if that attempt claimed the call and hasn't finished. A claim by an
        earlier attempt passes to this attempt. A claim by a later attempt doesn't change.
        """
        ...

    async def finish(self, key: str, attempt: int, result: T) -> None:
        """Store the result. Only the attempt that holds the claim may store it, and the first stored result is kept."""
        ...

    async def store(self, claim: Claim, result: T, *, replaces: str | None = None) -> bool:
        """Store the result of a call, and claim the call if nobody has. Return whether this attempt holds the call.
        Delete the finished call `replaces`, whose result is no longer needed.
        """
        ...

    async def renew(self, claims: Sequence[Claim]) -> Set[str]:
        """Keep these attempts alive, and return the keys of the claims that they still hold. A call that nobody has
        claimed is claimed.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """End the attempt's lease, because the attempt has ended without a result."""
        ...

    async def forget(self, key: str) -> None:
        """Delete a call that has finished, so that it can be made anew."""
        ...

    async def is_alive(self, *keys: str) -> bool:
        """Whether an attempt that has claimed one of these keys is alive and hasn't finished."""
        ...

    async def stood_still(self, key: str) -> float:
        """Return for how many seconds the worker of an unfinished attempt has stood still, or 0 if it hasn't."""
        ...


class UsedStarts(Protocol):
    """Records which signed starts have begun a run. The method raises StoreUnavailable."""

    async def use(self, start: str, run_id: str, execution: str) -> str:
        """Let the start begin this execution, and return the execution that it has begun first."""
        ...


EffectLedger: TypeAlias = Ledger[ToolResult]
"""Records effects: the calls of tools."""


class Snapshots(Protocol):
    """Stores the state of a workspace before a call changes it."""

    async def take(self, workspace: Path, run_id: str, turn: int, call_id: str) -> str:
        """Take a snapshot of the workspace and return its id. Raises OSError or StoreUnavailable with a message that
        describes the problem.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CloneState:
    """The state of a run's clone that a worker has."""

    commit: str
    version: int
    """The number of stored changes that it contains."""
    tree: str = ""
    """The Git tree of its files when the last one was stored. Empty if this machine hasn't stored it."""
    is_restored: bool = False
    """Whether it was made from a stored change, and no agent has been told."""
    generation: str = ""
    """A random id of this clone. It changes when the clone is made anew, and each machine has another one."""
    note: str = ""
    """What agents have to know about this clone's files. Empty if there is nothing."""
    told: tuple[str, ...] = ()
    """The ids of the runs whose agents know it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloneChange:
    """How the files of a clone differ from its commit."""

    patch: bytes | None
    """In the format of `git apply`. UTF-8 text. Empty if nothing differs, and None if it is larger than
    LARGEST_PATCH.
    """
    files: int
    tree: str
    """The id of the Git tree with all files."""
    ci_files: tuple[str, ...] = ()
    """The changed files that a Git host runs as continuous integration, such as `.github/workflows/test.yml`."""
    left_out: tuple[str, ...] = ()
    """The files that aren't part of the change, because Git refuses their names, such as `git~1`, or can't restore
    them from a patch.
    """


LARGEST_PATCH: Final = 64 * 2**20
"""The size in bytes of the largest patch of a clone that Loom makes."""


class Clone(Protocol):
    """A run's clone on this machine, while nobody else replaces it.

    Git never reads the settings in the clone, because agents may have changed them. Methods raise BadRequest if the
    repository refuses, UnreachableError if it doesn't respond, and StoreUnavailable if Git fails here.
    """

    @property
    def state(self) -> CloneState | None:
        """The clone's state, or None if there is no clone."""
        ...

    async def pin(self, workspace: GitWorkspace) -> Checkout:
        """Fetch the revision, and return the commit that it is now."""
        ...

    async def unpack(self, content: bytes, name: str) -> Checkout:
        """Make a commit of the files in an archive, and return it. Equal files make the same commit."""
        ...

    async def has(self, commit: str) -> bool:
        """Whether the commit is here, so that `build` needs nothing else."""
        ...

    async def build(self, checkout: Checkout, patch: bytes = b"", version: int = 0) -> None:
        """Put the commit with this patch in the clone's folder. What was there is gone. The commit of a Git repository
        is fetched if it isn't here.
        """
        ...

    async def keep(self, state: CloneState) -> None:
        """Record that the folder is in this state."""
        ...

    async def change(self, checkout: Checkout, *, unless: str = "") -> CloneChange | None:
        """Return how the files differ from the commit. Ignored files don't count, unless the commit has them.

        If the files are those of the Git tree `unless`, return None, which takes less time.

        Raises BadRequest if the files are such that Git can't compute it.
        """
        ...

    async def push(self, checkout: Checkout, tree: str, branch: str, *, message: str, at: datetime) -> str:
        """Push a commit with these files to the new branch, and return its id.

        Raises RefusedError if it has other commits.
        """
        ...


class Clones(Protocol):
    """The clones of runs on this machine."""

    def folder(self, name: str) -> str:
        """Return the path of the clone with this name."""
        ...

    def exposes(self, path: Path) -> bool:
        """Whether a run that works in this folder could read or change other runs' clones."""
        ...

    def opened(self, folder: str) -> AbstractAsyncContextManager[Clone]:
        """Open the clone in this folder, which may not exist. Raises BadRequest if clones are elsewhere here."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CloneKey:
    """The tree of runs that a clone belongs to."""

    run_id: str
    execution: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CloneRecord:
    """What the workers know together about the clones of a tree of runs."""

    version: int = 0
    """The number of the latest stored change. It also rises when a change is lost."""
    call: str = ""
    """The call after which this change was stored. Empty if nothing was stored."""
    changing: tuple[str, ...] = ()
    """The calls that may have changed files since then."""
    generation: str = ""
    """The clone in which a call last could change files (`CloneState.generation`). Empty if none could."""
    is_held: bool = False
    """Whether a call may change files at present."""
    lost: tuple[str, ...] = ()
    """The calls whose changes may be lost."""
    told: Mapping[str, int] = field(default_factory=dict)
    """How many of them the agent of each run has been told."""

    def untold(self, run_id: str) -> tuple[str, ...]:
        """Return the calls whose changes may be lost, and of which the run's agent doesn't know."""
        return self.lost[self.told.get(run_id, 0) :]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPatch:
    """What runs have changed in their clone."""

    version: int
    patch: bytes
    """The difference from the clone's commit."""


class ClonePatches(Protocol):
    """Stores what runs change in their clones, and who may change a clone. All methods raise StoreUnavailable.

    A change is stored by the holder of the tree's clones, and only after `begin`: a change that is begun in one clone
    and not stored is lost as soon as a call begins in another clone.
    """

    async def record(self, key: CloneKey) -> CloneRecord:
        """Return what is known about the clones."""
        ...

    async def load(self, key: CloneKey) -> StoredPatch:
        """Return the latest stored change."""
        ...

    async def hold(self, key: CloneKey, holder: UUID) -> CloneRecord | None:
        """Let the holder change files for some seconds. Return None if somebody else may."""
        ...

    async def renew(self, key: CloneKey, holder: UUID) -> bool:
        """Let the holder go on for some seconds, and return whether it still holds the clones."""
        ...

    async def begin(self, key: CloneKey, holder: UUID, call: str, generation: str) -> CloneRecord | None:
        """Record that from now on, a call may change files in this clone, and that changes in another clone that
        aren't stored are lost. The version rises if there are any. Return what is then known, or None if the holder no
        longer holds the clones.
        """
        ...

    async def save(self, key: CloneKey, holder: UUID, patch: bytes, call: str, version: int) -> int | None:
        """Store everything that has changed since the commit, and return its version, which is greater than `version`.
        Return None if the holder no longer holds the clones.
        """
        ...

    async def record_unchanged(self, key: CloneKey, holder: UUID) -> bool:
        """Record that no file has changed since the stored change. Return whether the holder still holds the clones."""
        ...

    async def told(self, key: CloneKey, run_id: str, losses: int) -> None:
        """Record that the run's agent knows so many of the losses."""
        ...

    async def release(self, key: CloneKey, holder: UUID) -> None:
        """Let others change files."""
        ...


class Pasts(Protocol):
    """Reads the recorded history of runs."""

    async def records(self, run_id: str) -> "Sequence[Record]":
        """Return the records in the run's history, across all executions. Raises RunNotFoundError and
        UnreachableError.
        """
        ...


class WorkspaceLookup(Protocol):
    """Asks runs where they work."""

    async def workspace_of(self, run_id: str, task_queue: str) -> "RunWorkspace | None":
        """Return where a run of this task queue works, running or ended. None if it isn't prepared.

        Raises RunNotFoundError if there is no such run, BadRequest if it belongs to another task queue, and
        UnreachableError if it doesn't answer.
        """
        ...


class ChildRunsOnServer(Protocol):
    """The children that a server has."""

    async def outcome(self, run_id: str) -> "ChildOutcome | None":
        """Return how the child has ended, or None while it is running."""
        ...

    def orphans(self) -> AsyncIterator[str]:
        """Yield the running children whose parent no longer runs."""
        ...

    async def abort(self, run_id: str, *, reason: str, by: str) -> None:
        """Abort a child, unless it has ended."""
        ...


class StoredData(Protocol):
    """The data that runs have stored outside their histories. All methods raise StoreUnavailable.

    `server` identifies a namespace on a server, because a store remembers only what this server has had.
    """

    async def unknown(self, server: str, before: datetime, limit: int) -> Sequence[str]:
        """Return runs that have stored data before this time and have not been looked up on the server."""
        ...

    async def look_up(self, server: str, run_id: str, parent: str | None) -> None:
        """Store the result of `RunIndex.find` for a run."""
        ...

    async def due(self, server: str, before: datetime, limit: int) -> Sequence[StoredTree]:
        """Return trees that the server has had, and whose last data was stored before this time. Those that were not
        checked for the longest time come first. A tree comes again after an hour.
        """
        ...

    async def keep(self, server: str, tree: StoredTree) -> None:
        """Store that the tree was checked now."""
        ...

    async def delete(self, server: str, tree: StoredTree, before: datetime) -> Collected:
        """Delete what these runs have stored before this time. A payload that others refer to is kept."""
        ...


class RunIndex(Protocol):
    """The workflows that a server has."""

    async def server(self) -> str:
        """Return an id of the namespace that no other server has."""
        ...

    async def find(self, run_id: str) -> str | None:
        """Return the workflow outside the run's tree that has started the run, or an empty string if there is none.

        Returns None if the server doesn't have the run.
        """
        ...

    async def has_any(self, tree: StoredTree) -> bool:
        """Whether the server has a run of this tree or one of its parents."""
        ...


class EventReader(Protocol):
    """Reads the live stream."""

    def read(self, run_id: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[tuple[int, Task]]:
        """Yield tasks with offsets greater than `after`, in order. With `follow`, wait for new tasks. Raises
        StreamUnavailable.
        """
        ...

    async def latest(self, run_id: str) -> int:
        """Return the offset of the run's latest task, or 0. Raises StreamUnavailable."""
        ...
