"""Request fields as typed keyword arguments of `LoomClient.start`, `start_crew` and `fork`.

A worker validates the same fields for callers in all languages (`loom/workflows/validation.py`).
To use the agent's or the worker's default for a field, omit the field or set it to None.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import ReasoningEffort
from loom.domain.permissions.judge import Mode

ModeName: TypeAlias = Mode | Literal["default", "read-only", "accept-edits", "bypass"]


class BudgetFields(TypedDict, total=False):
    """Spending limits for a run and all work that it delegates. An omitted limit doesn't apply."""

    tokens: int | None
    """Maximum number of input and output tokens together."""
    cost_usd: float | None
    """Cost in US dollars. Requires a model with a known price."""
    tool_calls: int | None
    """Maximum number of tool calls."""
    seconds: float | None
    """Elapsed time since the run started, including pauses and waits."""
    turns: int | None
    """Maximum number of turns of this run, excluding its sub-agents."""
    depth: int | None
    """Maximum number of sub-agent levels. 0 allows no sub-agents."""
    children: int | None
    """Maximum number of sub-agents in the entire tree. 0 allows no sub-agents."""


class ForkPointFields(TypedDict, total=False):
    """The point in another run at which a fork starts. `run_id` and `turn` are required."""

    run_id: str
    """The id of the other run."""
    turn: int
    """The fork starts at the end of this turn. 0 is the start of the other run."""
    message: str | None
    """A message that is sent to the agent at that point."""


class ModelOptionFields(TypedDict, total=False):
    """Options of model calls. See docs/models.md."""

    reasoning_effort: ReasoningEffort | None
    """How much a reasoning model thinks."""
    thinking_budget: int | None
    """Maximum number of tokens for thinking. Anthropic models only."""
    top_p: float | None
    """Nucleus sampling, from 0 to 1."""
    seed: int | None
    """Makes sampling repeatable, as far as the provider can."""
    stop: Sequence[str] | None
    """Texts at which the model stops."""
    parallel_tool_calls: bool | None
    """Whether the model may make several calls in one reply."""
    extra_body: Mapping[str, Any] | None
    """Fields to add to the body of each request to the provider."""
    extra_headers: Mapping[str, str] | None
    """Headers to add to each request to the provider."""
    accepts: Sequence[str] | None
    """What the model takes besides text: `image`, `pdf`, `audio`, or `text` if it takes nothing else."""


class PartFields(TypedDict, total=False):
    """An image, a PDF, a recording or a text that belongs to a message. Set one of `data`, `path`, `url`, `digest`."""

    data: bytes | str
    """The content, as bytes or in base64."""
    path: str
    """A file in the run's workspace, on the worker's machine."""
    url: str
    """A file on the public web. The worker fetches it."""
    digest: str
    """The SHA-256 of a content that is already stored, in hexadecimal digits."""
    name: str
    """The name of the file, for the model and for people."""
    type: Literal["text", "image", "audio", "file"]
    """Ignored, like `media_type`: the content itself decides."""
    media_type: str
    """The media type, such as `image/png`. Ignored, like `type`."""


class GitFields(TypedDict, total=False):
    """A Git repository that a run works on, in a clone of its own. `git` is required. See docs/workspaces.md."""

    git: str
    """The repository's URL: `https://`, `ssh://` or, for a folder of the worker, `file://`."""
    revision: str | None
    """A branch, a tag, or a commit's full id. By default, the repository's default branch."""
    push: str | None
    """The new branch that gets the change if the run completes. `{run}` stands for the run's ID."""


class ArchiveContentFields(TypedDict, total=False):
    """The content of an archive. Set one of `data` and `digest`."""

    data: bytes | str
    """The content, as bytes or in base64: .tar, .tar.gz, .tar.bz2, .tar.xz or .zip."""
    digest: str
    """The SHA-256 of a content that is already stored, in hexadecimal digits."""
    name: str
    """The name of the archive, for people."""


class ArchiveFields(TypedDict):
    """An archive whose files a run works on, in a clone of its own. See docs/workspaces.md."""

    archive: ArchiveContentFields
    """Its content, or the digest of one that is stored."""


class ForkFields(TypedDict, total=False):
    """The request fields that a fork may change. `tenant` and `user_id` are those of the other run."""

    model: str | None
    """`openai:NAME`, `anthropic:NAME`, `demo`, or a name with a prefix that the app registers."""
    workspace: str | GitFields | ArchiveFields | None
    """The working directory of tools, on the worker's machine. Or a Git repository or an archive, which a fork can't
    have.
    """
    permissions: Mapping[str, str] | None
    """Rules to merge over the agent's: `{"bash(git diff:*)": "allow", "bash": "ask"}`. See docs/permissions.md."""
    mode: ModeName | None
    """The permission mode: `default`, `read-only`, `accept-edits` or `bypass`. The worker may limit it."""
    max_turns: int | None
    """Maximum number of turns of this run, excluding its sub-agents. Must be at least 1."""
    patience: float | None
    """Seconds to wait for a provider, or for a person to restore access, before the run fails. 0: never wait."""
    budget: BudgetFields | None
    """Limits for the run and all work that it delegates."""
    require_done_tool: bool | None
    """If true, the run ends only when the model calls the `done` tool."""
    session_id: str | None
    """The session that the run belongs to. Runs in the same session share memories."""
    metadata: Mapping[str, Any] | None
    """A JSON object that is passed to hooks and included in events."""
    priority: int | None
    """From 1, which goes first, to 5. The default is 3."""
    tenant: str | None
    """The customer, team or project that the run works for. See docs/tenants.md."""
    user_id: str | None
    """The person that the run works for, whose preferences and decisions Loom remembers. See docs/memory.md."""
    model_options: ModelOptionFields | None
    """Options of the run's model calls, merged over the agent's. They don't apply to crews."""


class CrewRunFields(ForkFields, total=False):
    """The fields of a crew run request, except `crew` and `task`."""

    skills: Sequence[str] | None
    """Skills that are active when the run starts."""
    output_schema: JsonObject | None
    """The JSON Schema of the answer. To generate it from a type, pass `output=` instead."""
    forked_from: ForkPointFields | None
    """The run and turn to start from. `LoomClient.fork` sets it."""


class RunFields(CrewRunFields, total=False):
    """The fields of an agent run request, except `task`."""

    agent: str | None
    """The name of an agent that the worker serves. Defaults to `default`."""
    parts: Sequence[PartFields] | None
    """Images, PDFs, recordings and texts that belong to the task. See docs/attachments.md."""
    chat: bool | None
    """Whether the run answers messages one after the other. `loom.ChatSession` sets it. See docs/chat.md."""
    message_id: str | None
    """The id of a chat's first message, which is the task."""
