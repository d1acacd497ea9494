"""What a sub-agent may do: never more than those above it.

Each level judges the call by its own rules, mode and grants; the strictest answer counts. So a deny anywhere above is a
deny, and what a parent would ask about is asked although the child's rules allow it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from loom_domain.messages import JsonObject
from loom_domain.permissions import Judgement, Mode, judge
from loom_domain.subjects import Place, Subject
from loom_domain.tool_calls import Verdict

SUB_AGENT: Final[Mapping[str, str]] = {
    "read_file": "allow",
    "glob": "allow",
    "grep": "allow",
    "write_file": "deny",
    "bash": "ask",
    "default": "deny",
}
"""The rules of a sub-agent that has none of its own."""

_STRICTNESS: Final[Mapping[Verdict, int]] = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}
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
    """The strictest of what the levels say, root first; of equally strict ones the one nearest to the root."""
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
    return max(said, key=lambda judged: _STRICTNESS[judged.verdict])
