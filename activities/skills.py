"""Resolve a run's skills when the run is prepared: find, select and pin them, and read active skills immediately."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import structlog

from loom.activities.json_schemas import BrokenSchema
from loom.activities.toolbox.argument_schema import ArgumentSchema
from loom.activities.toolbox.built_in import skill_files
from loom.activities.toolbox.built_in.skill_content import within_limit
from loom.activities.toolbox.built_in.skills import SkillTools
from loom.activities.toolbox.pipeline import chain_of
from loom.activities.toolbox.tool_schemas import with_own_names
from loom.domain.agents.skill_selection import Chosen, chosen
from loom.domain.agents.spec import Activation, AgentConfig, AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunRequest
from loom.domain.core.suggestions import nearest
from loom.domain.core.tool_calls import ToolSpec, Verdict
from loom.domain.permissions.judge import judge_under
from loom.domain.permissions.subjects import Subject
from loom.domain.skills.catalog import (
    LOAD_SKILL,
    READ_RESOURCE,
    RUN_SCRIPT,
    FoundSkills,
    PinnedSkill,
    Skill,
    SkillProblem,
    is_skill_tool,
    pinned,
    tool_name,
)
from loom.domain.skills.documents import BrokenSkill
from loom.domain.skills.scripts import tool_of

_log = structlog.get_logger("loom.skills")


class SkillLibrary(Protocol):
    """Finds skills."""

    async def find(self, workspace: Path) -> FoundSkills:
        """Return all skills for a run in this workspace. Invalid and untrusted skills are reported as problems."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pin:
    """A pinned skill and the tools that its scripts declare."""

    skill: PinnedSkill
    tools: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Equipped:
    """The agent with its run's skills."""

    spec: AgentSpec
    skipped: tuple[SkillProblem, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSkills:
    """Adds skills to runs."""

    library: SkillLibrary
    tools: SkillTools

    async def equipped(self, spec: AgentSpec, request: RunRequest, found: FoundSkills) -> Equipped:
        """Return the spec with the skills selected from `found`, and with their tools. Raises BadRequest if a requested
        skill can't be used.

        An agent can read the skills that are assigned to it. Other skills require the `load_skill` tool, and scripts
        require `run_skill_script`.
        """
        has = {tool.name for tool in spec.tools}
        plain = replace(spec, tools=tuple(tool for tool in spec.tools if not is_skill_tool(tool.name)))
        wanted = _wanted(request, found, spec)
        allowed = [skill for skill in found.skills if skill.name in wanted or not _is_denied(skill, spec)]
        choice = chosen(allowed, _config(spec, has), request.task, wanted=wanted)
        pins, broken = await asyncio.to_thread(self._pins, choice, wanted)
        pins = [await self._with_note(pin, Path(spec.workspace)) for pin in pins]
        skipped = (*_skipped(found, choice), *broken)
        for problem in skipped:
            _log.warning("skill_skipped", path=problem.path, source=problem.source, why=problem.why)
        if not pins:
            return Equipped(spec=plain, skipped=skipped)
        skills = tuple(pin.skill for pin in pins)
        scripts = [tool for pin in pins for tool in pin.tools] if RUN_SCRIPT in has else []
        tools = (*plain.tools, *_named(self.tools, skills, runs_scripts=RUN_SCRIPT in has), *scripts)
        whole = replace(plain, skills=skills, tools=tuple(sorted(tools, key=lambda tool: tool.name)))
        return Equipped(spec=whole, skipped=skipped)

    async def _with_note(self, pin: _Pin, workspace: Path) -> _Pin:
        """Add what is missing here to instructions that are active from the start. `load_skill` says it of others."""
        if not pin.skill.body or not (note := await self.tools.note_of_missing(pin.skill.root, workspace)):
            return pin
        return replace(pin, skill=replace(pin.skill, body=f"{pin.skill.body}\n{note}"))

    def _pins(self, choice: Chosen, wanted: tuple[str, ...]) -> tuple[list[_Pin], list[SkillProblem]]:
        pins: list[_Pin] = []
        broken: list[SkillProblem] = []
        for skill in choice.skills:
            try:
                pins.append(self._pin(skill, is_active=skill.name in wanted))
            except (BrokenSkill, OSError) as error:
                if skill.name in wanted:
                    raise BadRequest(f"the skill {skill.name!r} cannot be read: {error}", field="skills") from None
                broken.append(SkillProblem(path=skill.root, source=skill.source, why=str(error)))
        return pins, broken

    def _pin(self, skill: Skill, *, is_active: bool) -> _Pin:
        file, document = skill_files.document_of(skill.root)
        tools = dict(self._scripts(skill))
        made = pinned(
            skill,
            digest=skill_files.digest_of(skill.root),
            tools={tool.name: path for path, tool in tools.items()},
            body=within_limit(document.body, file, skill.name) if is_active else "",
        )
        return _Pin(skill=made, tools=tuple(tools.values()))

    def _scripts(self, skill: Skill) -> Iterator[tuple[str, ToolSpec]]:
        """Yield the scripts that declare themselves as tools. An invalid declaration is reported, and the script
        remains usable as a plain script.
        """
        for file in skill_files.files_of(skill.root):
            if not file.path.startswith(f"{skill_files.SCRIPTS}/") or file.size > skill_files.LONGEST:
                continue
            try:
                text = skill_files.read(skill.root, file.path).decode("utf-8", "replace")
                tool = tool_of(text, tool_name(skill.name, file.path), timeout=self.tools.timeout)
                tool = tool and _with_accepted_schema(tool)
            except (BrokenSkill, BrokenSchema) as error:
                _log.warning("skill_script_skipped", skill=skill.name, script=file.path, why=str(error))
                continue
            if tool is not None:
                yield file.path, tool


def _with_accepted_schema(tool: ToolSpec) -> ToolSpec:
    """Return the tool of a script with a schema that every provider accepts. Raises BrokenSchema if there is none."""
    shown = ArgumentSchema(tool.parameters).shown
    ArgumentSchema(with_own_names(shown))  # what `ScriptTool` checks the arguments against
    return replace(tool, parameters=shown)


def _named(tools: SkillTools, skills: Sequence[PinnedSkill], *, runs_scripts: bool) -> Iterator[ToolSpec]:
    """Yield the skill tools. Only the tool that loads skills lists their names, because one list per prompt
    is enough.
    """
    general = {tool.spec.name: tool.spec for tool in tools.tools()}
    if loadable := [skill.name for skill in skills if not skill.body]:
        load = general[LOAD_SKILL]
        properties = load.parameters["properties"]
        named = {**properties, "name": {**properties["name"], "enum": loadable}}
        yield replace(load, parameters={**load.parameters, "properties": named})
    yield general[READ_RESOURCE]
    if runs_scripts:
        yield general[RUN_SCRIPT]


def _wanted(request: RunRequest, found: FoundSkills, spec: AgentSpec) -> tuple[str, ...]:
    """Return the skills that the request activates. Raises BadRequest with the reason if a skill is missing."""
    names = [skill.name for skill in found.skills]
    for name in request.skills:
        if name in spec.config.disabled_skills:
            raise BadRequest(f"the skill {name!r} is disabled for the agent {spec.name!r}", field="skills")
        if name not in names:
            raise BadRequest(f"there is no skill {name!r}: {_instead(name, names, found)}", field="skills")
    return tuple(dict.fromkeys(request.skills))


def _instead(name: str, names: list[str], found: FoundSkills) -> str:
    mine = next((p for p in found.problems if not p.is_warning and p.path.rpartition("/")[2] == name), None)
    untrusted = next((p for p in found.problems if not p.is_warning and p.path.endswith("/skills")), None)
    if problem := mine or untrusted:
        return f"{problem.path}: {problem.why}"
    return nearest(name, names, f"there are {', '.join(names) or 'none'}")


def _is_denied(skill: Skill, spec: AgentSpec) -> bool:
    subjects = (Subject(text=skill.name),)
    judged = judge_under(LOAD_SKILL, subjects, chain_of(spec, ()), reads=True, declared=Verdict.ALLOW)
    return judged.verdict is Verdict.DENY


def _config(spec: AgentSpec, tools: Collection[str]) -> AgentConfig:
    return spec.config if LOAD_SKILL in tools else replace(spec.config, activation=Activation.EXPLICIT)


def _skipped(found: FoundSkills, choice: Chosen) -> Iterator[SkillProblem]:
    yield from (problem for problem in found.problems if not problem.is_warning)
    for name in choice.missing:
        yield SkillProblem(path=name, source="agent", why="the agent enables it, but it does not exist")
    if choice.left_out:
        names = ", ".join(choice.left_out)[:500]
        why = f"it has no room for {len(choice.left_out)} skills that are less relevant to the task: {names}"
        yield SkillProblem(path="catalog", source="run", why=why)
