"""Durable AI agents on Temporal. Each run is a workflow, and each model call or tool call is an activity.

    from loom import LoomApp, LoomClient

`LoomApp` collects your tools, agents and hooks. `LoomClient` starts, controls and watches runs. `worker` serves runs in
your own program, and `LoomPlugin` adds Loom to an existing Temporal worker. `loom.errors` contains all exceptions.

`pip install loom-agents` installs the client. `loom-agents[worker]` also installs what the other names need.

This module is the entire public API. Its submodules may change between releases. Each name is imported on first use, so
`import loom` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from loom import errors
    from loom._worker import LoomPlugin, worker
    from loom.activities.adapters.models.anthropic_provider import AnthropicProvider
    from loom.activities.adapters.models.openai_provider import OpenAIProvider
    from loom.activities.adapters.models.responses_provider import ResponsesProvider
    from loom.activities.bus import Answer, Subscription, Transport
    from loom.activities.knowledge.ports import KnowledgeStore
    from loom.activities.memory.ports import Embedder, MemoryStore
    from loom.activities.ports import (
        ContextCompressor,
        ContextSource,
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
    from loom.client import LoomClient
    from loom.composition.client_settings import ClientSettings
    from loom.composition.load_settings import load_settings
    from loom.composition.settings import Settings
    from loom.domain.agents.definitions import AgentDefinition
    from loom.domain.agents.hooks import Ask, Deny, Instead, RunInfo
    from loom.domain.agents.stats import AgentStats
    from loom.domain.core.messages import Message, Part, ToolCall, Usage
    from loom.domain.core.requests import RunError, RunResult, RunStatus
    from loom.domain.core.tasks import Action, Origin, Task
    from loom.domain.core.tool_calls import ToolSpec
    from loom.domain.crews.crew import Crew
    from loom.domain.evals.report import EvalRun
    from loom.domain.history.costs import Costs
    from loom.domain.history.estimates import RunEstimate
    from loom.domain.history.past_turns import PastTurn
    from loom.domain.history.run_report import RunReport
    from loom.domain.memory.knowledge import KnowledgeBase, KnowledgeHit
    from loom.domain.memory.layers import Forgotten, Hit, Memory, MemoryStats
    from loom.domain.run.chat import ChatAnswer
    from loom.domain.tools.mcp_servers import McpServer
    from loom.inbox import PendingAnswer, PendingCall, SilentRun
    from loom.new_tasks import new_task
    from loom.request_fields import (
        ArchiveFields,
        BudgetFields,
        CrewRunFields,
        ForkFields,
        GitFields,
        PartFields,
        RunFields,
    )
    from loom.run_artifacts import Artifact
    from loom.status_fields import ApprovalFields, ChildFields, StatusFields
    from loom.visibility import RunSummary
    from loom.watching import Polled, Streamed, Watched

__all__ = [
    "Action",
    "AgentDefinition",
    "AgentStats",
    "Answer",
    "AnthropicProvider",
    "ApprovalFields",
    "ArchiveFields",
    "Artifact",
    "Ask",
    "BudgetFields",
    "ChatAnswer",
    "ChatSession",
    "ChildFields",
    "ClientSettings",
    "ContextCompressor",
    "ContextSource",
    "Costs",
    "Crew",
    "CrewRunFields",
    "Deny",
    "Embedder",
    "EvalRun",
    "Forgotten",
    "ForkFields",
    "GitFields",
    "Hit",
    "Instead",
    "KnowledgeBase",
    "KnowledgeHit",
    "KnowledgeStore",
    "LLMProvider",
    "LoomApp",
    "LoomClient",
    "LoomPlugin",
    "McpServer",
    "Memory",
    "MemoryStats",
    "MemoryStore",
    "Message",
    "ModelAnswer",
    "ModelCall",
    "OpenAIProvider",
    "Origin",
    "Part",
    "PartFields",
    "PastTurn",
    "PendingAnswer",
    "PendingCall",
    "Polled",
    "ResponsesProvider",
    "RunError",
    "RunEstimate",
    "RunFields",
    "RunInfo",
    "RunReport",
    "RunResult",
    "RunStatus",
    "RunSummary",
    "SentMessage",
    "Settings",
    "SilentRun",
    "StatusFields",
    "StreamUnavailable",
    "Streamed",
    "Subscription",
    "Task",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolOutput",
    "ToolSpec",
    "Transport",
    "TypedResult",
    "Usage",
    "Watched",
    "errors",
    "load_settings",
    "new_task",
    "part_of",
    "worker",
]

_NAMES_BY_MODULE: Final = {
    "_worker": ("LoomPlugin", "worker"),
    "activities.adapters.models.anthropic_provider": ("AnthropicProvider",),
    "activities.adapters.models.openai_provider": ("OpenAIProvider",),
    "activities.adapters.models.responses_provider": ("ResponsesProvider",),
    "activities.bus": ("Answer", "Subscription", "Transport"),
    "activities.knowledge.ports": ("KnowledgeStore",),
    "activities.memory.ports": ("Embedder", "MemoryStore"),
    "activities.ports": (
        "ContextCompressor",
        "ContextSource",
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
    "client": ("LoomClient",),
    "composition.client_settings": ("ClientSettings",),
    "composition.load_settings": ("load_settings",),
    "composition.settings": ("Settings",),
    "domain.agents.definitions": ("AgentDefinition",),
    "domain.agents.hooks": ("Ask", "Deny", "Instead", "RunInfo"),
    "domain.agents.stats": ("AgentStats",),
    "domain.core.messages": ("Message", "Part", "ToolCall", "Usage"),
    "domain.core.requests": ("RunError", "RunResult", "RunStatus"),
    "domain.core.tasks": ("Action", "Origin", "Task"),
    "domain.core.tool_calls": ("ToolSpec",),
    "domain.crews.crew": ("Crew",),
    "domain.evals.report": ("EvalRun",),
    "domain.history.costs": ("Costs",),
    "domain.history.estimates": ("RunEstimate",),
    "domain.history.past_turns": ("PastTurn",),
    "domain.memory.knowledge": ("KnowledgeBase", "KnowledgeHit"),
    "domain.memory.layers": ("Forgotten", "Hit", "Memory", "MemoryStats"),
    "domain.history.run_report": ("RunReport",),
    "domain.run.chat": ("ChatAnswer",),
    "domain.tools.mcp_servers": ("McpServer",),
    "errors": ("errors",),
    "inbox": ("PendingAnswer", "PendingCall", "SilentRun"),
    "request_fields": (
        "ArchiveFields",
        "BudgetFields",
        "CrewRunFields",
        "ForkFields",
        "GitFields",
        "PartFields",
        "RunFields",
    ),
    "new_tasks": ("new_task",),
    "run_artifacts": ("Artifact",),
    "status_fields": ("ApprovalFields", "ChildFields", "StatusFields"),
    "visibility": ("RunSummary",),
    "watching": ("Polled", "Streamed", "Watched"),
}
_MODULE_OF: Final = {name: f"loom.{module}" for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'loom' has no attribute {name!r}")
    try:
        home = import_module(_MODULE_OF[name])
    except (ModuleNotFoundError, AttributeError) as error:  # `os` has fewer attributes on other systems
        from loom.extras import WORKER, explained  # noqa: PLC0415 - `import loom` imports nothing

        if (missing := explained(error, name, WORKER)) is None:
            raise
        raise ImportError(missing, name=name) from error
    value = home if name == "errors" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
