"""What a running worker has: its agents, crews, skills and tools.

Commands show it instead of what a worker that starts in their place would have.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loom.domain.core.messages import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerCatalog:
    """The contents of a worker. It has no prompts, because it is kept in Redis as it is."""

    agents: tuple[JsonObject, ...] = ()
    """As `loom agents list --json` shows them."""
    crews: tuple[JsonObject, ...] = ()
    """As `loom crew list --json` shows them."""
    skills: JsonObject = field(default_factory=dict)
    """Those of runs in the worker's default workspace, as `loom skills list --json` shows them."""
    tools: tuple[JsonObject, ...] = ()
    """As `loom tools show --json` shows them."""


def tool_summary(facts: Mapping[str, Any]) -> JsonObject:
    """Return a tool as `loom tools list --json` shows it."""
    shown = ("name", "origin", "effect", "permission", "scope", "missing")
    return {**{key: facts[key] for key in shown}, "description": str(facts["description"]).partition("\n")[0]}
