"""The `reflect` pattern: each answer starts as a draft, which the model critiques and revises for several rounds.

    draft ──▶ critique ──good──▶ the answer
                 │  ▲
            not good└── an answer ── revision      up to `rounds` times, then the last revision is the answer

Each step is a turn of the same run. A reminder at the end of the context requests a critique. The model can't use tools
in a critique, but it can use all tools in a revision. A message from a person takes precedence over a critique, and the
reply to the message is a new draft.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Pattern: TypeAlias = Literal["react", "reflect", "tree"]
"""The reasoning patterns. `branches_pattern` implements the `tree` pattern."""
Stage: TypeAlias = Literal["", "draft", "critique", "revision"]
"""The purpose of a turn, or an empty string if the run doesn't use reflection."""

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
    """The progress of a run that uses reflection."""

    stage: Stage = ""
    round: int = 0
    """The number of critiques so far, including the current one."""


def approves(critique: str) -> bool:
    """Whether a critique approves the answer, according to its last verdict. A critique without a verdict doesn't
    approve the answer.
    """
    verdicts = _VERDICT.findall(critique)
    return bool(verdicts) and verdicts[-1] == "true"
