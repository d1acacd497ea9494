"""The adapters of payloads are built when a worker starts, not in its first workflow tasks."""

from typing import Any, cast

import pytest

from loom.testing.model_server import ToolUse, calls, text
from loom.workflows import payload_converter
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate


async def test_the_first_runs_of_a_worker_build_no_adapter(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    look = calls(ToolUse("bash", {"command": "ls"}, "c1"))
    helped = calls(delegate("a part", "WORK on it", "d1"))
    adapters = cast("Any", payload_converter._adapters)
    adapters.cache_clear()
    loom, _ = await working(by_task({"WORK": [look, text("part done")], "PLAN": [look, helped, text("done")]}))
    late = list[Any]()

    def adapter(kind: Any) -> Any:
        before = adapters.cache_info().misses
        found = adapters(kind)
        late.extend([kind] * (adapters.cache_info().misses - before))
        return found

    monkeypatch.setattr(payload_converter, "_adapters", adapter)

    result = await loom.run("PLAN it", permissions={"bash": "allow"}, budget={"tokens": 100_000})

    assert (result.status, late) == ("completed", [])
