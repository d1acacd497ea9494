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
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from loom.activities.bus import Answer
from loom.activities.encryption import PLAIN
from loom.activities.ports import StoreUnavailable, StreamUnavailable
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import FINAL_ACTIONS, SHOWN_ONLY, Action, Segment, Task, is_last, reopens, runs_above

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from loom.activities.adapters.redis.connection import RedisConnection
    from loom.activities.encryption import Cipher

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
_PAGE_BACK: Final = 50
_PAGES_BACK: Final = 40
_RUNS_REMEMBERED: Final = 10_000
_TASK: Final = "a task of a run"
_ANSWER: Final = "a reply to a task"
_SENT_ONCE: Final = frozenset({Action.THINKING, Action.REASONING, Action.TOOL_PROGRESS})

# The last offset is read from the hash, or else from the stream, and is never less than the last offset that this
# writer knows. Offsets therefore continue even if Redis has lost its data. A reader that waits after offset n receives
# the tasks that follow. If a run reuses the id of a closed run, which Temporal allows, its stream starts again. An
# encrypted task has a field that names the run that it has ended.
_PUBLISH: Final = """
local bus = KEYS[1]
local ttl, limit, bus_limit = ARGV[1], ARGV[2], ARGV[3]
local segment, attempt, starts = ARGV[4], tonumber(ARGV[5]), ARGV[6]
if starts ~= '' then
  local stream, fence, written = KEYS[2], KEYS[3], KEYS[4]
  local entry = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  local ended = entry and entry[2][4]
  if entry and string.sub(entry[2][2], 1, 1) == '{' then
    local last = cjson.decode(entry[2][2])
    ended = (last.action == 'node.complete' or last.action == 'node.error') and last.run_id
  end
  if ended == starts then
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
  for i = 7 + streams, #ARGV, 4 do
    if ARGV[i] == '' or redis.call('SADD', written, ARGV[i]) == 1 then
      last = last + 1
      local id = string.format('%.0f-0', last)
      if ARGV[i + 3] == '' then
        redis.call('XADD', stream, 'MAXLEN', '~', limit, id, 'task', ARGV[i + 2])
      else
        redis.call('XADD', stream, 'MAXLEN', '~', limit, id, 'task', ARGV[i + 2], 'ended', ARGV[i + 3])
      end
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
            ended = task.run_id if self._link.cipher.is_on and task.action in FINAL_ACTIONS else ""
            data = await sealed_task(self._link.cipher, task)
            arguments += (named, int(task.action not in SHOWN_ONLY), data, ended)
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

    def __init__(self, url: str, cipher: "Cipher | None" = None) -> None:
        """Configure the reader. Each read opens its own connection. Only the cipher reads encrypted tasks."""
        self._url = url
        self._cipher = cipher

    async def read(self, run_id: str, after: int = 0, *, follow: bool = True) -> AsyncGenerator[tuple[int, Task], None]:
        """Yield the tasks with offsets greater than `after`, in order, up to the run's last task. If the run went on
        after an end, its last task is the one of its latest end.
        """
        from loom.activities.adapters.redis.connection import RedisConnection  # noqa: PLC0415 - importing the client takes half a second

        within, cipher = _BLOCK_SECONDS + _ANSWER_SECONDS, self._cipher or PLAIN
        link = RedisConnection(self._url, answer_within=within, cipher=cipher)
        block = round(_BLOCK_SECONDS * 1000) if follow else None
        last, has_ended = after, False
        held: list[tuple[int, Task]] = []  # tasks after an end, which are read only if the run has gone on
        try:
            while True:
                page = await link.call(partial(_page, run_id=run_id, after=last, block=None if has_ended else block))
                for last, data in page:
                    task = await opened_task(cipher, data)
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

    async def latest(self, run_id: str) -> int:
        """See the port."""
        from loom.activities.adapters.redis.connection import RedisConnection  # noqa: PLC0415 - as above

        async with aclosing(RedisConnection(self._url, cipher=self._cipher or PLAIN)) as link:
            entries: Any = await link.call(lambda redis: redis.xrevrange(stream_key(run_id), count=1))
        return next((_offset(entry_id) for entry_id, _ in entries), 0)


class RedisRunTasks:
    """`RunTasks` that uses Redis."""

    def __init__(self, link: "RedisConnection") -> None:
        self._link = link

    async def first(self, run_id: str) -> Task | None:
        """See the port."""
        entries: Any = await self._link.call(lambda redis: redis.xrange(stream_key(run_id), count=1))
        return await opened_task(self._link.cipher, entries[0][1][b"task"]) if entries else None

    async def latest(self, run_id: str, wanted: Callable[[Task], bool]) -> Task | None:
        """See the port. It looks through the newest 2,000 tasks."""
        newest = "+"
        for _ in range(_PAGES_BACK):
            entries = await self._link.call(partial(_page_back, run_id=run_id, newest=newest))
            for _, fields in entries:
                if wanted(task := await opened_task(self._link.cipher, fields[b"task"])):
                    return task
            if len(entries) < _PAGE_BACK:
                return None
            newest = f"({entries[-1][0].decode()}"
        return None


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


async def sealed_task(cipher: "Cipher", task: Task) -> bytes:
    """Return a task as a store or a bus keeps it. Several streams have the same task, so it isn't bound to one.

    Raises StreamUnavailable and EncryptionKeyError.
    """
    return await _answered(cipher.seal(dump_json(Task, task), _TASK, cipher.tenant_of(task.run_id)))


async def opened_task(cipher: "Cipher", data: bytes) -> Task:
    """Return a stored task. Raises ValueError if it is invalid, and StreamUnavailable and EncryptionKeyError."""
    task = load_json(Task, await _answered(cipher.open(data, _TASK)))
    if tenant := await _answered(cipher.owner(data)):
        cipher.learn(task.run_id, tenant)
    return task


async def answer_line(cipher: "Cipher", name: str, answer: Answer) -> bytes:
    """Return a handler's reply to a task as one line."""
    task = answer.task
    told = None if task is None else dump_json(Task, task).decode()
    line = json.dumps([name, told, answer.failed]).encode()
    return await _answered(cipher.seal(line, _ANSWER, "" if task is None else cipher.tenant_of(task.run_id)))


async def read_answer(cipher: "Cipher", line: bytes) -> tuple[str, Answer]:
    """Return the handler's name and its reply. Raises StreamUnavailable and EncryptionKeyError."""
    name, told, failed = json.loads(await _answered(cipher.open(line, _ANSWER)))
    return name, Answer(task=None if told is None else load_json(Task, told), failed=failed)


async def _answered(work: Awaitable[T]) -> T:
    """Return the result. Raises StreamUnavailable if the tenants' keys can't be read."""
    try:
        return await work
    except StoreUnavailable as error:
        raise StreamUnavailable(f"the key isn't available: {error}") from error


async def _page_back(redis: "Redis", run_id: str, newest: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    entries: Any = await redis.xrevrange(stream_key(run_id), max=newest, count=_PAGE_BACK)
    return list(entries)


async def _page(redis: "Redis", run_id: str, after: int, block: int | None) -> list[tuple[int, bytes]]:
    streams: Any = await redis.xread({stream_key(run_id): f"{after}-0"}, count=_PAGE, block=block)
    return [(_offset(entry_id), fields[b"task"]) for _, entries in streams for entry_id, fields in entries]


def _offset(entry_id: bytes) -> int:
    return int(entry_id.split(b"-")[0])
