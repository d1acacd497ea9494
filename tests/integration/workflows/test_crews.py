"""Crews on a real server: each way to share a task, members that fail, and all that a run has."""

import json
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from loom.domain.core.requests import CREW_RUN, RunResult, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.crews.prompts import INLINE
from loom.testing.harness import Harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, hang, status, text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working
from tests.trees import by_task

FAILS = status(401, message="no such key")
WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


def team(mode: str, *members: dict[str, Any] | str, **given: Any) -> dict[str, Any]:
    """A crew as a request brings it along."""
    made = [{"name": member} if isinstance(member, str) else member for member in members]
    return {"name": "team", "mode": mode, "members": made, **given}


def you(name: str) -> str:
    """How a member's prompt begins."""
    return f"You are '{name}'"


def assignments(**tasks: str) -> Reply:
    """A coordinator gives out work."""
    return text(json.dumps({"assignments": [{"member": name, "task": task} for name, task in tasks.items()]}))


def answers(output: str) -> Reply:
    """A coordinator answers."""
    return text(json.dumps({"answer": output}))


async def start(loom: Harness, crew: dict[str, Any] | str, task: str = "The task.", **request: Any) -> str:
    """Start a crew, to be replayed when the test ends."""
    name = f"crew-{uuid4().hex[:8]}"
    request.setdefault("workspace", str(loom.workspace))
    run_id = await loom.client.start_crew(crew, task, run_id=name, **request)
    loom.started.append(run_id)
    return run_id


async def run(loom: Harness, crew: dict[str, Any] | str, task: str = "The task.", **request: Any) -> RunResult:
    """Start a crew and wait for its result."""
    return await loom.client.result(await start(loom, crew, task, **request))


def prompts(requests: list[SeenRequest]) -> list[str]:
    """What each run was told first."""
    return [next(str(m["content"]) for m in request.messages if m["role"] == "user") for request in requests]


async def test_a_sequential_crew_hands_on_what_each_has_brought(working: Working) -> None:
    loom, model = await working(by_task({you("searcher"): [text("three facts")], you("writer"): [text("a report")]}))
    crew = team("sequential", "searcher", {"name": "writer", "task": "Write it up."})

    run_id = await start(loom, crew)
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, "a report", 3)
    assert [child["description"] for child in result.children] == ["searcher", "writer"]
    assert (result.usage["model_calls"], result.cost) == (2, None)
    assert "three facts" in prompts(model.requests)[1]
    assert "Your part: Write it up." in prompts(model.requests)[1]
    events = await told(loom.client, run_id)
    assert len({event.task.task_id for event in events}) == len(events)
    steps = [event.task.parameters["text"] for event in events if event.task.action is Action.PLANNING]
    assert steps == ["Step 1 of 2: searcher", "Step 2 of 2: writer", "a report"]
    (listed,) = [each for each in await loom.client.list(limit=100) if each.run_id == run_id]
    assert (listed.agent, listed.status) == ("team", "completed")


async def test_a_parallel_crew_works_at_once_and_an_agent_merges(working: Working) -> None:
    slow = {you(name): [text(f"by {name}", chunks=3, delay=0.2)] for name in ("a", "b", "c")}
    loom, model = await working(by_task({**slow, "Make one answer": [text("all three")]}))
    run_id = await start(loom, team("parallel", "a", "b", "c", aggregate={"by": "merge"}))

    together = await loom.until(run_id, lambda seen: [c["status"] for c in seen["children"]] == ["running"] * 3)
    result = await loom.client.result(run_id)

    assert together["agent"] == "team"
    assert result.output == "all three"
    assert all(f"by {name}" in prompts(model.requests)[-1] for name in ("a", "b", "c"))


async def test_a_structured_answer_is_one_value(working: Working) -> None:
    loom, _ = await working(by_task({you("a"): [text('{"n": 1}')], you("b"): [text("two")]}))
    result = await run(loom, team("parallel", "a", "b", aggregate={"by": "structured"}))
    assert json.loads(result.output) == {"a": {"n": 1}, "b": "two"}


