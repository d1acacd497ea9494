"""Read a run's artifacts: outputs that were too long for a model, texts that agents share, and images and other files.

Texts have a table of their own. A file is stored under the hash of its content, and the run's history has the hash.
"""

from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Final, TypeVar

from loom.activities.adapters.postgres.artifacts import PostgresArtifacts
from loom.activities.adapters.postgres.database import ANSWER_SECONDS, Database
from loom.activities.adapters.postgres.parts import PostgresParts
from loom.activities.ports import StoreUnavailable
from loom.composition.client_settings import ClientSettings
from loom.composition.encryption import opened_database
from loom.domain.core.errors import ArtifactNotFoundError, BadRequest, UnreachableError
from loom.domain.core.tool_calls import MOST_PARTS, next_part, stored_artifact
from loom.domain.history.past_turns import Record
from loom.domain.history.run_export import contents_in, execution_in

T = TypeVar("T")

NO_DATABASE: Final = "artifacts are in the database of the worker: start `loom up`, or set LOOM_DATABASE_URL"


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A stored text of a run, or an image, a recording or another file."""

    run_id: str
    """The run that stored it."""
    id: str
    """What `LoomClient.artifact` and `loom artifact get` take. For a file, the first 12 digits of its SHA-256."""
    bytes: int
    """The number of bytes. A text is counted in UTF-8, with all its parts."""
    created_at: datetime
    """When its first part was stored, in UTC."""
    media_type: str = "text/plain"
    """Such as `image/png`. Texts are `text/plain`."""
    name: str = ""
    """A file's name, if it is known."""


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
        """Return a whole artifact. Raises ArtifactNotFoundError if the run has none with this id."""
        names = [artifact]
        while len(names) < MOST_PARTS:
            names.append(next_part(names[-1]))
        stored = [stored_artifact(name, execution) for name in names]
        found = await _answered(self._artifacts.load_all(run_id, stored))  # all at once, because they can be replaced
        parts = list(takewhile(lambda part: part is not None, map(found.get, stored)))
        if not parts:
            raise ArtifactNotFoundError(
                f"run {run_id!r} has no artifact {artifact!r}; `loom artifact list {run_id}` shows all", field="ID"
            )
        return "".join(filter(None, parts))

    async def all(self, run_id: str, records: Sequence[Record]) -> tuple[Artifact, ...]:
        """Return the texts and the files of one run, oldest first. `records` are from its history."""
        files = contents_in(records)
        owned = await self._owned(run_id, files)
        found = [
            Artifact(
                run_id=run_id,
                id=part.id,
                bytes=part.size,
                created_at=owned[digest],
                media_type=part.media_type,
                name=part.name,
            )
            for digest, part in files.items()
            if digest in owned
        ]
        found += await self.listed(run_id, execution_in(records))
        return tuple(sorted(found, key=lambda artifact: artifact.created_at))

    async def read(self, run_id: str, artifact: str, records: Sequence[Record]) -> bytes:
        """Return a whole text, in UTF-8, or a file. Raises ArtifactNotFoundError if the run has none with this id."""
        named = [part.digest for part in contents_in(records).values() if artifact in (part.id, part.digest)]
        for digest in await self._owned(run_id, named):
            if (content := await self.content(digest)) is not None:
                return content
        text = await self.text(run_id, artifact, execution_in(records))
        return text.encode("utf-8", "surrogatepass")

    async def _owned(self, run_id: str, digests: Iterable[str]) -> dict[str, datetime]:
        return await _answered(self._parts.owned(run_id, digests))

    async def content(self, digest: str) -> bytes | None:
        """Return the content of an image, a recording or a file, or None if it isn't stored."""
        return await _answered(self._parts.load(digest))


def text_of(content: bytes) -> str:
    """Return an artifact as text. Raises BadRequest if it is none."""
    try:
        return content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise BadRequest(
            f"the artifact is no text ({len(content):,} bytes): write it to a file with `loom artifact get --output`, "
            "or read it with `client.artifact_bytes()`",
            field="ID",
        ) from None


@asynccontextmanager
async def run_artifacts(settings: ClientSettings) -> AsyncIterator[RunArtifacts]:
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
