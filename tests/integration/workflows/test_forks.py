"""Forks on a real server: a new run from a past turn of another, and nothing that was done is done again."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from loom.domain.core.errors import BadRequest, RunNotFoundError
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import Harness
from loom.testing.model_server import SeenRequest, ToolUse, calls, hang, script, status, text, turns
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_crews import start as start_crew
from tests.integration.workflows.test_rotation import _talkative
from tests.trees import by_task, delegate

ALLOWED = {"write_file": "allow", "bash": "allow"}


def write(path: str, call_id: str) -> ToolUse:
    return ToolUse("write_file", {"path": path, "content": "hello"}, call_id)


async def test_a_fork_goes_on_from_a_turn_of_an_ended_run_and_repeats_nothing(
    working: Working, workspace: Path
) -> None:
    replies = [calls(write("one.txt", "w1")), calls(write("two.txt", "w2")), text("both"), text("only one")]
    loom, model = await working(script(replies))
    origin = await loom.start("Write files.", permissions=ALLOWED, metadata={"ticket": 7})
    assert (await loom.client.result(origin)).output == "both"
    (workspace / "one.txt").unlink()

    fork = await forked(loom, origin, turn=1, message="That is enough.")
    result = await loom.client.result(fork)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "only one")
    assert (result.turns, result.tool_calls, result.usage["model_calls"]) == (1, 0, 1)
    assert not (workspace / "one.txt").exists()
    first, asked = model.requests[1], model.requests[3]
    assert asked.messages == [*first.messages, {"role": "user", "content": "That is enough."}]
    assert await activities(loom, fork) == {"prepare_run": 1, "call_model": 1}
    from_where = {"run_id": origin, "turn": 1}
    assert (await loom.client.status(fork))["forked_from"] == from_where
    assert (await loom.client.status(origin))["forked_from"] is None
    start = (await told(loom.client, fork))[0].task
    assert (start.action, start.parameters["forked_from"], start.parameters["metadata"]) == (
        Action.START,
        from_where,
        {"ticket": 7},
    )


async def test_a_run_that_still_goes_on_can_be_forked_with_another_model(working: Working) -> None:
    loom, model = await working(script([calls(write("a.txt", "w1")), calls(write("b.txt", "w2")), text("as asked")]))
    origin = await loom.start(permissions={"write_file(a.txt)": "allow", "write_file": "ask"})
    await loom.asked(origin)

    fork = await forked(loom, origin, turn=1, model="anthropic:other")

    assert (await loom.client.result(fork)).output == "as asked"
    assert model.requests[-1].provider == "anthropic"
    with pytest.raises(BadRequest, match="turn 2 is not over"):
        await loom.client.fork(origin, turn=2)
    assert (await loom.client.status(origin))["status"] == "waiting_for_approval"
    await loom.client.abort(origin)


async def test_effects_of_a_fork_are_its_own(working: Working, workspace: Path) -> None:
    append = ToolUse("bash", {"command": "echo x >> log.txt"}, "b1")
    loom, _ = await working(script([calls(append), text("done"), calls(append), text("done again")]))
    origin = await loom.start(permissions=ALLOWED)
    await loom.client.result(origin)

    # The model uses the id of the other run's call again, in the same turn and with the same arguments.
    fork = await forked(loom, origin, turn=0)

    assert (await loom.client.result(fork)).output == "done again"
    assert (workspace / "log.txt").read_text() == "x\nx\n"


@pytest.mark.slow
async def test_a_run_of_many_executions_is_forked_anywhere(working: Working) -> None:
    loom, model = await working(turns(40, "list_dir", {"path": "."}), rotate_after_events=100)
    origin = await loom.start(max_turns=60)
    await loom.client.result(origin)
    assert len(await loom.histories(origin)) > 2

    for turn in (0, 1, 19, 20, 40):
        asked = len(model.requests)
        fork = await forked(loom, origin, turn=turn, max_turns=60)
        assert (await loom.client.result(fork)).turns == 41 - turn
        assert model.requests[asked].messages == model.requests[turn].messages


async def test_a_fork_of_a_fork_knows_both_pasts(working: Working) -> None:
    loom, model = await working(turns(3, "list_dir", {"path": "."}))
    origin = await loom.start()
    await loom.client.result(origin)
    fork = await forked(loom, origin, turn=2)
    await loom.client.result(fork)

    again = await forked(loom, fork, turn=1, message="And now?")

    assert (await loom.client.result(again)).output == "finished"
    said = [*model.requests[3].messages, {"role": "user", "content": "And now?"}]
    assert model.requests[-1].messages == said
    assert (await loom.client.status(again))["forked_from"] == {"run_id": fork, "turn": 1}


@pytest.mark.slow
async def test_a_large_conversation_is_forked_out_of_line(working: Working) -> None:
    loom, model = await working(_talkative(40, 10_000), replay=False)
    origin = await loom.start(max_turns=50)
    await loom.client.result(origin)

    fork = await forked(loom, origin, turn=39, max_turns=50)

    assert (await loom.client.result(fork)).output == "finished"
    assert model.requests[-1].messages[: len(model.requests[39].messages)] == model.requests[39].messages
    (history,) = await loom.histories(fork)
    assert sum(event.ByteSize() for event in history.events) < 40_000


async def test_an_output_that_was_kept_whole_can_be_read_in_a_fork(working: Working) -> None:
    def reply(request: SeenRequest) -> Any:
        match request.turn:
            case 0:
                return calls(ToolUse("bash", {"command": "seq 1 20000"}, "b1"))
            case 1 if "look" in str(request.messages[-1]):
                return calls(ToolUse("read_artifact", {"artifact": "t1-b1", "offset": 50_000, "limit": 100}, "r1"))
            case _:
                return text("seen")

    loom, model = await working(reply)
    origin = await loom.start(permissions=ALLOWED)
    await loom.client.result(origin)

    result = await loom.client.result(await forked(loom, origin, turn=1, message="look"))

    assert [one["id"] for one in result.artifacts] == ["t1-b1"]
    assert "[characters 50000 to 50100 of" in str(model.requests[-1].messages[-1])


async def held_after_its_children(loom: Harness, run_id: str, finished: int) -> None:
    """Hold the run once so many of its children have ended, and end the last one, so that no turn follows."""
    seen = await loom.until(
        run_id, lambda status: sum(c["status"] in ("completed", "failed") for c in status["children"]) == finished
    )
    (last,) = [child for child in seen["children"] if child["status"] not in ("completed", "failed")]
    await loom.client.pause(run_id)
    await loom.client.abort(last["run_id"], reason="too slow")
    await loom.client.result(last["run_id"])
    await loom.until(run_id, lambda status: all(c["status"] != "running" for c in status["children"]))


@pytest.mark.slow
async def test_a_turn_that_only_gave_work_away_can_be_the_last_one(working: Working) -> None:
    gives = calls(delegate("look", "Look at it."), delegate("smell", "Smell it."), delegate("listen", "Listen to it."))
    replies = {"Look at it.": [text("It is blue.")], "Smell it.": [status(401)], "Listen to it.": [hang()]}
    loom, model = await working(by_task({**replies, "What is": [gives, text("seen")]}))
    origin = await loom.start("What is it?")
    await held_after_its_children(loom, origin, finished=2)

    fork = await forked(loom, origin, turn=1)
    assert (await loom.client.result(fork)).output == "seen"
    seen = model.requests[-1].messages
    await loom.client.resume(origin)

    assert (await loom.client.result(origin)).output == "seen"
    assert model.requests[-1].messages == seen
    brought = [json.loads(message["content"]) for message in seen if message["role"] == "tool"]
    assert [each["status"] for each in brought] == ["completed", "failed", "aborted"]
    assert brought[0]["result"] == "It is blue."


async def test_a_crew_is_forked_from_a_step_that_none_follows(working: Working) -> None:
    crew = {"name": "team", "mode": "parallel", "members": [{"name": "a"}, {"name": "b"}]}
    loom, model = await working(by_task({"You are 'a'": [text("facts")], "You are 'b'": [hang()]}))
    origin = await start_crew(loom, crew)
    await held_after_its_children(loom, origin, finished=1)

    fork = await forked(loom, origin, turn=1)

    assert (await loom.client.result(fork)).output == "## a\n\nfacts"
    assert len(model.requests) == 2
    await loom.client.abort(origin)


async def test_what_cannot_be_forked_is_said_before_anything_starts(working: Working) -> None:
    loom, _ = await working(script([text("Four.")]))
    origin = await loom.start()
    await loom.client.result(origin)

    with pytest.raises(RunNotFoundError, match="there is no run 'nobody'"):
        await loom.client.fork("nobody", turn=1)
    with pytest.raises(BadRequest, match="the run has no turn 7: it has turns 1 to 1"):
        await loom.client.fork(origin, turn=7)
    with pytest.raises(BadRequest, match="turn 1 ended with an answer"):
        await loom.client.fork(origin, turn=1)
    with pytest.raises(BadRequest, match="did you mean 'forked_from.message'"):
        await loom.client.start("t", forked_from={"run_id": origin, "turn": 1, "mesage": "x"})


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("skills", {"skills": ["pdf"]}),
    ("output_schema", {"output_schema": {"type": "array"}}),
    ("metadata.loom", {"metadata": {"loom": {"evaluate": True}}}),
]


async def test_what_a_fork_would_not_heed_is_refused_and_the_rest_may_change(working: Working) -> None:
    schema = {"type": "object", "required": ["sum"]}
    asked = {"output_schema": schema, "metadata": {"ticket": 7, "loom": {"evaluate": False}}}
    loom, _ = await working(script([text('{"sum": 4}'), text('{"sum": 5}')]))
    origin = await loom.start(**asked)
    await loom.client.result(origin)

    for field, change in CHANGES:
        with pytest.raises(BadRequest, match=f"so `{field}` cannot be changed: leave it out") as refused:
            await loom.client.fork(origin, turn=1, message="again", **change)
        assert refused.value.context["field"] == field
        by_any_client = {"forked_from": {"run_id": origin, "turn": 1, "message": "again"}, **change}
        error = (await loom.run("t", **by_any_client)).error
        assert (error and error.type, error and error.context["field"]) == ("BadRequest", field)

    same = {**asked, "metadata": {"ticket": 8, "loom": {"evaluate": False}}}
    fork = await forked(loom, origin, turn=1, message="again", **same)
    assert (await loom.client.result(fork)).structured_output == {"sum": 5}


async def test_a_fork_that_any_temporal_client_starts_is_checked_by_the_worker(working: Working) -> None:
    loom, _ = await working(script([text("Four."), text("Five.")]))
    origin = await loom.start()
    await loom.client.result(origin)

    unknown = await loom.run("t", forked_from={"run_id": "nobody", "turn": 1})
    early = await loom.run("t", forked_from={"run_id": origin, "turn": 1})
    other = await loom.run("t", agent="nobody", forked_from={"run_id": origin, "turn": 1, "message": "again"})
    right = await loom.run("t", forked_from={"run_id": origin, "turn": 1, "message": "again"})

    wrong = [result.error.type for result in (unknown, early, other) if result.error]
    assert wrong == ["RunNotFoundError", "BadRequest", "BadRequest"]
    assert right.output == "Five."


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("tenant", {"tenant": "evil", "user_id": "ann"}),
    ("tenant", {"user_id": "ann"}),
    ("user_id", {"tenant": "acme", "user_id": "bob"}),
    ("user_id", {"tenant": "acme"}),
]


async def test_a_fork_works_for_the_same_tenant_and_user(working: Working) -> None:
    loom, model = await working(script([text("Four."), text("Five."), text("Six."), text("Seven.")]))
    owner = {"tenant": "acme", "user_id": "ann"}
    origin, nobodys = await loom.start(**owner), await loom.start()
    for run_id in (origin, nobodys):
        await loom.client.result(run_id)

    refused = [(origin, field, given) for field, given in OTHERS]
    for run_id, field, given in [*refused, (nobodys, "tenant", owner), (nobodys, "user_id", {"user_id": "ann"})]:
        # Also of a turn that doesn't exist: the error says nothing about the other run.
        by_any_client = {"forked_from": {"run_id": run_id, "turn": 7, "message": "again"}, **given}
        error = (await loom.run("t", **by_any_client)).error
        assert (error and error.type, error and error.context["field"]) == ("BadRequest", field)
        assert error is not None
        assert "works for the same tenant and user as the other run" in error.message
        assert "acme" not in error.message
    assert len(model.requests) == 2
    for field, change in (("tenant", {"tenant": "evil"}), ("user_id", {"user_id": "bob"})):
        with pytest.raises(BadRequest, match=f"{field}: a fork works for the same tenant") as caught:
            await loom.client.fork(origin, turn=1, message="again", **change)
        assert caught.value.context["field"] == field

    by_client = await forked(loom, origin, turn=1, message="again")
    assert (await loom.client.status(by_client))["tenant"] == "acme"
    assert (await loom.client.result(by_client)).output == "Six."
    again = {"forked_from": {"run_id": by_client, "turn": 1, "message": "again"}, **owner}
    assert (await loom.run("t", **again)).output == "Seven."


async def forked(loom: Harness, run_id: str, **given: Any) -> str:
    """A fork that is replayed when the test ends."""
    fork: str = await loom.client.fork(run_id, **given)
    loom.started.append(fork)
    return fork


async def activities(loom: Harness, run_id: str) -> Counter[str]:
    """Which activities a run has scheduled."""
    return Counter(
        event.activity_task_scheduled_event_attributes.activity_type.name
        for history in await loom.histories(run_id)
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    )
