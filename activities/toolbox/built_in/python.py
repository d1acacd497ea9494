"""`python`: run a program in a sandbox, with the interpreter of the prepared environment or else with the worker's.

The interpreter runs in isolated mode (`-I`), without environment variables, user packages or the worker's own packages.
Only the packages of the prepared environment or of the base installation are available. The code is passed on standard
input, so it can be long. The program reads the rest of the input as its own standard input.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import Field

from loom.activities.ports import Tool, ToolContext
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
)
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.core.errors import ToolUnavailableError
from loom.domain.core.tool_calls import Effect, Scope

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

    code: Runnable = Field(max_length=1_000_000, description="Python program. Its printed output is the result")
    timeout: Timeout = None


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


def python_tool(sandbox: Sandbox | None, timeout: float, missing: str) -> Tool:
    """Return the python tool. Without a sandbox, the tool explains how to set one up."""

    async def run(arguments: Python, context: ToolContext) -> str:
        if sandbox is None:
            raise ToolUnavailableError(missing)
        seconds = arguments.timeout or timeout
        finished = await run_python(
            sandbox,
            arguments.code,
            workspace=context.workspace,
            timeout=seconds,
            on_output=limited(context.progress),
        )
        return outcome(finished, seconds)

    return FunctionTool(
        spec=tool_spec(
            "python",
            "Run a Python program in the workspace, with the standard library. Print everything that you want to know. "
            "Every call starts a new interpreter.",
            Python,
            effect=Effect.ONCE,
            timeout=timeout + GRACE,
            scope=Scope.SYSTEM,
        ),
        arguments=Python,
        function=run,
        missing=missing if sandbox is None else None,
        max_output=OUTPUT_LIMIT,
    )
