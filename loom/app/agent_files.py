"""Agents in files: one in each YAML or TOML file of a folder `agents`, with the fields of `agent_form`.

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
    """The agent files in these folders, by name. A missing folder has none."""
    return documents_in(folders, ENDINGS)


def read_agents(paths: Iterable[Path]) -> tuple[AgentDefinition, ...]:
    """The agents in these files; raises BadRequest with everything that is wrong with any of them."""
    return read_each(paths, read_agent_file, field="agents")


def read_agent_file(path: Path) -> AgentDefinition:
    """The agent in a file; raises BadRequest with everything that is wrong with it, one line each."""
    given = read_document(path)
    if problems := list(complaints(given, where=str(path))):
        raise BadRequest("\n".join(problems), field="agent")
    return read_agent(given, name=str(given.get("name") or path.stem), origin=str(path))
