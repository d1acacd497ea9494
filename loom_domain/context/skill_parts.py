"""Build the parts of a model call's context that concern skills: the catalog, initially active skills, and a hint."""

from collections.abc import Sequence

from loom.domain.agents.skill_selection import hint
from loom.domain.context.assembler import Component, Placement, Priority
from loom.domain.core.messages import Message, is_from_person
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.skills.catalog import LOAD_SKILL, PinnedSkill, active_instructions, catalog


def skill_parts(skills: Sequence[PinnedSkill], tools: Sequence[ToolSpec]) -> tuple[Component, ...]:
    """Return the components for the system prompt. The catalog is omitted if the model can't load skills."""
    told: list[Component] = []
    if text := active_instructions(skills):
        names = ", ".join(skill.name for skill in skills if skill.body)
        told.append(_prompt("active_skills", f"skills active from the start: {names}", text))
    if _can_load(tools) and (text := catalog(skills)):
        count = sum(not skill.body for skill in skills)
        told.append(_prompt("skills", f"catalog of {count} skill{'s' * (count != 1)}", text))
    return tuple(told)


def late_hint(
    skills: Sequence[PinnedSkill], tools: Sequence[ToolSpec], messages: Sequence[Message]
) -> tuple[Component, ...]:
    """Return the hint that suggests skills for the task. The hint is part of the context until the model's first
    reply.
    """
    if not skills or not _can_load(tools) or any(message.role == "assistant" for message in messages):
        return ()
    text = hint(skills, next((message.text for message in messages if is_from_person(message)), ""))
    if not text:
        return ()
    return (Component(name="system-reminder", source="skills that fit the task", text=text, place=Placement.RECENCY),)


def _can_load(tools: Sequence[ToolSpec]) -> bool:
    return any(tool.name == LOAD_SKILL for tool in tools)


def _prompt(name: str, source: str, text: str) -> Component:
    return Component(name=name, source=source, text=text, priority=Priority.CRITICAL, place=Placement.PRIMACY)
