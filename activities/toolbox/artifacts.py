"""`read_artifact`: the whole of an output that was too long, a page at a time."""

from typing import Final

from pydantic import Field

from activities.ports import ArtifactStore, StoreUnavailable, Tool, ToolContext
from activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from activities.toolbox.output import RESULT_LIMIT
from loom_domain.errors import ToolUnavailableError, ToolValidationError
from loom_domain.tool_calls import Effect, Scope, Verdict

PAGE: Final = RESULT_LIMIT - 200
"""Characters of one page; the line above it takes the rest of what a result may have."""

NO_STORE: Final = "outputs are not kept here: set LOOM_DATABASE_URL on the worker, or ask for less output"


class ReadArtifact(Arguments):
    """Arguments of read_artifact."""

    artifact: str = Field(min_length=1, max_length=200, description="Id, as the cut output names it")
    offset: int = Field(default=0, ge=0, description="Character to begin at")
    limit: int = Field(default=PAGE, ge=1, le=PAGE, description="Characters to read")


def read_artifact_tool(store: ArtifactStore | None) -> Tool:
    """The tool; a run reads its own artifacts only."""

    async def read(arguments: ReadArtifact, context: ToolContext) -> str:
        if store is None:
            raise ToolUnavailableError(NO_STORE)
        try:
            text = await store.load(context.run_id, arguments.artifact)
        except StoreUnavailable as error:
            raise ToolUnavailableError(f"the store of artifacts is away ({error}): try again later") from None
        if text is None:
            raise ToolValidationError(f"this run has no artifact {arguments.artifact!r}: take the id from a cut output")
        return _page(text, arguments)

    description = "Read the whole of an output that was cut, a page at a time."
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


def _page(text: str, asked: ReadArtifact) -> str:
    end = min(len(text), asked.offset + asked.limit)
    if asked.offset >= len(text):
        raise ToolValidationError(f"`offset` {asked.offset} is beyond the end: it has {len(text)} characters")
    rest = f"; go on at offset {end}" if end < len(text) else ""
    return f"[characters {asked.offset} to {end} of {len(text)}{rest}]\n{text[asked.offset : end]}"
