"""A consumer in one of the groups that read the bus's Redis Stream. The consumer reads and acknowledges tasks, and
takes over tasks from dead consumers.

Redis stores each group's position and its unacknowledged entries. If a consumer dies, no entries are lost, because
another consumer takes them over after `CLAIM_AFTER`. Entries that all groups have acknowledged are removed from the
stream.
"""

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

from loom.activities.adapters.redis.stream import BUS, opened_task
from loom.activities.bus import Delivery
from loom.activities.ports import StreamUnavailable
from loom.domain.core.errors import EncryptionKeyError

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from loom.activities.adapters.redis.connection import RedisConnection

_log = logging.getLogger("loom.bus")

BLOCK_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = BLOCK_SECONDS + 1.0
"""Timeout in seconds for a consumer's own connection, which it uses for blocking reads."""
CLAIM_AFTER: Final = 30.0
"""Seconds that a task may stay unacknowledged before another consumer takes it over."""
PAGE: Final = 200
_TRIM_EVERY: Final = 2.0
_FORGOTTEN_AFTER_MS: Final = 24 * 3600 * 1000

# Trim the stream up to the oldest entry that at least one group hasn't acknowledged. A group that hasn't read any
# entries needs all of them.
_TRIM: Final = """
local lowest = nil
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local name, delivered = group[2], group[8]
  local pending = redis.call('XPENDING', KEYS[1], name)
  local first = (pending[1] > 0) and pending[2] or delivered
  local ms, seq = string.match(first, '^(%d+)-(%d+)$')
  local place = {tonumber(ms), tonumber(seq), first}
  if lowest == nil or place[1] < lowest[1] or (place[1] == lowest[1] and place[2] < lowest[2]) then lowest = place end
end
if lowest == nil then return 0 end
return redis.call('XTRIM', KEYS[1], 'MINID', '~', lowest[3])
"""


class RedisInbox:
    """An `Inbox` that uses Redis."""

    def __init__(
        self,
        link: "RedisConnection",
        group: str,
        *,
        since: Literal["beginning", "now"] = "beginning",
        bus: str = BUS,
        claim_after: float = CLAIM_AFTER,
        block: float = BLOCK_SECONDS,
    ) -> None:
        """A new group starts either with the tasks that are waiting or with new tasks only. Closing the inbox also
        closes the connection.
        """
        self._link = link
        self._group = group
        self._bus = bus
        self._since = "0" if since == "beginning" else "$"
        self._claim_after = claim_after
        self._block_ms = round(block * 1000)
        self._consumer = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        self._claimed_at: float | None = None
        self._trimmed_at = monotonic()

    async def join(self) -> None:
        """Create the group if it doesn't exist. Raises StreamUnavailable if Redis can't be reached."""
        await self._link.call(partial(_joined, bus=self._bus, group=self._group, since=self._since))

    async def has_tasks(self) -> bool:
        """Return whether the group has tasks that it hasn't acknowledged. Raises StreamUnavailable if Redis can't be
        reached.
        """
        return await self.backlog() != 0

    async def backlog(self) -> int | None:
        """Return the number of tasks that the group hasn't acknowledged, or None if Redis doesn't know it. Raises
        StreamUnavailable if Redis can't be reached.
        """
        await self.join()
        return (await self._link.call(partial(backlogs, bus=self._bus))).get(self._group, 0)

    async def take(self) -> Sequence[Delivery]:
        """See the port. Entries from dead consumers are returned first."""
        if self._claimed_at is None:
            await self.join()
        if self._claimed_at is None or monotonic() - self._claimed_at > self._claim_after / 2:
            if left := await self._link.call(partial(self._in_group, self._claim)):
                return left  # call again, because a dead consumer may have left more than one page of entries
            self._claimed_at = monotonic()
        return await self._link.call(partial(self._in_group, self._read))

    async def done(self, entries: Sequence[str]) -> None:
        """See the port. This method also trims the stream occasionally."""
        if entries:
            await self._link.call(lambda redis: redis.xack(self._bus, self._group, *entries))
        if monotonic() - self._trimmed_at > _TRIM_EVERY:
            self._trimmed_at = monotonic()
            await self.trim()

    async def hold(self, entries: Sequence[str]) -> None:
        """Keep the claims on these entries, so that no other consumer takes them over. Raises StreamUnavailable if
        Redis can't be reached.
        """
        if entries:
            await self._link.call(
                lambda redis: redis.xclaim(self._bus, self._group, self._consumer, 0, list(entries), justid=True)
            )

    async def trim(self) -> int:
        """Remove entries from the stream if every group has acknowledged them. Redis removes them a hundred at a time.
        Return the number of removed entries.
        """
        return sum(await self._link.script(_TRIM, (self._bus,), ()))

    async def aclose(self) -> None:
        """Leave the group if this consumer has no unacknowledged entries, and close the connection."""
        try:
            await self._link.call(self._leave)
        except StreamUnavailable:
            pass
        finally:
            await self._link.aclose()

    async def _read(self, redis: "Redis") -> list[Delivery]:
        streams: Any = await redis.xreadgroup(
            self._group, self._consumer, {self._bus: ">"}, count=PAGE, block=self._block_ms
        )
        found = [given for _, entries in streams or () for given in entries]
        return [await self._delivery(entry, fields) for entry, fields in found]

    async def _claim(self, redis: "Redis") -> list[Delivery]:
        idle = round(self._claim_after * 1000)
        _, entries, *_ = await redis.xautoclaim(self._bus, self._group, self._consumer, idle, count=PAGE)
        return [await self._delivery(entry, fields) for entry, fields in entries if entry is not None]

    async def _delivery(self, entry: bytes, fields: dict[bytes, bytes] | None) -> Delivery:
        """Decode an entry. A pending entry that has been trimmed has no fields."""
        given = fields or {}
        try:
            task = await opened_task(self._link.cipher, given[b"task"])
        except EncryptionKeyError as error:
            _log.warning("task_not_decrypted", extra={"entry": _text(entry), "error": error.message})
            task = None
        except (KeyError, ValueError):
            task = None
        return Delivery(entry=_text(entry), task=task, reply_to=given.get(b"reply", b"").decode())

    async def _in_group(
        self, command: Callable[["Redis"], Awaitable[list[Delivery]]], redis: "Redis"
    ) -> list[Delivery]:
        """Execute a command. If the server has lost the group, create it again. The recreated group receives all
        existing entries.
        """
        from redis.exceptions import ResponseError  # noqa: PLC0415 - importing the client takes half a second

        try:
            return await command(redis)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await _joined(redis, self._bus, self._group, "0")
            return []

    async def _leave(self, redis: "Redis") -> None:
        for consumer in await redis.xinfo_consumers(self._bus, self._group):
            own = _text(consumer["name"]) == self._consumer
            if consumer["pending"] == 0 and (own or consumer["idle"] > _FORGOTTEN_AFTER_MS):
                await redis.xgroup_delconsumer(self._bus, self._group, consumer["name"])


async def backlogs(redis: "Redis", bus: str = BUS) -> Mapping[str, int | None]:
    """Return the number of tasks that each group hasn't acknowledged, or None where Redis doesn't know it."""
    groups: Any = await redis.xinfo_groups(bus) if await redis.exists(bus) else ()
    return {
        _text(group["name"]): None if group["lag"] is None else int(group["pending"]) + int(group["lag"])
        for group in groups
    }


async def _joined(redis: "Redis", bus: str, group: str, since: str) -> None:
    from redis.exceptions import ResponseError  # noqa: PLC0415 - importing the client takes half a second

    try:
        await redis.xgroup_create(bus, group, since, mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
