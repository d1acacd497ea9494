"""Artifacts on a real Postgres: whole, per run, and never two texts under one id."""

import asyncio
import re
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom.activities.adapters.postgres.artifacts import LIMIT, PostgresArtifacts
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.redaction.mask import SecretMask
from loom.activities.ports import ArtifactStore, StoreUnavailable, ToolContext
from loom.activities.toolbox import output_sanitizer
from loom.activities.toolbox.built_in import artifacts as artifact_tools
from loom.activities.toolbox.built_in.artifacts import read_artifact_tool
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.domain.core import tool_calls
from loom.domain.core.errors import ToolValidationError
from loom.domain.core.tool_calls import stored_artifact
from loom.run_artifacts import RunArtifacts
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


async def test_a_later_run_with_the_id_reads_nothing_of_the_earlier_one(artifacts: PostgresArtifacts) -> None:
    root, tool = uuid4().hex, read_artifact_tool(artifacts)
    await artifacts.save(root, stored_artifact("t1-c", "earlier"), "secret")
    later = ToolContext(
        workspace=Path("/"), run_id=root, call_id="c", idempotency_key="k", timeout=5, execution="later"
    )
    below = replace(later, run_id=f"{root}/d1", root_run_id=root, root_execution="later")
    for context in (later, below):
        for named in ("t1-c", "t1-c@earlier"):
            with pytest.raises(ToolValidationError, match="this run has no artifact"):
                await tool.run(tool.parse({"artifact": named}), context)
    earlier = replace(below, execution="below", root_execution="earlier")
    assert "secret" in str(await tool.run(tool.parse({"artifact": "t1-c"}), earlier))


async def test_saving_again_changes_nothing(artifacts: PostgresArtifacts) -> None:
    run_id = uuid4().hex
    await artifacts.save(run_id, "a", "first")
    await asyncio.gather(*(artifacts.save(run_id, "a", "first" if n % 2 else "second") for n in range(20)))
    assert await artifacts.load(run_id, "a") == "first"


async def test_texts_that_are_replaced_together_are_read_together(database: Database) -> None:
    artifacts, reader, run_id = PostgresArtifacts(database), RunArtifacts(database), uuid4().hex
    names = tool_calls.artifact_parts("a", tool_calls.ARTIFACT_LENGTH * 4)
    versions = [[f"{word} "] * parts for word, parts in (("one", 2), ("two", 4), ("three", 1))]

    async def write(version: list[str]) -> None:
        for _ in range(20):
            await artifacts.replace(run_id, dict(zip(names, [*version, *[""] * 4], strict=False)))

    await write(versions[0])
    writing = asyncio.gather(*(write(version) for version in versions))
    seen = {await reader.text(run_id, "a") for _ in range(40)}
    await writing

    assert seen <= {"".join(version) for version in versions}


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


@pytest.mark.usefixtures("soon_away")
async def test_a_store_that_is_away_says_so() -> None:
    async with aclosing(Database("postgresql://127.0.0.1:1/nowhere")) as database:
        artifacts = PostgresArtifacts(database)
        saving, loading = await asyncio.gather(
            artifacts.save("run", "a", "x"), artifacts.load("run", "a"), return_exceptions=True
        )
    assert isinstance(saving, StoreUnavailable)
    assert isinstance(loading, StoreUnavailable)


async def read_on(artifacts: PostgresArtifacts, context: ToolContext, artifact: str) -> str:
    """What a model reads that begins with this artifact and follows what each page says."""
    tool, pages, offset = read_artifact_tool(artifacts), "", 0
    while artifact:
        arguments = tool.parse({"artifact": artifact, "offset": offset})
        try:
            page = await tool.run(arguments, context)
        except ToolValidationError:  # the output ended with the artifact before
            return pages
        assert isinstance(page, str)
        said, _, text = page.partition("\n")
        pages += text
        further = re.search(r"continue at offset (\d+)", said)
        next_one = re.search(r"continues in artifact (\S+)\]", said)
        offset = int(further[1]) if further else 0
        artifact = artifact if further else next_one[1] if next_one else ""
    return pages


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 45_000))
async def test_an_output_longer_than_one_artifact_is_read_whole_by_following_what_is_said(
    artifacts: PostgresArtifacts, monkeypatch: pytest.MonkeyPatch, surplus: int
) -> None:
    for module in (tool_calls, output_sanitizer, artifact_tools):
        monkeypatch.setattr(module, "ARTIFACT_LENGTH", 15_000)
    output = "".join(f"{n:05d} " for n in range((15_000 + surplus) // 6))
    context = ToolContext(
        workspace=Path("/"), run_id=uuid4().hex, call_id="c", artifact="t1-c~2", idempotency_key="k", timeout=5
    )

    said = await OutputSanitizer(SecretMask(frozenset()), artifacts).sanitize(output, context, limit=1_000)

    assert said.length == len(output)
    assert f"read them with read_artifact, artifact {said.artifact}" in said.text
    assert ("each with the next 15,000 characters" in said.text) is (len(output) > 15_000)
    assert await read_on(artifacts, context, said.artifact) == output


async def test_what_is_too_long_for_all_artifacts_is_said(
    artifacts: PostgresArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tool_calls, output_sanitizer):
        monkeypatch.setattr(module, "ARTIFACT_LENGTH", 1_000)
    context = ToolContext(
        workspace=Path("/"), run_id=uuid4().hex, call_id="c", artifact="t1-c", idempotency_key="k", timeout=5
    )

    said = await OutputSanitizer(SecretMask(frozenset()), artifacts).sanitize("x" * 10_001, context, limit=600)

    assert "artifact t1-c to t1-c~part10, each with the next 1,000 characters" in said.text
    assert "the characters after 10,000 were not stored" in said.text
    assert await artifacts.load(context.run_id, "t1-c~part11") is None
