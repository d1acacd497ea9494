"""The examples of docs/testing.md, as they stand there."""

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from examples.testing import test_refunds
from examples.testing.test_refunds import test_a_refund_waits_for_a_person_and_survives_a_crash as test_the_example
from loom.testing import Cassette, ModelServer, ToolUse, assert_replays, calls, save_histories, text
from tests.docs_pages import blocks_of

__all__ = ["test_the_example"]


def test_the_page_shows_the_example() -> None:
    source = Path(test_refunds.__file__).read_text()
    test = source[source.index("async def test_a_refund") :].replace("  # type: ignore[no-untyped-def]", "")
    assert test in (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    assert len(test.splitlines()) <= 25


async def test_the_page_s_cassette_and_histories_are_used(
    loom_worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cassette, histories = (block.text for block in blocks_of("docs/testing.md", "python"))
    assert cassette.endswith("\n    ...\n")
    run = """
    run_id = await loom.start("Refund order 7", permissions={"refund": "allow"})
    results.append(await loom.client.result(run_id))
"""
    kept = "".join(f"    {line}" for line in histories.splitlines(keepends=True))
    names: dict[str, Any] = {
        **{each.__name__: each for each in (Cassette, Path, assert_replays, save_histories)},
        "app": test_refunds.app,
        "loom_worker": loom_worker,
        "os": os,
        "results": [],
    }
    monkeypatch.chdir(tmp_path)
    async with ModelServer([calls(ToolUse("refund", {"number": 7})), text("Done.")]) as provider:
        monkeypatch.setenv("RECORD_FROM", provider.url)
        await _run(cassette.replace("\n    ...\n", run), names)
    monkeypatch.delenv("RECORD_FROM")
    await _run(cassette.replace("\n    ...\n", run + kept), names)
    assert [result.output for result in names["results"]] == ["Done.", "Done."]
    assert provider.count == 2
    assert len(list((tmp_path / "tests" / "histories").iterdir())) == 1


async def _run(program: str, names: dict[str, Any]) -> None:
    await eval(compile(program, "testing.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
