"""Dialogues of two friends over ten months, in English and Chinese, with questions about them.

The turns and questions were written for this repository. Few questions repeat the words of the turns that answer them.
Generated small talk about the same subjects, by the same people, surrounds the turns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from typing import Final, Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]
FOLDER: Final = Path(__file__).parent
CATEGORIES: Final = {
    "single": "single fact",
    "temporal": "temporal",
    "multihop": "several turns",
    "preference": "preference",
    "adversarial": "no common words",
}
SMALL_TALK: Final = 300
"""Number of generated turns in each language."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What somebody said."""

    key: str
    at: datetime
    speaker: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question about a dialogue."""

    category: str
    text: str
    answers: tuple[str, ...]
    """The keys of the turns that answer the question."""


def turns(language: Language) -> tuple[Turn, ...]:
    """Return a dialogue in order, with the small talk."""
    written = [_turn(number, line, language) for number, line in enumerate(_lines(f"{language}.txt"))]
    return tuple(sorted([*written, *_small_talk(language, written)], key=lambda turn: turn.at))


def questions(language: Language) -> tuple[Question, ...]:
    """Return the questions about a dialogue."""
    parts = [[part.strip() for part in line.split("|")] for line in _lines(f"{language}.questions.txt")]
    return tuple(
        Question(category=category, text=text, answers=tuple(keys.split(", "))) for category, text, keys in parts
    )


def _lines(name: str) -> list[str]:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _turn(number: int, line: str, language: Language) -> Turn:
    key, day, rest = line.split(" ", 2)
    speaker, _, text = rest.partition(": ")
    at = datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(hours=8, minutes=number)
    return Turn(key=f"{language}{number}" if key == "-" else key, at=at, speaker=speaker, text=text)


def _small_talk(language: Language, written: list[Turn]) -> Iterator[Turn]:
    """Generate turns that use many of the dialogue's words, but answer none of the questions."""
    draw = Random(7)
    shape, slots = _SHAPES[language]
    speakers = sorted({turn.speaker for turn in written})
    for number, values in enumerate(draw.sample(list(product(*slots)), SMALL_TALK)):
        at = draw.choice(written).at + timedelta(seconds=draw.randrange(1, 59))
        said = shape.format(*values)
        yield Turn(
            key=f"{language}-small-talk-{number}", at=at, speaker=draw.choice(speakers), text=said[0].upper() + said[1:]
        )


_SHAPES: Final[dict[Language, tuple[str, list[list[str]]]]] = {
    "en": (
        "{0} {1}, {2}{3}",
        [
            [
                "Yesterday", "This morning", "On the way home", "After lunch", "Last night", "At the weekend",
                "While I waited for the bus", "Before work",
            ],
            [
                "I talked about coffee with a colleague", "I saw a dog that looked like Biscuit",
                "somebody on the street played music", "I read an article about bicycles",
                "I tried to find a good restaurant", "my mother called about the family",
                "I looked at photographs of a wedding", "a friend asked me about the shop",
                "I watched a film about a doctor", "I thought about a trip by train",
                "I cleaned the kitchen and the balcony", "the people at the bank were slow",
                "I wrote a long email to the university", "a neighbour told me about her baby",
                "I went to the market for vegetables", "I had a meeting about the new paper",
            ],
            [
                "which took longer than I thought", "and it made me smile", "but nothing came of it",
                "and I forgot the time", "so I was late again", "which was nice for a change",
            ],
            [".", ". How was your day?", ". Anyway, see you soon.", ", as so often."],
        ],
    ),
    "zh": (
        "{0}{1}，{2}{3}",
        [
            ["昨天", "今天早上", "回家的路上", "午饭以后", "昨晚", "周末", "等公交车的时候", "上班之前"],
            [
                "我和同事聊了聊咖啡", "我看见一只很像团子的猫", "有人在街上演奏音乐", "我读了一篇关于自行车的文章",
                "我想找一家好吃的饭店", "妈妈打电话说了家里的事", "我翻了翻婚礼的照片", "朋友问起店里的情况",
                "我看了一部关于医生的电影", "我想着坐火车去旅行", "我把厨房和阳台打扫了一遍", "银行的人办事很慢",
                "我给学校写了一封很长的邮件", "邻居说起她家的孩子", "我去市场买了点蔬菜", "我们开会讨论了新的论文",
            ],
            ["花的时间比想象的长", "心情一下子好了", "不过没有什么结果", "连时间都忘了", "结果又迟到了", "感觉还不错"],
            ["。", "。你今天怎么样？", "。先这样，回头见。", "，总是这样。"],
        ],
    ),
}  # fmt: skip
