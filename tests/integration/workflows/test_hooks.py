"""A user's code around runs and tool calls, on a real server: in order, as activities, and what breaks."""

from pathlib import Path
from textwrap import dedent

import pytest
from temporalio.api.enums.v1 import EventType

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import Harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, script, status, text
from loom.testing.stream import told
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

BEGINNING = """
import asyncio
from dataclasses import replace
from pathlib import Path
from loom import *
app = LoomApp()
LOG = Path(__file__).with_name("log")

def log(*words):
    with LOG.open("a") as file:
        print(*words, file=file)
"""

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Where the app of a test is."""
    return tmp_path / "mine.py"


def write(app: Path, code: str) -> str:
    """The app with this code, as a setting."""
    app.write_text(BEGINNING + dedent(code), encoding="utf-8")
    return f"{app}:app"


def logged(app: Path) -> list[str]:
    """What the app's hooks have said."""
    return app.with_name("log").read_text(encoding="utf-8").splitlines()


async def scheduled(loom: Harness, run_id: str) -> list[str]:
    """The types of a run's activities, in order."""
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for history in await loom.histories(run_id)
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


EVERYTHING = """
class Outer:
    def before(self, task):
        log("outer before", task.action, sorted(task.parameters))
        if "task" in task.parameters:
            return replace(task, parameters={"task": task.parameters["task"] + " politely"})

    async def after(self, task, result):
        log("outer after", task.action, result)
        return result + "!" if "task" in task.parameters else None

app.intercept(Outer)

@app.intercept
class Inner:
    def before(self, task):
        log("inner before", task.action)

    def after(self, task, result):
        log("inner after", task.action, result)
        return result.upper() if "task" in task.parameters else None

@app.on_start
async def starts(run):
    log("on_start", run.agent, run.task)

@app.on_tool_call
def called(call, run_id):
    log("on_tool_call", call.name)

@app.on_complete(timeout=30)
def completes(result, run):
    log("on_complete", result.status, result.output)

@app.on_error
def errs(error, run):
    log("on_error", error.type)
"""


async def test_interceptors_and_hooks_have_their_say_in_order(working: Working, app: Path) -> None:
    loom, model = await working(
        script([calls(ToolUse("list_dir", {"path": "."}, "l")), text("done")]), app=write(app, EVERYTHING)
    )
    run_id = await loom.start("say hi", metadata={"team": "a"})
    result = await loom.client.result(run_id)

    assert result.output == "DONE!"
    assert model.requests[0].messages[1]["content"] == "say hi politely"
    assert logged(app) == [
        "outer before execute ['metadata', 'task']",
        "inner before execute",
        "on_start default say hi politely",
        "outer before node.tool_call ['arguments', 'call_id', 'tool']",
        "inner before node.tool_call",
        "on_tool_call list_dir",
        "inner after node.tool_call (the folder is empty)",
        "outer after node.tool_call (the folder is empty)",
        "inner after execute done",
        "outer after execute DONE",
        "on_complete completed DONE!",
    ]
    assert await scheduled(loom, run_id) == [
        *("prepare_run", "run_hook", "run_hook", "run_hook"),
        *("call_model", "run_tool", "call_model"),
        *("run_hook", "run_hook", "run_hook"),
    ]
    events = [event.task for event in await told(loom.client, run_id)]
    assert [(e.parameters["moment"], e.parameters["hook"]) for e in events if e.action is Action.HOOK] == [
        *(("before", "Outer"), ("before", "Inner"), ("on_start", "starts")),
        *(("after", "Inner"), ("after", "Outer"), ("on_complete", "completes")),
    ]
    assert events[-1].action is Action.COMPLETE


async def test_a_run_without_hooks_pays_nothing_for_them(working: Working) -> None:
    loom, _ = await working(script([text("done")]))
    run_id = await loom.start()
    await loom.client.result(run_id)
    assert await scheduled(loom, run_id) == ["prepare_run", "call_model"]
    (history,) = await loom.histories(run_id)
    assert "hook" not in str(history.to_json())


STARTS = """
@app.on_start
async def gate(run):
    {gate}

@app.on_complete
def completes(result, run):
    log("complete", result.status)

@app.on_error
def errs(error, run):
    log("error", error.type)
"""


@pytest.mark.parametrize(
    ("gate", "says", "heard"),
    [
        ('return Deny("not on Sundays")', "gate does not let this run start: not on Sundays", "complete aborted"),
        ('raise ValueError("oops")', "it failed with ValueError: oops", "error HookFailedError"),
        ("return True", "it returned True instead of None, Deny or Ask", "error HookFailedError"),
    ],
)
async def test_a_gate_that_denies_or_breaks_blocks_the_run(
    working: Working, app: Path, gate: str, says: str, heard: str
) -> None:
    loom, model = await working(script([]), app=write(app, STARTS.format(gate=gate)))
    result = await loom.run()
    assert model.requests == []
    assert result.status is (RunStatus.ABORTED if "complete" in heard else RunStatus.FAILED)
    assert result.error is not None
    assert says in result.error.message
    assert logged(app) == [heard]


