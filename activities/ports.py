"""What activities need from the world, as protocols: any class with these methods fits, no import of ours needed."""

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
"""Called with each piece of text as the provider sends it; must not block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCall:
    """One call of a model, complete."""

    model: str
    """The provider's own name of the model, without Loom's prefix."""
    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    may_call: bool = True
    """False: the answer is text; tools are named only where a provider wants those of earlier calls."""
    max_output_tokens: int = 8192
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAnswer:
    """What the provider said."""

    message: Message
    """Role assistant."""
    stop: StopReason
    usage: Usage
    model: str = ""
    """The model that answered, as the provider names it."""


class LLMProvider(Protocol):
    """A source of model answers.

    `answer` raises the LLM errors of `loom.domain.core.errors` and no others; cancellation closes the connection.
    """

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, stream its text into `on_delta`, and return the whole answer."""
        ...


class Providers(Protocol):
    """All providers that this worker is configured for."""

    def resolve(self, model: str) -> tuple[LLMProvider, str]:
        """The provider for `prefix:name` and the bare name; raises BadRequest or LLMConfigurationError."""
        ...


class Prices(Protocol):
    """What model calls cost."""

    async def cost_micros(self, model: str, usage: Usage) -> int | None:
        """Millionths of a US dollar for this usage of `prefix:name`; None when the price is unknown."""
        ...


class StreamUnavailable(Exception):
    """The stream's store does not answer; the run goes on without it."""


class StreamAbsent(StreamUnavailable):
    """There is no store at all: trying again cannot help."""


class EventStream(Protocol):
    """The live stream of runs: append-only, offsets 1, 2, 3 … per run."""

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """Append tasks of one run, in order, all or none.

        A task whose `task_id` is already there is left out. With a segment: False, and nothing written, when a later
        attempt has already written to it. Raises StreamUnavailable.
        """
        ...


class TranscriptStore(Protocol):
    """Transcripts, tool results and agent specs by name. A cache: anything may be gone at any time, nothing raises."""

    async def load(self, run_id: str, tail: Tail) -> Transcript | None:
        """The transcript that `tail` describes, or None when a part of it is not known."""
        ...

    async def save(self, run_id: str, before: Tail, transcript: Transcript) -> None:
        """Keep a transcript under its name; `before` is what it was loaded from, so only the rest is written."""
        ...

    async def save_result(self, run_id: str, message: Message) -> None:
        """Keep a tool message under its call id and digest."""
        ...

    async def find_arguments(self, run_id: str, call_id: str) -> JsonObject | None:
        """The arguments of a tool call in the run's last kept answer."""
        ...

    async def load_spec(self, digest: str) -> AgentSpec | None:
        """The spec of that digest."""
        ...

    async def save_spec(self, spec: AgentSpec) -> None:
        """Keep a spec under its digest."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a tool may know of the call that it serves."""

    workspace: Path
    """Absolute, resolved; file tools must stay inside."""
    run_id: str
    call_id: str
    idempotency_key: str
    timeout: float
    session_id: str = ""
    """Empty: the run is its own session."""
    root_run_id: str = ""
    """Empty: the run is at the root itself."""
    state: MutableMapping[str, Any] = field(default_factory=dict)
    """For this call's own use while it runs, and not a moment longer."""
    artifact: str = ""
    """Id, within the run, under which output that is too long is kept whole; empty: it is not kept."""
    progress: Callable[[str], None] = field(default=lambda _text: None)
    """Partial output for the live stream."""
    skill: SkillUse | None = None
    """The skill that the call is about, as the run is pinned to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOutput:
    """What a tool gives back when plain text does not say it all."""

    text: str = ""
    """The whole of it; what is too long for the model is cut afterwards and kept as an artifact."""
    parts: tuple[Part, ...] = ()
    """Images and files."""
    is_warning: bool = False
    """It worked, but not quite as asked; the text says how."""


MAX_GRANTS: Final = 5
"""Rules that one approval may add."""


class Tool(Protocol):
    """Something a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """Name, description, JSON Schema of the arguments, effect, limits."""
        ...

    def is_available(self) -> str | None:
        """None when it can work here; else what is missing and what to do."""
        ...

    def parse(self, arguments: JsonObject) -> object:
        """Validated arguments; raises ToolValidationError that names the field and the way out."""
        ...

    def subjects(self, arguments: object, workspace: Path) -> Sequence[Subject]:
        """What permission patterns are held against: commands of a shell line, paths of a file tool."""
        ...

    def grants(self, arguments: object) -> Sequence[str]:
        """The allow rules that an approval of this call for the rest of the run adds."""
        ...

    def run(self, arguments: object, context: ToolContext) -> Awaitable[str | ToolOutput]:
        """Do it; returns the output for the model, raises the tool errors of `loom.domain.core.errors`."""
        ...


ToolSet: TypeAlias = Mapping[str, Tool]
"""The worker's tools by name; may grow while it runs, as MCP servers come and change."""


class Redactor(Protocol):
    """Takes secrets out of text before it is kept anywhere."""

    def redact(self, text: str) -> str:
        """The text with every secret replaced by `[REDACTED]`; text without one comes back as it is."""
        ...

    def redact_json(self, value: JsonObject) -> JsonObject:
        """The same for every text in a JSON object, whose names count: what is called a password is one."""
        ...


class StreamRedactor(Protocol):
    """Takes secrets out of text that comes in pieces; holds back what may be the beginning of one."""

    def feed(self, piece: str) -> str:
        """What can be shown after this piece."""
        ...

    def flush(self) -> str:
        """What was held back, at the end."""
        ...


class StoreUnavailable(Exception):
    """A store of Loom's own does not answer: what needs it waits, or says what is missing."""


class ArtifactStore(Protocol):
    """Outputs too long for a model, kept whole. All methods raise StoreUnavailable."""

    async def save(self, run_id: str, artifact: str, text: str) -> None:
        """Keep the text under the run's id and its own; the same again changes nothing."""
        ...

    async def load(self, run_id: str, artifact: str) -> str | None:
        """The whole text, or None when there is none of that id in that run."""
        ...


class EffectLedger(Protocol):
    """Which effects have begun and ended, so that no crash makes one happen twice; raises StoreUnavailable."""

    async def reserve(self, key: str, run_id: str, attempt: int) -> "ToolResult | int | None":
        """Claim the effect `key` for this attempt, before anything happens.

        None: it is claimed now and nobody had claimed it before. A result: it has ended, with that. A number: that
        attempt claimed it and has not ended; an earlier one's claim passes on to this attempt, a later one's stays.
        """
        ...

    async def finish(self, key: str, attempt: int, result: ToolResult) -> None:
        """Keep what came of it; only the attempt that holds the claim may, and the first result stays."""
        ...


class Snapshots(Protocol):
    """Keeps what a workspace looked like before something changes it."""

    async def take(self, workspace: Path, run_id: str, turn: int, call_id: str) -> str:
        """Snapshot the workspace as it is; returns its id. Raises OSError or StoreUnavailable with what is missing."""
        ...


class Pasts(Protocol):
    """What runs have done, as recorded."""

    async def records(self, run_id: str) -> Sequence[Record]:
        """What the run's history holds, all its executions; raises RunNotFoundError and UnreachableError."""
        ...


class EventReader(Protocol):
    """The reading side of the live stream."""

    def read(self, run_id: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[tuple[int, Task]]:
        """Tasks with offsets greater than `after`, in order. With `follow` waits for more; raises StreamUnavailable."""
        ...
