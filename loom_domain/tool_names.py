"""The names of the tools that a run knows by name, since it carries them out itself or remembers what they did."""

from typing import Final

DONE: Final = "done"
"""Ends a run; the run carries it out."""
ASK_USER: Final = "ask_user"
"""Asks a person; the answer is the next message that somebody sends."""
DELEGATE: Final = "delegate_task"
"""Gives a task to a sub-agent."""
CREATE_PLAN: Final = "create_plan"
"""Gives the steps of a plan to sub-agents."""
HANDED_ON: Final = (DELEGATE, CREATE_PLAN)
"""Those that the run carries out by child runs."""
MESSAGE_AGENT: Final = "message_agent"
"""By which a running agent writes to another one of its tree."""
READ_ARTIFACT: Final = "read_artifact"
"""Reads an output which was kept whole, or what was shared."""
SHARE: Final = "share_artifact"
"""By which an agent shares a text with all others of its tree."""
TODO: Final = "todo"
"""By which a model keeps its list of what is to do; the run remembers the last one."""
CREATE_TOOL: Final = "create_tool"
"""By which an agent makes another tool; the run's spec has it from then on."""

MCP: Final = "mcp__"
"""How the names of tools begin that an MCP server brings."""
MADE: Final = "made__"
"""How the names of tools begin that agents make."""
