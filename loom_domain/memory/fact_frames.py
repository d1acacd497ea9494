"""How the tables of the rule that finds facts about people are written.

A frame is the beginning of a sentence, with names of word lists in braces:

    my {attribute} (is|are) {value}          My name is Ann
    i (live|reside) in {place}               I live in Oslo
    我{adverb}*住在{place}                    我住在上海

The words of a sentence beyond its frame don't matter. A frame must leave no doubt: what isn't in a table isn't a fact.
To teach the rule another sentence, add a word to a list before you add a frame.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Patterns: TypeAlias = Mapping[str, re.Pattern[str]]

_NAME: Final = re.compile(r"\{([A-Za-z_]+)\}")
_DEEPEST: Final = 3
"""A word list may name others, which may name others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """What the rule knows of a language."""

    spoken: Sequence[tuple[re.Pattern[str], str]] = ()
    """What is replaced before a sentence is compared with the frames, in this order."""
    leads: re.Pattern[str]
    """Words before a sentence that don't change what it says."""
    remembers: re.Pattern[str]
    """The person asks to remember what follows."""
    corrects: re.Pattern[str]
    """What follows corrects something."""
    stands: re.Pattern[str]
    """The rest of the sentence is a standing order."""
    requested: re.Pattern[str]
    """Begins the rest of a standing order."""
    polite: re.Pattern[str]
    """Begins a request that has the form of a question."""
    statements: Patterns
    """What a person says of themselves and their team, by subject."""
    requests: Patterns
    """What a person asks for in general, by subject. It counts only at the beginning of a sentence."""
    corrected: re.Pattern[str]
    """What else counts as a correction: values of names."""
    passing: re.Pattern[str]
    """The sentence is about the task at hand."""
    doubts: re.Pattern[str]
    """The sentence asks or supposes something, is a joke, or tells what somebody else says."""
    symptoms: re.Pattern[str]
    """A statement with these words describes a problem, or the material at hand."""
    secrets: re.Pattern[str]
    """Names of secrets. A sentence with them isn't kept only because the person asks to remember it."""
    told_secrets: re.Pattern[str]
    """The sentence contains a secret."""
    clauses: re.Pattern[str]
    """Separates the clauses of a sentence."""


NOTHING: Final = re.compile(r"(?!)")
"""Matches no sentence."""


def words(text: str) -> str:
    """Return a pattern that matches one of the words. An underscore stands for a space."""
    return "(?:" + "|".join(word.replace("_", " ") for word in text.split()) + ")"


def compiled(frames: Sequence[str], lists: Mapping[str, str]) -> re.Pattern[str]:
    """Return a pattern that matches the beginning of a sentence that fits one of the frames."""
    whole = "|".join(f"(?:{frame})" for frame in frames)
    for _ in range(_DEEPEST):
        whole = _NAME.sub(lambda found: f"(?:{lists[found[1]]})", whole)
    return re.compile(whole, re.IGNORECASE)


def by_subject(frames: Mapping[str, Sequence[str]], lists: Mapping[str, str]) -> Patterns:
    """Return a pattern for the frames of each subject."""
    return {subject: compiled(each, lists) for subject, each in frames.items()}
