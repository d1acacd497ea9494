"""A call that changes something: snapshot, account, and what a second attempt finds."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import PostgresEffects
from loom.activities.effects import Effects
from loom.activities.failures import failure_of
from loom.activities.leases import Leases
from loom.activities.ports import Claim
from loom.domain.core.messages import arguments_digest
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import Effect, Scope, ToolResult, failed
from loom.domain.machine.activity_requests import idempotency_key, key_without_arguments
from loom.domain.machine.tool_results import UNKNOWN_OUTCOME
from loom.domain.run.activity_payloads import ToolRequest
from loom.testing.harness import Addresses

UNKNOWN = failed(UNKNOWN_OUTCOME, "lost")


class Counter:
    """Something that should be done once."""

    def __init__(self) -> None:
        self.times = 0
        self.keys: list[str] = []

    async def __call__(self, key: str) -> ToolResult:
        self.times += 1
        self.keys.append(key)
        return ToolResult(content=f"done {self.times}")


class Crash(Exception):
    """Stands for a worker that dies in the middle."""


async def dies(key: str) -> ToolResult:
    raise Crash(key)


@pytest.fixture
async def ledger(addresses: Addresses) -> AsyncIterator[PostgresEffects]:
    async with aclosing(Database(addresses.database)) as database:
        yield PostgresEffects(database)


KEYS = {
    "0.2.0": "run/0123456789abcdef0123/t1/c",
    "0.3.0": "run/0123456789abcdef0123/t1/c/47526e108132",
}
"""The key of one call, `{"command": "ls"}`, as each release with a ledger writes it. Databases contain these keys,
so never change one: add a release whose key differs.
"""


def of_every_release(run: str = "run") -> ToolRequest:
    return replace(request(run=run), arguments={"command": "ls"}, execution="0123456789abcdef0123")


def request(attempt: int = 1, effect: Effect = Effect.ONCE, *, run: str, begun: bool = False) -> ToolRequest:
    return ToolRequest(
        origin=Origin(run_id=run), turn=1, attempt=attempt, call_id="c", tool="bash", effect=effect, begun=begun
    )


async def carried_out(effects: Effects, made: ToolRequest, execute: object) -> ToolResult:
    async def attempt() -> ToolResult:
        return await effects.carried_out(made, Scope.CONTEXT, execute, warn=lambda _: None)  # type: ignore[arg-type]

    result: ToolResult = await ActivityEnvironment().run(attempt)
    return result


@pytest.mark.parametrize("effect", [Effect.ONCE, Effect.IDEMPOTENT])
async def test_a_call_that_has_ended_gives_its_stored_result(ledger: PostgresEffects, effect: Effect) -> None:
    run, work, effects = uuid4().hex, Counter(), Effects(ledger=ledger)
    first = await carried_out(effects, request(effect=effect, run=run), work)
    again = await carried_out(effects, request(2, effect, run=run, begun=True), work)
    assert (first, again, work.times) == (ToolResult(content="done 1"), ToolResult(content="done 1"), 1)


async def test_a_call_that_never_began_runs_although_its_worker_was_lost(ledger: PostgresEffects) -> None:
    work = Counter()
    result = await carried_out(Effects(ledger=ledger), request(2, run=uuid4().hex, begun=True), work)
    assert (result, work.times) == (ToolResult(content="done 1"), 1)


async def test_a_call_that_began_and_did_not_end_is_unknown_for_ever(ledger: PostgresEffects) -> None:
    run, work, effects = uuid4().hex, Counter(), Effects(ledger=ledger)
    with pytest.raises(Crash):
        await carried_out(effects, request(run=run), dies)
    assert await carried_out(effects, request(2, run=run, begun=True), work) == UNKNOWN
    assert await carried_out(effects, request(3, run=run, begun=True), work) == UNKNOWN
    assert work.times == 0


async def test_an_idempotent_call_that_did_not_end_runs_again(ledger: PostgresEffects) -> None:
    run, work, effects = uuid4().hex, Counter(), Effects(ledger=ledger)
    with pytest.raises(Crash):
        await carried_out(effects, request(effect=Effect.IDEMPOTENT, run=run), dies)
    assert await carried_out(effects, request(2, Effect.IDEMPOTENT, run=run, begun=True), work) == ToolResult(
        content="done 1"
    )


async def test_a_worker_that_comes_back_after_another_took_over_does_nothing(ledger: PostgresEffects) -> None:
    run, work, effects = uuid4().hex, Counter(), Effects(ledger=ledger)
    with pytest.raises(Crash):
        await carried_out(effects, request(2, run=run), dies)
    late = await carried_out(effects, request(1, run=run), work)
    assert (late.error_type, work.times) == ("aborted", 0)


async def test_without_an_account_a_call_that_may_have_begun_is_unknown() -> None:
    work = Counter()
    begun = replace(request(2, run="r", begun=True), accounted=False)
    assert await carried_out(Effects(), begun, work) == UNKNOWN
    assert await carried_out(Effects(), replace(begun, begun=False), work) == ToolResult(content="done 1")


async def test_a_worker_that_keeps_no_account_leaves_the_call_to_one_that_does() -> None:
    work = Counter()
    with pytest.raises(ApplicationError, match="this worker has none"):
        await carried_out(Effects(), request(run="r"), work)
    assert work.times == 0


def test_the_key_of_a_call_is_that_of_the_release() -> None:
    made = of_every_release()
    assert {"0.2.0": key_without_arguments(made), "0.3.0": idempotency_key(made)} == KEYS


def test_a_key_is_the_same_whether_arguments_come_by_value_or_by_reference() -> None:
    made = of_every_release()
    referred = replace(made, arguments=None, arguments_digest=arguments_digest(made.arguments or {}))
    assert idempotency_key(referred) == idempotency_key(made)


@pytest.mark.parametrize("release", KEYS)
async def test_what_a_worker_of_a_release_began_is_not_done_again(ledger: PostgresEffects, release: str) -> None:
    run, work = uuid4().hex, Counter()
    await ledger.reserve(KEYS[release].replace("run", run), run, 1)
    retry = replace(of_every_release(run), attempt=2, begun=True)
    assert (await carried_out(Effects(ledger=ledger), retry, work), work.times) == (UNKNOWN, 0)


@pytest.mark.parametrize("release", KEYS)
async def test_the_result_that_a_worker_of_a_release_stored_is_found(ledger: PostgresEffects, release: str) -> None:
    run, work, key = uuid4().hex, Counter(), KEYS[release]
    await ledger.reserve(key.replace("run", run), run, 1)
    await ledger.finish(key.replace("run", run), 1, ToolResult(content="of the release"))
    retry = replace(of_every_release(run), attempt=2, begun=True)
    assert (await carried_out(Effects(ledger=ledger), retry, work)).content == "of the release"


@pytest.mark.parametrize("release", KEYS)
async def test_an_idempotent_call_is_repeated_under_the_key_that_it_began_with(
    ledger: PostgresEffects, release: str
) -> None:
    run, work = uuid4().hex, Counter()
    began = KEYS[release].replace("run", run)
    await ledger.reserve(began, run, 1)
    await carried_out(
        Effects(ledger=ledger), replace(of_every_release(run), attempt=2, begun=True, effect=Effect.IDEMPOTENT), work
    )
    assert work.keys == [began]


async def test_a_reset_run_whose_call_has_other_arguments_is_not_given_the_result_of_an_earlier_release(
    ledger: PostgresEffects,
) -> None:
    run, work, effects = uuid4().hex, Counter(), Effects(ledger=ledger)
    began = KEYS["0.2.0"].replace("run", run)
    await ledger.reserve(began, run, 1)
    await ledger.finish(began, 1, ToolResult(content="of other arguments"))
    with pytest.raises(Crash):
        await carried_out(effects, of_every_release(run), dies)
    retry = replace(of_every_release(run), attempt=2, begun=True)
    assert await carried_out(effects, retry, work) == UNKNOWN


async def test_changed_arguments_are_another_effect(ledger: PostgresEffects) -> None:
    run, work, effects = uuid4().hex, Counter(), Effects(ledger=ledger)
    for number, command in enumerate(("ls", "pwd", "ls"), start=1):
        await carried_out(effects, replace(request(number, run=run), arguments={"command": command}), work)
    assert work.times == 2


async def test_a_call_that_is_to_go_without_an_account_does(ledger: PostgresEffects) -> None:
    work, run = Counter(), uuid4().hex
    made = replace(request(3, run=run), accounted=False)
    assert await carried_out(Effects(ledger=ledger), made, work) == ToolResult(content="done 1")
    assert await ledger.reserve(idempotency_key(made), run, 4) is None


@pytest.mark.usefixtures("soon_away")
async def test_nothing_begins_while_the_account_is_away() -> None:
    work = Counter()
    async with aclosing(Database("postgresql://nobody@127.0.0.1:9/none")) as database:
        with pytest.raises(ApplicationError) as raised:
            await carried_out(Effects(ledger=PostgresEffects(database)), request(run="r"), work)
    failure = failure_of(raised.value)
    assert (failure.kind, failure.context, work.times) == ("infrastructure", {"has_run": False}, 0)


class Full:
    """A place for snapshots that takes none."""

    async def take(self, workspace: Path, run_id: str, turn: int, call_id: str) -> str:
        raise OSError(28, "No space left on device", str(workspace), None, f"{run_id}/{turn}/{call_id}")


async def test_what_cannot_be_kept_as_it_was_is_changed_with_a_warning_or_not_at_all() -> None:
    work, said = Counter(), list[str]()
    made = replace(request(run="r", begun=True), effect=Effect.IDEMPOTENT, accounted=False)
    lax, strict = Effects(snapshots=Full()), Effects(snapshots=Full(), when_no_snapshot="refuse")

    assert (await lax.carried_out(made, Scope.SANDBOXED, work, said.append)).content == "done 1"
    assert "No space left" in said[0]
    refused = await strict.carried_out(made, Scope.SANDBOXED, work, said.append)
    assert (refused.error_type, work.times) == ("unavailable", 1)
    assert (await strict.carried_out(made, Scope.CONTEXT, work, said.append)).content == "done 2"


async def test_a_stored_answer_is_found_by_the_next_attempt_and_replaces_another(
    ledger: PostgresEffects,
) -> None:
    run, leases = uuid4().hex, Leases(ledger)
    first, second = (Claim(key=f"{run}/{name}", run_id=run, attempt=1) for name in ("first", "second"))
    assert await leases.store(first, ToolResult(content="1"))
    assert await leases.store(first, ToolResult(content="after a reset"))
    assert await leases.found(replace(first, attempt=2)) == ToolResult(content="after a reset")

    assert await leases.store(second, ToolResult(content="2"), replaces=first.key)
    assert await ledger.find(first.key, second.key) == second.key
    assert not await leases.store(replace(second, attempt=0), ToolResult(content="late"))
