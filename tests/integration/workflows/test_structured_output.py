"""Structured output, end to end: a schema with the request, a value in the result, through both SDKs."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from loom.domain.core.errors import OutputSchemaError
from loom.domain.core.requests import RunStatus
from loom.testing.model_server import SeenRequest, ToolUse, calls, cut_length, script, text
from tests.integration.workflows.conftest import Working

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer", "minimum": 1}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
BERLIN = {"city": "Berlin", "people": 3_700_000}
BOTH = pytest.mark.parametrize("model", ["openai:scripted", "anthropic:scripted"])


class City(BaseModel):
    """What a run is asked for."""

    city: str
    people: int = Field(ge=1)


class Capital(City):
    """One that wants more than a schema says."""

    @field_validator("city")
    @classmethod
    def is_capital(cls, city: str) -> str:
        """Only the capital."""
        if city != "Berlin":
            raise ValueError("not the capital")
        return city


def system_of(request: SeenRequest) -> str:
    """The system prompt, whatever the provider."""
    if request.provider == "openai":
        return str(request.messages[0]["content"])
    return str(request.body["system"][0]["text"])


def last_of(request: SeenRequest) -> str:
    """What the model read last."""
    return json.dumps(request.messages[-1]["content"], ensure_ascii=False)


@BOTH
async def test_an_answer_is_repaired_until_it_fits(working: Working, model: str) -> None:
    replies = [
        text("Berlin."),
        text('{"city": "Berlin", "people": "many"}'),
        text(f"```json\n{json.dumps(BERLIN)}\n```"),
    ]
    loom, server = await working(script(replies))

    result = await loom.run("Which is the capital?", model=model, output_schema=SCHEMA)

    assert (result.status, result.structured_output, result.turns) == (RunStatus.COMPLETED, BERLIN, 3)
    assert '"required":["city","people"]' in system_of(server.requests[0])
    assert "not JSON" in last_of(server.requests[1])
    assert "`$.people`: 'many' is not of type 'integer'" in last_of(server.requests[2])


@BOTH
async def test_done_is_held_against_the_schema_too(working: Working, model: str) -> None:
    wrong = calls(ToolUse("done", {"result": "Berlin"}, "d1"))
    right = calls(ToolUse("done", {"result": json.dumps(BERLIN)}, "d2"))
    loom, server = await working(script([text("I think it is Berlin."), wrong, right]))

    result = await loom.run("Which?", model=model, output_schema=SCHEMA, require_done_tool=True)

    assert (result.status, result.structured_output) == (RunStatus.COMPLETED, BERLIN)
    assert result.completed_explicitly
    assert "as `result`" in system_of(server.requests[0])
    assert "does not fit the schema" in last_of(server.requests[2])


async def test_an_answer_in_pieces_is_one_answer(working: Working) -> None:
    loom, _ = await working(script([cut_length('{"city": "Ber'), text('lin", "people": 3700000}')]))

    assert (await loom.run("Which?", output_schema=SCHEMA)).structured_output == BERLIN


async def test_a_run_whose_answer_never_fits_fails_and_keeps_it(working: Working) -> None:
    loom, server = await working(script([text("Berlin.")], repeat_last=True))

    result = await loom.run("Which?", output_schema=SCHEMA)

    assert result.error is not None
    assert (result.status, result.error.type, result.output) == (RunStatus.FAILED, "OutputSchemaError", "Berlin.")
    assert result.error.context["answer"] == "Berlin."
    assert len(server.requests) == result.turns == 4


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objekt"}, "is not a valid JSON Schema"),
        ({"$ref": "https://example.com/s.json"}, "target is not in it"),
    ],
)
async def test_a_schema_that_is_none_ends_the_run_before_it_begins(
    working: Working, schema: dict[str, Any], why: str
) -> None:
    loom, server = await working(script([]))

    result = await loom.run_unseen("Which?", output_schema=schema)

    assert result.error is not None
    assert (result.error.type, result.error.context) == ("BadRequest", {"field": "output_schema"})
    assert why in result.error.message
    assert server.requests == []


async def test_a_model_of_pydantic_goes_out_as_a_schema_and_comes_back_as_a_value(working: Working) -> None:
    loom, _ = await working(script([text(json.dumps(BERLIN))]))

    run_id = await loom.start("Which?", output=City)

    assert (await loom.client.result(run_id, output=City)).structured_output == City(city="Berlin", people=3_700_000)
    assert (await loom.client.result(run_id)).structured_output == BERLIN


async def test_a_type_that_wants_more_than_its_schema_says_so(working: Working) -> None:
    loom, _ = await working(script([text('{"city": "Bonn", "people": 300000}')]))
    run_id = await loom.start("Which?", output=Capital)

    with pytest.raises(OutputSchemaError, match="`city` not the capital"):
        await loom.client.result(run_id, output=Capital)
