"""Messages to an agent, in English and Chinese: about half of them say something lasting about the person.

They were written for this repository, by the author of the rule's tables. The tables were made with
`development.json`. `held_out.json` was written shortly before them and serves only to measure. Each message names what
it is about, and the sentences to keep of it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]
FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """What a person has written."""

    language: Language
    kind: str
    text: str
    facts: Sequence[str]
    """The sentences that say something lasting. Empty if none does."""


def messages(name: Literal["development", "held_out"]) -> tuple[Message, ...]:
    """Return all messages of one half."""
    return tuple(Message(**each) for each in json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
