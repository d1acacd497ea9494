"""Export everything that a run and its sub-agents were, from the stream and from history, without a worker."""

from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Final

from temporalio.client import Client

from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.ports import EventReader, StreamUnavailable
from loom.domain.core.errors import BadRequest, RunNotFoundError, UnreachableError
from loom.domain.core.media import UNKNOWN
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import SHOWN_ONLY, Action, Task
from loom.domain.history.past_turns import Record
from loom.domain.history.run_export import Source, archive_in, artifacts_in, contents_in, execution_in, exported
from loom.domain.history.task_rebuilding import Mask
from loom.recorded_runs import RecordedRuns, RecordedTasks
from loom.run_artifacts import RunArtifacts

SOURCES: Final = ("stream", "history")


class RunExport:
    """Exports runs."""

    def __init__(
        self, client: Client, mask: Mask, *, events: EventReader | None = None, artifacts: RunArtifacts | None = None
    ) -> None:
        """With `artifacts`, their contents are exported, too."""
        self._pasts = TemporalPasts(client)
        self._runs = RecordedRuns(client, mask)
        self._mask = mask
        self._events = events
        self._artifacts = artifacts

    async def records(self, run_id: str, *, source: str | None = None) -> AsyncIterator[JsonObject]:
        """Yield the records of the run, and then those of its sub-agents. Each has `record` and `run_id`.

        Events come from `source`, or by default from the stream if it still has all of them, else from history.

        Raises BadRequest if the source is unknown, RunNotFoundError if the server has no history of the run, and
        UnreachableError if the stream is asked for and doesn't have the run's events.
        """
        if source not in (None, *SOURCES):
            raise BadRequest(f"--source: {source!r} is not one of {', '.join(SOURCES)}", field="source")
        recorded = await self._runs.tasks(run_id)
        records = await self._pasts.records(run_id)
        tasks, where = await self._tasks(run_id, recorded, source)
        for record in exported(records, tasks, source=where, mask=self._mask):
            yield {"record": record["record"], "run_id": run_id, **record}
        if recorded.cut_short is not None:
            yield {"record": "result", "run_id": run_id, **asdict(recorded.cut_short)}
        async for record in self._contents(run_id, records):
            yield {"run_id": run_id, **record}
        for child in recorded.children:
            try:
                async for record in self.records(child, source=source):
                    yield record
            except RunNotFoundError:
                continue  # it never started, or the server has deleted its history

    async def _tasks(self, run_id: str, recorded: RecordedTasks, source: str | None) -> tuple[Sequence[Task], Source]:
        if source == "history":
            return recorded.tasks, "history"
        try:
            told = await self._told(run_id)
        except StreamUnavailable as error:
            if source == "stream":
                raise UnreachableError(f"the live stream is unavailable: {error}") from error
            return recorded.tasks, "history"
        if _is_whole(told, recorded.tasks):
            return told, "stream"
        if source == "stream":
            raise UnreachableError(
                f"the stream no longer has all events of run {run_id!r}: leave out --source, or use --source history"
            )
        return recorded.tasks, "history"

    async def _told(self, run_id: str) -> Sequence[Task]:
        if self._events is None:
            raise StreamUnavailable("no Redis is configured: set LOOM_REDIS_URL")
        async with aclosing(self._events.read(run_id, 0, follow=False)) as tasks:  # type: ignore[type-var]
            return [task async for _, task in tasks if task.run_id == run_id and task.action not in SHOWN_ONLY]

    async def _contents(self, run_id: str, records: Sequence[Record]) -> AsyncIterator[JsonObject]:
        known = artifacts_in(records)
        if self._artifacts is None:
            for name, call in known.items():
                yield {"record": "artifact", "id": name, **call}
            return
        execution = execution_in(records)
        for artifact in await self._artifacts.listed(run_id, execution):
            text = await self._artifacts.text(run_id, artifact.id, execution)
            call = known.get(artifact.id, {"call_id": None, "tool": None})
            yield {"record": "artifact", **asdict(artifact), **call, "encoding": "utf-8", "content": text}
        for digest, part in contents_in(records).items():
            about = {"name": part.name, "media_type": part.media_type, "bytes": part.size}
            data = await self._artifacts.content(digest)
            yield _content(digest, about, data)
        if archive := archive_in(records):
            data = await self._artifacts.content(archive.digest)
            about = {"name": archive.name, "media_type": UNKNOWN, "bytes": len(data or b"")}
            yield _content(archive.digest, about, data)


def _content(digest: str, about: JsonObject, data: bytes | None) -> JsonObject:
    content = None if data is None else b64encode(data).decode()
    return {"record": "artifact", "id": digest, **about, "encoding": "base64", "content": content}


def _is_whole(told: Sequence[Task], recorded: Sequence[Task]) -> bool:
    """Whether the stream has every event that history proves. It may have expired, or Redis may have lost some."""
    there = {task.task_id for task in told}
    return all(task.task_id in there for task in recorded if _is_certain(task))


def _is_certain(task: Task) -> bool:
    """Whether the task was published for sure. A worker may have died before it published that something began."""
    return task.action not in (Action.TURN, Action.TOOL_CALL)
