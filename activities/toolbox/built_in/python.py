"""`python`: run code in a sandbox, with the interpreter of the prepared environment or else with the worker's.

In a run, the interpreter stays for the run's next calls and keeps the variables (`python_sessions`). Models know such
tools, so they expect it, and it saves them from computing everything again. Whoever wants a clean interpreter says so
with `restart`. `run_python` is for programs that Loom itself starts, such as created tools: each has its own process.

The interpreter runs in isolated mode (`-I`), without environment variables, user packages or the worker's own packages.
Only the packages of the prepared environment or of the base installation are available. The code is passed on standard
input, so it can be long. The program reads the rest of the input as its own standard input.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import Field

from loom.activities.ports import Tool, ToolContext, ToolOutput
from loom.activities.toolbox.built_in.python_sessions import PythonSessions
from loom.activities.toolbox.built_in.shell import (
    GRACE,
    KEPT,
    OUTPUT_LIMIT,
    Finished,
    Runnable,
    Sandbox,
    Timeout,
    limited,
    outcome,
    seconds_for,
)
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.core.errors import ToolExecutionError, ToolExecutionTimeout, ToolUnavailableError
from loom.domain.core.tool_calls import Effect, Scope
from loom.domain.core.tool_names import PYTHON

_START: Final = """
def start():
    import linecache, sys, traceback
    name, code = "code.py", sys.stdin.buffer.read(int(sys.argv[1])).decode()
    sys.argv = [name]
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    sys.stdout.reconfigure(line_buffering=True)
    def report(kind, error, trace):
        while trace and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        traceback.print_exception(kind, error, trace)
    sys.excepthook = report
    return compile(code, name, "exec", dont_inherit=True)
code = start()
del start
exec(code)
"""


class Python(Arguments):
    """Arguments of python."""

    code: Runnable = Field(max_length=1_000_000)
    timeout: Timeout = None
    restart: bool = Field(default=False, description="Start without variables")


async def run_python(
    sandbox: Sandbox,
    code: str,
    *,
    workspace: Path,
    timeout: float,  # noqa: ASYNC109 - the program's own limit, see Sandbox
    stdin: str = "",
    max_output: int = KEPT,
    on_output: Callable[[str], None] = lambda _text: None,
) -> Finished:
    """Run a program as `__main__` in the workspace with this standard input. The output combines stdout and stderr."""
    program = code.encode()
    return await sandbox.run(
        [sandbox.python, "-I", "-X", "utf8", "-c", _START, str(len(program))],
        workspace=workspace,
        timeout=timeout,
        max_output=max_output,
        on_output=on_output,
        stdin=program + stdin.encode(),
    )


def python_tool(sandbox: Sandbox | None, timeout: float, missing: str, sessions: PythonSessions | None = None) -> Tool:
    """Return the python tool. Without a sandbox, the tool explains how to set one up. Without the worker's `sessions`,
    each call has an interpreter of its own.
    """

    async def run(arguments: Python, context: ToolContext) -> ToolOutput:
        if sandbox is None:
            raise ToolUnavailableError(missing)
        seconds = seconds_for(arguments.timeout, context)
        kept = sessions or PythonSessions(sandbox)
        try:
            ran = await kept.run(
                arguments.code,
                context,
                restart=arguments.restart,
                seconds=seconds,
                on_output=limited(context.progress),
            )
        finally:
            if sessions is None:
                await kept.aclose()
        told = f"(The variables of earlier calls are gone: {ran.gone}. No earlier code was run again.)"
        before = told if ran.gone else ""
        after = f"(The variables are gone: {ran.ends}. The next call starts a new interpreter.)" if ran.ends else ""
        try:
            output = outcome(ran.finished, seconds)
        except (ToolExecutionError, ToolExecutionTimeout) as error:
            said = "\n".join(filter(None, (before, error.message, after)))
            raise type(error)(said, **{**error.context, "session": ran.session}) from None
        text = "\n".join(filter(None, (before, output, after)))
        return ToolOutput(text=text, session=ran.session, is_warning=bool(before or after))

    return FunctionTool(
        spec=tool_spec(
            PYTHON,
            "Run Python code in the workspace. Variables stay for your next calls. The result is what it prints, and "
            "the value of a last expression.",
            Python,
            effect=Effect.ONCE,
            timeout=timeout + GRACE,
            scope=Scope.SYSTEM,
        ),
        arguments=Python,
        function=run,
        missing=missing if sandbox is None else None,
        max_output=OUTPUT_LIMIT,
        grace=GRACE,
    )
