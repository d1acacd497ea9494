"""The effect ledger on a real Postgres: one first, one holder, one result."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom.activities.adapters.postgres import effects
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import PostgresEffects, read_result, write_result
from loom.activities.ports import Claim, EffectLedger
from loom.domain.core.messages import Part
from loom.domain.core.tool_calls import ToolResult, failed
from loom.testing.harness import Addresses
from tests.databases import ANEW, as_superuser, fresh_database, rows

RESULT: Final = ToolResult(content="done", stage_ms=(0.1, 2.0))
OTHER: Final = failed("not done", "execution")
MANY_OLD: Final = """
INSERT INTO loom_effects (id, key, run_id, attempt, claim, created_at)
SELECT sha256(n::text::bytea), 'k', 'r', 1, gen_random_uuid(), now() - interval '9 days'
FROM generate_series(1, 2500) AS n
"""

STEPS: Final = ("reserve", "finish", "renew", "release")
Step: TypeAlias = tuple[Literal["reserve", "finish", "renew", "release"], int]

TEXT: Final = st.text(st.characters(codec=None, categories=None))
"""Every text that Python can hold: NUL and half surrogates, too."""
PARTS: Final = st.builds(
    Part, type=st.sampled_from(["text", "image", "file"]), text=TEXT, media_type=TEXT, data=TEXT, url=TEXT, name=TEXT
)
RESULTS: Final = st.builds(
    ToolResult,
    content=TEXT,
    status=st.sampled_from(["success", "error", "warning"]),
    error_type=st.sampled_from([None, "lost", "timeout"]),
    stage_ms=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=6).map(tuple),
    resend=st.booleans(),
    parts=st.lists(PARTS, max_size=2).map(tuple),
    artifact=TEXT,
    length=st.integers(min_value=0),
)


@pytest.fixture(scope="module")
def ledger(database: Database) -> PostgresEffects:
    return PostgresEffects(database)


def new_key() -> str:
    return f"run/x/t1/{uuid4().hex}"


def test_it_is_what_the_port_asks_for(ledger: PostgresEffects) -> None:
    port: EffectLedger = ledger
    assert port is ledger


# ---- claims and results ----------------------------------------------------------------------------------------


async def test_a_result_is_what_every_later_attempt_gets(ledger: PostgresEffects) -> None:
    key = new_key()
    assert await ledger.reserve(key, "run", 1) is None
    await ledger.finish(key, 1, RESULT)
    assert [await ledger.reserve(key, "run", attempt) for attempt in (1, 2, 9)] == [RESULT] * 3


async def test_a_claim_passes_on_and_its_earlier_holder_can_no_longer_finish(ledger: PostgresEffects) -> None:
    key = new_key()
    await ledger.reserve(key, "run", 1)
    assert await ledger.reserve(key, "run", 2) == 1
    await ledger.finish(key, 1, OTHER)
    assert await ledger.reserve(key, "run", 3) == 2
    await ledger.finish(key, 3, RESULT)
    assert await ledger.reserve(key, "run", 4) == RESULT


async def test_an_attempt_that_comes_late_sees_that_it_is_over(ledger: PostgresEffects) -> None:
    key = new_key()
    await ledger.reserve(key, "run", 3)
    assert await ledger.reserve(key, "run", 1) == 3
    await ledger.finish(key, 1, OTHER)
    await ledger.finish(key, 3, RESULT)
    assert await ledger.reserve(key, "run", 4) == RESULT


async def test_the_first_result_stays(ledger: PostgresEffects) -> None:
    key = new_key()
    await ledger.reserve(key, "run", 1)
    for result in (RESULT, RESULT, OTHER):
        await ledger.finish(key, 1, result)
    assert await ledger.reserve(key, "run", 1) == RESULT


async def test_nobody_finishes_what_nobody_has_claimed(ledger: PostgresEffects) -> None:
    key = new_key()
    await ledger.finish(key, 1, RESULT)
    assert await ledger.reserve(key, "run", 1) is None


async def test_two_of_the_same_number_are_told_apart(ledger: PostgresEffects) -> None:
    key = new_key()
    assert [await ledger.reserve(key, "run", 1) for _ in range(2)] == [None, 1]


class Model:
    """The ledger of one key, as plainly as it can be said."""

    def __init__(self) -> None:
        self.holder: int | None = None
        self.result: ToolResult | None = None
        self.is_alive = False

    def reserve(self, attempt: int) -> ToolResult | int | None:
        if self.result is not None:
            return self.result
        before = self.holder
        if before is None or before <= attempt:
            self.holder, self.is_alive = attempt, True
        return before

    def finish(self, attempt: int) -> None:
        if self.holder == attempt and self.result is None:
            self.result, self.is_alive = _by(attempt), False

    def renew(self, attempt: int) -> bool:
        is_kept = self.holder is None or self.holder <= attempt
        if is_kept:
            self.holder, self.is_alive = attempt, self.result is None
        return is_kept

    def release(self, attempt: int) -> None:
        if self.holder == attempt:
            self.is_alive = False


@pytest.fixture
def _long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that don't end while a slow machine compares the ledger with its model."""
    monkeypatch.setattr(effects, "LEASE", timedelta(hours=1))


