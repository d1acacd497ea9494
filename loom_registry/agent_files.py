"""Agents in files: one in each YAML or TOML file of a folder `agents`, with the fields of `agent_form`.

# agents/clerk.yaml
description: Answers questions about trips.
extends: default
system_prompt: You answer questions about trips. You book nothing.
tools: [read_file, grep]
permissions:
  read_file(private/**): deny
"""

import json
import tomllib
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from loom_domain.agent_definitions import AgentDefinition
from loom_domain.errors import BadRequest
from loom_registry.agent_form import complaints, read_agent

FOLDER: Final = "agents"
ENDINGS: Final = (".yaml", ".yml", ".toml")
MOST_BYTES: Final = 256 * 1024


def agent_files(folders: Iterable[Path]) -> tuple[Path, ...]:
    """The agent files in these folders, by name; a folder that is not there has none."""
    found = (path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir()))
    return tuple(dict.fromkeys(path.resolve() for path in found if path.suffix.lower() in ENDINGS and path.is_file()))


def read_agents(paths: Iterable[Path]) -> tuple[AgentDefinition, ...]:
    """The agents of these files; raises BadRequest with everything that is wrong with any of them."""
    agents: list[AgentDefinition] = []
    problems: list[str] = []
    for path in paths:
        try:
            agents.append(read_agent_file(path))
        except BadRequest as error:
            problems.append(error.message)
    if problems:
        raise BadRequest("\n".join(problems), field="agents")
    return tuple(agents)


def read_agent_file(path: Path) -> AgentDefinition:
    """The agent of a file; raises BadRequest with all that is wrong with it, a line each."""
    given = read_document(path)
    if problems := list(complaints(given, where=str(path))):
        raise BadRequest("\n".join(problems), field="agent")
    return read_agent(given, name=str(given.get("name") or path.stem), origin=str(path))


def read_document(path: Path) -> Mapping[str, Any]:
    """What a YAML, TOML or JSON file holds; raises BadRequest that names the file, and the line where it can."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadRequest(f"{path}: larger than {MOST_BYTES} bytes: that is no definition", field=str(path))
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadRequest(f"{path}: there is no such file", field=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: cannot be read: {error}", field=str(path)) from None
    try:
        found = _parsed(text, path.suffix.lower())
    except yaml.YAMLError as error:
        raise BadRequest(f"{path}: not valid YAML: {_where(error)}", field=str(path)) from None
    except ValueError as error:  # of TOML and of JSON, with their lines
        raise BadRequest(f"{path}: not valid: {error}", field=str(path)) from None
    except RecursionError:
        raise BadRequest(f"{path}: nested too deeply", field=str(path)) from None
    if not isinstance(found, dict):
        raise BadRequest(f"{path}: must hold fields such as `system_prompt: …`, not {found!r:.60}", field=str(path))
    return found


class _UniqueKeys(yaml.SafeLoader):
    """Plain values only, and no key twice: of two rules for one tool, one would be silently lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """See base class."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


def _parsed(text: str, ending: str) -> object:
    match ending:
        case ".toml":
            return tomllib.loads(text)
        case ".json":
            return json.loads(text, object_pairs_hook=_unique)
        case _:
            return _yaml(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [name for name in dict(pairs) if sum(name == other for other, _ in pairs) > 1]:
        raise ValueError(f"the key {twice[0]!r} is there twice")
    return dict(pairs)


def _yaml(text: str) -> object:
    loader = _UniqueKeys(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())
