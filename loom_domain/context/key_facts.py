"""Select the sentences of a conversation that say the most, without a model: decisions, names, numbers and ids.

A sentence is worth more the rarer its words, names and numbers are in the conversation, and if it tells a decision.
Lines of one form, such as those of a log or a table, count as bulk data. Words that remain in the prompt anyway count
for nothing, so the selection adds what a summary has left out. Nothing here knows a language's grammar.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from math import log
from typing import Final, TypeAlias

from loom.domain.core.lexemes import lexemes_of
from loom.domain.core.messages import Message
from loom.domain.core.tokens import text_tokens, within

LONGEST: Final = 60
"""The maximum number of tokens of one sentence. A longer one is divided at its commas, or cut."""
_TELLING: Final = 8
"""The number of words by which a sentence is judged: the rarest ones."""
_LEAST: Final = 1.5
"""Sentences that score less say nothing in particular."""
_NAMED: Final = 1.5
"""The weight of a number, an id or the name of a file. A word weighs 1."""
_DECIDED: Final = 2.0
_WEIGHT: Final = {"user": 1.3, "assistant": 1.2}
"""The weight of what people and the model say. What a tool says weighs 1."""
_FORM_REPEATS: Final = 3
"""If so many lines of a message have one form, the lines are bulk data."""

_SENTENCE_END: Final = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])|\n+")
_CLAUSE_END: Final = re.compile(r"(?<=[,:])\s+|(?<=[，、：])|\s+[|–—]\s+")
_NOT_A_NAME: Final = re.compile(r"[^\W\d_]+")
_WORD: Final = re.compile(r"[^\W\d_]+")
_NUMBER: Final = re.compile(r"\d+")
_MARKS: Final = re.compile(r"[#=(){}\[\]<>|:_/\\\-]")
_SPEAKER: Final = re.compile(r"- ([^:\s]{1,80}): (.+)")
_DECISION: Final = re.compile(
    r"\b(?:decid|decision|cho[so]|agree|settl|reject|prefer|instead|rather than|go(?:ing)? with|switch(?:ed)? to|must"
    r"|never|always|deadline|responsible|approved?|conclu|root cause|because)"
    r"|[决确]定|选[择用定]|采用|改[用为成]|换成|同意|放弃|不再|必须|不要|不能|约定|负责|截止|批准|结论|原因",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A sentence that someone said."""

    by: str
    """`user`, `assistant`, `summary` or the name of a tool."""
    text: str
    terms: tuple[str, ...]
    """The sentence's distinct words, names and numbers."""
    share: float
    """From 0 to 1, lower for a line of a message that has many lines of the same form."""

    @property
    def line(self) -> str:
        """The sentence as a line of a list."""
        return f"- {self.by}: {self.text}"


_Sentence: TypeAlias = tuple[str, str, float]
"""Who said a sentence, the sentence, and its share."""


def statements_of(messages: Iterable[Message], *, selected: str = "", summary: str = "") -> tuple[Statement, ...]:
    """Return the distinct sentences of an earlier selection, of an earlier summary, and of these messages."""
    found: dict[str, Statement] = {}
    before = (*_selected(selected), *_sentences(summary, "summary"))
    for by, text, share in chain(before, chain.from_iterable(map(_said, messages))):
        if (name := text.casefold()) not in found:
            terms = tuple(dict.fromkeys(lexemes_of(text)))
            found[name] = Statement(by=by, text=text, terms=terms, share=share)
    return tuple(found.values())


def key_facts(statements: Sequence[Statement], *, known: str, room: int) -> tuple[str, ...]:
    """Return the most telling sentences as lines, in order. Together, they have at most `room` tokens. A sentence that
    adds nothing to the `known` text is left out.
    """
    rarity = _rarity(statements)
    told = set(lexemes_of(known, most=len(known)))
    scores = [_score(statement, rarity, told) for statement in statements]
    chosen: list[int] = []
    for place in sorted(range(len(statements)), key=lambda place: -scores[place]):
        if scores[place] < _LEAST:
            break
        statement = statements[place]
        size = text_tokens(statement.line) + 1
        if size > room or _score(statement, rarity, told) < max(_LEAST, scores[place] / 2):
            continue
        room -= size
        chosen.append(place)
        told.update(statement.terms)
    return tuple(statements[place].line for place in sorted(chosen))


def _said(message: Message) -> Iterator[_Sentence]:
    if message.role == "tool":
        return _sentences(message.text, message.name or "tool")
    by = "user" if message.role == "user" else "assistant"
    given = (value for call in message.tool_calls for value in call.arguments.values())
    texts = [message.text, *(value for value in given if isinstance(value, str) and " " in value)]
    return _sentences("\n".join(texts), by)


def _selected(lines: str) -> Iterator[_Sentence]:
    for match in filter(None, map(_SPEAKER.fullmatch, lines.splitlines())):
        yield match[1], match[2], 1.0


def _sentences(text: str, by: str) -> Iterator[_Sentence]:
    lines = [line for part in _SENTENCE_END.split(text) if (line := " ".join(part.split()).removeprefix("- "))]
    forms = [_form(line) for line in lines]
    repeated = Counter(forms)
    for line, form in zip(lines, forms, strict=True):
        times = repeated[form] if form else 1
        share = 1.0 if times < _FORM_REPEATS else 1 / times
        for piece in _pieces(line):
            yield by, piece, share


def _pieces(line: str) -> Iterator[str]:
    """Divide a line that is too long."""
    if len(line) <= LONGEST or text_tokens(line) <= LONGEST:
        yield line
        return
    piece = ""
    for clause in _CLAUSE_END.split(line):
        longer = f"{piece} {clause}".strip()
        if piece and text_tokens(longer) > LONGEST:
            yield piece
            longer = clause
        piece = longer if text_tokens(longer) <= LONGEST else within(longer, LONGEST)
    if piece:
        yield piece


def _form(line: str) -> str:
    """Return the line with a placeholder for each word and number, or an empty string for a line of prose."""
    form = _NUMBER.sub("#", _WORD.sub("w", line))
    return form if len(_MARKS.findall(form)) >= _FORM_REPEATS else ""


def _rarity(statements: Sequence[Statement]) -> Mapping[str, float]:
    """Return how rare each term is, from 0 for a term of every sentence to 1 for a term of one sentence."""
    counts = Counter(term for statement in statements for term in statement.terms)
    most = log(len(statements) + 1)
    return {term: 1 - log(count) / most for term, count in counts.items()}


def _score(statement: Statement, rarity: Mapping[str, float], told: Set[str]) -> float:
    new = sorted((_worth(term, rarity) for term in statement.terms if term not in told), reverse=True)
    if not new:
        return 0.0
    decided = _DECIDED if _DECISION.search(statement.text) else 0.0
    return (sum(new[:_TELLING]) + decided) * statement.share * _WEIGHT.get(statement.by, 1.0)


def _worth(term: str, rarity: Mapping[str, float]) -> float:
    rare = rarity[term]
    return rare * rare * (1.0 if _NOT_A_NAME.fullmatch(term) else _NAMED)
