"""A node whose worker was lost, on a real ledger: what has finished is kept, and nothing with an effect is repeated."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import PostgresAnswers
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.stream import RedisReader, RedisStream
from loom.activities.adapters.redis.transcripts import CachedTranscripts
from loom.activities.leases import Leases
from loom.activities.manifest import Manifests
from loom.activities.ports import EventStream
from loom.activities.publish import AbsentStream
from loom.activities.run_node import NodeRunner
from loom.domain.agents.code_node import CodeNode, NodeFunction
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import NodeFailedError
from loom.domain.core.messages import Message, Tail, user
from loom.domain.core.tasks import Action, Origin
from loom.domain.core.tool_calls import Effect
from loom.domain.run.activity_payloads import ModelReply, ModelRequest
from loom.testing.harness import Addresses


@pytest.fixture
async def leases(addresses: Addresses) -> AsyncIterator[Leases[ModelReply | NodeFailedError]]:
    database = Database(addresses.database)
    yield Leases(PostgresAnswers(database))
    await database.aclose()


class Attempts:
    """Attempts at one node, and how often its function was called."""

    def __init__(
        self, effect: Effect, leases: Leases[ModelReply | NodeFailedError] | None, stream: EventStream | None = None
    ) -> None:
        self.calls = 0
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()
        self.fails = False
        self.spec = AgentSpec(name="node", model="", node=CodeNode(effect=effect))
        self.origin = Origin(run_id=f"run-{uuid4().hex}", execution="x")
        transcripts = CachedTranscripts(None)
        self.runner = NodeRunner(
            nodes={"node": NodeFunction(name="node", function=self.work)},
            transcripts=transcripts,
            stream=stream or AbsentStream(),
            redact=lambda text: text,
            manifests=Manifests(agents={}, own={}, tools={}, transcripts=transcripts, refuse=False),
            leases=leases,
        )

    async def work(self, message: Message) -> str:
        self.calls += 1
        self.has_begun.set()
        await self.may_end.wait()
        if self.fails:
            raise ConnectionError("the line was cut")
        return f"{message.text} {self.calls}"

    async def answer(self, *, attempt: int = 1, begun: bool = False) -> str:
        """The answer of one attempt. `begun` if an earlier one was lost."""
        request = ModelRequest(
            origin=self.origin,
            turn=1,
            attempt=attempt,
            spec_digest=self.spec.digest,
            spec=self.spec,
            tail=Tail(items=(user("work"),)),
            begun=begun,
        )
        reply: Any = await ActivityEnvironment().run(self.runner.run_node, request)
        return str(reply.message.text)


@pytest.mark.parametrize("effect", list(Effect))
async def test_what_a_lost_attempt_had_finished_is_not_done_again(
    leases: Leases[ModelReply | NodeFailedError], effect: Effect
) -> None:
    attempts = Attempts(effect, leases)
    assert await attempts.answer() == "work 1"
    repeated = await attempts.answer(attempt=2, begun=True)
    # Only a node with the effect `once` records each result, because another one may just run again.
    assert (repeated, attempts.calls) == (("work 1", 1) if effect is Effect.ONCE else ("work 2", 2))


async def test_the_failure_of_an_attempt_that_seemed_lost_is_known(
    leases: Leases[ModelReply | NodeFailedError],
) -> None:
    attempts = Attempts(Effect.ONCE, leases)
    attempts.fails = True
    for attempt, begun in ((1, False), (2, True)):
        with pytest.raises(ApplicationError, match="it failed with ConnectionError: the line was cut"):
            await attempts.answer(attempt=attempt, begun=begun)
    assert attempts.calls == 1


async def test_a_failure_is_not_in_the_way_when_a_person_retries_the_run(
    leases: Leases[ModelReply | NodeFailedError],
) -> None:
    attempts = Attempts(Effect.ONCE, leases)
    attempts.fails = True
    for attempt, begun in ((1, False), (2, True)):
        with pytest.raises(ApplicationError, match="the line was cut"):
            await attempts.answer(attempt=attempt, begun=begun)
    attempts.fails = False
    assert await attempts.answer() == "work 2"
    assert await attempts.answer(attempt=2, begun=True) == "work 2"


async def test_a_failure_of_a_node_that_may_run_twice_is_not_kept(leases: Leases[ModelReply | NodeFailedError]) -> None:
    attempts = Attempts(Effect.IDEMPOTENT, leases)
    attempts.fails = True
    with pytest.raises(ApplicationError, match="the line was cut"):
        await attempts.answer(attempt=2, begun=True)
    attempts.fails = False
    assert await attempts.answer(attempt=3, begun=True) == "work 2"


@pytest.mark.parametrize("has_ledger", [True, False])
async def test_a_node_that_may_have_had_its_effect_is_not_run_again(
    leases: Leases[ModelReply | NodeFailedError], has_ledger: bool
) -> None:
    attempts = Attempts(Effect.ONCE, leases if has_ledger else None)
    with pytest.raises(ApplicationError, match="its outcome is unknown") as failed:
        await attempts.answer(attempt=2, begun=True)
    assert (failed.value.type, attempts.calls) == ("NodeFailedError", 0)


async def test_a_node_that_may_run_twice_runs_again(leases: Leases[ModelReply | NodeFailedError]) -> None:
    attempts = Attempts(Effect.IDEMPOTENT, leases)
    assert await attempts.answer(attempt=2, begun=True) == "work 1"


async def test_only_the_attempt_that_calls_the_function_says_so(
    leases: Leases[ModelReply | NodeFailedError], redis_url: str
) -> None:
    stream = RedisStream(RedisConnection(redis_url))
    attempts = Attempts(Effect.ONCE, leases, stream)
    attempts.may_end.clear()

    first = asyncio.create_task(attempts.answer())
    await attempts.has_begun.wait()
    second = asyncio.create_task(attempts.answer(attempt=2, begun=True))  # the first one is wrongly considered dead
    attempts.may_end.set()

    assert [await first, await second] == ["work 1", "work 1"]
    told = [task async for _, task in RedisReader(redis_url).read(attempts.origin.run_id, follow=False)]
    assert [(task.action, task.parameters.get("attempt")) for task in told] == [
        (Action.TURN, None),
        (Action.TOOL_CALL, 1),
        (Action.TOOL_RESULT, 1),
        (Action.TOOL_RESULT, 2),
    ]
    await stream.aclose()
