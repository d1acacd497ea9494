"""The names of tools with a special role: the run executes them itself or tracks their effects."""

from typing import Final

DONE: Final = "done"
"""Ends the run. The run itself executes this tool, not a worker's toolbox."""
ASK_USER: Final = "ask_user"
SAMPLING: Final = "mcp_sampling"
"""Stands for the model calls of MCP servers in permission rules. It isn't a tool."""
"""Asks a person a question. The next message from a person is the reply."""
DELEGATE: Final = "delegate_task"
"""Delegates a task to a sub-agent."""
CREATE_PLAN: Final = "create_plan"
"""Assigns a plan's steps to sub-agents."""
HANDED_ON: Final = (DELEGATE, CREATE_PLAN)
"""The tools that the run executes by starting child runs."""
MESSAGE_AGENT: Final = "message_agent"
"""Sends a message from a running agent to another agent in its tree."""
READ_ARTIFACT: Final = "read_artifact"
"""Reads a stored output or a shared text."""
SEARCH_HISTORY: Final = "search_history"
"""Searches everything that was said and done in the run."""
QUERIES_MEMORY: Final = (
    "search_memory",
    "query_l1_memory",
    "query_l2_memory",
    "query_l3_memory",
    "query_recent_events",
    "query_events_by_action",
    "query_events_by_node",
    "query_collective_memory",
    "query_sibling_insights",
)
"""Read what runs have left in memory."""
SEARCH_TOOLS: Final = "search_tools"
"""Finds the tools that the model isn't shown from the start."""
CALL_TOOL: Final = "call_tool"
"""The name under which providers see calls of tools that were found. It isn't a tool."""
PYTHON: Final = "python"
"""Runs code in an interpreter that keeps its variables for the run."""
SHARE: Final = "share_artifact"
"""Shares a text with all other agents in the tree."""
TODO: Final = "todo"
"""Updates the model's to-do list. The run stores the latest version of the list."""
CREATE_TOOL: Final = "create_tool"
"""Creates a tool, which becomes part of the run's spec."""
START_RUN: Final = "start_run"
"""The name of the pending call that is created if a hook requests approval before the run starts."""

MCP: Final = "mcp__"
"""The name prefix for MCP tools."""
MADE: Final = "made__"
"""The name prefix for tools that agents create."""
