"""Split text into lexemes for a full-text index. English, source code, and scripts without spaces are supported.

Chinese, Japanese, and Korean text is split into overlapping pairs of characters, so no dictionary is needed to find a
two-character word. A compound name (`readFile`, `web_fetch`, `src/app.py`) is indexed both as a whole and by its parts.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

MOST: Final = 2_000
"""The maximum number of lexemes per text. Any further lexemes are not indexed."""
MOST_ASKED: Final = 24
"""The maximum number of distinct lexemes per query."""

_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_TOKEN: Final = re.compile(rf"[{_CJK}]+|(?:(?![{_CJK}])\w)+(?:[./-](?:(?![{_CJK}])\w)+)*")
_PART: Final = re.compile(r"[^\W\d_]+|\d+")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_IS_CJK: Final = re.compile(rf"[{_CJK}]")
_FIRST_CJK: Final = _CJK[0]
_LONGEST: Final = 64
_COMMON_WORDS: Final = (
    "a about after again all am an and any are as at be because been before being both but by can could d did do doe"
    " does doing don during each few for from had has have having he her here him his how i if in into is it its just"
    " ll m may me more most my no nor not of off on once only or other our out over own re s same she should so some"
    " such t than that the their them then there these they this those through to too under until up us ve very was we"
    " were what when where which while who whom whose why will with would you your"
    " 什么 怎么 怎样 哪里 哪儿 哪个 哪些 哪种 哪家 哪条 哪所 哪位 谁的 多少 多久 为什 么时 时候 是什 的时"
    " 有没 没有 是谁 因为 么样 样的 后来 在哪 几点 几年 我们 你们 他们 她们 这个 那个 可以 应该 还是 已经"
    " 就是 请问 一下"
)
_COMMON: Final = frozenset(_COMMON_WORDS.split())
"""Words, and pairs of Chinese characters, that say little in a question, also as parts of "don't" or "I've"."""


def lexemes_of(text: str, *, most: int = MOST) -> list[str]:
    """Return the lexemes of a text, in order, up to `most`."""
    found: list[str] = []
    for token in _TOKEN.findall(unicodedata.normalize("NFKC", text)):
        found += _pairs(token) if token >= _FIRST_CJK and _IS_CJK.match(token) else _words(token)
        if len(found) >= most:
            break
    return found[:most]


def asked_lexemes(text: str) -> list[str]:
    """Return the distinct lexemes of a query. Very common words are included only if there are no other words."""
    asked = list(dict.fromkeys(lexemes_of(text)))
    telling = [lexeme for lexeme in asked if lexeme not in _COMMON]
    return (telling or asked)[:MOST_ASKED]


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for at in range(len(run) - 1):
        yield run[at : at + 2]


@lru_cache(20_000)
def _words(token: str) -> tuple[str, ...]:
    whole = token.casefold()
    parts = [_singular(part.casefold()) for piece in _HUMP.split(token) for part in _PART.findall(piece)]
    if parts != [_singular(whole)]:
        parts.insert(0, whole)
    return tuple(part[:_LONGEST] for part in parts)


def _singular(word: str) -> str:
    """Return the singular of an English plural that follows one of the three most common rules. Other words are
    returned unchanged.
    """
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ches", "shes", "xes", "sses", "zes")) else word[:-1]
