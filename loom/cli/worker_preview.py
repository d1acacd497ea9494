"""What a worker with the settings of this folder would load: its registry, and the agents in it."""

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
    """The settings with `--app` in place of LOOM_APP."""
    return settings.model_copy(update={"app": app}) if app else settings


def load_registry(settings: Settings, files: Sequence[Path] = (), *, checks_rules: bool = True) -> Registry:
    """The registry of a worker with these settings; `files` are agent files to load as well. Raises BadRequest."""
    return registry_from(settings, MadeTools(sandbox=None), files=files, checks_rules=checks_rules)


def agents_of(registry: Registry) -> dict[str, AgentDefinition]:
    """All agents by name, with the default agent."""
    return {DEFAULT_AGENT: AgentDefinition(name=DEFAULT_AGENT), **registry.agents}


def named(name: str, known: Mapping[str, T], kind: str, *, otherwise: str, field: str = "NAME") -> T:
    """The entry of this name; raises BadRequest that suggests a similar name, or says `otherwise` where to look."""
    if name not in known:
        raise BadRequest(f"there is no {kind} {name!r}: {nearest(name, known, otherwise)}", field=field)
    return known[name]
