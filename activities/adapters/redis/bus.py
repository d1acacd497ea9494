"""A bus between processes. It uses the Redis Stream that also receives the tasks of runs (see `redis.stream`).

Each subscription has its own consumer group, so even a slow subscription receives every task. Within a group, each task
is handled by one process. If that process dies, another process in the group receives the task after a timeout. Tasks
are therefore delivered at least once, and handlers can recognize repeated tasks by their `task_id`.

Redis keys in addition to the stream:
    loom:bus:handlers      sorted set: name, pattern and process of each current handler, by expiry time
    loom:bus:reply:{id}    list: the replies to a task whose publisher is waiting
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from loom.activities.adapters.redis.consumer import BLOCK_SECONDS, RedisInbox
from loom.activities.adapters.redis.stream import BUS, BUS_ENTRIES, answer_line, read_answer, sealed_task
from loom.activities.bus import Answer, Delivery, Subscription, answer_of
from loom.activities.ports import StreamUnavailable
from loom.domain.core.task_routing import takes
from loom.domain.core.tasks import Task

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from loom.activities.adapters.redis.connection import RedisConnection

_log = logging.getLogger("loom.bus")

_ENDING: Final = 5.0
"""Seconds that a handler has to finish its tasks when its subscription ends in this process."""
_SERVED_SECONDS: Final = 10
_RENEW_SECONDS: Final = 3.0
_REPLY_SECONDS: Final = 300
_PAUSE: Final = 0.5

# Use the server's clock, because the clocks of two machines may differ.
_SERVE: Final = "return redis.call('ZADD', KEYS[1], tonumber(redis.call('TIME')[1]) + tonumber(ARGV[2]), ARGV[1])"
_SERVED: Final = """
local now = redis.call('TIME')[1]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
return redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')
"""


class RedisBus:
    """A `Transport` that uses Redis Streams."""

    def __init__(
        self,
        connect: Callable[[], "RedisConnection"],
        *,
        bus: str = BUS,
        claim_after: float = 60.0,
    ) -> None:
        """`connect` creates one connection per subscription. The connection's timeout must be
        `consumer.ANSWER_SECONDS`.
        """
        self._connect = connect
        self._link = connect()
        self._bus = bus
        self._claim_after = claim_after
        self._process = uuid4().hex
        self._serving: dict[str, tuple[Subscription, RedisInbox, asyncio.Task[None]]] = {}

    async def attach(self, subscription: Subscription) -> None:
        """See the port. A subscription with a new name receives tasks that are published after this call."""
        await self.detach(subscription.name)
        inbox = RedisInbox(
            self._connect(),
            subscription.name,
            since="now",
            bus=self._bus,
            claim_after=self._claim_after,
            block=min(BLOCK_SECONDS, self._claim_after / 2),
        )
        try:
            await inbox.join()
            await self._renew(subscription)
        except BaseException:
            await inbox.aclose()
            raise
        serving = asyncio.create_task(self._serve(subscription, inbox))
        self._serving[subscription.name] = (subscription, inbox, serving)

    async def detach(self, name: str) -> None:
        """See the port. The group continues to collect tasks until a handler subscribes under the same name again."""
        if name not in self._serving:
            return
        subscription, inbox, serving = self._serving.pop(name)
        serving.cancel()
        await asyncio.wait({serving})
        await inbox.aclose()
        await self._link.call(lambda redis: redis.zrem(self._handlers, self._line(subscription)))

    async def send(self, task: Task) -> None:
        """See the port."""
        await self._put(task)

    async def ask(self, task: Task, patience: float) -> Sequence[Answer]:
        """See the port. Replies are ordered by subscription name."""
        served: Any = await self._link.call(lambda redis: redis.eval(_SERVED, 1, self._handlers))
        lines = [json.loads(line) for line in served]
        asked = {name for name, pattern, _ in lines if takes(pattern, task.action)}
        if not asked:
            await self._put(task)
            return ()
        reply_to = f"{self._bus}:reply:{uuid4().hex}"
        await self._put(task, reply_to)
        answers = await self._answers(reply_to, asked, patience)
        return [answers[name] for name in sorted(answers)]

    async def aclose(self) -> None:
        """See the port."""
        await asyncio.gather(*(self._ended(name) for name in tuple(self._serving)))
        await self._link.aclose()

    async def _ended(self, name: str) -> None:
        try:
            await self.detach(name)
        except StreamUnavailable as error:
            _log.debug("handler_not_signed_off", extra={"handler": name, "error": str(error)})

    def _line(self, subscription: Subscription) -> str:
        return json.dumps([subscription.name, subscription.pattern, self._process])

    @property
    def _handlers(self) -> str:
        return f"{self._bus}:handlers"

    async def _put(self, task: Task, reply_to: str = "") -> None:
        data = await sealed_task(self._link.cipher, task)
        fields: dict[Any, Any] = {"task": data} | ({"reply": reply_to} if reply_to else {})
        await self._link.call(lambda redis: redis.xadd(self._bus, fields, maxlen=BUS_ENTRIES, approximate=True))

    async def _answers(self, reply_to: str, asked: set[str], patience: float) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        deadline = monotonic() + patience
        while asked - answers.keys():
            left = deadline - monotonic()
            if left <= 0:
                _log.warning("handlers_silent", extra={"handlers": sorted(asked - answers.keys()), "waited": patience})
                break
            came: Any = await self._link.call(partial(_next_reply, reply_to=reply_to, within=min(left, 1.0)))
            if came is not None:
                name, answer = await read_answer(self._link.cipher, came[1])
                answers[name] = answer
        return answers

    async def _renew(self, subscription: Subscription) -> None:
        await self._link.script(_SERVE, (self._handlers,), (self._line(subscription), _SERVED_SECONDS))

    async def _serve(self, subscription: Subscription, inbox: RedisInbox) -> None:
        """Handle tasks until this method is canceled. Then finish the tasks that have started. If a task takes too long
        to finish, another process handles it.
        """
        room = asyncio.Semaphore(subscription.at_once)
        running: set[asyncio.Task[None]] = set()
        held: set[str] = set()
        renewing = asyncio.create_task(self._renew_for_ever(subscription, inbox, held))
        try:
            while True:
                taken = await _taken(inbox)
                held.update(delivery.entry for delivery in taken)
                for delivery in taken:
                    await room.acquire()
                    one = asyncio.create_task(self._handle(subscription, delivery, inbox))
                    running.add(one)
                    one.add_done_callback(running.discard)
                    one.add_done_callback(lambda _, entry=delivery.entry: held.discard(entry))  # type: ignore[misc]
                    one.add_done_callback(lambda _: room.release())
        finally:
            _, late = await asyncio.wait(running, timeout=_ENDING) if running else (None, set())
            for one in late:
                one.cancel()
            if late:
                await asyncio.wait(late)
            renewing.cancel()

    async def _renew_for_ever(self, subscription: Subscription, inbox: RedisInbox, held: Collection[str]) -> None:
        """Periodically renew this handler's registration and its claims on slow tasks, so that other processes in the
        group don't take them over.
        """
        while True:
            await asyncio.sleep(min(_RENEW_SECONDS, self._claim_after / 4))
            try:
                await self._renew(subscription)
                await inbox.hold(tuple(held))
            except StreamUnavailable as error:
                _log.debug("handler_not_renewed", extra={"handler": subscription.name, "error": str(error)})

    async def _handle(self, subscription: Subscription, delivery: Delivery, inbox: RedisInbox) -> None:
        """Handle the task, send the reply, and only then acknowledge the task."""
        try:
            if delivery.task is not None and takes(subscription.pattern, delivery.task.action):
                answer = await answer_of(subscription, delivery.task)
                if delivery.reply_to:
                    await self._reply(delivery.reply_to, subscription.name, answer)
            await inbox.done([delivery.entry])
        except StreamUnavailable as error:
            details = {"handler": subscription.name, "entry": delivery.entry, "error": str(error)}
            _log.warning("not_said_to_be_done", extra=details)

    async def _reply(self, reply_to: str, name: str, answer: Answer) -> None:
        line = await answer_line(self._link.cipher, name, answer)

        async def push(redis: Any) -> None:
            await redis.rpush(reply_to, line)
            await redis.expire(reply_to, _REPLY_SECONDS)

        await self._link.call(push)


async def _next_reply(redis: "Redis", reply_to: str, within: float) -> Any:
    return await redis.blpop([reply_to], within)


async def _taken(inbox: RedisInbox) -> Sequence[Delivery]:
    try:
        return await inbox.take()
    except StreamUnavailable:
        await asyncio.sleep(_PAUSE)
        return ()
