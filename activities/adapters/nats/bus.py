"""A bus between processes on NATS JetStream.

Each subscription has its own durable consumer, so even a slow subscription receives every task. The processes of a
subscription share the consumer, and each task is handled by one of them. If that process dies, another one receives the
task after a timeout. Tasks are therefore delivered at least once, and handlers can recognize repeated tasks by their
`task_id`.

What the server has for the bus `loom:bus`:
    subject loom.bus.ACTION        a task; an action's dots make it several tokens, so the server matches the patterns
    stream loom-bus                the tasks that a consumer hasn't acknowledged
    bucket loom-bus-handlers       name and pattern of each current handler, for 10 seconds after it was renewed

Replies are plain NATS messages to the publisher's inbox.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

from loom.activities.adapters.redis.stream import (
    BUS,
    BUS_ENTRIES,
    answer_line,
    opened_task,
    read_answer,
    sealed_task,
)
from loom.activities.bus import Answer, Subscription, answer_of
from loom.activities.encryption import PLAIN, Cipher
from loom.activities.ports import StreamUnavailable, TaskTooLarge
from loom.domain.core.errors import EncryptionKeyError
from loom.domain.core.messages import short_digest
from loom.domain.core.task_routing import EVERYTHING, takes
from loom.domain.core.tasks import Task
from loom.extras import PACKAGES, require

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

T = TypeVar("T")

_log = logging.getLogger("loom.bus")

REPLY_TO: Final = "Loom-Reply-To"
_CONNECT_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 2.0
_PATIENCE: Final = _CONNECT_SECONDS + _ANSWER_SECONDS
_PULL_SECONDS: Final = 5.0
_ENDING: Final = 5.0
"""Seconds that a handler has to finish its tasks when its subscription ends in this process."""
_SERVED_SECONDS: Final = 10.0
_RENEW_SECONDS: Final = 3.0
_PAUSE: Final = 0.5
_HEADER_BYTES: Final = 200
"""More than a message's header takes, which the server counts as a part of the message."""


