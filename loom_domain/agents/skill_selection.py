"""Select a run's skills: the skills that its agent enables, and other skills whose names or descriptions match the
task.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from loom.domain.agents.spec import Activation, AgentConfig
from loom.domain.core.lexemes import asked_lexemes, lexemes_of
from loom.domain.core.tokens import text_tokens
from loom.domain.skills.catalog import CATALOG_TOKENS, PinnedSkill, Skill, line_of

MOST_FITTING: Final = 3
"""The maximum number of matching skills that are suggested to the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The skills selected for a run."""

    skills: tuple[Skill, ...] = ()
    left_out: tuple[str, ...] = ()
    """The names of matching skills that don't fit into the catalog."""
    missing: tuple[str, ...] = ()
    """The names of skills that the agent enables but that don't exist."""


def resolved(levels: Iterable[Sequence[Skill]]) -> tuple[tuple[Skill, ...], tuple[Skill, ...]]:
    """Return the skills sorted by name, and the hidden skills. If several skills have the same name, the skill from the
    first folder hides the others.
    """
    everyone = [skill for level in levels for skill in level]
    first = {skill.name: skill for skill in reversed(everyone)}
    return _sorted(first.values()), tuple(skill for skill in everyone if first[skill.name].root != skill.root)


def chosen(
    skills: Sequence[Skill], config: AgentConfig, task: str, *, wanted: Sequence[str] = (), room: int = CATALOG_TOKENS
) -> Chosen:
    """Return a run's skills, sorted by name. The result contains the `wanted` skills, the skills that the agent
    enables, and other skills, depending on the agent's activation mode.

    With explicit activation, no other skills are included. With auto and hybrid activation, all other skills are
    included, or only the best matches for the task if they don't all fit into the catalog. Skills that the agent
    disables are left out.
    """
    there = {skill.name: skill for skill in skills if skill.name not in config.disabled_skills}
    enabled = () if config.activation is Activation.AUTO else config.enabled_skills
    firm = [there[name] for name in dict.fromkeys((*wanted, *enabled)) if name in there]
    missing = tuple(name for name in enabled if name not in there and name not in config.disabled_skills)
    if config.activation is Activation.EXPLICIT:
        return Chosen(skills=_sorted(firm), missing=missing)
    scores = relevance(list(there.values()), task)
    others = sorted(
        (skill for skill in there.values() if skill not in firm), key=lambda s: (-scores.get(s.name, 0), s.name)
    )
    kept = firm + _fitted(others, room - sum(text_tokens(line_of(s.name, s.description)) for s in firm))
    names = {skill.name for skill in kept}
    return Chosen(
        skills=_sorted(kept),
        left_out=tuple(skill.name for skill in others if skill.name not in names),
        missing=missing,
    )


def relevance(skills: Sequence[Skill | PinnedSkill], task: str) -> dict[str, float]:
    """Return the skills that match the task, with their scores, best match first. A skill matches if the task contains
    a word of its name, or two words of its name and description.
    """
    asked = set(asked_lexemes(task))
    named = {skill.name: set(lexemes_of(skill.name)) for skill in skills}
    words = {skill.name: named[skill.name] | set(lexemes_of(skill.description)) for skill in skills}
    spread = Counter(word for found in words.values() for word in sorted(found))
    scores: dict[str, float] = {}
    for skill in skills:
        shared = sorted(asked & words[skill.name])
        if named[skill.name].intersection(shared) or len(shared) > 1:
            # A word that occurs in every skill carries no information. A word in the name counts more than a word in
            # the description.
            weight = {word: math.log(1 + len(skills) / spread[word]) for word in shared}
            scores[skill.name] = sum(w * (3 if word in named[skill.name] else 1) for word, w in weight.items())
    return dict(sorted(scores.items(), key=lambda scored: (-scored[1], scored[0])))


def hint(skills: Iterable[PinnedSkill], task: str) -> str:
    """Return the hint that precedes the model's first reply, or an empty string if no skill fits the task."""
    names = list(relevance([skill for skill in skills if not skill.body], task))[:MOST_FITTING]
    return f"By its words this task is one for: {', '.join(names)}. Load what fits before you begin." if names else ""


def _fitted(skills: Iterable[Skill], room: int) -> list[Skill]:
    """Return the skills from the beginning of the list, as many as fit into the catalog."""
    kept: list[Skill] = []
    for skill in skills:
        room -= text_tokens(line_of(skill.name, skill.description))
        if room < 0:
            break
        kept.append(skill)
    return kept


def _sorted(skills: Iterable[Skill]) -> tuple[Skill, ...]:
    return tuple(sorted(skills, key=lambda skill: skill.name))
