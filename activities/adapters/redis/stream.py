"""The live event stream on Redis Streams. Each run has its own stream, with the entry ids `1-0`, `2-0`, … as offsets.

Redis keys. Each key of a run has the same time to live, which starts at the last write:
    loom:events:{run}    the stream; an entry has one field, the task as JSON
    loom:fence:{run}     hash: the highest attempt of each segment, and under `#` the last offset
    loom:written:{run}   set: ids of the tasks already written, except frequent tasks that are sent only once
    loom:bus             one stream for all runs: every task except fragments of text, for subscribers (`redis.bus`)

Publishing uses a single script, so it is atomic and takes one round trip. Tasks of a sub-agent are also appended to the
streams of its parent and ancestor runs. Each of these streams has its own offsets.
"""

import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import SHOWN_ONLY, Action, Segment, Task, is_last, reopens, runs_above

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from loom.activities.adapters.redis.connection import RedisConnection

T = TypeVar("T")

DAY: Final = 24 * 3600
BUS: Final = "loom:bus"
BUS_ENTRIES: Final = 20_000
"""Approximate maximum number of tasks on the bus. If memory misses tasks because of this limit, it rebuilds them from
history.
"""
_ANSWER_SECONDS: Final = 1.0
_BLOCK_SECONDS: Final = 2.0
_PAGE: Final = 500
_RUNS_REMEMBERED: Final = 10_000
_SENT_ONCE: Final = frozenset({Action.THINKING, Action.REASONING, Action.TOOL_PROGRESS})

# The last offset is read from the hash, or else from the stream, and is never less than the last offset that this
# writer knows. Offsets therefore continue even if Redis has lost its data. A reader that waits after offset n receives
# the tasks that follow. If a run reuses the id of a closed run, which Temporal allows, its stream starts again.
_PUBLISH: Final = """
local bus = KEYS[1]
local ttl, limit, bus_limit = ARGV[1], ARGV[2], ARGV[3]
local segment, attempt, starts = ARGV[4], tonumber(ARGV[5]), ARGV[6]
if starts ~= '' then
  local stream, fence, written = KEYS[2], KEYS[3], KEYS[4]
  local entry = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  local last = entry and cjson.decode(entry[2][2])
  if last and last.run_id == starts and (last.action == 'node.complete' or last.action == 'node.error') then
    redis.call('DEL', stream, fence, written)
    redis.call('HSET', fence, '#', string.match(entry[1], '^%d+'))
  end
end
if segment ~= '' then
  local fence = KEYS[3]
  local latest = tonumber(redis.call('HGET', fence, segment) or '0')
  if attempt < latest then return {} end
  if attempt > latest then redis.call('HSET', fence, segment, attempt) end
end
local streams = (#KEYS - 1) / 3
local reached = {}
for run = 1, streams do
  local stream, fence, written = KEYS[3 * run - 1], KEYS[3 * run], KEYS[3 * run + 1]
  local floor = tonumber(ARGV[6 + run])
  local last = tonumber(redis.call('HGET', fence, '#') or '0')
  if last == 0 then
    local entry = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
    if entry then last = tonumber(string.match(entry[1], '^%d+')) end
  end
  if floor > last then last = floor end
  for i = 7 + streams, #ARGV, 3 do
    if ARGV[i] == '' or redis.call('SADD', written, ARGV[i]) == 1 then
      last = last + 1
      redis.call('XADD', stream, 'MAXLEN', '~', limit, string.format('%.0f-0', last), 'task', ARGV[i + 2])
      if run == 1 and ARGV[i + 1] == '1' then
        redis.call('XADD', bus, 'MAXLEN', '~', bus_limit, '*', 'task', ARGV[i + 2])
      end
    end
  end
  redis.call('HSET', fence, '#', string.format('%.0f', last))
  for i = 3 * run - 1, 3 * run + 1 do redis.call('EXPIRE', KEYS[i], ttl) end
  reached[run] = last
end
return reached
"""
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


