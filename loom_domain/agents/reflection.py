"""The pattern `reflect`: an answer is a draft first, which the model criticises and revises, for a few rounds at most.

    draft ──▶ critique ──good──▶ the answer
                 │  ▲
            not good└── an answer ── revision      at most `rounds` times; then the answer is what it is

Each is a turn of the same run. A critique is asked for by a late reminder and made without tools; a revision may use
them all. A word from a person goes before any critique: what it changes is a new draft.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Pattern: TypeAlias = Literal["react", "reflect", "tree"]
"""How an agent reasons; `branching` has the last one."""
Stage: TypeAlias = Literal["", "draft", "critique", "revision"]
"""What a turn is for; empty in a run that does not reflect."""

MOST_ROUNDS: Final = 10

_VERDICT: Final = re.compile(r'"good"\s*:\s*(true|false)\b')

CRITICISE: Final = (
    "Now judge your answer as a strict reviewer would who did not write it: is it right, complete, and what was asked"
    " for? You cannot use tools in this turn. Say what is wrong or missing, and where. End with one line of JSON:"
    ' {"good": true} when it can go out as it is, else {"good": false}.'
)
REVISE: Final = (
    "Revise your answer in the light of this criticism; use tools where something has to be looked up. Then give the"
    " whole answer again, in the form that was asked for."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reflection:
    """How far a run that reflects has come."""

    stage: Stage = ""
    round: int = 0
    """Critiques so far, the one that is being made included."""


def approves(critique: str) -> bool:
    """Whether a critique lets the answer go out, by the last verdict in it; one without a verdict does not."""
    verdicts = _VERDICT.findall(critique)
    return bool(verdicts) and verdicts[-1] == "true"
