"""Tool calls in a clone, with the ledger of effects: what results say about the files, and when that is told."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from uuid import uuid4

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from loom.activities.adapters.postgres.clones import PostgresClonePatches
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import PostgresEffects
from loom.activities.archives import Archives
from loom.activities.call_files import INTERRUPTED, CallFiles, files_of
from loom.activities.clone_holds import TAKEN_OVER, CloneTakenOver
from loom.activities.effects import Effects
from loom.activities.failures import failure_of
from loom.activities.ports import CloneState, StoreUnavailable
from loom.activities.run_workspaces import RunWorkspaces
from loom.domain.core.errors import BadRequest
from loom.domain.core.repositories import Checkout, Repositories
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import Effect, Scope, ToolResult, failed
from loom.domain.machine.tool_results import UNKNOWN_OUTCOME
from loom.domain.run.activity_payloads import ToolRequest
from loom.testing.harness import Addresses
from tests.disks import CHECKOUT, Disk

REFUSED = BadRequest("the repository is gone", field="workspace.git")
DONE = ToolResult(content="done")


class Refusing(Disk):
    """A disk on which no clone can be made."""

    async def build(self, checkout: Checkout, patch: bytes = b"", version: int = 0) -> None:
        raise REFUSED


class Unreachable(Disk):
    """A disk on which no clone can be made at present."""

    async def build(self, checkout: Checkout, patch: bytes = b"", version: int = 0) -> None:
        raise StoreUnavailable("the disk is full")


class Watched(Disk):
    """A disk that watches when a note counts as told."""

    spent = 0

    async def keep(self, state: CloneState) -> None:
        assert self.state is not None
        self.spent += len(state.told) > len(self.state.told)
        await super().keep(state)


@pytest.fixture
async def effects(addresses: Addresses) -> AsyncIterator[Effects]:
    async with aclosing(Database(addresses.database)) as database:
        yield Effects(ledger=PostgresEffects(database))


@pytest.fixture
def request_() -> ToolRequest:
    origin = Origin(run_id=f"run-{uuid4().hex}", execution="abc")
    return ToolRequest(origin=origin, turn=1, call_id="c1", tool="bash", effect=Effect.ONCE, checkout=CHECKOUT)


class Caller:
    """A worker that makes calls, each as one attempt of the `run_tool` activity."""

    def __init__(self, disk: Disk, database: Database, effects: Effects) -> None:
        self._disk = disk
        self._effects = effects
        self.workspaces = RunWorkspaces(
            clones=disk,
            repositories=Repositories(clone=(CHECKOUT.url,)),
            archives=Archives(None),
            patches=PostgresClonePatches(database),
            redact=str,
        )

    async def call(
        self, request: ToolRequest, work: Callable[[], Awaitable[ToolResult]] | None = None, *, is_told: bool = True
    ) -> ToolResult:
        async def done() -> ToolResult:
            self._disk.write(request.call_id)
            return DONE

        async def attempt() -> ToolResult:
            async with files_of(request, Scope.SYSTEM, self.workspaces) as files:
                result = await self._effects.carried_out(
                    request,
                    Scope.CONTEXT,
                    lambda _: files.result_of(work or done),
                    warn=lambda _: None,
                    noted=files.noted,
                )
                if is_told:
                    await files.told(result)
                return result

        result: ToolResult = await ActivityEnvironment().run(attempt)
        return result


@pytest.mark.parametrize("effect", [Effect.READ, Effect.IDEMPOTENT, Effect.ONCE])
async def test_a_call_whose_files_can_t_be_here_is_not_run(
    effects: Effects, database: Database, request_: ToolRequest, effect: Effect
) -> None:
    result = await Caller(Refusing(), database, effects).call(replace(request_, effect=effect))
    assert result == failed("Not run: the repository is gone", "unavailable")


async def test_a_call_that_may_have_begun_elsewhere_is_not_reported_as_not_run(
    effects: Effects, database: Database, request_: ToolRequest
) -> None:
    async def dies() -> ToolResult:
        raise ConnectionError("stands for a worker that dies in the middle")

    for effect, said in ((Effect.ONCE, UNKNOWN_OUTCOME), (Effect.IDEMPOTENT, "an earlier attempt may have taken")):
        first = replace(request_, effect=effect, call_id=effect)
        with pytest.raises(ConnectionError):
            await Caller(Disk(), database, effects).call(first, dies)
        result = await Caller(Refusing(), database, effects).call(replace(first, attempt=2, begun=True))
        assert said in result.content


async def test_a_call_that_the_ledger_knows_not_to_have_begun_is_not_run(
    effects: Effects, database: Database, request_: ToolRequest
) -> None:
    result = await Caller(Refusing(), database, effects).call(replace(request_, attempt=2, begun=True))
    assert result == failed("Not run: the repository is gone", "unavailable")


async def test_an_attempt_whose_files_can_t_be_here_now_has_not_run(
    effects: Effects, database: Database, request_: ToolRequest
) -> None:
    with pytest.raises(ApplicationError) as raised:
        await Caller(Unreachable(), database, effects).call(request_)
    failure = failure_of(raised.value)
    assert (failure.kind, failure.context) == ("infrastructure", {"has_run": False})

    assert await Caller(Disk(), database, effects).call(replace(request_, attempt=2)) == DONE


async def test_the_result_of_an_interrupted_call_says_what_is_lost(
    effects: Effects, database: Database, request_: ToolRequest
) -> None:
    here, there = Disk(), Watched()

    async def dies() -> ToolResult:
        here.write("lost")
        raise ConnectionError("stands for a worker that dies in the middle")

    await Caller(here, database, effects).call(replace(request_, call_id="c0"))
    with pytest.raises(ConnectionError):
        await Caller(here, database, effects).call(request_, dies)

    result = await Caller(there, database, effects).call(replace(request_, attempt=2, begun=True))

    assert result.content.startswith("The workspace was recreated in its state after bash (c")
    assert result.content.endswith(UNKNOWN_OUTCOME)
    assert there.spent == 1


async def test_a_note_is_told_again_until_its_result_is_stored(
    effects: Effects, database: Database, request_: ToolRequest
) -> None:
    here, there = Disk(), Watched()
    await Caller(here, database, effects).call(request_)
    second = Caller(there, database, effects)

    untold = await second.call(replace(request_, call_id="c2"), is_told=False)
    spent = there.spent
    found = await second.call(replace(request_, call_id="c2", attempt=2, begun=True))  # the ledger has its result

    assert untold == found
    assert untold.content.endswith("\ndone")
    assert (spent, there.spent) == (0, 1)
    assert await second.call(replace(request_, call_id="c3")) == DONE


async def test_a_call_that_another_worker_ended_says_so_and_is_not_taken_for_an_abort(
    effects: Effects, database: Database, request_: ToolRequest
) -> None:
    async def taken_over() -> ToolResult:
        raise CloneTakenOver(TAKEN_OVER)

    result = await Caller(Disk(), database, effects).call(request_, taken_over)
    assert result == failed(INTERRUPTED, "lost")


async def test_loom_s_own_tools_and_quick_reads_don_t_ask_for_the_files(
    database: Database, request_: ToolRequest, effects: Effects
) -> None:
    workspaces = Caller(Refusing(), database, effects).workspaces
    async with (
        files_of(request_, Scope.CONTEXT, workspaces) as own,
        files_of(replace(request_, quick=True), Scope.SYSTEM, workspaces) as quick,
        files_of(replace(request_, checkout=None), Scope.SYSTEM, workspaces) as elsewhere,
    ):
        assert own == quick == elsewhere == CallFiles()
