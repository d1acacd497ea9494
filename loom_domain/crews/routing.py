"""Select the crew member for a task by rules or by similarity to the members' descriptions, and record the reason."""

import re
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Final

from loom.domain.crews.crew import Crew
from loom.domain.crews.log import Choice

ALIKE: Final[Mapping[str, float]] = {"multilingual-e5-small-q4": 0.8}
"""For each embedding model, the minimum cosine similarity between a task and a matching description. The E5 models give
almost any pair of texts a similarity of at least 0.7.
"""
ALIKE_OTHERWISE: Final = 0.3


def by_rules(crew: Crew, task: str) -> Choice | None:
    """Return the member that the first matching rule names. Without rules, return the member with the most capabilities
    that occur in the task.
    """
    for route in crew.router.rules:
        if (found := re.search(route.match, task, re.IGNORECASE)) is not None:
            return Choice(member=route.member, by="rules", reason=f"{found.group(0)!r} matches {route.match!r}")
    if crew.router.rules:
        return None
    words = {member.name: [able for able in member.capabilities if _says(task, able)] for member in crew.members}
    best = max(crew.members, key=lambda member: len(words[member.name]))  # the first of several equally good members
    if not words[best.name]:
        return None
    return Choice(member=best.name, by="rules", reason=f"the task says {', '.join(map(repr, words[best.name]))}")


def descriptions(crew: Crew) -> tuple[str, ...]:
    """Return, for each member, the text that is compared with a task."""
    return tuple(
        ". ".join(p for p in (m.description, ", ".join(m.capabilities), m.task) if p) or m.name for m in crew.members
    )


def by_similarity(
    crew: Crew, task: Sequence[float], members: Sequence[Sequence[float]], model: str = ""
) -> tuple[Choice | None, str]:
    """Return a choice and an explanation. The choice is the member whose vector is most similar to the task's, or None
    if that member isn't similar enough.

    If the router sets no threshold, the embedding model's default applies.
    """
    asked = crew.router.threshold
    needed = asked if asked is not None else ALIKE.get(model, ALIKE_OTHERWISE)
    likeness = [_cosine(task, member) for member in members]
    best = max(range(len(likeness)), key=lambda place: likeness[place])
    member, closest = crew.members[best], likeness[best]
    told = f"the closest is {member.name!r} with {closest:.2f}, {needed:.2f} are needed"
    if closest < needed:
        return None, told
    others = sorted(likeness, reverse=True)[1:2]
    reason = f"likeness {closest:.2f}" + (f", the next has {others[0]:.2f}" if others else "")
    return Choice(member=member.name, by="embedding", reason=reason), told


def no_match(crew: Crew, tried: str = "") -> str:
    """Explain why no member fits the task, and list the crew's capabilities."""
    able = "; ".join(f"{member.name} ({', '.join(member.capabilities) or member.about})" for member in crew.members)
    return (
        f"no member of the crew {crew.name!r} fits the task{tried}. It has {able}. Name a fallback, or ask another crew"
    )


def _says(task: str, capability: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(capability)}", task, re.IGNORECASE) is not None


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    sizes = sqrt(sum(x * x for x in a)) * sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / sizes if sizes else 0.0
