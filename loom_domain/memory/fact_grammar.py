"""The rule that finds what a person says of themselves for good, in English and Chinese.

    text ─▶ the person's own sentences ─▶ without what only leads in ─▶ does a frame of the tables fit?

The rule keeps only what is certain. It never reads code, quotations or questions, so that pasted text doesn't become a
fact. It passes over suppositions, what others say, and what concerns only the task at hand. The tables of each language
say how (`fact_frames`). They are compiled when they are first needed, which takes a third of a second.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from loom.domain.memory.chinese_facts import chinese
from loom.domain.memory.english_facts import english
from loom.domain.memory.fact_frames import Patterns, Tables

CORRECTION: Final = "correction"
"""The subject of what corrects something or takes it back."""
STANDING: Final = "standing"
"""The subject of what holds from now on."""
REMEMBERED: Final = "remembered"
"""The subject of what the person asks to remember."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LastingSentence:
    """A sentence that says something lasting, and the subject of the frame that it fits."""

    subject: str
    sentence: str


def lasting_sentences(text: str, longest: int) -> Iterator[LastingSentence]:
    """Yield the sentences of a text that say something lasting, in order. Sentences of more than `longest` characters
    aren't read.
    """
    for sentence, is_question in _sentences(text):
        if len(sentence) > longest:
            continue
        tables = _tables(is_chinese=_HAN.search(sentence) is not None)
        said = _stated_before(sentence, tables) if is_question else sentence
        if polite := tables.polite.match(said):
            said = said[polite.end() :].rstrip(" ?？")
        elif is_question and said == sentence:
            continue
        if (subject := _subject(said, tables, only_requests=polite is not None)) is not None:
            yield LastingSentence(subject=subject, sentence=said)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Led:
    """A sentence without what leads in, and what that says about the rest."""

    said: str
    corrects: bool = False
    remembers: bool = False
    stands: bool = False


def _stated_before(sentence: str, tables: Tables) -> str:
    """Return the statement in front of a question, or the whole sentence: "I'm vegan, what can I cook?"."""
    first = tables.clauses.split(sentence, maxsplit=1)[0].strip()
    return sentence if _QUESTION.search(first) or tables.polite.match(sentence) else first


def _subject(sentence: str, tables: Tables, *, only_requests: bool) -> str | None:
    """Return the subject of the frame that a sentence fits, if nothing rules it out."""
    led = _led(_spoken(sentence, tables), tables)
    if tables.doubts.search(led.said) or tables.told_secrets.search(led.said):
        return None
    if led.stands:
        return STANDING if tables.requested.match(led.said) else _stated(led.said, tables)
    if tables.passing.search(led.said):
        return None
    if led.remembers:
        return None if tables.secrets.search(led.said) else REMEMBERED
    found = _fitting(led.said, tables.requests)
    if found is None and not only_requests:
        found = _stated(led.said, tables)
    if led.corrects and (found or tables.corrected.match(led.said)):
        return CORRECTION
    return found


def _led(said: str, tables: Tables) -> _Led:
    corrects = remembers = False
    while found := tables.remembers.match(said) or tables.corrects.match(said) or tables.leads.match(said):
        if not found.end():
            break
        remembers = remembers or found.re is tables.remembers
        corrects = corrects or found.re is tables.corrects
        said = said[found.end() :].lstrip(" ,:!-，：")
    rest = tables.stands.sub("", said)
    return _Led(said=rest, corrects=corrects, remembers=remembers, stands=rest != said)


def _stated(said: str, tables: Tables) -> str | None:
    """Return the subject of the first clause that a statement's frame fits, unless the sentence describes a problem."""
    if tables.symptoms.search(said):
        return None
    starts = (0, *(clause.end() for clause in tables.clauses.finditer(said)))
    fitting = (_fitting(_led(said[start:], tables).said, tables.statements) for start in starts)
    return next((subject for subject in fitting if subject is not None), None)


def _fitting(said: str, frames: Patterns) -> str | None:
    return next((subject for subject, frame in frames.items() if frame.match(said)), None)


def _spoken(sentence: str, tables: Tables) -> str:
    for pattern, plain in tables.spoken:
        sentence = pattern.sub(plain, sentence)
    return " ".join(sentence.split())


@cache
def _tables(*, is_chinese: bool) -> Tables:
    return chinese() if is_chinese else english()


_HAN: Final = re.compile("[\u4e00-\u9fff]")
_FENCED: Final = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|<(\w+)[^>\n]*>.*?</\1>", re.DOTALL)
_INLINE: Final = re.compile(r"[\"“「『][^\"”」』\n]{40,}[\"”」』]")
"""Quotations. A short one may be a word that the person talks about."""
_PASTED: Final = re.compile(r"^(?:>|\t| {4}|\||\+|-{3}|#!|[\w./-]+:\d+:)")
_MARKER: Final = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)、])\s+")
_END: Final = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])")
_QUESTION: Final = re.compile(r"[?？]\s*$|[吗呢嘛][。.]?$")


def _sentences(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the person's own sentences, without code and quotations, and whether they are questions."""
    for line in _INLINE.sub(" ", _FENCED.sub("\n", text)).splitlines():
        if _PASTED.match(line):
            continue
        for part in _END.split(_MARKER.sub("", line)):
            sentence = " ".join(part.split()).rstrip(" .;。；")
            if sentence:
                yield sentence, _QUESTION.search(part) is not None
