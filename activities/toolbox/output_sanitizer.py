"""Sanitize a tool's output before it is stored: redact secrets, remove null bytes, limit the length, and ensure that it
isn't empty.
"""

import logging
from dataclasses import dataclass

from loom.activities.ports import ArtifactStore, Redactor, StoreUnavailable, ToolContext
from loom.activities.toolbox.truncation import clip
from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_calls import ARTIFACT_LENGTH, EMPTY_OUTPUT, artifact_parts, stored_artifact
from loom.domain.core.whole_characters import accepted_text

_log = logging.getLogger("loom.tool")


@dataclass(frozen=True, kw_only=True, slots=True)
class SanitizedOutput:
    """Output in the form that the model reads."""

    text: str
    artifact: str = ""
    """Id of the full output if `text` was truncated."""
    length: int = 0
    """Number of characters in the full output if `text` was truncated."""


class OutputSanitizer:
    """Sanitizes output, and stores the full output if it is truncated."""

    def __init__(self, redactor: Redactor, artifacts: ArtifactStore | None) -> None:
        self._redactor = redactor
        self._artifacts = artifacts

    async def sanitize(self, output: str, context: ToolContext, *, limit: int, note: str = "") -> SanitizedOutput:
        """Return `note`, followed by the output without secrets and within `limit` characters. This method never raises
        an exception.
        """
        text, note = self.clean(output), self.clean(note)
        if len(text) <= limit:
            return SanitizedOutput(text=_after(note, text if text.strip() else EMPTY_OUTPUT))
        artifact = await self._kept(text, context)
        more = _where_the_rest_is(artifact, len(text)) if artifact else " and could not be stored"
        return SanitizedOutput(text=_after(note, clip(text, limit, more)), artifact=artifact, length=len(text))

    def clean(self, text: str) -> str:
        """Return the text without secrets, in a form that every store accepts."""
        return self._redactor.redact(accepted_text(text))

    def clean_arguments(self, arguments: JsonObject) -> JsonObject:
        """Return the arguments with secrets redacted, so that they can be shown to other people."""
        return self._redactor.redact_json(arguments)

    async def _kept(self, text: str, context: ToolContext) -> str:
        if self._artifacts is None or not context.artifact:
            return ""
        try:
            for number, part in enumerate(artifact_parts(context.artifact, len(text))):
                start = number * ARTIFACT_LENGTH
                stored = stored_artifact(part, context.execution)
                await self._artifacts.save(context.run_id, stored, text[start : start + ARTIFACT_LENGTH])
        except StoreUnavailable as error:
            details = {"artifact": context.artifact, "characters": len(text), "error": str(error)}
            _log.warning("artifact_not_kept", extra=details)
            return ""
        return context.artifact


def _where_the_rest_is(artifact: str, length: int) -> str:
    """Return the part of the note that says how to read an output of this length."""
    told = f"; read them with read_artifact, artifact {artifact}"
    parts = artifact_parts(artifact, length)
    if len(parts) > 1:
        told += f" to {parts[-1]}, each with the next {ARTIFACT_LENGTH:,} characters"
    if length <= (stored := len(parts) * ARTIFACT_LENGTH):
        return told
    return f"{told}; the characters after {stored:,} were not stored: write such output to a file, and read parts of it"


def _after(note: str, text: str) -> str:
    return f"{note}\n{text}" if note else text