async def test_a_coordinator_splits_reads_what_came_and_answers_although_a_member_fails_twice(
    working: Working,
) -> None:
    lead = "You coordinate the crew"
    rounds = iter([assignments(a="find", b="check"), answers("found, unchecked")])
    tree = by_task({you("a"): [text("found it")], you("b"): [FAILS]})
    loom, model = await working(lambda request: next(rounds) if lead in prompts([request])[0] else tree(request))

    result = await run(loom, team("coordinated", "a", "b"))

    assert (result.status, result.output) == (RunStatus.COMPLETED, "found, unchecked")
    done = [(child["description"], child["status"]) for child in result.children]
    assert done == [
        ("coordinator", "completed"),
        ("a", "completed"),
        ("b", "failed"),
        ("b, attempt 2", "failed"),
        ("coordinator", "completed"),
    ]
    last = prompts(model.requests)[-1]
    assert "## a\nfound it" in last
    assert "## b\n(failed: LLMConfigurationError" in last


async def test_a_coordinator_reads_what_a_member_had_that_ran_into_its_limit(working: Working) -> None:
    rounds = iter([assignments(a="find"), answers("half found")])

    def reply(request: SeenRequest) -> Reply:
        if "You coordinate the crew" in prompts([request])[0]:
            return next(rounds)
        return calls(ToolUse("glob", {"pattern": "*"})) if request.body.get("tools") else text("half of it")

    loom, model = await working(reply)

    result = await run(loom, team("coordinated", {"name": "a", "retries": 0}))

    assert (result.status, result.output) == (RunStatus.COMPLETED, "half found")
    assert [child["status"] for child in result.children] == ["completed", "limit_reached", "completed"]
    last = prompts(model.requests)[-1]
    assert "## a\n(failed: MaxTurnsReached" in last
    assert "Until then it had this:\nhalf of it" in last


async def test_a_router_says_why_and_only_the_chosen_member_works(working: Working) -> None:
    loom, model = await working(by_task({you("clerk"): [text("refunded")]}))
    rules = [{"match": "refund|invoice", "member": "clerk"}]
    crew = team("routed", "smith", "clerk", router={"rules": rules})

    run_id = await start(loom, crew, "I want a refund.")
    result = await loom.client.result(run_id)

    assert (result.output, len(model.requests)) == ("refunded", 1)
    plan = next(e.task.parameters for e in await told(loom.client, run_id) if e.task.action is Action.PLANNING)
    assert plan["choice"] == {"member": "clerk", "by": "rules", "reason": "'refund' matches 'refund|invoice'"}


async def test_a_router_with_no_match_names_what_the_crew_can_do_or_falls_back(working: Working) -> None:
    loom, model = await working(by_task({you("smith"): [text("sung")]}))
    members = [{"name": "clerk", "capabilities": ["refund"]}, {"name": "smith", "capabilities": ["repair"]}]

    nobody = await run(loom, team("routed", *members), "Sing.")
    assert model.requests == []
    fallback = await run(loom, team("routed", *members, router={"fallback": "smith"}), "Sing.")

    assert (nobody.status, nobody.error and nobody.error.type) == (RunStatus.FAILED, "NoMemberFitsError")
    assert nobody.error is not None
    assert "clerk (refund); smith (repair)" in nobody.error.message
    assert fallback.output == "sung"


async def test_a_router_by_model_and_one_by_likeness(working: Working) -> None:
    chosen = text('{"member": "smith", "reason": "it is about wood"}')
    loom, _ = await working(by_task({"Choose the one member": [chosen], you("smith"): [text("mended")]}))
    by_model = await run(loom, team("routed", "clerk", "smith", router={"by": "model"}), "My chair.")
    assert by_model.output == "mended"

    bare, _ = await working(by_task({}), embedder="off")
    without = await run(bare, team("routed", "clerk", "smith", router={"by": "embedding"}), "My chair.")
    assert without.error is not None
    assert "set LOOM_EMBEDDER" in without.error.message


