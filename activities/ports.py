"""The ports of the activities, as protocols: any class with these methods fits, without an import of Loom."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject, Message, Part, Tail, Transcript, Usage
from loom.domain.core.tasks import Segment, Task
from loom.domain.core.tool_calls import ToolResult, ToolSpec
from loom.domain.history.past_turns import Record
from loom.domain.permissions.subjects import Subject
from loom.domain.run.activity_payloads import StopReason
from loom.domain.skills.catalog import SkillUse

OnDelta: TypeAlias = Callable[[str], None]
"""Called with each chunk of text as the provider sends it; must not block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCall:
    """One call of a model, complete."""

    model: str
    """The provider's own name of the model, without Loom's prefix."""
    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    may_call: bool = True
    """False: the reply is text. Tools are named only if the provider requires those of earlier calls."""
    max_output_tokens: int = 8192
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAnswer:
    """A provider's reply."""

    message: Message
    """With the role assistant."""
    stop: StopReason
    usage: Usage
    model: str = ""
    """The model that replied, as the provider names it."""


class LLMProvider(Protocol):
    """A source of model replies.

    `answer` raises the LLM errors of `loom.domain.core.errors` and no others. Cancellation closes the connection.
    """

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, stream its text to `on_delta`, and return the whole reply."""
        ...


class Providers(Protocol):
    """All providers that this worker is configured for."""

    def resolve(self, model: str) -> tuple[LLMProvider, str]:
        """Return the provider for `prefix:name` and the bare name; raises BadRequest or LLMConfigurationError."""
        ...


class Prices(Protocol):
    """Prices of model calls."""

    async def cost_micros(self, model: str, usage: Usage) -> int | None:
        """Millionths of a US dollar for this usage of `prefix:name`; None if the price is unknown."""
        ...


class StreamUnavailable(Exception):
    """The stream's store does not respond. The run continues without it."""


class StreamAbsent(StreamUnavailable):
    """There is no store at all, so a retry cannot help."""


class EventStream(Protocol):
    """The live stream of runs: append-only, offsets 1, 2, 3 … per run."""

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """Append tasks of one run, in order, all or none.

        Tasks whose `task_id` is already there are left out. With a segment, return False and write nothing if a later
        attempt has already written to it. Raises StreamUnavailable.
        """
        ...


class TranscriptStore(Protocol):
    """Transcripts, tool results and agent specs by name. A cache: anything may be missing at any time, and nothing
    raises.
    """

    async def load(self, run_id: str, tail: Tail) -> Transcript | None:
        """The transcript that `tail` describes, or None if some of it is unknown."""
        ...

    async def save(self, run_id: str, before: Tail, transcript: Transcript) -> None:
        """Cache a transcript under its name. `before` is what it was loaded from, so that only the rest is written."""
        ...

    async def save_result(self, run_id: str, message: Message) -> None:
        """Cache a tool message under its call id and digest."""
        ...

    async def find_arguments(self, run_id: str, call_id: str) -> JsonObject | None:
        """The arguments of a tool call in the run's latest cached reply."""
        ...

    async def load_spec(self, digest: str) -> AgentSpec | None:
        """The spec with that digest."""
        ...

    async def save_spec(self, spec: AgentSpec) -> None:
        """Cache a spec under its digest."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a tool knows about the call that it serves."""

    workspace: Path
    """Absolute and resolved. File tools must stay inside."""
    run_id: str
    call_id: str
    idempotency_key: str
    timeout: float
    session_id: str = ""
    """Empty: the run has its own session."""
    root_run_id: str = ""
    """Empty: the run itself is the root."""
    state: MutableMapping[str, Any] = field(default_factory=dict)
    """State of this call, which is gone when the call ends."""
    artifact: str = ""
    """Id, within the run, under which long output is stored whole; empty: it is not stored."""
    progress: Callable[[str], None] = field(default=lambda _text: None)
    """Partial output for the live stream."""
    skill: SkillUse | None = None
    """The skill that the call refers to, as it is pinned to the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOutput:
    """A tool's output if plain text is not enough."""

    text: str = ""
    """The complete text. If it is too long for the model, it is cut afterwards and stored as an artifact."""
    parts: tuple[Part, ...] = ()
    """Images and files."""
    is_warning: bool = False
    """The call succeeded, but not quite as requested; the text says how."""