async def test_a_gate_that_gives_no_answer_in_time_blocks_the_run(working: Working, app: Path) -> None:
    code = "@app.on_start(timeout=0.2)\nasync def slow(run):\n    await asyncio.sleep(60)\n"
    loom, model = await working(script([]), app=write(app, code))
    result = await loom.run()
    assert result.error is not None
    assert (result.status, result.error.type, model.requests) == (RunStatus.FAILED, "HookFailedError", [])
    assert "it gave no answer within 0.2 s" in result.error.message


ASKS = """
@app.on_start
def gate(run):
    if "prod" in run.task:
        return Ask("this is about production")
"""


async def test_a_start_that_a_hook_wants_reviewed_waits_for_a_person(working: Working, app: Path) -> None:
    loom, model = await working(script([text("done")]), app=write(app, ASKS))
    run_id = await loom.start("clean prod")
    status = await loom.asked(run_id)
    (ask,) = status["pending_approvals"]
    assert (status["status"], status["turn"], ask["tool"], ask["arguments"]) == (
        *("waiting_for_approval", 0, "start_run"),
        {"task": "clean prod"},
    )
    assert (ask["reason"], ask["rule"]) == ("this is about production", "hook gate")
    await loom.client.approve(run_id, ask["call_id"], arguments={"task": "clean staging"}, digest=ask["digest"])
    assert (await loom.client.result(run_id)).output == "done"
    assert model.requests[0].messages[1]["content"] == "clean staging"


async def test_a_person_may_not_let_a_run_start(working: Working, app: Path) -> None:
    loom, model = await working(script([]), app=write(app, ASKS))
    run_id = await loom.start("clean prod")
    await loom.asked(run_id)
    await loom.client.deny(run_id, reason="not today", by="ann")
    result = await loom.client.result(run_id)
    assert result.error is not None
    assert (result.status, result.error.message) == (RunStatus.ABORTED, "denied by ann before it started: not today")
    assert model.requests == []


async def test_a_run_that_waits_for_its_start_can_be_aborted(working: Working, app: Path) -> None:
    loom, _ = await working(script([]), app=write(app, ASKS))
    run_id = await loom.start("clean prod")
    await loom.asked(run_id)
    await loom.client.abort(run_id, by="ann")
    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED


STOPS = """
class Noting:
    def before(self, task): log(self.name, "before")
    def after(self, task, result):
        log(self.name, "after", result)
        return f"{result}, says {self.name}"
    def __init__(self, name): self.name = name

class Cache:
    def before(self, task):
        text = task.parameters["task"]
        return Instead("42") if text == "known" else Deny("too much") if text == "stop" else None

app.intercept(Noting("one"), name="one", around=["run"])
app.intercept(Cache(), around=["run"])
app.intercept(Noting("three"), name="three", around=["run"])
"""


async def test_an_interceptor_may_answer_in_the_place_of_the_run(working: Working, app: Path) -> None:
    loom, model = await working(script([]), app=write(app, STOPS))
    result = await loom.run("known")
    assert (result.status, result.output, result.turns, model.requests) == ("completed", "42, says one", 0, [])
    assert logged(app) == ["one before", "one after 42"]


async def test_an_interceptor_may_stop_the_run(working: Working, app: Path) -> None:
    loom, model = await working(script([]), app=write(app, STOPS))
    result = await loom.run("stop")
    assert result.error is not None
    assert (result.status, model.requests) == (RunStatus.ABORTED, [])
    assert result.error.message == "the hook Cache does not let this run start: too much"


async def test_what_an_interceptor_could_not_look_at_is_withheld(working: Working, app: Path) -> None:
    code = "@app.intercept\nclass Censor:\n    def after(self, task, result): raise ValueError('cannot read')\n"
    loom, _ = await working(script([text("secret")]), app=write(app, code))
    result = await loom.run()
    assert result.error is not None
    assert (result.status, result.output, result.error.type) == (RunStatus.FAILED, "", "HookFailedError")
    assert "cannot read" in result.error.message