@pytest.mark.usefixtures("_long_leases")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 4)), max_size=10))
async def test_it_answers_as_its_model_does(ledger: PostgresEffects, steps: Sequence[Step]) -> None:
    key, model = new_key(), Model()
    for what, attempt in steps:
        claim = Claim(key=key, run_id="run", attempt=attempt)
        match what:
            case "reserve":
                assert await ledger.reserve(key, "run", attempt) == model.reserve(attempt)
            case "finish":
                await ledger.finish(key, attempt, _by(attempt))
                model.finish(attempt)
            case "renew":
                assert (key in await ledger.renew([claim])) == model.renew(attempt)
            case "release":
                await ledger.release(claim)
                model.release(attempt)
        assert await ledger.is_alive(key) == model.is_alive


def _by(attempt: int) -> ToolResult:
    return ToolResult(content=f"by {attempt}")


# ---- many at once ----------------------------------------------------------------------------------------------


async def test_of_fifty_attempts_at_once_exactly_one_is_the_first(ledger: PostgresEffects) -> None:
    key = new_key()
    answers = await asyncio.gather(*(ledger.reserve(key, "run", attempt) for attempt in range(1, 51)))
    assert answers.count(None) == 1
    assert all(answer is None or (isinstance(answer, int) and answer != 0) for answer in answers)
    for attempt in range(1, 51):
        await ledger.finish(key, attempt, _by(attempt))
    assert await ledger.reserve(key, "run", 51) == _by(50)


async def test_of_fifty_of_the_same_number_at_once_one_is_the_first_and_all_others_see_it(
    ledger: PostgresEffects,
) -> None:
    key = new_key()
    answers = await asyncio.gather(*(ledger.reserve(key, "run", 1) for _ in range(50)))
    assert sorted(answers, key=str) == [*[1] * 49, None]


async def test_of_results_at_once_one_stays_for_all(ledger: PostgresEffects) -> None:
    key = new_key()
    await ledger.reserve(key, "run", 1)
    await asyncio.gather(*(ledger.finish(key, 1, _by(n)) for n in range(20)))
    first = await ledger.reserve(key, "run", 2)
    assert isinstance(first, ToolResult)
    assert [await ledger.reserve(key, "run", n) for n in range(3, 6)] == [first] * 3


# ---- answers that are lost -------------------------------------------------------------------------------------


@asynccontextmanager
async def losing_answers(url: str, statement: bytes, times: int) -> AsyncIterator[str]:
    """The same database through a relay that drops the connection once a statement has been answered."""
    server, left = urlsplit(url), [times]

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(server.hostname, server.port)
        lose = asyncio.Event()

        async def ask() -> None:
            while data := await reader.read(65536):
                if statement in data and left[0] > 0:
                    left[0] -= 1
                    lose.set()
                to_server.write(data)
            to_server.close()

        async def answer() -> None:
            while data := await from_server.read(65536):
                if lose.is_set():
                    break
                writer.write(data)
            writer.close()

        await asyncio.gather(ask(), answer(), return_exceptions=True)

    listening = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server._replace(netloc=f"{server.username}:{server.password}@127.0.0.1:{port}").geturl()


async def test_a_claim_whose_answer_was_lost_is_still_the_first(url: str, ledger: PostgresEffects) -> None:
    key = new_key()
    async with (
        losing_answers(url, b"INSERT INTO loom_effects", times=1) as lossy,
        aclosing(Database(lossy)) as database,
    ):
        assert await PostgresEffects(database).reserve(key, "run", 1) is None
    assert await ledger.reserve(key, "run", 2) == 1


async def test_a_claim_that_passed_on_with_its_answer_lost_still_tells_who_had_it(
    url: str, ledger: PostgresEffects
) -> None:
    key = new_key()
    await ledger.reserve(key, "run", 1)
    async with (
        losing_answers(url, b"INSERT INTO loom_effects", times=1) as lossy,
        aclosing(Database(lossy)) as database,
    ):
        assert await PostgresEffects(database).reserve(key, "run", 2) == 1


async def test_a_ledger_whose_tables_were_lost_makes_them_again(addresses: Addresses) -> None:
    async with fresh_database(addresses.database) as url, aclosing(Database(url)) as database:
        ledger = PostgresEffects(database)
        assert await ledger.reserve("key", "run", 1) is None
        await rows(as_superuser(addresses.home, url), ANEW)
        assert await ledger.reserve("key", "run", 2) is None


# ---- what is written -------------------------------------------------------------------------------------------


@given(RESULTS)
def test_a_result_is_written_and_read_back_without_loss(result: ToolResult) -> None:
    assert read_result(json.loads(write_result(result))) == result


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RESULTS)
async def test_a_result_comes_back_from_postgres_as_it_was(ledger: PostgresEffects, result: ToolResult) -> None:
    key = new_key()
    await ledger.reserve(key, "run", 1)
    await ledger.finish(key, 1, result)
    assert await ledger.reserve(key, "run", 2) == result


def test_a_result_of_a_newer_loom_is_read_without_what_is_unknown() -> None:
    part = {"type": "image", "url": "u", "colour": "red"}
    assert read_result({"content": "x", "mood": "good", "parts": [part]}) == ToolResult(
        content="x", parts=(Part(type="image", url="u"),)
    )


@pytest.mark.parametrize("key", ["nul\0", "half \ud800", "x" * 100_000, "", "back\\slash"])
async def test_any_text_is_a_key(ledger: PostgresEffects, key: str) -> None:
    assert [await ledger.reserve(key, "run\0\ud800", attempt) for attempt in (1, 2)] == [None, 1]