MAX_GRANTS: Final = 5
"""Maximum rules that one approval may add."""


class Tool(Protocol):
    """Something that a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """Name, description, JSON Schema of the arguments, effect, limits."""
        ...

    def is_available(self) -> str | None:
        """None if it can work here; otherwise what is missing and what to do."""
        ...

    def parse(self, arguments: JsonObject) -> object:
        """Validate the arguments; raises ToolValidationError, which names the field and how to fix it."""
        ...

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """What permission patterns are matched against: commands of a shell line, paths of a file tool."""
        ...

    def grants(self, arguments: object) -> Sequence[str]:
        """The allow rules that an approval of this call for the rest of the run adds."""
        ...

    def run(self, arguments: object, context: ToolContext) -> Awaitable[str | ToolOutput]:
        """Run the call. Returns the output for the model; raises the tool errors of `loom.domain.core.errors`."""
        ...


ToolSet: TypeAlias = Mapping[str, Tool]
"""The worker's tools by name. They may change while it runs, as MCP servers connect and change."""


class Redactor(Protocol):
    """Redacts secrets in text before it is stored anywhere."""

    def redact(self, text: str) -> str:
        """Return the text with every secret replaced by `[REDACTED]`. A text without secrets is returned unchanged."""
        ...

    def redact_json(self, value: JsonObject) -> JsonObject:
        """The same for every text in a JSON object. The value of a member named password is a secret too."""
        ...


class StreamRedactor(Protocol):
    """Redacts secrets in text that arrives in chunks. Holds back what may be the start of one."""

    def feed(self, piece: str) -> str:
        """What can be emitted after this chunk."""
        ...

    def flush(self) -> str:
        """The rest of the text, at the end."""
        ...


class StoreUnavailable(Exception):
    """A store of Loom's does not respond. Callers wait for it, or report what is missing."""


class ArtifactStore(Protocol):
    """Stores outputs that are too long for a model whole. All methods raise StoreUnavailable."""

    async def save(self, run_id: str, artifact: str, text: str) -> None:
        """Store the text under the run's id and its own. Saving the same text again has no effect."""
        ...

    async def load(self, run_id: str, artifact: str) -> str | None:
        """The whole text, or None if the run has no artifact with that id."""
        ...


class EffectLedger(Protocol):
    """Records which effects have started and finished, so that no crash repeats one; raises StoreUnavailable."""

    async def reserve(self, key: str, run_id: str, attempt: int) -> "ToolResult | int | None":
        """Claim the effect `key` for this attempt, before anything happens.

        None: it is claimed now, and no attempt had claimed it before. A result: the call has finished with it. A
        number: that attempt claimed it and has not finished. The claim of an earlier attempt passes to this one, and
        that of a later one stays.
        """
        ...

    async def finish(self, key: str, attempt: int, result: ToolResult) -> None:
        """Store the result. Only the attempt that holds the claim may do so, and the first result stays."""
        ...


class Snapshots(Protocol):
    """Stores the state of a workspace before something changes it."""

    async def take(self, workspace: Path, run_id: str, turn: int, call_id: str) -> str:
        """Take a snapshot of the workspace and return its id; raises OSError or StoreUnavailable, which says what is
        missing.
        """
        ...


class Pasts(Protocol):
    """The recorded past of runs."""

    async def records(self, run_id: str) -> Sequence[Record]:
        """The records in the run's history, over all executions; raises RunNotFoundError and UnreachableError."""
        ...


class EventReader(Protocol):
    """The reading side of the live stream."""

    def read(self, run_id: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[tuple[int, Task]]:
        """Tasks with offsets greater than `after`, in order. With `follow`, wait for more; raises StreamUnavailable."""
        ...
