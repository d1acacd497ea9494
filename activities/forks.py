"""Read a fork's starting point from the history of the original run, and store it for the activities of the new run."""

from loom.activities.part_storing import PartKeeper
from loom.activities.ports import ArtifactStore, Pasts, TranscriptStore
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import Tail, transcript_of
from loom.domain.core.requests import ForkedFrom, RunRequest
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import artifact_parts, stored_artifact
from loom.domain.history.forks import (
    ForkPoint,
    begun_at,
    fork_point,
    refuse_changes,
    refuse_other_owner,
    request_in,
)
from loom.domain.run.activity_payloads import Earlier


class Forks:
    """Finds the turn where a run is forked, and prepares the new run."""

    def __init__(
        self, *, pasts: Pasts, transcripts: TranscriptStore, artifacts: ArtifactStore | None, parts: PartKeeper
    ) -> None:
        self._pasts = pasts
        self._transcripts = transcripts
        self._artifacts = artifacts
        self._parts = parts

    async def point(self, forked: ForkedFrom, request: RunRequest) -> ForkPoint:
        """Return the original run's state after the forked turn. Raises RunNotFoundError if the run doesn't exist, and
        BadRequest if it can't be forked as requested.
        """
        records = await self._pasts.records(forked.run_id)
        # First, because the other errors tell what the other run has done.
        if (was := request_in(records)) is not None:
            refuse_other_owner(was, request)
        found = fork_point(records, forked.turn)
        if request.agent != found.spec.name:
            raise BadRequest(
                f"run {forked.run_id!r} uses the agent {found.spec.name!r}, and its fork must use the same agent:"
                f" name that one instead of {request.agent!r}",
                field="agent",
            )
        refuse_changes(found, request)
        return begun_at(found, forked)

    async def begin(self, origin: Origin, forked: ForkedFrom, earlier: Earlier) -> None:
        """Store the conversation and copies of the artifacts under the new run's id."""
        await self._transcripts.save(origin.run_id, Tail(), transcript_of(earlier.messages))
        contents = (message.content for message in earlier.messages if not isinstance(message.content, str))
        await self._parts.adopted([part for content in contents for part in content], origin)
        if self._artifacts is None:
            return
        parts = [p for kept in earlier.artifacts for p in artifact_parts(kept["id"], kept.get("characters") or 0)]
        for artifact in parts:
            text = await self._artifacts.load(forked.run_id, stored_artifact(artifact, earlier.execution))
            if text is not None:
                await self._artifacts.save(origin.run_id, stored_artifact(artifact, origin.execution), text)
