"""The tools that every worker has."""

from activities.ports import Tool
from activities.toolbox.ask_user import ask_user_tool
from activities.toolbox.done import done_tool
from activities.toolbox.files import file_tools
from activities.toolbox.search import search_tools
from activities.toolbox.shell import Sandbox, ShellParser, shell_tool


def built_in_tools(
    *, sandbox: Sandbox | None, shell_parser: ShellParser, tool_timeout: float, no_sandbox: str = "there is no sandbox"
) -> dict[str, Tool]:
    """By name, sorted, so that a model's prompt is the same every time; `no_sandbox` says what to do without one."""
    tools = (
        *file_tools(tool_timeout),
        *search_tools(tool_timeout),
        shell_tool(sandbox, shell_parser, tool_timeout, no_sandbox),
        ask_user_tool(),
        done_tool(),
    )
    return {tool.spec.name: tool for tool in sorted(tools, key=lambda tool: tool.spec.name)}
