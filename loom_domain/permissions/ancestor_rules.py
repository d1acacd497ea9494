"""What a sub-agent may do: never more than those above it.

Each level judges the call by its own rules, mode and grants; the strictest answer counts. So a deny anywhere above is a
deny, and what a parent would ask about is asked although the child's rules allow it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_calls import STRICTNESS, Verdict
from loom.domain.permissions.judge import Judgement, Mode, judge
from loom.domain.permissions.subjects import Place, Subject

SUB_AGENT: Final[Mapping[str, str]] = {
    "read_file": "allow",
    "glob": "allow",
    "grep": "allow",
    "write_file": "deny",
    "bash": "ask",
    "todo": "allow",
    "load_skill": "allow",
    "read_skill_resource": "allow",
    "run_skill_script": "ask",
    "skill__*": "ask",
    "delegate_task": "allow",
    "create_plan": "allow",
    "read_artifact": "allow",
    "share_artifact": "allow",
    "message_agent": "allow",
    "default": "deny",
}
"""The rules of a sub-agent that has none of its own."""

_NOTHING: Final[JsonObject] = {}
_NOWHERE: Final = Place()


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One agent of an ancestry."""

    whose: str
    """Its name, as people know it."""
    rules: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = Mode.DEFAULT
    grants: tuple[str, ...] = ()


def judge_under(
    tool: str,
    subjects: Sequence[Subject],
    chain: Sequence[Level],
    *,
    arguments: JsonObject = _NOTHING,
    reads: bool = False,
    declared: Verdict | None = None,
    place: Place = _NOWHERE,
) -> Judgement:
    """The strictest of what the levels say, root first; of equally strict ones the one nearest to the root.

    An ask that a level above would make is put to a person in the child's name, and a person's grant answers it there.
    """
    said = [
        replace(
            judge(
                tool,
                subjects,
                level.rules,
                arguments=arguments,
                mode=level.mode,
                reads=reads,
                declared=declared,
                grants=level.grants,
                place=place,
            ),
            whose=level.whose,
        )
        for level in chain
    ]
    if not said:
        return Judgement(verdict=Verdict.DENY, rule="built-in", reason="nobody's rules were given")
    strictest = max(said, key=lambda judged: STRICTNESS.index(judged.verdict))
    if strictest is said[-1]:
        return strictest
    return replace(strictest, reason=f"{strictest.reason}, in the rules of {strictest.whose} above")
