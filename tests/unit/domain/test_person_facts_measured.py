"""How many of a person's facts the rule finds, and how many of those that it keeps are facts.

Precision is the share of the kept sentences that are facts, recall the share of the facts that are kept.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

from loom.domain.memory.people import rule_facts
from tests.corpora.person_facts import Language, Message, messages

LANGUAGES: Final[dict[Language, str]] = {"en": "English", "zh": "Chinese"}
DOCS: Final = Path(__file__).parents[3] / "docs" / "memory.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """The numbers of sentences."""

    messages: int
    facts: int
    found: int
    kept: int
    right: int

    @property
    def precision(self) -> float:
        return self.right / self.kept

    @property
    def recall(self) -> float:
        return self.found / self.facts


def plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold())


def same(kept: str, fact: str) -> bool:
    """Whether the rule has kept the fact, perhaps without the question that follows it."""
    return plain(kept) in plain(fact) or plain(fact) in plain(kept)


def measured(said: Sequence[Message]) -> Figures:
    total: Counter[str] = Counter()
    for message in said:
        kept = [fact.content for fact in rule_facts(message.text)]
        total["kept"] += len(kept)
        total["right"] += sum(any(same(each, fact) for fact in message.facts) for each in kept)
        total["facts"] += len(message.facts)
        total["found"] += sum(any(same(each, fact) for each in kept) for fact in message.facts)
    return Figures(messages=len(said), **{name: total[name] for name in ("facts", "found", "kept", "right")})


@pytest.mark.parametrize("half", ["held_out", "development"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_the_rule_keeps_are_facts_and_it_finds_most_of_them(
    language: Language, half: Literal["held_out", "development"]
) -> None:
    figures = measured([each for each in messages(half) if each.language == language])
    print(f"{half} {language}: precision {figures.precision:.3f}, recall {figures.recall:.3f} ({figures})")
    assert figures.precision >= 0.95
    assert figures.recall >= 0.60


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_documentation_has_the_measured_figures(language: Language) -> None:
    figures = measured([each for each in messages("held_out") if each.language == language])
    shares = f"{figures.precision:.2f} | {figures.recall:.2f}"
    line = f"| {LANGUAGES[language]} | {figures.messages} | {figures.facts} | {shares} |"
    assert line in DOCS.read_text(encoding="utf-8")


def test_the_halves_have_no_message_in_common_and_both_sides_of_each_language() -> None:
    held_out, development = messages("held_out"), messages("development")
    assert not {each.text for each in held_out} & {each.text for each in development}
    for half in (held_out, development):
        for language in LANGUAGES:
            with_facts = [bool(each.facts) for each in half if each.language == language]
            assert 0.3 < sum(with_facts) / len(with_facts) < 0.7
