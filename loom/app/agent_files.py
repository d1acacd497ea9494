"""Read agent files. Each YAML or TOML file in an `agents` folder defines one agent with the fields of `AgentForm`.

# agents/clerk.yaml
description: Answers questions about trips.
extends: default
system_prompt: You answer questions about trips. You book nothing.
tools: [read_file, grep]
permissions:
  read_file(private/**): deny
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from loom.app.document_files import documents_in, read_document, read_each
from loom.app.forms.agent import complaints, read_agent
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.core.errors import BadRequest

FOLDER: Final = "agents"
ENDINGS: Final = (".yaml", ".yml", ".toml")


def agent_files(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the agent files in these folders, sorted by name. A missing folder counts as empty."""
    return documents_in(folders, ENDINGS)


def read_agents(paths: Iterable[Path]) -> tuple[AgentDefinition, ...]:
    """Return the agents that these files define. Raises BadRequest, which lists the errors in all files."""
    return read_each(paths, read_agent_file, field="agents")


def read_agent_file(path: Path) -> AgentDefinition:
    """Return the agent that the file defines. Raises BadRequest, which lists all errors in the file, one per line."""
    given = read_document(path)
    if problems := list(complaints(given, where=str(path))):
        raise BadRequest("\n".join(problems), field="agent")
    return read_agent(given, name=str(given.get("name") or path.stem), origin=str(path))
