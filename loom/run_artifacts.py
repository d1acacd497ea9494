"""Read a run's artifacts: outputs that were too long for a model, and texts that agents share."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from loom.activities.adapters.postgres.artifacts import PostgresArtifacts
from loom.activities.adapters.postgres.database import ANSWER_SECONDS, Database
from loom.activities.adapters.postgres.parts import PostgresParts
from loom.activities.ports import StoreUnavailable
from loom.composition.encryption import opened_database
from loom.composition.settings import Settings
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.tool_calls import next_part, stored_artifact

T = TypeVar("T")

NO_DATABASE: Final = "artifacts are in the database of the worker: start `loom up`, or set LOOM_DATABASE_URL"


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A stored text of a run."""

    run_id: str
    """The run that stored it."""
    id: str
    """What `LoomClient.artifact` and `loom artifact get` take."""
    bytes: int
    """The number of UTF-8 bytes of all its parts."""
    created_at: datetime
    """When its first part was stored, in UTC."""


class RunArtifacts:
    """The artifacts in the database. All methods raise UnreachableError if the database isn't available."""

    def __init__(self, database: Database) -> None:
        self._artifacts = PostgresArtifacts(database)
        self._parts = PostgresParts(database)

    async def listed(self, run_id: str, execution: str = "") -> tuple[Artifact, ...]:
        """Return the artifacts of one run, oldest first. An output that is stored in several parts is listed once.

        `execution` tells runs apart that used the same id one after the other.
        """
        found: dict[str, Artifact] = {}
        for stored in await _answered(self._artifacts.listed(run_id)):
            name, _, of = stored.name.rpartition("@") if "@" in stored.name else (stored.name, "", "")
            if of != execution:
                continue
            first = _first_part(name)
            before = found.get(first)
            size = stored.size + (before.bytes if before else 0)
            at = before.created_at if before else stored.created_at
            found[first] = Artifact(run_id=run_id, id=first, bytes=size, created_at=at)
        return tuple(found.values())

    async def text(self, run_id: str, artifact: str, execution: str = "") -> str:
        """Return a whole artifact. Raises BadRequest if the run has none with this id."""
        parts: list[str] = []
        name = artifact
        while (part := await self._part(run_id, name, execution)) is not None:
            parts.append(part)
            name = next_part(name)
        if not parts:
            raise BadRequest(
                f"run {run_id!r} has no artifact {artifact!r}; `loom artifact list {run_id}` shows all", field="ID"
            )
        return "".join(parts)

    async def _part(self, run_id: str, name: str, execution: str) -> str | None:
        return await _answered(self._artifacts.load(run_id, stored_artifact(name, execution)))

    async def content(self, digest: str) -> bytes | None:
        """Return the content of an image, a recording or a file, or None if it isn't stored."""
        return await _answered(self._parts.load(digest))


@asynccontextmanager
async def run_artifacts(settings: Settings) -> AsyncIterator[RunArtifacts]:
    """Open the artifacts in the settings' database, for reading. Raises UnreachableError if there is no database."""
    if not settings.database_url:
        raise UnreachableError(NO_DATABASE)
    options = {"max_connections": 1, "first_use_within": ANSWER_SECONDS, "name": "loom-artifacts"}
    async with opened_database(settings, **options) as database:
        yield RunArtifacts(database)


def _first_part(name: str) -> str:
    first, separator, number = name.rpartition("~part")
    return first if separator and number.isdecimal() else name


async def _answered(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except StoreUnavailable as error:
        raise UnreachableError(f"the database of artifacts is unavailable: {error}") from error
