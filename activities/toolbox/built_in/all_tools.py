"""The built-in tools of every worker."""

from collections.abc import Iterable
from pathlib import Path

from loom.activities.ports import ArtifactStore, Pasts, Tool
from loom.activities.toolbox.built_in.artifacts import read_artifact_tool, share_artifact_tool
from loom.activities.toolbox.built_in.conversation import ask_user_tool, done_tool
from loom.activities.toolbox.built_in.edit_feedback import Parsers
from loom.activities.toolbox.built_in.files import file_tools
from loom.activities.toolbox.built_in.git_commit import git_commit_tool
from loom.activities.toolbox.built_in.message_agent import Mailbox, message_tool
from loom.activities.toolbox.built_in.python import python_tool
from loom.activities.toolbox.built_in.python_sessions import PythonSessions
from loom.activities.toolbox.built_in.search import search_tools
from loom.activities.toolbox.built_in.search_history import search_history_tool
from loom.activities.toolbox.built_in.search_tools import search_tools_tool
from loom.activities.toolbox.built_in.shell import Sandbox, ShellParser, shell_tool
from loom.activities.toolbox.built_in.todo import todo_tool


def built_in_tools(
    *,
    sandbox: Sandbox | None,
    shell_parser: ShellParser,
    tool_timeout: float,
    home: Path | None = None,
    no_sandbox: str = "there is no sandbox",
    artifacts: ArtifactStore | None = None,
    mailbox: Mailbox | None = None,
    pasts: Pasts | None = None,
    others: Iterable[Tool] = (),
    parsers: Parsers | None = None,
    sessions: PythonSessions | None = None,
) -> dict[str, Tool]:
    """Return the tools sorted by name, so that the model's prompt is always the same.

    `no_sandbox` explains how to set up a sandbox if there is none. `home` contains Loom's own state, which file tools
    can't access.
    """
    tools = (
        *file_tools(tool_timeout, home, parsers),
        *search_tools(tool_timeout, home),
        shell_tool(sandbox, shell_parser, tool_timeout, no_sandbox),
        python_tool(sandbox, tool_timeout, no_sandbox, sessions),
        git_commit_tool(sandbox, tool_timeout, no_sandbox, home),
        read_artifact_tool(artifacts),
        share_artifact_tool(artifacts),
        message_tool(mailbox),
        search_history_tool(pasts),
        search_tools_tool(),
        todo_tool(),
        ask_user_tool(),
        done_tool(),
        *others,
    )
    return {tool.spec.name: tool for tool in sorted(tools, key=lambda tool: tool.spec.name)}
