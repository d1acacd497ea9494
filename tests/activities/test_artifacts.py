"""Artifacts on a real Postgres: whole, per run, and never two texts under one id."""

import asyncio
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom.activities.adapters.postgres.artifacts import LIMIT, PostgresArtifacts
from loom.activities.adapters.postgres.database import Database
from loom.activities.ports import ArtifactStore, StoreUnavailable
from tests.databases import rows


@pytest.fixture(scope="module")
def artifacts(database: Database) -> PostgresArtifacts:
    return PostgresArtifacts(database)


def test_it_is_what_the_port_asks_for(artifacts: PostgresArtifacts) -> None:
    port: ArtifactStore = artifacts
    assert port is artifacts


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec=None, categories=None)), st.sampled_from([1, 3000]))
async def test_text_comes_back_as_it_was(artifacts: PostgresArtifacts, text: str, times: int) -> None:
    run_id = uuid4().hex
    await artifacts.save(run_id, "a", text * times)
    assert await artifacts.load(run_id, "a") == text * times


async def test_an_id_belongs_to_its_run(artifacts: PostgresArtifacts) -> None:
    await artifacts.save("mine", "a1", "secret")
    await artifacts.save("yours", "a1", "other")
    assert await artifacts.load("mine", "a1") == "secret"
    assert await artifacts.load("yours", "a1") == "other"
    assert await artifacts.load("mine", "a2") is None
    assert await artifacts.load("theirs", "a1") is None


async def test_saving_again_changes_nothing(artifacts: PostgresArtifacts) -> None:
    run_id = uuid4().hex
    await artifacts.save(run_id, "a", "first")
    await asyncio.gather(*(artifacts.save(run_id, "a", "first" if n % 2 else "second") for n in range(20)))
    assert await artifacts.load(run_id, "a") == "first"


async def test_long_text_is_kept_small_and_short_text_as_it_is(url: str, artifacts: PostgresArtifacts) -> None:
    run_id = uuid4().hex
    await artifacts.save(run_id, "long", "2026-01-01 INFO all is well\n" * 10_000)
    await artifacts.save(run_id, "short", "x" * 1024)
    kept = (
        "SELECT artifact, compressed, size, length(data) < size / 50 FROM loom_artifacts WHERE run_id = %s ORDER BY 1"
    )
    assert await rows(url, kept, (run_id,)) == [("long", True, 280_000, True), ("short", False, 1024, False)]


async def test_the_longest_text_is_kept_and_a_longer_one_refused(artifacts: PostgresArtifacts) -> None:
    run_id = uuid4().hex
    await artifacts.save(run_id, "most", "x" * LIMIT)
    with pytest.raises(ValueError, match=f"artifact more has {LIMIT + 1} bytes, but the limit is {LIMIT}: truncate it"):
        await artifacts.save(run_id, "more", "ä" + "x" * (LIMIT - 1))
    assert await artifacts.load(run_id, "most") == "x" * LIMIT
    assert await artifacts.load(run_id, "more") is None


@pytest.mark.parametrize("artifact", ["nul\0", "half \ud800", "x" * 100_000, "", "'; DROP TABLE loom_artifacts; --"])
async def test_an_id_that_a_model_made_up_is_just_not_there(artifacts: PostgresArtifacts, artifact: str) -> None:
    assert await artifacts.load("run", artifact) is None


async def test_a_store_that_is_away_says_so() -> None:
    database = Database("postgresql://127.0.0.1:1/nowhere")
    artifacts = PostgresArtifacts(database)
    saving, loading = await asyncio.gather(
        artifacts.save("run", "a", "x"), artifacts.load("run", "a"), return_exceptions=True
    )
    assert isinstance(saving, StoreUnavailable)
    assert isinstance(loading, StoreUnavailable)
    await database.aclose()