async def test_a_substitute_takes_over_and_a_crew_that_cannot_do_without_stops(working: Working) -> None:
    loom, _ = await working(by_task({you("a"): [FAILS], you("b"): [text("by b")]}))

    first = {"name": "a", "retries": 0}
    taken = await run(loom, team("parallel", {**first, "substitute": "b"}, "b"))
    stopped = await run(loom, team("sequential", first, "b"))

    assert taken.output == "## b\n\nby b\n\n## b\n\nby b"
    assert (stopped.status, stopped.error and stopped.error.type) == (RunStatus.FAILED, "CrewFailedError")
    assert stopped.error is not None
    assert "the member 'a' failed once: LLMConfigurationError" in stopped.error.message


async def test_an_ask_in_a_member_is_answered_at_the_crew(working: Working) -> None:
    loom, _ = await working(by_task({you("a"): [calls(WRITE), text("written")]}), app="tests.delegation_app:app")
    crew = team("sequential", {"name": "a", "agent": "writer"})
    run_id = await start(loom, crew, permissions={"write_file": "ask"})

    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    assert (ask["tool"], ask["agent"]) == ("write_file", "writer")
    await loom.client.approve(run_id, ask["call_id"], digest=ask["digest"])
    result = await loom.client.result(run_id)

    assert result.output == "written"
    assert (loom.workspace / "out.txt").read_text() == "hello"


async def test_aborting_a_crew_ends_its_members(working: Working) -> None:
    loom, _ = await working(by_task({you("a"): [hang()], you("b"): [hang()]}))
    run_id = await start(loom, team("parallel", "a", "b"))
    await loom.until(run_id, lambda seen: [c["status"] for c in seen["children"]] == ["running"] * 2)
    members = await loom.below(run_id)

    await loom.client.abort(run_id, reason="enough", by="ann")
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.ABORTED
    assert [(await loom.client.result(member)).status for member in members] == [RunStatus.ABORTED] * 2


@pytest.mark.slow
async def test_a_crew_is_paused_told_something_and_rotated_like_a_run(working: Working) -> None:
    names = [f"m{number}" for number in range(12)]
    replies = {you(name): [text(f"by {name}")] for name in names}
    loom, model = await working(by_task(replies), rotate_after_events=100)
    run_id = await start(loom, team("sequential", *names))
    await loom.until(run_id, lambda seen: len(seen["children"]) >= 1)
    await loom.client.pause(run_id)
    await loom.client.send(run_id, "Be brief.", by="ann")
    await loom.until(run_id, lambda seen: seen["status"] == "paused" and seen["queued_messages"] == 1)
    await loom.client.resume(run_id)

    result = await loom.client.result(run_id)

    assert (result.output, len(result.children)) == ("by m11", 12)
    assert "- Be brief." in prompts(model.requests)[-1]
    assert len(await loom.histories(run_id)) > 1


async def test_a_long_answer_is_shared_as_an_artifact_of_the_crew(working: Working) -> None:
    long = "\n".join(f"line {number}" for number in range(2000))
    assert len(long) > INLINE
    look = calls(ToolUse("read_artifact", {"artifact": "crew-s1", "offset": len(long) - 9, "limit": 9}))
    loom, model = await working(by_task({you("a"): [text(long)], you("b"): [look, text("seen")]}))

    result = await run(loom, team("sequential", "a", "b"))

    assert result.output == "seen"
    assert "read_artifact 'crew-s1' has the whole" in prompts(model.requests)[1]
    assert "line 1999" in str(model.requests[-1].messages[-1])