class NatsBus:
    """A `Transport` that uses NATS JetStream."""

    def __init__(self, url: str, *, bus: str = BUS, claim_after: float = 60.0, cipher: Cipher = PLAIN) -> None:
        """Connect on first use. Another process takes over a task if its process is silent for `claim_after` seconds.

        Raises BadRequest if the client for NATS isn't installed.
        """
        require("LOOM_BUS_URL", *PACKAGES["nats"])
        self._url = url
        self._cipher = cipher
        self._subject = bus.replace(":", ".")
        self._stream = re.sub(r"[^\w-]", "-", bus)
        self._claim_after = claim_after
        self._process = uuid4().hex
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._served: KeyValue | None = None
        self._serving: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}

    async def attach(self, subscription: Subscription) -> None:
        """See the port. A subscription with a new name receives tasks that are published after this call."""
        await self.detach(subscription.name)
        pull = await self._answered(lambda: self._pulling(subscription))
        await self._answered(lambda: self._renew(subscription))
        self._serving[subscription.name] = (subscription, asyncio.create_task(self._serve(subscription, pull)))

    async def detach(self, name: str) -> None:
        """See the port. The consumer keeps collecting tasks until a handler subscribes under the same name again."""
        if name not in self._serving:
            return
        subscription, serving = self._serving.pop(name)
        serving.cancel()
        await asyncio.wait({serving})
        await self._answered(lambda: self._signed_off(subscription))

    async def send(self, task: Task) -> None:
        """See the port."""
        await self._answered(lambda: self._put(task))

    async def ask(self, task: Task, patience: float) -> Sequence[Answer]:
        """See the port. Replies are ordered by subscription name."""
        asked = {name for name, pattern in await self._answered(self._handlers) if takes(pattern, task.action)}
        if not asked:
            await self.send(task)
            return ()
        client = await self._answered(self._connected)
        inbox = client.new_inbox()
        replies = await self._answered(lambda: client.subscribe(inbox))
        try:
            await self._answered(lambda: self._put(task, inbox))
            answers: dict[str, Answer] = {}
            deadline = monotonic() + patience
            while (silent := asked - answers.keys()) and (left := deadline - monotonic()) > 0:
                if (reply := await self._answered(partial(_next, replies.next_msg, left), within=left + 1)) is not None:
                    name, answer = await read_answer(self._cipher, reply.data)
                    answers[name] = answer
            if silent:
                _log.warning("handlers_silent", extra={"handlers": sorted(silent), "waited": patience})
            return [answers[name] for name in sorted(answers)]
        finally:
            if client.is_connected:
                await replies.unsubscribe()

    async def aclose(self) -> None:
        """See the port."""
        await asyncio.gather(*(self._ended(name) for name in tuple(self._serving)))
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _ended(self, name: str) -> None:
        try:
            await self.detach(name)
        except StreamUnavailable as error:
            _log.debug("handler_not_signed_off", extra={"handler": name, "error": str(error)})

    async def _answered(self, work: Callable[[], Awaitable[T]], *, within: float = _PATIENCE) -> T:
        """Return the result of the work. Raises StreamUnavailable if the server can't be reached or refuses it."""
        from nats.errors import Error  # noqa: PLC0415 - an extra

        try:
            async with asyncio.timeout(within):
                return await work()
        except (Error, OSError, TimeoutError) as error:
            raise StreamUnavailable(f"NATS does not respond: {str(error) or type(error).__name__}") from error

    async def _connected(self) -> "Client":
        """Return the connection. The client reconnects by itself if it has lost the server."""
        import nats  # noqa: PLC0415 - an extra, and its import takes time

        async with self._connecting:
            if self._client is None or self._client.is_closed:
                self._client = await nats.connect(
                    self._url,
                    name="loom",
                    connect_timeout=int(_CONNECT_SECONDS),
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_PAUSE,
                    error_cb=_told,
                )
        if not self._client.is_connected:
            raise TimeoutError("the connection is lost")
        return self._client

    async def _jetstream(self) -> "JetStreamContext":
        """Return the connection to JetStream after the stream has been created, if it is missing."""
        from nats.js.api import KeyValueConfig, RetentionPolicy, StreamConfig  # noqa: PLC0415
        from nats.js.errors import BucketNotFoundError, NotFoundError  # noqa: PLC0415

        client = await self._connected()
        jetstream = client.jetstream(timeout=_ANSWER_SECONDS)
        if self._served is not None:
            return jetstream
        try:
            await jetstream.stream_info(self._stream)
        except NotFoundError:
            await jetstream.add_stream(
                StreamConfig(
                    name=self._stream,
                    subjects=[f"{self._subject}.>"],
                    retention=RetentionPolicy.INTEREST,  # the bus doesn't keep what nobody waits for
                    max_msgs=BUS_ENTRIES,
                )
            )
        bucket = f"{self._stream}-handlers"
        try:
            self._served = await jetstream.key_value(bucket)
        except BucketNotFoundError:
            self._served = await jetstream.create_key_value(KeyValueConfig(bucket=bucket, ttl=_SERVED_SECONDS))
        return jetstream

    async def _put(self, task: Task, reply_to: str = "") -> None:
        from nats.js.errors import NoStreamResponseError  # noqa: PLC0415 - an extra

        jetstream = await self._jetstream()
        data, most = await sealed_task(self._cipher, task), (await self._connected()).max_payload
        if len(data) + _HEADER_BYTES > most:
            raise TaskTooLarge(f"task {task.task_id} has {len(data):,} bytes, and this server accepts {most:,}")
        subject, headers = f"{self._subject}.{task.action}", {REPLY_TO: reply_to} if reply_to else None
        try:
            await jetstream.publish(subject, data, headers=headers)
        except NoStreamResponseError:  # the server has lost the stream
            self._served = None
            await (await self._jetstream()).publish(subject, data, headers=headers)

    async def _pulling(self, subscription: Subscription) -> "JetStreamContext.PullSubscription":
        """Create the subscription's consumer, or update the one that exists, and return a subscription to it."""
        from nats.js.api import ConsumerConfig, DeliverPolicy  # noqa: PLC0415

        jetstream = await self._jetstream()
        durable = _consumer(subscription.name)
        await jetstream.add_consumer(
            self._stream,
            ConsumerConfig(
                durable_name=durable,
                description=subscription.name,
                deliver_policy=DeliverPolicy.NEW,
                filter_subject=f"{self._subject}.{_filter(subscription.pattern)}",
                ack_wait=self._claim_after,
                max_ack_pending=-1,  # each process has its own limit, and a request may wait for its run for days
            ),
        )
        return await jetstream.pull_subscribe_bind(durable, stream=self._stream)

    async def _handlers(self) -> list[tuple[str, str]]:
        """Return the name and the pattern of each handler that is being served.

        The library's own listing, a watch, is sometimes empty: it ends if the server has sent everything, although a
        busy client has received nothing yet.
        """
        jetstream = await self._jetstream()
        if self._served is None:
            return []
        prefix = f"$KV.{self._stream}-handlers."
        listed = await jetstream.stream_info(f"KV_{self._stream}-handlers", subjects_filter=f"{prefix}>")
        keys = [subject.removeprefix(prefix) for subject in listed.state.subjects or ()]
        found = await asyncio.gather(*map(self._handler, keys))
        return [each for each in found if each is not None]

    async def _handler(self, key: str) -> tuple[str, str] | None:
        from nats.js.errors import NotFoundError  # noqa: PLC0415

        if self._served is None:
            return None
        try:
            entry = await self._served.get(key)
        except NotFoundError:  # it has signed off, or was not renewed, since the list was made
            return None
        name, pattern = json.loads(entry.value or b"[]")
        return name, pattern

    def _key(self, subscription: Subscription) -> str:
        return f"{_consumer(subscription.name)}.{self._process}"

    async def _renew(self, subscription: Subscription) -> None:
        await self._jetstream()
        if self._served is not None:
            line = json.dumps([subscription.name, subscription.pattern]).encode()
            await self._served.put(self._key(subscription), line)

    async def _signed_off(self, subscription: Subscription) -> None:
        await self._jetstream()
        if self._served is not None:
            await self._served.delete(self._key(subscription))

    async def _serve(self, subscription: Subscription, pull: "JetStreamContext.PullSubscription") -> None:
        """Handle tasks until this method is canceled. Then finish the tasks that have started. If a task takes too long
        to finish, another process handles it.
        """
        room = asyncio.Semaphore(subscription.at_once)
        running: set[asyncio.Task[None]] = set()
        renewing = asyncio.create_task(self._renew_for_ever(subscription))
        try:
            while True:
                await room.acquire()
                message = None
                while message is None:
                    message, pull = await self._taken(subscription, pull)
                one = asyncio.create_task(self._handle(subscription, message))
                running.add(one)
                one.add_done_callback(running.discard)
                one.add_done_callback(lambda _: room.release())
        finally:
            _, late = await asyncio.wait(running, timeout=_ENDING) if running else (None, set())
            for one in late:
                one.cancel()
            if late:
                await asyncio.wait(late)
            renewing.cancel()
            if self._client is not None and self._client.is_connected:
                await pull.unsubscribe()

    async def _taken(
        self, subscription: Subscription, pull: "JetStreamContext.PullSubscription"
    ) -> tuple["Msg | None", "JetStreamContext.PullSubscription"]:
        """Return the next task, or None if there is none for a while. If the server has lost the consumer, create it
        again.
        """
        from nats.errors import Error  # noqa: PLC0415 - an extra
        from nats.js.errors import APIError  # noqa: PLC0415

        try:
            return await _next(lambda within: _one(pull, within), _PULL_SECONDS), pull
        except APIError as error:
            _log.info("consumer_lost", extra={"handler": subscription.name, "error": str(error)})
            self._served = None  # the stream may be lost, too
            await asyncio.sleep(_PAUSE)
            try:
                return None, await self._answered(lambda: self._pulling(subscription))
            except StreamUnavailable:
                return None, pull
        except Error as error:
            _log.debug("bus_away", extra={"handler": subscription.name, "error": str(error)})
            await asyncio.sleep(_PAUSE)
            return None, pull

    async def _renew_for_ever(self, subscription: Subscription) -> None:
        """Keep this handler registered for the publishers that wait for replies."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await self._answered(lambda: self._renew(subscription))
            except StreamUnavailable as error:
                _log.debug("handler_not_renewed", extra={"handler": subscription.name, "error": str(error)})

    async def _handle(self, subscription: Subscription, message: "Msg") -> None:
        """Handle the task, send the reply, and only then acknowledge the task."""
        from nats.errors import Error  # noqa: PLC0415 - an extra

        holding = asyncio.create_task(self._hold(message))
        try:
            try:
                task = await opened_task(self._cipher, message.data)
            except ValueError:
                _log.warning("unreadable_task", extra={"subject": message.subject})
            except EncryptionKeyError as error:
                _log.warning("task_not_decrypted", extra={"subject": message.subject, "error": error.message})
            else:
                answer = await answer_of(subscription, task)
                if reply_to := (message.headers or {}).get(REPLY_TO):
                    await self._reply(reply_to, subscription.name, answer)
            await message.ack()
        except (Error, StreamUnavailable) as error:
            _log.warning("not_said_to_be_done", extra={"handler": subscription.name, "error": str(error)})
        finally:
            holding.cancel()

    async def _hold(self, message: "Msg") -> None:
        """Keep the claim on a task that takes long, so that no other process takes it over."""
        from nats.errors import Error  # noqa: PLC0415 - an extra

        while True:
            await asyncio.sleep(self._claim_after / 4)
            try:
                await message.in_progress()
            except Error as error:
                _log.debug("claim_not_renewed", extra={"error": str(error)})

    async def _reply(self, reply_to: str, name: str, answer: Answer) -> None:
        line = await answer_line(self._cipher, name, answer)
        client = await self._answered(self._connected)
        await client.publish(reply_to, line)


async def _one(pull: "JetStreamContext.PullSubscription", within: float) -> "Msg":
    (message,) = await pull.fetch(1, timeout=within)
    return message


async def _next(take: Callable[[float], Awaitable["Msg"]], within: float) -> "Msg | None":
    """Return the next message, or None if none arrives in time."""
    try:
        return await take(within)
    except TimeoutError:
        return None


async def _told(error: Exception) -> None:
    _log.debug("nats_error", extra={"error": str(error) or type(error).__name__})


def _consumer(name: str) -> str:
    """Return the name of the subscription's consumer. It differs for different subscriptions."""
    readable = re.sub(r"[^\w-]", "_", name, flags=re.ASCII)[:80]
    return f"{readable}-{short_digest(name)}"


def _filter(pattern: str) -> str:
    return ">" if pattern == EVERYTHING else f"{pattern.removesuffix('*')}>" if pattern.endswith(".*") else pattern