class RedisStream:
    """An `EventStream` that uses Redis."""

    def __init__(
        self,
        link: "RedisConnection",
        *,
        keep_seconds: int = 7 * DAY,
        keep_entries: int = 100_000,
        bus: str = BUS,
        bus_entries: int = BUS_ENTRIES,
    ) -> None:
        """A stream expires `keep_seconds` after the run's last event. A stream with more than `keep_entries` entries is
        trimmed to about that number.
        """
        self._link = link
        self._bus = bus
        self._limits = (keep_seconds, keep_entries, bus_entries)
        self._last: OrderedDict[str, int] = OrderedDict()

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """Append one run's tasks to its stream and to the streams of its parent and ancestor runs. Return False without
        publishing if a later attempt has taken over.
        """
        if not tasks:
            return True
        runs = (tasks[0].run_id, *runs_above(tasks[0].run_id, tasks[0].root_run_id))
        keys = (self._bus, *(key for run_id in runs for key in stream_keys(run_id)))
        name, attempt = (segment.name, segment.attempt) if segment else ("", 0)
        starts = tasks[0].run_id if any(task.action is Action.START for task in tasks) else ""
        arguments: list[Any] = [*self._limits, name, attempt, starts, *(self._last.get(run_id, 0) for run_id in runs)]
        for task in tasks:
            named = "" if task.action in _SENT_ONCE else task.task_id
            arguments += (named, int(task.action not in SHOWN_ONLY), dump_json(Task, task))
        reached = await self._link.script(_PUBLISH, keys, arguments)
        for run_id, last in zip(runs, reached, strict=False):
            self._remember(run_id, last)
        return bool(reached)

    async def aclose(self) -> None:
        """Close the connection to Redis."""
        await self._link.aclose()

    def _remember(self, run_id: str, last: int) -> None:
        self._last[run_id] = max(last, self._last.get(run_id, 0))
        self._last.move_to_end(run_id)
        if len(self._last) > _RUNS_REMEMBERED:
            self._last.popitem(last=False)


class RedisReader:
    """An `EventReader` that uses Redis."""

    def __init__(self, url: str) -> None:
        """Configure the reader. Each read opens its own connection."""
        self._url = url

    async def read(self, run_id: str, after: int = 0, *, follow: bool = True) -> AsyncGenerator[tuple[int, Task], None]:
        """Yield the tasks with offsets greater than `after`, in order, up to the run's last task. If the run went on
        after an end, its last task is the one of its latest end.
        """
        from loom.activities.adapters.redis.connection import RedisConnection  # noqa: PLC0415 - importing the client takes half a second

        link = RedisConnection(self._url, answer_within=_BLOCK_SECONDS + _ANSWER_SECONDS)
        block = round(_BLOCK_SECONDS * 1000) if follow else None
        last, has_ended = after, False
        held: list[tuple[int, Task]] = []  # tasks after an end, which are read only if the run has gone on
        try:
            while True:
                page = await link.call(partial(_page, run_id=run_id, after=last, block=None if has_ended else block))
                for last, data in page:
                    task = load_json(Task, data)
                    held.append((last, task))
                    if has_ended and not reopens(task, run_id):
                        continue
                    for each in held:
                        yield each
                    held, has_ended = [], is_last(task, run_id)
                if not page and (has_ended or not follow):
                    return
        finally:
            await link.aclose()


def stream_key(run_id: str) -> str:
    """Return the key of a run's stream."""
    return f"loom:events:{run_id}"


def stream_keys(run_id: str) -> tuple[str, str, str]:
    """Return all keys of a run's stream."""
    return stream_key(run_id), f"loom:fence:{run_id}", f"loom:written:{run_id}"


def task_view(offset: int, task: Task) -> JsonObject:
    """Return a task and its offset as a JSON object. The public contract defines the object's keys."""
    return {
        "offset": offset,
        "task_id": task.task_id,
        "run_id": task.run_id,
        "root_run_id": task.root_run_id,
        "session_id": task.session_id,
        "parent_task_id": task.parent_task_id,
        "action": task.action.value,
        "source_agent": task.source_agent,
        "target_agent": task.target_agent,
        "status": task.status,
        "parameters": dict(task.parameters),
        "result": None if task.result is None else dict(task.result),
        "metadata": dict(task.metadata),
        "created_at": task.created_at.isoformat(),
    }


def dump_json(kind: type, value: object) -> bytes:
    """Serialize a domain value as compact JSON without default values. An unpaired surrogate is replaced with a
    question mark.
    """
    adapter = _adapter(kind)
    try:
        return adapter.serializer.to_json(value, exclude_defaults=True)
    except PydanticSerializationError:
        plain = adapter.dump_python(value, exclude_defaults=True, mode="json")
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def load_json(kind: type[T], data: bytes | str) -> T:
    """Parse JSON that `dump_json` wrote. Raises ValueError if the data is invalid."""
    value: T = _adapter(kind).validator.validate_json(data)
    return value


async def _page(redis: "Redis", run_id: str, after: int, block: int | None) -> list[tuple[int, bytes]]:
    streams: Any = await redis.xread({stream_key(run_id): f"{after}-0"}, count=_PAGE, block=block)
    return [(int(entry_id.split(b"-")[0]), fields[b"task"]) for _, entries in streams for entry_id, fields in entries]
