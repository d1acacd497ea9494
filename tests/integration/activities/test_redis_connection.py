"""What a worker sends to Redis: scripts and writes that share round trips, and what each caller gets back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any
from uuid import uuid4

import anyio
import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from loom.activities.adapters.redis import connection
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.ports import StreamUnavailable
from loom.testing.waiting import eventually

ADD = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
ECHO = "return tonumber(ARGV[1])"
FAIL = "return redis.error_reply('no')"


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisConnection]:
    async with aclosing(RedisConnection(redis_url)) as link:
        yield link


@pytest.fixture
def key() -> str:
    return uuid4().hex


async def value(link: RedisConnection, key: str) -> int:
    async def read(redis: Redis) -> Any:
        return await redis.get(key)

    return int(await link.call(read) or 0)


async def reads(link: RedisConnection) -> int:
    """Return how often the server has read from a client."""

    async def ask(redis: Redis) -> Any:
        return await redis.info("stats")

    return int((await link.call(ask))["total_reads_processed"])


def adds(key: str, number: int) -> Any:
    def write(pipe: Pipeline) -> None:
        pipe.incrby(key, number)

    return write


async def test_writes_are_sent_with_the_next_script(link: RedisConnection, key: str) -> None:
    await link.script(ADD, (key,), (1,))
    before = await reads(link)
    link.write_later(adds(key, 10))
    link.script_later(ADD, (key,), (100,))
    assert await link.script(ADD, (key,), (1000,)) == [1111]
    assert await reads(link) - before == 2  # the round trip, and this question


async def test_a_write_without_a_script_is_sent_soon(link: RedisConnection, key: str) -> None:
    async def is_there() -> bool:
        return await value(link, key) == 1  # a plain command sends no writes that wait

    link.write_later(adds(key, 1))
    await eventually(is_there)


async def test_scripts_that_come_up_during_a_round_trip_get_their_own_answers(link: RedisConnection, key: str) -> None:
    answers = await asyncio.gather(*(link.script(ADD, (f"{key}{n}",), (n,)) for n in range(50)))
    assert answers == [[n] for n in range(50)]


async def test_closing_sends_what_waits(redis_url: str, link: RedisConnection, key: str) -> None:
    async with aclosing(RedisConnection(redis_url)) as other:
        other.write_later(adds(key, 1))
        other.script_later(ADD, (key,), (1,))
    assert await value(link, key) == 2


async def test_a_late_answer_is_not_taken_for_the_next_one(
    redis_url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_PAUSE_SECONDS", 0.0)

    def wait(pipe: Pipeline) -> None:
        pipe.blpop([key], 0)

    async with aclosing(RedisConnection(redis_url, answer_within=0.2)) as hasty:
        answers = []

        async def is_answered() -> bool:
            with suppress(StreamUnavailable):
                answers.append(await hasty.script(ECHO, (), (2,)))
            return bool(answers)

        hasty.write_later(wait)
        with pytest.raises(StreamUnavailable):
            await hasty.script(ECHO, (), (1,))
        await eventually(is_answered)
        assert answers == [[2]]


async def test_a_server_that_has_forgotten_a_script_gets_it_again(link: RedisConnection, key: str) -> None:
    async def forget(redis: Redis) -> Any:
        return await redis.script_flush()

    await link.script(ADD, (key,), (1,))
    await link.call(forget)
    link.script_later(ADD, (key,), (1,))
    assert await link.script(ADD, (key,), (1,)) == [3]


async def test_a_script_that_fails_takes_no_other_with_it(link: RedisConnection, key: str) -> None:
    failed, added = await asyncio.gather(
        link.script(FAIL, (), ()), link.script(ADD, (key,), (1,)), return_exceptions=True
    )
    assert isinstance(failed, StreamUnavailable)
    assert added == [1]


async def test_a_caller_that_is_canceled_takes_no_other_with_it(link: RedisConnection, key: str) -> None:
    canceled = asyncio.create_task(link.script(ADD, (key,), (1,)))
    other = asyncio.create_task(link.script(ADD, (key,), (1,)))
    await asyncio.sleep(0)
    canceled.cancel()
    assert await other == [2]


async def test_a_write_that_cannot_be_built_takes_no_other_with_it(
    link: RedisConnection, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(pipe: Pipeline) -> None:
        pipe.incrby(key, 100)
        raise ValueError("not JSON")

    link.write_later(broken)
    link.write_later(adds(key, 10))
    assert await link.script(ADD, (key,), (1,)) == [11]
    assert [(each.message, vars(each)["error"]) for each in caplog.records] == [("redis_write_failed", "not JSON")]


async def test_an_argument_that_cannot_be_encoded_fails_only_its_own_script(
    link: RedisConnection, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed, added = await asyncio.gather(
        link.script(ADD, (key,), (None,)), link.script(ADD, (key,), (1,)), return_exceptions=True
    )
    assert isinstance(failed, StreamUnavailable)
    assert "must be str" in str(failed)
    assert added == [1]
    assert not caplog.records  # the server is available


@pytest.mark.parametrize("reply", ["OOM command not allowed", "READONLY You can't write", "MISCONF No snapshots"])
async def test_a_server_that_takes_no_writes_stays_unavailable_until_it_takes_one(
    link: RedisConnection,
    key: str,
    reply: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="loom.redis")
    monkeypatch.setattr(connection, "_PAUSE_SECONDS", 0.0)
    refuse = f"return redis.error_reply([[{reply}]])"
    for _ in range(3):
        with pytest.raises(StreamUnavailable):
            await link.script(refuse, (), ())
    await link.script(ADD, (key,), (1,))
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]


async def test_a_write_that_the_server_rejects_is_reported(
    link: RedisConnection, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    def push(pipe: Pipeline) -> None:
        pipe.rpush(key, "a list has no number")

    await link.script(ADD, (key,), (1,))
    link.write_later(push)
    await link.flush()
    assert [each.levelname for each in caplog.records] == ["WARNING"]


async def until_disconnected(link: RedisConnection, name: str) -> None:
    """Wait until the server has no connection with this name."""

    async def ask(redis: Redis) -> Any:
        return await redis.client_list()

    async def has_none() -> bool:
        return all(client["name"] != name for client in await link.call(ask))

    await eventually(has_none)


async def ping(redis: Redis) -> Any:
    return await redis.ping()


async def test_a_command_during_closing_leaves_no_connection(link: RedisConnection, redis_url: str, key: str) -> None:
    closed = []  # otherwise, garbage collection would close what is left
    for steps in range(40):
        other = RedisConnection(f"{redis_url}?client_name={key}")
        command = asyncio.create_task(other.call(ping))
        for _ in range(steps):
            await asyncio.sleep(0)
        await other.aclose()
        await asyncio.wait({command})
        closed.append((other, command.exception()))
    await until_disconnected(link, key)


async def test_a_caller_who_is_canceled_again_and_again_closes_all_connections(
    link: RedisConnection, redis_url: str, key: str
) -> None:
    other = RedisConnection(f"{redis_url}?client_name={key}")
    await other.call(ping)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await other.aclose()
    await until_disconnected(link, key)


async def test_nothing_is_sent_after_closing(redis_url: str) -> None:
    other = RedisConnection(redis_url)
    await other.aclose()
    with pytest.raises(StreamUnavailable, match="is closed"):
        await other.call(ping)
    with pytest.raises(StreamUnavailable, match="is closed"):
        await other.script(ECHO, (), (1,))
