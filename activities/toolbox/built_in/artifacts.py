"""`read_artifact` reads a long output in full, page by page. `share_artifact` shares a text with other agents."""

from typing import Final

from pydantic import Field

from loom.activities.ports import ArtifactStore, StoreUnavailable, Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.activities.toolbox.truncation import RESULT_LIMIT
from loom.domain.core.errors import ToolUnavailableError, ToolValidationError
from loom.domain.core.tool_calls import ARTIFACT_LENGTH, Effect, Scope, Verdict, next_part, stored_artifact
from loom.domain.core.tool_names import SHARE

PAGE: Final = RESULT_LIMIT - 200
"""Maximum number of characters per page. The line before the page uses the rest of the result's limit."""

SHARED: Final = "shared-"
"""Prefix of the ids of shared artifacts."""

NO_STORE: Final = "this worker stores no outputs: set LOOM_DATABASE_URL on the worker, or ask for less output"


class ReadArtifact(Arguments):
    """Arguments of read_artifact."""

    artifact: str = Field(min_length=1, max_length=200)
    offset: int = Field(default=0, ge=0, description="First character")
    limit: int = Field(default=PAGE, ge=1, le=PAGE, description=f"Characters, at most {PAGE}")


def read_artifact_tool(store: ArtifactStore | None) -> Tool:
    """Return the tool. A run can read its own artifacts and the artifacts that are shared in its tree."""

    async def read(arguments: ReadArtifact, context: ToolContext) -> str:
        if store is None:
            raise ToolUnavailableError(NO_STORE)
        try:
            text = await store.load(context.run_id, stored_artifact(arguments.artifact, context.execution))
            if text is None and context.root_run_id:
                shared = stored_artifact(arguments.artifact, context.root_execution)
                text = await store.load(context.root_run_id, shared)
        except StoreUnavailable as error:
            raise ToolUnavailableError(f"the artifact store is unavailable ({error}): try again later") from None
        if text is None:
            raise ToolValidationError(
                f"this run has no artifact {arguments.artifact!r}: use an id from a truncated output"
            )
        return _page(text, arguments)

    description = "Read a truncated output, one page at a time."
    return FunctionTool(
        spec=tool_spec(
            "read_artifact",
            description,
            ReadArtifact,
            effect=Effect.READ,
            scope=Scope.CONTEXT,
            declared=Verdict.ALLOW,
        ),
        arguments=ReadArtifact,
        function=read,
        missing=None if store is not None else NO_STORE,
    )


class ShareArtifact(Arguments):
    """Arguments of share_artifact."""

    name: str = Field(min_length=1, max_length=100, pattern=r"^[\w.-]+$", description="Letters, digits, `.`, `_`, `-`")
    content: str = Field(min_length=1, max_length=1_000_000)


def share_artifact_tool(store: ArtifactStore | None) -> Tool:
    """Return the tool. A shared text never changes, so its name refers to the same text for every agent."""

    async def share(arguments: ShareArtifact, context: ToolContext) -> str:
        if store is None:
            raise ToolUnavailableError(NO_STORE)
        root, execution = context.run_id, context.execution
        if context.root_run_id:
            root, execution = context.root_run_id, context.root_execution
        artifact = f"{SHARED}{arguments.name}"
        stored = stored_artifact(artifact, execution)
        try:
            await store.save(root, stored, arguments.content)
            kept = await store.load(root, stored)
        except StoreUnavailable as error:
            raise ToolUnavailableError(f"the artifact store is unavailable ({error}): try again later") from None
        if kept != arguments.content:
            raise ToolValidationError(f"{arguments.name!r} is already shared with other content: choose another name")
        return f"Shared as {artifact!r}: every agent that works on this task can read it with `read_artifact`."

    description = "Share a text with all agents that work on the same task. They read it by its name."
    return FunctionTool(
        spec=tool_spec(
            SHARE,
            description,
            ShareArtifact,
            effect=Effect.IDEMPOTENT,
            scope=Scope.CONTEXT,
            declared=Verdict.ALLOW,
        ),
        arguments=ShareArtifact,
        function=share,
        missing=None if store is not None else NO_STORE,
    )


def _page(text: str, asked: ReadArtifact) -> str:
    end = min(len(text), asked.offset + asked.limit)
    if asked.offset >= len(text):
        raise ToolValidationError(f"`offset` {asked.offset} is beyond the end: the output has {len(text)} characters")
    rest = f"; continue at offset {end}" if end < len(text) else ""
    if end == ARTIFACT_LENGTH:
        rest = f"; if the output is longer, it continues in artifact {next_part(asked.artifact)}"
    return f"[characters {asked.offset} to {end} of {len(text)}{rest}]\n{text[asked.offset : end]}"
