"""python in its sandbox: what a program sees, and how it reports what went wrong."""

import sys
from pathlib import Path

import pytest

from loom.activities.ports import ToolContext, ToolOutput
from loom.activities.toolbox.built_in.python import python_tool, run_python
from loom.domain.core.errors import ToolExecutionError, ToolUnavailableError, ToolValidationError
from loom.domain.core.tool_calls import Effect, Scope
from tests.sandboxes import SANDBOX, WHY_NOT
from tests.stopped import said_when_stopped


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path.resolve()


async def python(place: Path, code: str, **arguments: object) -> str:
    tool = python_tool(SANDBOX, 60, WHY_NOT)
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=70)
    came = await tool.run(tool.parse({"code": code, **arguments}), context)
    assert isinstance(came, ToolOutput)
    return came.text


async def test_what_a_program_prints_is_the_result_in_order(place: Path) -> None:
    code = "import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')"
    assert await python(place, code) == "one\ntwo\nthree"


async def test_it_works_in_the_workspace_with_the_workers_own_interpreter(place: Path) -> None:
    code = "import os, sys\nopen('a', 'w').write('hi')\nprint(os.getcwd(), sys.version_info[:3], __name__, sys.argv)"
    assert await python(place, code) == f"{place} {tuple(sys.version_info[:3])} __main__ ['code.py']"
    assert (place / "a").read_text() == "hi"


async def test_the_packages_and_the_environment_of_the_worker_are_not_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    with pytest.raises(ToolExecutionError, match="No module named 'temporalio'"):
        await python(place, "import temporalio")
    with pytest.raises(ToolExecutionError, match="No module named 'activities'"):
        await python(place, "import activities")


async def test_a_failure_shows_the_programs_own_lines_only(place: Path) -> None:
    with pytest.raises(ToolExecutionError) as raised:
        await python(place, "def f():\n    return 1 / 0\n\nf()")
    assert raised.value.message == (
        "exit code 1\n"
        "Traceback (most recent call last):\n"
        '  File "code.py", line 4, in <module>\n'
        "    f()\n"
        '  File "code.py", line 2, in f\n'
        "    return 1 / 0\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero"
    )


async def test_a_syntax_error_names_the_line(place: Path) -> None:
    with pytest.raises(ToolExecutionError, match=r'File "code\.py", line 2\n(.|\n)*SyntaxError'):
        await python(place, "x = 1\nx = (")


async def test_long_programs_run(place: Path) -> None:
    assert await python(place, "x = 0\n" + "x += 1\n" * 50_000 + "print(x)") == "50000"


async def test_time_runs_out_and_what_was_said_stays(place: Path) -> None:
    await said_when_stopped(lambda seconds: python(place, "print('begun')\nwhile True: pass", timeout=seconds))


async def test_scripts_read_what_stands_behind_them_on_standard_input(place: Path) -> None:
    assert SANDBOX is not None
    code = "import json, sys\nprint(json.load(sys.stdin)['name'])"
    finished = await run_python(SANDBOX, code, workspace=place, timeout=20, stdin='{"name": "Löb"}')
    assert (finished.exit_code, finished.output) == (0, "Löb\n")


async def test_processes_of_its_own_work(place: Path) -> None:
    code = (
        "import multiprocessing\ndef f(x): return x * x\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(f, range(4)))"
    )
    assert await python(place, code) == "[0, 1, 4, 9]"


@pytest.mark.parametrize("arguments", [{"code": " "}, {"code": "a\0b"}, {"code": "1", "timeout": 601}, {}])
def test_programs_that_cannot_run_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ToolValidationError):
        python_tool(SANDBOX, 60, "").parse(arguments)


async def test_without_a_sandbox_it_is_there_and_says_what_to_do(place: Path) -> None:
    tool = python_tool(None, 60, "install one")
    assert tool.is_available() == "install one"
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=70)
    with pytest.raises(ToolUnavailableError, match="install one"):
        await tool.run(tool.parse({"code": "1"}), context)


def test_it_is_a_tool_of_the_system_that_takes_effect_once() -> None:
    spec = python_tool(SANDBOX, 60, "").spec
    assert (spec.name, spec.effect, spec.scope, spec.parallel) == ("python", Effect.ONCE, Scope.SYSTEM, False)
