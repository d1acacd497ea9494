"""An answer that a person interrupts: the result contains what the model had written."""

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.model_server import ToolUse, calls, cut_length, hang, script, text
from loom.testing.stream import count, texts, told
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working


async def _until_said(loom: object, run_id: str, pieces: int) -> None:
    async def look() -> bool | None:
        return count(await told(loom.client, run_id), Action.THINKING) >= pieces or None  # type: ignore[attr-defined]

    await eventually(look)


@pytest.mark.parametrize("first", [(), (calls(ToolUse("glob", {"pattern": "*"}), text="I look."),)])
async def test_what_the_model_had_said_is_the_output_of_an_aborted_run(
    working: Working, first: tuple[object, ...]
) -> None:
    loom, _ = await working(script([*first, hang(4)]))  # type: ignore[list-item]
    run_id = await loom.start()
    await _until_said(loom, run_id, 4 + len(first))
    await loom.client.abort(run_id, reason="enough", by="ann")
    result = await loom.client.result(run_id)

    shown = texts(await told(loom.client, run_id))[1 + len(first)]
    assert (result.status, result.output) == (RunStatus.ABORTED, shown)
    assert result.output.startswith("one two")


async def test_an_interrupted_continuation_follows_what_came_before(working: Working) -> None:
    loom, _ = await working(script([cut_length("It began: "), hang(4)]))
    run_id = await loom.start()
    await _until_said(loom, run_id, 4)
    await loom.client.abort(run_id)
    result = await loom.client.result(run_id)
    assert result.output.startswith("It began: one two")


@pytest.mark.slow
async def test_a_run_that_is_retried_after_an_abort_asks_for_the_answer_again(working: Working) -> None:
    loom, model = await working(script([hang(4), text("one and all")]))
    run_id = await loom.start()
    await _until_said(loom, run_id, 4)
    await loom.client.abort(run_id)
    await loom.client.result(run_id)
    await loom.client.retry(run_id)
    result = await loom.client.result(run_id)
    assert (result.status, result.output) == (RunStatus.COMPLETED, "one and all")
    assert all(message["role"] != "assistant" for message in model.requests[1].messages)
