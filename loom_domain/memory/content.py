"""Derive a task's text, which Loom searches, summarizes and displays."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import canonical, well_formed
from loom.domain.core.tasks import SHOWN_ONLY, Action, Task
from loom.domain.core.tool_names import QUERIES_MEMORY, SEARCH_HISTORY

LONGEST: Final = 8_000
"""Loom searches at most this many characters of a task's text. The task itself keeps the full text."""
MOST_FACTS: Final = 3
SAYS_SOMETHING: Final = 30
"""The minimum length in columns of a text by the model that is important."""

_TEXTS: Final = ("task", "text", "summary", "content", "output", "message", "reason")
_DULL_NAMES: Final = (
    "artifact attempt call_id completed_explicitly cost depth digest effect expires_in for_run from length max_turns"
    " metadata parent_turn_id quality_metrics risk status to tool_calls tools turn turn_id turns usage workspace"
)
_DULL: Final = frozenset(_DULL_NAMES.split())
_SAYS_NOTHING: Final = (
    "ok okay k thanks thank_you thx great good nice fine cool hi hello hey bye"
    " 好 好的 好吧 谢谢 谢谢你 多谢 嗯 嗯嗯 行 可以 明白 明白了 知道了 收到 没问题 你好 再见"
)
_SMALL_TALK: Final = frozenset(_SAYS_NOTHING.split())
_MOST_WORDS: Final = max(said.count("_") + 1 for said in _SMALL_TALK)
_SEARCHES: Final = (*QUERIES_MEMORY, SEARCH_HISTORY)
_SENTENCE: Final = re.compile(r".+?(?:[.!?…]+(?=\s|$)|[。！？]+|$)", re.DOTALL)
_WORD: Final = re.compile(r"[^\W_]+")
_SPEAKER: Final = "by: "
_SPEAKER_AT_END: Final = re.compile(r"(?P<text>.+?) by: (?P<name>[^\s:][^\n:]{0,60})", re.DOTALL)
"""How earlier releases ended a summary: they joined the lines of the text."""
SHORT: Final = 50
"""Texts of fewer columns can have similar vectors and different meanings, such as two answers to one question."""
_MARKS: Final = re.compile(r"\d+(?:[.,:]\d+)*|\b(?:not?|never|none|without|\w+n't)\b|[不没未无非]")


def is_remembered(task: Task) -> bool:
    """Whether memory keeps the task. It keeps neither fragments of a text nor the end of a run whose request was wrong,
    because such a run hasn't begun and nothing can be learned from it.
    """
    return task.action not in SHOWN_ONLY and not _was_refused(task)


def _was_refused(task: Task) -> bool:
    ended = task.result or {}
    error = ended.get("error")
    wrong = isinstance(error, Mapping) and error.get("type") == BadRequest.__name__
    return task.action is Action.ERROR and wrong and ended.get("turns") == 0


def content_of(task: Task) -> str:
    """Return a task's text: the spoken text, followed by other facts, one per line. For a model's answer and for the
    task of a run, this is only the text. A search in memory has none: a later search would find its question instead
    of an answer.
    """
    if (tool := task.parameters.get("tool")) in _SEARCHES:
        return f"{task.action}: {tool}"
    if said_alone := model_text(task) or _task_text(task):
        return well_formed(said_alone)[:LONGEST]
    said = {**task.parameters, **(task.result or {})}
    texts = [text for name in _TEXTS if isinstance(text := said.get(name), str) and text.strip()]
    facts = [f"{name}: {_shown(value)}" for name, value in said.items() if _tells(name, value)]
    return (well_formed("\n".join([*texts, *facts])) or str(task.action))[:LONGEST]


def model_text(task: Task) -> str:
    """Return the text of the model's answer that the task reports, or an empty string."""
    return _text((task.result or {}).get("content")) if task.action is Action.MODEL_CALL else ""


