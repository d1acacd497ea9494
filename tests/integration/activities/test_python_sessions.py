"""python's variables: kept for a run, never shared, and their end is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import psutil
import pytest

from loom.activities.adapters.sandbox.bubblewrap import find_sandbox
from loom.activities.ports import Tool, ToolContext, ToolOutput
from loom.activities.toolbox.built_in.python import python_tool
from loom.activities.toolbox.built_in.python_sessions import PythonSessions, Ran
from loom.activities.toolbox.built_in.shell import Sandbox
from loom.domain.core.errors import ToolExecutionError, ToolExecutionTimeout
from loom.domain.core.tool_calls import ENDED, LOST
from loom.testing.waiting import eventually
from tests.processes import command_of


def working(mode: str) -> Sandbox:
    sandbox, why_not = find_sandbox(mode)
    assert sandbox is not None, why_not
    return sandbox


class Runs:
    """Runs that call the tool, and remember its interpreter as the run's state does."""

    def __init__(self, place: Path, sandbox: Sandbox, **limits: float) -> None:
        self.place = place
        self.sessions = PythonSessions(sandbox, **limits)  # type: ignore[arg-type]
        self.tool: Tool = python_tool(sandbox, 60, "", self.sessions)
        self.session: dict[str, str] = {}

    async def python(self, code: str, run: str = "a", **arguments: object) -> str:
        context = ToolContext(
            workspace=self.place,
            run_id=run,
            call_id="c",
            idempotency_key="k",
            timeout=70,
            session=self.session.get(run, ""),
        )
        try:
            came = await self.tool.run(self.tool.parse({"code": code, **arguments}), context)
        except (ToolExecutionError, ToolExecutionTimeout) as error:
            self.session[run] = error.context["session"]
            raise
        assert isinstance(came, ToolOutput)
        self.session[run] = came.session
        return came.text


def interpreters() -> int:
    """How many processes of interpreters this process has."""
    return sum("serve()" in " ".join(command_of(each)) for each in psutil.Process().children(recursive=True))


@pytest.fixture(params=["on", "off"])
async def runs(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Runs]:
    made = Runs(tmp_path.resolve(), working(request.param))
    yield made
    await made.sessions.aclose()


@pytest.fixture
async def few(tmp_path: Path) -> AsyncIterator[Runs]:
    made = Runs(tmp_path.resolve(), working("on"), most=2)
    yield made
    await made.sessions.aclose()


async def test_variables_functions_and_imports_stay_and_a_last_value_is_shown(runs: Runs) -> None:
    assert await runs.python("import math\nx = 20\ndef double(n):\n    return 2 * n") == ""
    assert await runs.python("print('hi')\ndouble(x) + math.floor(2.5)") == "hi\n42"
    with pytest.raises(ToolExecutionError, match=r'exit code 1\n(.|\n)*File "code3.py", line 2') as raised:
        await runs.python("y = 1\n1 / 0")
    assert "gone" not in raised.value.message
    assert await runs.python("x + y") == "21"


async def test_runs_share_nothing_and_a_restart_begins_anew(runs: Runs) -> None:
    await runs.python("x = 1")
    with pytest.raises(ToolExecutionError, match="NameError"):
        await runs.python("x", run="b")
    with pytest.raises(ToolExecutionError, match="NameError"):
        await runs.python("x", restart=True)


async def test_code_cannot_take_the_next_command_and_exits_end_only_the_call(runs: Runs) -> None:
    await runs.python("x = 5")
    with pytest.raises(ToolExecutionError, match="EOFError"):
        await runs.python("input()")
    with pytest.raises(ToolExecutionError, match="exit code 3"):
        await runs.python("import sys\nsys.exit(3)")
    assert await runs.python("x") == "5"


