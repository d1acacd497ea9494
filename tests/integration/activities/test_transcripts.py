"""Transcripts by name: what a worker keeps, what it finds in Redis, and that it believes nothing else."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import pytest

from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.transcripts import CachedTranscripts
from loom.activities.ports import TranscriptStore
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import (
    Message,
    Part,
    ResultRef,
    Tail,
    ToolCall,
    Transcript,
    TranscriptRef,
    message_digest,
    tail_of,
    transcript_of,
    user,
)
from loom.domain.core.tool_calls import ToolSpec

from .conftest import RedisServer

TASK: Final = user("List the files.")
CALL: Final = ToolCall(id="call_1", name="bash", arguments={"command": "ls", "n": 1.5})
ASKS: Final = Message(role="assistant", content="Let me see.", tool_calls=(CALL,))
RESULT: Final = Message(role="tool", content="a.py\nb.py", tool_call_id="call_1", name="bash")
PICTURE: Final = Message(role="user", content=(Part(type="image", data="aGk=", media_type="image/png"),))
SPEC: Final = AgentSpec(
    name="default",
    model="demo",
    tools=(ToolSpec(name="bash", description="Run.", parameters={"type": "object"}),),
    permissions={"bash": "ask"},
)
FIRST_TURN: Final = transcript_of([TASK, ASKS])
AFTER_RESULT: Final = Tail(
    base=FIRST_TURN.ref, items=(ResultRef(call_id="call_1", digest=message_digest(RESULT)), PICTURE)
)


@pytest.fixture
def run_id() -> str:
    return uuid4().hex


@pytest.fixture
async def worker(redis_url: str) -> AsyncIterator[Callable[[], CachedTranscripts]]:
    """Makes workers that share the Redis."""
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(aclosing(RedisConnection(redis_url)))

        def make() -> CachedTranscripts:
            made = CachedTranscripts(link)
            stack.push_async_callback(made.aclose)
            return made

        yield make


@pytest.fixture
def lone() -> CachedTranscripts:
    """A worker without Redis."""
    return CachedTranscripts(None)


async def first_turn(transcripts: CachedTranscripts, run_id: str) -> None:
    await transcripts.save(run_id, Tail(items=(TASK,)), FIRST_TURN)
    await transcripts.save_result(run_id, RESULT)
    await transcripts.aclose()


def test_the_adapter_fits_its_port(lone: CachedTranscripts) -> None:
    fits: TranscriptStore = lone
    assert fits


async def test_a_conversation_that_comes_whole_needs_nothing_kept(lone: CachedTranscripts, run_id: str) -> None:
    assert await lone.load(run_id, Tail(items=(TASK, ASKS, RESULT))) == transcript_of([TASK, ASKS, RESULT])


async def test_a_worker_has_what_it_kept_without_redis(lone: CachedTranscripts, run_id: str) -> None:
    await first_turn(lone, run_id)
    assert await lone.load(run_id, AFTER_RESULT) == transcript_of([TASK, ASKS, RESULT, PICTURE])


async def test_another_worker_finds_it_in_redis(worker: Callable[[], CachedTranscripts], run_id: str) -> None:
    await first_turn(worker(), run_id)
    assert await worker().load(run_id, AFTER_RESULT) == transcript_of([TASK, ASKS, RESULT, PICTURE])


async def test_a_run_goes_on_from_worker_to_worker(worker: Callable[[], CachedTranscripts], run_id: str) -> None:
    known, messages = Transcript(), [TASK]
    for turn in range(12):
        transcripts = worker()
        tail = tail_of(known.ref, messages, frozenset({f"call_{turn - 1}"}))
        loaded = await transcripts.load(run_id, tail)
        assert loaded == transcript_of(messages)
        call = ToolCall(id=f"call_{turn}", name="bash", arguments={"turn": turn})
        known = loaded.extended([Message(role="assistant", tool_calls=(call,))])
        await transcripts.save(run_id, tail, known)
        result = Message(role="tool", content=str(turn), tool_call_id=call.id)
        await transcripts.save_result(run_id, result)
        await transcripts.aclose()
        messages = [*known.messages, result]


async def test_a_retried_call_starts_again_from_before_its_answer(
    worker: Callable[[], CachedTranscripts], run_id: str
) -> None:
    transcripts = worker()
    await first_turn(transcripts, run_id)
    before = await transcripts.load(run_id, AFTER_RESULT)
    assert before is not None
    await transcripts.save(run_id, AFTER_RESULT, before.extended([Message(role="assistant", content="Lost answer.")]))
    await transcripts.aclose()
    for retrying in (transcripts, worker()):
        assert await retrying.load(run_id, AFTER_RESULT) == before
    second = before.extended([Message(role="assistant", content="Another answer.")])
    await transcripts.save(run_id, AFTER_RESULT, second)
    await transcripts.aclose()
    for later in (transcripts, worker()):
        assert await later.load(run_id, Tail(base=second.ref)) == second


async def test_without_redis_a_retried_call_finds_its_results_in_the_transcript(
    lone: CachedTranscripts, run_id: str
) -> None:
    await first_turn(lone, run_id)
    before = await lone.load(run_id, AFTER_RESULT)
    assert before is not None
    await lone.save(run_id, AFTER_RESULT, before.extended([Message(role="assistant", content="Lost answer.")]))
    assert await lone.load(run_id, AFTER_RESULT) == before


@pytest.mark.parametrize(
    "tail",
    [
        Tail(base=TranscriptRef(count=2, digest="000000000000")),
        Tail(base=TranscriptRef(count=3, digest=FIRST_TURN.digest)),
        Tail(base=TranscriptRef(count=1, digest=FIRST_TURN.digest)),
        Tail(base=TranscriptRef(count=0, digest=FIRST_TURN.digest)),
        Tail(base=FIRST_TURN.ref, items=(ResultRef(call_id="call_1", digest="000000000000"),)),
        Tail(base=FIRST_TURN.ref, items=(ResultRef(call_id="call_2", digest=message_digest(RESULT)),)),
    ],
)
async def test_another_name_is_not_known(worker: Callable[[], CachedTranscripts], run_id: str, tail: Tail) -> None:
    keeper = worker()
    await first_turn(keeper, run_id)
    for transcripts in (keeper, worker()):
        assert await transcripts.load(run_id, tail) is None


async def test_nothing_is_believed_that_does_not_have_its_digest(
    redis_url: str, worker: Callable[[], CachedTranscripts], run_id: str
) -> None:
    await first_turn(worker(), run_id)
    async with aclosing(RedisConnection(redis_url)) as link:
        forged = b'{"role":"tool","content":"rm -rf","tool_call_id":"call_1"}'
        await link.call(lambda redis: redis.set(f"loom:result:{run_id}:call_1", forged))
        assert await worker().load(run_id, AFTER_RESULT) is None
        for broken in (b'{"role":"user","content":"Another task."}', b"not JSON"):
            await link.call(lambda redis, broken=broken: redis.lset(f"loom:transcript:{run_id}", 0, broken))  # type: ignore[misc]
            assert await worker().load(run_id, Tail(base=FIRST_TURN.ref)) is None


async def test_a_resent_conversation_mends_what_redis_has(
    redis_url: str, worker: Callable[[], CachedTranscripts], run_id: str
) -> None:
    await first_turn(worker(), run_id)
    async with aclosing(RedisConnection(redis_url)) as link:
        await link.call(lambda redis: redis.ltrim(f"loom:transcript:{run_id}", 1, 1))
    whole = transcript_of([TASK, ASKS, RESULT])
    transcripts = worker()
    await transcripts.save(run_id, Tail(items=whole.messages), whole)
    await transcripts.aclose()
    assert await worker().load(run_id, Tail(base=whole.ref)) == whole


async def test_a_calls_arguments_are_those_of_the_last_answer(
    worker: Callable[[], CachedTranscripts], run_id: str
) -> None:
    keeper = worker()
    await first_turn(keeper, run_id)
    for transcripts in (keeper, worker()):
        assert await transcripts.find_arguments(run_id, "call_1") == CALL.arguments
        assert await transcripts.find_arguments(run_id, "call_2") is None
        assert await transcripts.find_arguments("another run", "call_1") is None
    later = FIRST_TURN.extended([RESULT, Message(role="assistant", content="Two files.")])
    await keeper.save(run_id, Tail(base=FIRST_TURN.ref), later)
    await keeper.aclose()
    for transcripts in (keeper, worker()):
        assert await transcripts.find_arguments(run_id, "call_1") is None


async def test_arguments_of_a_newer_answer_are_found_past_an_older_one(
    worker: Callable[[], CachedTranscripts], run_id: str
) -> None:
    here, there = worker(), worker()
    await first_turn(here, run_id)
    call = replace(CALL, id="call_2")
    newer = FIRST_TURN.extended([RESULT, Message(role="assistant", tool_calls=(call,))])
    await there.save(run_id, Tail(base=FIRST_TURN.ref), newer)
    await there.aclose()
    assert await here.find_arguments(run_id, "call_2") == CALL.arguments


async def test_a_spec_is_found_under_its_digest(worker: Callable[[], CachedTranscripts], redis_url: str) -> None:
    keeper = worker()
    spec = replace(SPEC, name=uuid4().hex)
    await keeper.save_spec(spec)
    await keeper.aclose()
    other = worker()
    assert [await keeper.load_spec(spec.digest), await other.load_spec(spec.digest)] == [spec, spec]
    assert await worker().load_spec("000000000000") is None
    async with aclosing(RedisConnection(redis_url)) as link:
        for broken in (b"{}", b'{"name":"x","model":"demo"}'):
            await link.call(lambda redis, broken=broken: redis.set(f"loom:spec:{spec.digest}", broken))  # type: ignore[misc]
            assert await worker().load_spec(spec.digest) is None
    assert await other.load_spec(spec.digest) == spec


async def test_a_full_worker_forgets_the_runs_of_long_ago() -> None:
    transcripts = CachedTranscripts(None, max_bytes=100_000)
    long = transcript_of([user("x" * 30_000)])
    for run_id in ("a", "b", "c"):
        await transcripts.save(run_id, Tail(), long)
    assert await transcripts.load("a", Tail(base=long.ref)) is None
    assert await transcripts.load("c", Tail(base=long.ref)) == long
    heavy = Message(role="assistant", tool_calls=(replace(CALL, arguments={"text": "x" * 60_000}),))
    picture = Message(role="user", content=(Part(type="image", data="x" * 60_000),))
    for message in (heavy, picture):
        await transcripts.save("d", Tail(), transcript_of([message]))
        assert await transcripts.load("c", Tail(base=long.ref)) is None


async def test_a_message_that_answers_nothing_is_no_result(lone: CachedTranscripts, run_id: str) -> None:
    await lone.save_result(run_id, TASK)
    assert await lone.load(run_id, Tail(items=(ResultRef(call_id="", digest=message_digest(TASK)),))) is None


async def test_without_redis_a_worker_goes_on_with_what_it_has(
    mortal_redis: RedisServer, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(RedisConnection(mortal_redis.url)) as link:
        here, there = CachedTranscripts(link), CachedTranscripts(link)
        mortal_redis.kill()
        with caplog.at_level("INFO", "loom"):
            await first_turn(here, run_id)
            await here.save_spec(SPEC)
            assert await here.load(run_id, AFTER_RESULT) == transcript_of([TASK, ASKS, RESULT, PICTURE])
            assert await there.load(run_id, AFTER_RESULT) is None
            assert await there.find_arguments(run_id, "call_1") is None
            assert await there.load_spec(SPEC.digest) is None
            await here.aclose()
    assert [record.levelname for record in caplog.records if record.name.startswith("loom.")] == ["WARNING"]


async def test_writing_to_redis_is_nothing_that_a_turn_waits_for(mortal_redis: RedisServer, run_id: str) -> None:
    mortal_redis.freeze()
    async with aclosing(RedisConnection(mortal_redis.url)) as link, aclosing(CachedTranscripts(link)) as transcripts:
        for _ in range(1000):
            await transcripts.save_result(run_id, RESULT)  # if each waited for Redis, the test would not end
        mortal_redis.thaw()


async def test_half_a_surrogate_pair_is_kept_here_and_unknown_elsewhere(
    worker: Callable[[], CachedTranscripts], run_id: str
) -> None:
    keeper = worker()
    odd: Any = transcript_of([user("a\ud83d")])
    await keeper.save(run_id, Tail(), odd)
    await keeper.aclose()
    assert await keeper.load(run_id, Tail(base=odd.ref)) == odd
    assert await worker().load(run_id, Tail(base=odd.ref)) is None