async def test_a_hook_that_breaks_after_the_end_changes_nothing_and_is_told(working: Working, app: Path) -> None:
    code = "@app.on_complete\ndef broken(result, run): raise ValueError('no printer')\n"
    loom, _ = await working(script([text("done")]), app=write(app, code))
    run_id = await loom.start()
    result = await loom.client.result(run_id)
    assert (result.status, result.output, result.error) == (RunStatus.COMPLETED, "done", None)
    events = [event.task for event in await told(loom.client, run_id)]
    (hook,) = [event for event in events if event.action is Action.HOOK]
    assert (hook.status, hook.parameters["message"]) == ("failed", "it failed with ValueError: no printer")


AROUND_TOOLS = """
@app.intercept
class Paths:
    def before(self, task):
        if task.action != "node.tool_call":
            return None
        arguments = task.parameters["arguments"]
        match arguments.get("path"):
            case "forbidden.txt": return Deny("that file is nobody's")
            case "known.txt": return Instead("it is written already")
            case "out.txt": return replace(task, parameters={"arguments": {**arguments, "path": "safe.txt"}})

    def after(self, task, result):
        if "boom" in str(task.parameters):
            raise ValueError("cannot read this")
        return result.replace("hello", "*****") if task.action == "node.tool_call" else None
"""


async def test_what_an_interceptor_makes_of_a_call_is_what_is_asked_about_and_runs(
    working: Working, app: Path, workspace: Path
) -> None:
    loom, model = await working(script([calls(WRITE), text("done")]), app=write(app, AROUND_TOOLS))
    run_id = await loom.start()
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    assert ask["arguments"] == {"path": "safe.txt", "content": "hello"}
    # Other rules: the call is judged again, and the interceptor's change stays.
    await loom.client.set_permissions(run_id, {"bash": "deny"})
    (again,) = (await loom.asked(run_id))["pending_approvals"]
    assert (again["arguments"], again["digest"]) == (ask["arguments"], ask["digest"])
    await loom.client.approve(run_id, ask["call_id"], digest=ask["digest"])
    await loom.client.result(run_id)
    assert sorted(path.name for path in workspace.iterdir()) == ["safe.txt"]
    assert "The interceptor Paths changed the arguments to" in model.requests[1].messages[-1]["content"]


async def test_an_interceptor_may_stop_or_answer_a_call_or_change_its_result(
    working: Working, app: Path, workspace: Path
) -> None:
    (workspace / "greeting").write_text("hello, you", encoding="utf-8")
    (workspace / "boom").write_text("hello", encoding="utf-8")
    uses = [
        ToolUse("write_file", {"path": "forbidden.txt", "content": "x"}, "a"),
        ToolUse("write_file", {"path": "known.txt", "content": "x"}, "b"),
        ToolUse("read_file", {"path": "greeting"}, "c"),
        ToolUse("read_file", {"path": "boom"}, "d"),
    ]
    loom, model = await working(script([calls(*uses), text("done")]), app=write(app, AROUND_TOOLS))
    result = await loom.run(permissions={"write_file": "allow"})
    stopped, answered, changed, withheld = (m["content"] for m in model.requests[1].messages[-4:])
    assert stopped == "Not permitted: that file is nobody's. Find another way."
    assert answered == "it is written already"
    assert "*****, you" in changed
    assert withheld.startswith("The call was carried out, but its result is withheld")
    assert "hello" not in withheld
    assert result.status is RunStatus.COMPLETED
    assert sorted(path.name for path in workspace.iterdir()) == ["boom", "greeting"]


PLANS = """
@app.on_planning
def gate(call, run_id):
    log("planning", call.name, call.arguments["goal"])
    match call.arguments["goal"]:
        case "conquer": return Deny("not that")
        case "clean prod": return Ask("this is about production")

@app.on_tool_call
def called(call, run_id):
    log("calling", call.name)
"""


def plan(goal: str, call_id: str) -> ToolUse:
    """A call of `create_plan` with one step."""
    return ToolUse("create_plan", {"goal": goal, "steps": [{"id": "a", "task": f"A of {goal}."}]}, call_id)


async def test_a_hook_before_plans_stops_one_asks_about_one_and_lets_one_pass(working: Working, app: Path) -> None:
    look = ToolUse("list_dir", {"path": "."}, "l")
    replies = {
        "Your part:": [text("a is done")],
        "the root": [calls(plan("conquer", "p1")), calls(plan("clean prod", "p2"), look), calls(plan("rest", "p3"))],
    }

    def reply(request: SeenRequest) -> Reply:
        return text("all done") if request.turn == 3 else by_task(replies)(request)

    loom, model = await working(reply, app=write(app, PLANS))
    run_id = await loom.start("the root")

    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    assert (ask["tool"], ask["reason"], ask["rule"]) == ("create_plan", "this is about production", "hook gate")
    stopped = model.requests[1].messages[-1]["content"]
    assert stopped == "Not permitted: not that. Find another way."
    assert (await loom.client.status(run_id))["children"] == []
    edited = {**ask["arguments"], "steps": [{"id": "a", "task": "A of staging."}], "goal": "clean staging"}
    await loom.client.approve(run_id, ask["call_id"], digest=ask["digest"], arguments=edited)
    result = await loom.client.result(run_id)

    assert result.output == "all done"
    assert [child["description"] for child in result.children] == ["plan: clean staging", "plan: rest"]
    assert [line for line in logged(app) if line.startswith("planning")] == [
        *("planning create_plan conquer", "planning create_plan clean prod"),
        *("planning create_plan clean staging", "planning create_plan rest"),
    ]
    assert "calling list_dir" in logged(app)


