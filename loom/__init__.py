"""Durable AI agents on Temporal. Each run is a workflow, and each model call or tool call is an activity.

    from loom import LoomApp, LoomClient

`LoomApp` collects your tools, agents and hooks. `LoomClient` starts, controls and watches runs. `worker` serves runs in
your own program, and `LoomPlugin` adds Loom to an existing Temporal worker. `errors` contains all exceptions.

This module is the entire public API. Its submodules may change between releases. Each name is imported on first use, so
`import loom` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from loom._worker import LoomPlugin, worker
    from loom.activities.ports import (
        LLMProvider,
        ModelAnswer,
        ModelCall,
        StreamUnavailable,
        Tool,
        ToolContext,
        ToolOutput,
    )
    from loom.activities.toolbox.user_tools.output import part_of
    from loom.app.loom_app import LoomApp
    from loom.app.output_types import TypedResult
    from loom.chat_session import ChatSession, SentMessage
    from loom.client import LoomClient, Polled, Streamed, Watched
    from loom.composition.load_settings import load_settings
    from loom.composition.settings import Settings
    from loom.domain.agents.definitions import AgentDefinition
    from loom.domain.agents.hooks import Ask, Deny, Instead, RunInfo
    from loom.domain.agents.stats import AgentStats
    from loom.domain.core import errors
    from loom.domain.core.messages import Message, Part, ToolCall, Usage
    from loom.domain.core.requests import RunError, RunResult, RunStatus
    from loom.domain.core.tasks import Action, Task
    from loom.domain.core.tool_calls import ToolSpec
    from loom.domain.crews.crew import Crew
    from loom.domain.history.past_turns import PastTurn
    from loom.domain.run.chat import ChatAnswer
    from loom.domain.tools.mcp_servers import McpServer
    from loom.request_fields import BudgetFields, CrewRunFields, ForkFields, RunFields
    from loom.visibility import RunSummary

__all__ = [
    "Action",
    "AgentDefinition",
    "AgentStats",
    "Ask",
    "BudgetFields",
    "ChatAnswer",
    "ChatSession",
    "Crew",
    "CrewRunFields",
    "Deny",
    "ForkFields",
    "Instead",
    "LLMProvider",
    "LoomApp",
    "LoomClient",
    "LoomPlugin",
    "McpServer",
    "Message",
    "ModelAnswer",
    "ModelCall",
    "Part",
    "PastTurn",
    "Polled",
    "RunError",
    "RunFields",
    "RunInfo",
    "RunResult",
    "RunStatus",
    "RunSummary",
    "SentMessage",
    "Settings",
    "StreamUnavailable",
    "Streamed",
    "Task",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolOutput",
    "ToolSpec",
    "TypedResult",
    "Usage",
    "Watched",
    "errors",
    "load_settings",
    "part_of",
    "worker",
]

_NAMES_BY_MODULE: Final = {
    "_worker": ("LoomPlugin", "worker"),
    "activities.ports": (
        "LLMProvider",
        "ModelAnswer",
        "ModelCall",
        "StreamUnavailable",
        "Tool",
        "ToolContext",
        "ToolOutput",
    ),
    "activities.toolbox.user_tools.output": ("part_of",),
    "app.loom_app": ("LoomApp",),
    "app.output_types": ("TypedResult",),
    "chat_session": ("ChatSession", "SentMessage"),
    "client": ("LoomClient", "Polled", "Streamed", "Watched"),
    "composition.load_settings": ("load_settings",),
    "composition.settings": ("Settings",),
    "domain.agents.definitions": ("AgentDefinition",),
    "domain.agents.hooks": ("Ask", "Deny", "Instead", "RunInfo"),
    "domain.agents.stats": ("AgentStats",),
    "domain.core": ("errors",),
    "domain.core.messages": ("Message", "Part", "ToolCall", "Usage"),
    "domain.core.requests": ("RunError", "RunResult", "RunStatus"),
    "domain.core.tasks": ("Action", "Task"),
    "domain.core.tool_calls": ("ToolSpec",),
    "domain.crews.crew": ("Crew",),
    "domain.history.past_turns": ("PastTurn",),
    "domain.run.chat": ("ChatAnswer",),
    "domain.tools.mcp_servers": ("McpServer",),
    "request_fields": ("BudgetFields", "CrewRunFields", "ForkFields", "RunFields"),
    "visibility": ("RunSummary",),
}
_MODULE_OF: Final = {name: f"loom.{module}" for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'loom' has no attribute {name!r}")
    home = import_module(_MODULE_OF[name])
    value = getattr(home, name, None) or import_module(f"{home.__name__}.{name}")  # `errors` is a module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