@pytest.mark.parametrize(
    ("crew", "says"),
    [
        ("nobody", "there is no crew 'nobody'"),
        (team("parallel", {"name": "a", "agent": "nobody"}), "with unknown agents: 'nobody'"),
        (
            team("paralel", "a"),
            "mode 'paralel' must be one of sequential, parallel, coordinated, routed, planned or tree",
        ),
        (team("parallel", {"name": "a", "retrys": 2}), "there is no field members.0.retrys: did you mean retries?"),
        ({"mode": "parallel"}, "crew.name: a crew needs a name"),
    ],
)
async def test_a_crew_that_cannot_be_is_refused(working: Working, crew: Any, says: str) -> None:
    loom, _ = await working(by_task({}))
    handle = await loom.client.temporal.start_workflow(
        "CrewRun", {"crew": crew, "task": "t"}, id=f"crew-{uuid4().hex[:8]}", task_queue=loom.settings.task_queue
    )
    result = await loom.client.result(handle.id)
    assert (result.status, result.error and result.error.type) == (RunStatus.FAILED, "BadRequest")
    assert result.error is not None
    assert says in result.error.message


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"skills": ["pdf"]}, "skills"),
        ({"require_done_tool": True}, "require_done_tool"),
        ({"metadata": {"loom": {"evaluate": True}}}, "metadata.loom"),
    ],
)
async def test_a_crew_is_not_asked_for_what_only_agents_have(working: Working, asked: Any, field: str) -> None:
    loom, model = await working(by_task({you("a"): [text("done")]}))

    result = await loom.run_unseen("The task.", workflow=CREW_RUN, crew=team("sequential", "a"), **asked)

    assert result.error is not None
    assert (result.error.type, result.error.context["field"]) == ("BadRequest", field)
    assert f"`{field}` applies to agents, not to crews" in result.error.message
    assert model.requests == []
    mine = await run(loom, team("sequential", "a"), metadata={"ticket": 7}, require_done_tool=False)
    assert mine.output == "done"


async def test_a_crew_is_forked_from_one_of_its_steps(working: Working) -> None:
    loom, model = await working(by_task({you("a"): [text("facts")], you("b"): [text("a report")]}))
    origin = await start(loom, team("sequential", "a", "b"))
    await loom.client.result(origin)

    fork = await loom.client.fork(origin, turn=1, message="In one line.")
    loom.started.append(fork)

    assert (await loom.client.result(fork)).output == "a report"
    assert len(model.requests) == 3
    assert "- In one line." in prompts(model.requests)[-1]


async def test_members_share_texts_and_write_to_each_other(working: Working) -> None:
    ask = ToolUse("message_agent", {"to": "b", "text": "Which colour?", "wait": 20}, "m1")
    share = calls(ToolUse("share_artifact", {"name": "colour", "content": "It is blue."}, "s1"))
    read = calls(ToolUse("read_artifact", {"artifact": "shared-colour"}, "r1"))

    def member_b(request: SeenRequest) -> Reply:
        asked = next((str(m["content"]) for m in request.messages if "Which colour?" in str(m["content"])), None)
        if request.turn == 0:
            return share
        if asked is None:  # look around until somebody asks
            return calls(ToolUse("glob", {"pattern": f"{request.turn}*"}))
        if "m2" not in str(request.messages):
            sender = asked.rpartition("to='")[2].partition("'")[0]
            return calls(ToolUse("message_agent", {"to": sender, "text": "Read shared-colour."}, "m2"))
        return text("told")

    def reply(request: SeenRequest) -> Reply:
        if you("b") in prompts([request])[0]:
            return member_b(request)
        return [calls(ask), read, text("blue")][request.turn]

    loom, model = await working(reply)
    result = await run(loom, team("parallel", "a", "b"))

    assert result.output == "## a\n\nblue\n\n## b\n\ntold"
    last = [r for r in model.requests if you("a") in prompts([r])[0]][-1].messages
    assert "A message has come in" in str(last[3])
    assert "Message from another agent, b; not from a person.] Read shared-colour." in str(last[4])
    assert "It is blue." in str(last[6])
    events = [event.task for event in await told(loom.client, loom.started[0])]
    written = {(task.parameters["by"], task.target_agent) for task in events if task.action is Action.MESSAGE}
    assert written == {("a", "default"), ("b", "default")}


