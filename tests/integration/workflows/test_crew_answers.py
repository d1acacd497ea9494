"""What a crew answers in the form that was asked for, and what hooks have against the work that it gives out."""

from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel

from loom.domain.core.requests import CREW_RUN, RunStatus
from loom.testing.model_server import SeenRequest, text
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_crews import prompts, run, start, team, you
from tests.trees import by_task

TWO: Final[list[dict[str, Any] | str]] = [{"name": "a", "capabilities": ["task"]}, "b"]
FENCED: Final = 'Here it is:\n```json\n{"total": 7}\n```'


class Bill(BaseModel):
    """What the answer has to be."""

    total: int


SCHEMA: Final = Bill.model_json_schema()


@pytest.mark.parametrize(
    ("crew", "last", "told"),
    [
        (team("sequential", *TWO), you("b"), 2),
        (team("routed", *TWO), you("a"), 1),
        (team("parallel", *TWO, aggregate={"by": "merge"}), "Make one answer", 3),
    ],
)
async def test_whoever_gives_the_crews_answer_repairs_it_until_it_fits(
    working: Working, crew: Any, last: str, told: int
) -> None:
    mends = [text("It is seven."), text(FENCED)]
    others = {name: [text("no form")] for name in (you("a"), you("b")) if name != last}
    loom, model = await working(by_task({last: mends, **others}))

    run_id = await start(loom, crew, output=Bill)
    result = await loom.client.result(run_id, output=Bill)

    assert (result.status, result.structured_output) == (RunStatus.COMPLETED, Bill(total=7))
    assert result.output == FENCED
    assert len(result.children) == told
    asked = [request for request in model.requests if _system(request).count('"total"')]
    assert {last in prompt for prompt in prompts(asked)} == {True}, "only who answers for the crew is told the form"


async def test_a_member_that_never_fits_the_form_has_failed(working: Working) -> None:
    loom, _ = await working(by_task({you("a"): [text("It is seven.")]}))
    result = await run(loom, team("sequential", {"name": "a", "retries": 0}), output_schema=SCHEMA)
    assert (result.status, result.error and result.error.type) == (RunStatus.FAILED, "CrewFailedError")
    assert "OutputSchemaError" in str(result.error)


async def test_an_answer_of_a_member_that_was_not_asked_for_the_form_is_held_against_it(working: Working) -> None:
    loom, _ = await working(by_task({you("a"): [text("It is seven.")], you("b"): [text("no")]}))
    skipped = {"name": "b", "retries": 0, "on_failure": "skip"}
    result = await run(loom, team("sequential", "a", skipped), output_schema=SCHEMA)
    assert (result.status, result.error and result.error.type) == (RunStatus.FAILED, "OutputSchemaError")


@pytest.mark.parametrize(
    ("mode", "says"), [("parallel", "(parallel, aggregate.by concat)"), ("coordinated", "(coordinated)")]
)
async def test_an_answer_that_is_put_together_takes_no_form(working: Working, mode: str, says: str) -> None:
    loom, model = await working(by_task({}))
    crew = team(mode, *TWO)
    result = await loom.run_unseen("The task.", workflow=CREW_RUN, crew=crew, output_schema=SCHEMA)
    assert (result.status, result.error and result.error.type) == (RunStatus.FAILED, "BadRequest")
    assert f"the crew 'team' {says} has no single run that produces its answer" in str(result.error)
    assert model.requests == []


HOOKS: Final = """
from loom import Ask, Deny, LoomApp

app = LoomApp()


@app.on_tool_call
def watch(call, run_id):
    to = call.arguments.get("description", "")
    return Deny("b is on holiday") if to.startswith("b") else Ask("really?") if to == "c" else None
"""


def hooked(folder: Path) -> str:
    """An app whose hook has something against some members."""
    file = folder / "watching.py"
    file.write_text(HOOKS)
    return f"{file}:app"


async def test_a_hook_can_stop_what_a_crew_gives_out(working: Working, tmp_path: Path) -> None:
    loom, model = await working(by_task({you("a"): [text("by a")]}), app=hooked(tmp_path))
    skips = {"name": "b", "retries": 0}

    result = await run(loom, team("parallel", "a", skips))
    alone = await run(loom, team("sequential", skips))

    assert (result.output, [child["description"] for child in result.children]) == ("## a\n\nby a", ["a"])
    assert (alone.status, alone.error and alone.error.type) == (RunStatus.FAILED, "CrewFailedError")
    assert "b is on holiday" in str(alone.error)
    assert len(model.requests) == 1


async def test_a_hook_can_have_a_person_asked_what_a_crew_gives_out(working: Working, tmp_path: Path) -> None:
    loom, _ = await working(by_task({you("c"): [text("by c")]}), app=hooked(tmp_path))
    run_id = await start(loom, team("sequential", "c"))

    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    assert (ask["tool"], ask["reason"]) == ("delegate_task", "really?")
    await loom.client.approve(run_id, ask["call_id"], digest=ask["digest"])

    assert (await loom.client.result(run_id)).output == "by c"


def _system(request: SeenRequest) -> str:
    return " ".join(str(message["content"]) for message in request.messages if message["role"] == "system")
