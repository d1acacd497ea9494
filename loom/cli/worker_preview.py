"""Load the registry and agents that a worker in the current directory would load."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.app.registry import Registry
from loom.composition.settings import Settings
from loom.composition.tool_registry import registry_from
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest

T = TypeVar("T")


def with_app(settings: Settings, app: str | None) -> Settings:
    """Return the settings. If `--app` is given, it overrides LOOM_APP."""
    return settings.model_copy(update={"app": app}) if app else settings


def load_registry(settings: Settings, files: Sequence[Path] = (), *, checks_rules: bool = True) -> Registry:
    """Load a worker's registry and the agents in `files`. Raises BadRequest if a definition is invalid."""
    return registry_from(settings, MadeTools(sandbox=None), files=files, checks_rules=checks_rules)


def agents_of(registry: Registry) -> dict[str, AgentDefinition]:
    """Return all agents by name, including the default agent."""
    return {DEFAULT_AGENT: AgentDefinition(name=DEFAULT_AGENT), **registry.agents}


def named(name: str, known: Mapping[str, T], kind: str, *, otherwise: str, field: str = "NAME") -> T:
    """Return the named entry. If there is none, raise BadRequest with a similar name or else with `otherwise`."""
    if name not in known:
        raise BadRequest(f"there is no {kind} {name!r}: {nearest(name, known, otherwise)}", field=field)
    return known[name]