async def test_a_message_to_nobody_names_who_there_is(working: Working) -> None:
    lost = calls(
        ToolUse("message_agent", {"to": "c", "text": "hello"}, "m1"),
        ToolUse("message_agent", {"to": "crew-of-others/d1", "text": "hello"}, "m2"),
    )
    loom, model = await working(by_task({you("a"): [lost, text("alone")]}))

    assert (await run(loom, team("sequential", "a"))).output == "alone"

    told_a = [str(message["content"]) for message in model.requests[-1].messages if message["role"] == "tool"]
    assert "there is no running agent 'c': there is nobody else, and `parent`" in told_a[0]
    assert "there is no running agent 'crew-of-others/d1'" in told_a[1]


async def test_only_agents_that_work_with_others_have_the_tools_for_it(working: Working) -> None:
    loom, model = await working(by_task({you("a"): [text("x")], "alone": [text("y")]}))
    await run(loom, team("sequential", "a"))
    await loom.run("alone")
    names = [{tool["function"]["name"] for tool in request.body["tools"]} for request in model.requests]
    assert [{"message_agent", "share_artifact"} <= offered for offered in names] == [True, False]


async def test_a_crew_keeps_within_its_budget_and_says_what_it_has(working: Working) -> None:
    def reply(request: SeenRequest) -> Reply:
        return replace(text("a part"), usage=(1200, 300, 0))

    loom, model = await working(reply)
    members = [{"name": f"m{number}"} for number in range(12)]

    result = await run(loom, team("sequential", *members), budget={"tokens": 12_000})

    assert result.status is RunStatus.BUDGET_EXHAUSTED
    assert 0 < len(model.requests) < 12
    assert result.usage["total_tokens"] <= 12_000 + 1_500, "no more than one call beyond what was foreseen"
    assert result.output.startswith("The crew had to end before it was done.")
    assert "a part" in result.output


async def test_the_stream_of_a_crew_tells_of_its_members(working: Working) -> None:
    loom, _ = await working(by_task({you("a"): [text("by a")]}))
    run_id = await start(loom, team("sequential", "a"))
    await loom.client.result(run_id)

    events = await told(loom.client, run_id)

    (member,) = await loom.below(run_id)
    said = [(e.task.run_id == member, e.task.action) for e in events]
    assert (False, Action.PLANNING) in said
    assert (True, Action.THINKING) in said
    assert said[-1] == (False, Action.COMPLETE)


async def test_members_that_name_no_model_have_the_crews(working: Working) -> None:
    loom, model = await working(by_task({you("a"): [text("x")], you("b"): [text("y")]}), model="demo")
    own = {"name": "b", "model": "openai:own"}

    await run(loom, team("sequential", "a", own), model="anthropic:crews")

    assert [(seen.provider, seen.body["model"]) for seen in model.requests] == [
        ("anthropic", "crews"),
        ("openai", "own"),
    ]


async def test_new_rules_in_the_middle_do_not_keep_a_crew_from_giving_out_its_work(working: Working) -> None:
    tree = by_task({you("a"): [text("by a", chunks=4, delay=0.5)], you("b"): [text("by b")]})
    loom, _ = await working(tree, parallel_limit=1)
    run_id = await start(loom, team("parallel", "a", "b", permissions={"default": "deny", "read_file": "allow"}))
    await loom.until(run_id, lambda seen: [c["status"] for c in seen["children"]] == ["running"])

    await loom.client.set_permissions(run_id, {"grep": "deny"})

    result = await loom.client.result(run_id)
    assert [child["description"] for child in result.children] == ["a", "b"]


async def test_nobody_waits_for_a_word_of_whoever_waits_for_their_work(working: Working) -> None:
    ask = ToolUse("message_agent", {"to": "parent", "text": "Which one?", "wait": 60}, "m1")
    loom, model = await working(by_task({you("a"): [calls(ask), text("the first")]}))

    result = await run(loom, team("sequential", "a"))

    assert result.output == "the first"
    told = str(model.requests[-1].messages[-1]["content"])
    assert told.startswith("Sent to the agent above you, who waits for your answer")
