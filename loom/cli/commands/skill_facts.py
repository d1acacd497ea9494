"""What people are told of a skill before they let runs have it: where it comes from, what it costs, what it may do."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from loom.activities.adapters.skills.front_matter import read_skill
from loom.activities.toolbox.built_in import skill_files
from loom.activities.toolbox.built_in.skill_files import SkillFile, digest_of, files_of, read, strange_files
from loom.cli.output import counted, plain, tell
from loom.domain.core.tokens import text_tokens
from loom.domain.skills.catalog import Skill, tool_name
from loom.domain.skills.documents import BrokenSkill, Described, Document
from loom.domain.skills.scripts import tool_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspected:
    """A skill with everything in its folder."""

    described: Described
    document: Document
    files: Sequence[SkillFile]
    tools: dict[str, str]
    """What each script that is a tool says of itself, by the tool's name."""
    warnings: Sequence[str]

    @property
    def skill(self) -> Skill:
        """The skill itself."""
        return self.described.skill

    @property
    def scripts(self) -> list[str]:
        """Files that can be run."""
        return [file.path for file in self.files if file.path.startswith(f"{skill_files.SCRIPTS}/")]


def inspect(root: str, source: str) -> Inspected:
    """Look at a skill's folder, running nothing; raises BrokenSkill."""
    described, document = read_skill(root, source)
    try:
        files = files_of(root)
        odd = list(strange_files(Path(root)))
    except OSError as error:
        raise BrokenSkill(f"its files cannot be read: {error}") from None
    tools: dict[str, str] = {}
    wrong: list[str] = []
    for file in files:
        if not file.path.startswith(f"{skill_files.SCRIPTS}/") or file.size > skill_files.LONGEST:
            continue
        name = tool_name(described.skill.name, file.path)
        try:
            tool = tool_of(read(root, file.path).decode("utf-8", "replace"), name, timeout=1)
        except BrokenSkill as error:
            wrong.append(f"{file.path}: {error}")
            continue
        if tool is not None:
            tools[name] = tool.description
    return Inspected(
        described=described,
        document=document,
        files=files,
        tools=tools,
        warnings=(*described.warnings, *wrong, *(f"{each}: it is left out" for each in odd)),
    )


def facts(inspected: Inspected, state: str) -> dict[str, Any]:
    """Everything about it, for programs and for people."""
    skill = inspected.skill
    return {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source,
        "path": skill.root,
        "state": state,
        "version": skill.metadata.get("version", ""),
        "license": skill.license,
        "compatibility": skill.compatibility,
        "metadata": dict(skill.metadata),
        "allowed_tools": list(skill.allowed_tools),
        "scripts": inspected.scripts,
        "tools": inspected.tools,
        "files": len(inspected.files),
        "bytes": sum(file.size for file in inspected.files),
        "tokens": {
            "catalog": text_tokens(f"- {skill.name}: {skill.description}"),
            "instructions": text_tokens(inspected.document.body),
        },
        "digest": digest_of(skill.root),
        "warnings": list(inspected.warnings),
    }


def print_facts(facts: dict[str, Any]) -> None:
    """Everything about a skill, for people."""
    typer.echo(plain(f"{facts['name']}  ({facts['source']}, {facts['state']})\n\n{facts['description']}\n"))
    for key in ("path", "version", "license", "compatibility", "digest"):
        if facts[key]:
            typer.echo(plain(f"{key:<14} {facts[key]}"))
    tokens = facts["tokens"]
    typer.echo(f"{'tokens':<14} {tokens['catalog']} in each prompt, {tokens['instructions']} once it is loaded")
    typer.echo(f"{'files':<14} {facts['files']} ({counted(facts['bytes'], 'byte')})")
    for line in _may_do(facts):
        typer.echo(plain(line))
    for warning in facts["warnings"]:
        tell(f"warning: {warning}")


def _may_do(found: dict[str, Any]) -> list[str]:
    """In words, what letting runs have it means."""
    told = ["Its instructions are read by models as they are: read them first, as you would read a program."]
    if found["scripts"]:
        has = counted(len(found["scripts"]), "script")
        told.append(
            f"It has {has}, run in the sandbox, on the workspace, without network; each call asks, unless a rule allows"
            " it."
        )
    if found["tools"]:
        told.append(f"Of these are tools of their own: {', '.join(found['tools'])}.")
    if found["allowed_tools"]:
        told.append(f"It asks for the tools {', '.join(found['allowed_tools'])}; that allows nothing by itself.")
    return told
