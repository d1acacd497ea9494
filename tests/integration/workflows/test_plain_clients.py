"""Clients without Loom: a Temporal client reads large answers whole, and even larger ones from Postgres."""

import json
from typing import Any, Final

import pytest
from temporalio.client import Client, WorkflowHandle

from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import script, text
from loom.workflows.payload_converter import IN_LINE_BYTES
from tests.integration.workflows.conftest import Working
from tests.plain_reader import read_reference

WORDS: Final = "an answer — 答案 \n"


def answer(size: int) -> str:
    """An answer of at least this many bytes."""
    return WORDS * (size // len(WORDS.encode()) + 1) + "end"


async def plain_handle(loom: Harness) -> WorkflowHandle[Any, Any]:
    """The test's only run, as a client with the SDK's defaults sees it."""
    settings = loom.settings
    client = await Client.connect(settings.temporal_address, namespace=settings.temporal_namespace)
    return client.get_workflow_handle(loom.started[0])


@pytest.mark.parametrize("size", [300_000, 1_000_000])
async def test_a_plain_client_reads_a_large_result_and_large_answers_to_queries(working: Working, size: int) -> None:
    loom, _ = await working(script([text(answer(size))]))
    await loom.run()
    plain = await plain_handle(loom)

    result, messages, status = await plain.result(), await plain.query("transcript"), await plain.query("status")

    assert (result["status"], result["output"]) == ("completed", answer(size))
    assert messages[-1]["content"] == answer(size)
    assert status["status"] == "completed"


async def test_a_result_beyond_temporal_s_limit_is_read_from_postgres(working: Working, addresses: Addresses) -> None:
    loom, _ = await working(script([text(answer(IN_LINE_BYTES))]))
    await loom.run()
    plain = await plain_handle(loom)
    history = await plain.fetch_history()
    (payload,) = history.events[-1].workflow_execution_completed_event_attributes.result.payloads

    assert payload.metadata["messageType"] == b"temporal.api.sdk.v1.ExternalStorageReference"
    reference: dict[str, Any] = json.loads(payload.data)
    assert reference["driverName"] == "loom-postgres"
    result = read_reference(reference, addresses.database)
    assert (result["status"], result["output"]) == ("completed", answer(IN_LINE_BYTES))