async def test_a_hook_may_be_for_some_agents_and_an_agent_file_may_name_it(working: Working, app: Path) -> None:
    (app.parent / "agents").mkdir()
    (app.parent / "agents" / "careful.yaml").write_text("hooks: [strict]\nsystem_prompt: Be careful.\n")
    (app.parent / "agents" / "clerk.toml").write_text('extends = "careful"\n')
    code = "@app.on_start(agents=[])\ndef strict(run): return Deny(f'no {run.agent} today')\n"
    loom, model = await working(script([text("done")]), app=write(app, code))
    assert (await loom.run()).output == "done"
    for agent in ("careful", "clerk"):
        result = await loom.run(agent=agent)
        assert result.error is not None
        assert result.error.message.endswith(f"no {agent} today")
    assert len(model.requests) == 1


async def test_an_abort_reaches_a_hook_that_keeps_the_run_from_starting(working: Working, app: Path) -> None:
    code = """
    @app.on_start(timeout=60)
    async def slow(run):
        log("begun")
        try:
            await asyncio.sleep(60)
        finally:
            log("ended")
    """
    loom, _ = await working(script([]), app=write(app, code))
    run_id = await loom.start()
    await loom.until(run_id, lambda _: app.with_name("log").exists())
    await loom.client.abort(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
    assert logged(app) == ["begun", "ended"]


async def test_a_sub_agent_whose_start_is_to_be_reviewed_is_answered_at_the_root(working: Working, app: Path) -> None:
    replies = {
        "the root": [calls(delegate("clean", "clean prod")), text("all done")],
        "clean prod": [text("it is clean")],
    }
    loom, model = await working(by_task(replies), app=write(app, ASKS))
    run_id = await loom.start("the root")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    why = ("start_run", "this is about production", "lets the run begin")
    assert (ask["tool"], ask["reason"], ask["risk"]) == why
    await loom.client.approve(run_id, ask["call_id"], digest=ask["digest"])
    assert (await loom.client.result(run_id)).output == "all done"
    assert "it is clean" in model.requests[-1].messages[-1]["content"]


async def test_a_cancellation_after_the_end_takes_nothing_from_the_result(working: Working, app: Path) -> None:
    code = """
    @app.on_complete(timeout=30)
    async def slow(run, result):
        log("begun")
        while not Path(__file__).with_name("go").exists():
            await asyncio.sleep(0.1)
        log("ended")
    """
    loom, _ = await working(script([text("done")]), app=write(app, code))
    run_id = await loom.start()
    await loom.until(run_id, lambda _: app.with_name("log").exists())

    handle = loom.client.temporal.get_workflow_handle(run_id)
    await handle.cancel()
    await eventually(lambda: was_told(loom, run_id))
    app.with_name("go").touch()

    result = await loom.client.result(run_id)
    assert (result.status, result.output, logged(app)) == (RunStatus.COMPLETED, "done", ["begun", "ended"])
    assert "EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED" not in await event_types(loom, run_id)


async def was_told(loom: Harness, run_id: str) -> bool:
    """Whether the run knows that it is cancelled."""
    types = await event_types(loom, run_id)
    asked = "EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED"
    return asked in types and "EVENT_TYPE_WORKFLOW_TASK_COMPLETED" in types[types.index(asked) :]


async def event_types(loom: Harness, run_id: str) -> list[str]:
    """What a run's history consists of."""
    return [EventType.Name(event.event_type) for h in await loom.histories(run_id) for event in h.events]


async def test_each_end_of_a_run_that_is_retried_is_told_to_the_hooks_after_it(working: Working, app: Path) -> None:
    replies = script([calls(WRITE), status(401), text("done")])
    loom, _ = await working(replies, app=write(app, STARTS.format(gate="return None")), patience=0)
    run_id = await loom.start(permissions={"write_file": "allow"})
    assert (await loom.client.result(run_id)).status is RunStatus.FAILED

    await loom.client.retry(run_id)

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert logged(app) == ["error LLMConfigurationError", "complete completed"]
    assert (await scheduled(loom, run_id)).count("run_tool") == 1