async def test_a_stopped_call_leaves_no_process_and_says_that_variables_are_gone(runs: Runs) -> None:
    await runs.python("x = 1")
    mark = f"mark-{runs.place.parent.name}"
    code = f"import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 600 # {mark}'], start_new_session=True)\n"
    with pytest.raises(ToolExecutionTimeout, match="(?s)half.*The variables are gone: the interpreter was stopped"):
        await runs.python(f"{code}print('half')\nwhile True: pass", timeout=3)

    async def none_is_left() -> bool:
        return not [each for each in psutil.process_iter() if mark in " ".join(command_of(each))]

    await eventually(none_is_left)
    assert runs.session["a"] == ENDED
    assert await runs.python("x = 2\nx") == "2"


async def test_an_aborted_call_leaves_no_process(runs: Runs) -> None:
    await runs.python("x = 1")
    call = asyncio.create_task(runs.python("open('begun', 'w')\nimport time\ntime.sleep(60)"))

    async def begun() -> bool:
        return (runs.place / "begun").exists()

    await eventually(begun)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert interpreters() == 0
    assert (await runs.python("1")).startswith("(The variables of earlier calls are gone: the call that used them was")


async def test_of_two_first_calls_at_once_one_is_refused_and_leaves_no_process(runs: Runs) -> None:
    context = ToolContext(workspace=runs.place, run_id="a", call_id="c", idempotency_key="k", timeout=70)

    def call() -> Awaitable[Ran]:
        return runs.sessions.run("print(1)", context, restart=False, seconds=60, on_output=lambda _: None)

    came = await asyncio.gather(call(), call(), return_exceptions=True)

    told = [str(each) for each in came if isinstance(each, ToolExecutionError)]
    assert told == ["another call of python still runs in this run: call it again later"]
    await runs.sessions.aclose()
    assert interpreters() == 0


async def test_code_that_ends_the_interpreter_is_told(runs: Runs) -> None:
    with pytest.raises(ToolExecutionError, match="(?s)exit code 7.*last words.*the code ended the interpreter"):
        await runs.python("import os\nprint('last words')\nos._exit(7)")
    assert await runs.python("'again'") == "'again'"


async def test_a_run_whose_interpreter_is_not_here_is_told(runs: Runs) -> None:
    for session in ("0123456789ab", LOST):
        runs.session[session] = session
        told = await runs.python("x = 1\nx", run=session)
        assert told.startswith("(The variables of earlier calls are gone: the worker that kept them has stopped, or")
        assert told.endswith("No earlier code was run again.)\n1")
        assert await runs.python("x", run=session) == "1"


async def test_a_worker_keeps_few_interpreters_and_says_which_one_made_room(few: Runs) -> None:
    for run in ("a", "b"):
        await few.python("x = 1", run=run)
    await few.python("x", run="a")
    await few.python("x = 3", run="c")
    assert await few.python("x", run="a") == "1"
    with pytest.raises(ToolExecutionError, match="are gone: another run needed the place: this worker keeps at most 2"):
        await few.python("x", run="b")


async def test_an_idle_interpreter_ends(tmp_path: Path) -> None:
    runs = Runs(tmp_path.resolve(), working("on"), idle=0.3)
    await runs.python("x = 1")

    async def ended() -> bool:
        return interpreters() == 0

    await eventually(ended)
    assert "they were not used for 0.3 s" in await runs.python("1")
    await runs.sessions.aclose()


async def test_new_files_to_protect_end_an_interpreter_that_could_change_them(few: Runs) -> None:
    await few.python("x = 1")
    (few.place / ".env").write_text("KEY=1")
    assert "protects in the workspace have changed" in await few.python("'new'")
    with pytest.raises(ToolExecutionError, match="Read-only file system"):
        await few.python("open('.env', 'w')")


async def test_endless_output_is_cut_and_the_variables_stay(runs: Runs) -> None:
    await runs.python("x = 1")
    output = await runs.python("for number in range(400_000):\n    print('line', number)")
    assert "characters left out here" in output
    assert output.endswith("line 399999")
    assert await runs.python("x") == "1"