def is_small_talk(text: str) -> bool:
    """Whether the text, in English or Chinese, is small talk that has no meaning without its context. The speaker
    doesn't matter.
    """
    words = islice(_WORD.finditer(" ".join(_split(text)[0]).casefold()), _MOST_WORDS + 1)
    said = "_".join(word[0] for word in words)
    return not said or said in _SMALL_TALK


def is_trivial(text: str, below: int) -> bool:
    """Whether the text has fewer than `below` columns, or is small talk. The speaker's name doesn't count."""
    said = " ".join(_split(text)[0]).strip()
    return (len(said) < below and columns(said) < below) or is_small_talk(text)


def columns(text: str) -> int:
    """Return the width of a text in a terminal. Chinese, Japanese and Korean characters, which say more than Latin
    letters, have two columns.
    """
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text.strip())


def told_text(content: str, *, is_summary_of_old: bool = False) -> str:
    """Return a memory's text as it is embedded and summarized: with the speaker in front, as in a dialogue.

    A name behind the text hides the text's meaning from embedding models. With `is_summary_of_old`, the text may be a
    summary from an earlier release, which has the speaker at the end of its only line.
    """
    lines, speaker = _split(content)
    if speaker and lines:
        return f"{speaker}: {chr(10).join(lines)}"
    if is_summary_of_old and (old := _SPEAKER_AT_END.fullmatch(content)):
        return f"{old['name']}: {old['text']}"
    return content


def summary_of(text: str, limit: int) -> str:
    """Return the first sentences that fit. If they would make a summary that is too short, return as much text as
    fits.
    """
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    summary = ""
    for sentence in _SENTENCE.findall(line):
        if len(summary) + len(sentence) > limit:
            break
        summary += sentence
    return summary.strip() if summary and len(summary) >= limit // 2 else _cut(line, limit)


def parts_of(text: str, limit: int) -> tuple[str, ...]:
    """Return the whole text in parts of at most `limit` characters that end with a sentence, if possible."""
    line = " ".join(text.split())
    parts = [""]
    for sentence in _SENTENCE.findall(line):
        if parts[-1] and len(parts[-1]) + len(sentence) > limit:
            parts.append("")
        *whole, rest = (sentence[at : at + limit] for at in range(0, len(sentence), limit))
        parts[-1:] = [*whole, parts[-1] + rest]
    return tuple(part.strip() for part in parts if part.strip())


def facts_from(distilled: Sequence[str], limit: int) -> tuple[str, ...]:
    """Return up to three short facts from a distiller's reply, without duplicates."""
    facts: dict[bytes, str] = {}
    for fact in distilled:
        if fact.strip():
            facts.setdefault(fingerprint(fact), summary_of(fact, limit))
    return tuple(facts.values())[:MOST_FACTS]


def fingerprint(text: str) -> bytes:
    """Return a fingerprint that is the same for texts that differ only in case, width and spaces."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def says_the_same(one: str, other: str) -> bool:
    """Whether two texts with similar meanings also contain the same numbers and negations, which embedding vectors
    barely reflect.
    """
    return _marks(one) == _marks(other)


def _split(content: str) -> tuple[list[str], str]:
    """Return a text's lines without the speaker, and the speaker."""
    lines = content.splitlines() if _SPEAKER in content else [content]
    named = [line for line in lines if line.startswith(_SPEAKER)]
    if not named:
        return lines, ""
    return [line for line in lines if line is not named[-1]], named[-1].removeprefix(_SPEAKER).strip()


def _marks(text: str) -> list[str]:
    return sorted(_MARKS.findall(unicodedata.normalize("NFKC", text).casefold()))


def _task_text(task: Task) -> str:
    return _text(task.parameters.get("task")) if task.action is Action.START else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.strip() else ""


def _tells(name: str, value: Any) -> bool:
    return name not in _DULL and name not in _TEXTS and value not in (None, "", False, (), [], {})


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("message"), str):
        return f"{value.get('type', 'error')}: {value['message']}"
    return canonical({"": value})[4:-1]


def _cut(line: str, limit: int) -> str:
    head = line[: limit - 1]
    space = head.rfind(" ")
    return (head[:space] if space > limit // 2 else head).rstrip() + "…"
