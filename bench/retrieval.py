"""Compare Loom's search with its parts and with simple searches. This is the first part of `make bench-memory`.

Dialogues (tests/corpora/dialogues) are in memory, in the form in which Loom keeps them permanently: as summaries with
vectors. Documents (tests/corpora/retrieval) are in a knowledge base, and their headings are the questions. Both are in
English and Chinese. Every search is measured in the same run, and finds ten texts for each question.

Each category's questions are divided into two halves. The settings of Loom's search were chosen with the first half
(`--tune` prints its recall for other settings), and the report is about the second half.
"""

import argparse
import asyncio
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random
from statistics import mean
from time import perf_counter
from typing import Final, TypeAlias

from bench.report import percentile, put, table
from bench.stage import servers
from loom.activities.adapters.embedders.offline import OfflineEmbedder
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.knowledge import PostgresKnowledge
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.knowledge.ports import Document
from loom.activities.memory.ports import MemoryStore
from loom.activities.memory.upkeep import embed, promote
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tenants import Owner
from loom.domain.memory.blended_search import MEANING, NEAREST, blended
from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeQuery
from loom.domain.memory.layers import MemorySettings, Query, View
from tests.corpora.dialogues import CATEGORIES, Language, Question, Turn, questions, turns
from tests.corpora.retrieval import Passage, passages

DOC: Final = Path(__file__).parent.parent / "docs" / "memory.md"
MARKS: Final = ("<!-- retrieval, measured by make bench-memory -->", "<!-- end of retrieval -->")
BASE: Final = "bench"
FOUND: Final = 10
WAYS: Final = ("BM25", "vectors", "Loom, words", "Loom, vectors", "Loom, hybrid")
HYBRID: Final = WAYS[-1]
LANGUAGES: Final[Mapping[Language, str]] = {"en": "English", "zh": "Chinese"}
FOREIGN: Final = (
    "best recipe for a chocolate cake", "who won the football world cup in 1998", "symptoms of the common cold",
    "cheap flights to Paris in spring", "how to train a puppy", "exercises against back pain", "biography of Mozart",
    "how deep is the Pacific ocean", "红烧肉怎么做", "北京明天的天气", "世界杯冠军是谁", "感冒了吃什么药",
    "如何学习弹钢琴", "唐朝最有名的诗人", "减肥期间吃什么水果", "去云南旅游的最佳季节",
)  # fmt: skip
"""Questions that no passage answers."""
_STOPPED: Final = """
    a about after again all am an and any are as at be because been before being below between both but by can
    could did do does doing down during each few for from further had has have having he her here hers him his
    how i if in into is it its just me more most my no nor not now of off on once only or other our out over
    own s same she should so some such t than that the their them then there these they this those through to
    too under until up very was we were what when where which while who whom why will with would you your 什么
    怎么 哪里 哪个 哪些 哪种 多少 多久 为什 么时 时候 的时 有没 没有 是谁 谁的
"""
_STOP_WORDS: Final = frozenset(_STOPPED.split())
_WORD: Final = re.compile(r"[\u3400-\u9fff]+|[^\W\u3400-\u9fff]+")

WEIGHTS: Final = (0.0, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.8, 1.0)
NEIGHBORS: Final = (0.0, 0.1, 0.2, 0.3)
"""Parts of its best neighbor's score that a turn gets in addition."""
FLOORS: Final = (0.0, 0.1, 0.2, 0.3, 0.5)
"""Least nearness, from 0 for the hundredth nearest text to 1 for the nearest, at which the meaning counts."""
_SEED: Final = 14

Vector: TypeAlias = Sequence[float]
Ranking: TypeAlias = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question, the keys of the texts that answer it, and what each search has found."""

    category: str
    answers: frozenset[str]
    found: Mapping[str, Ranking]
    by_words: Mapping[str, float]
    """The shares by words, and the similarities, from which Loom makes one score."""
    similar: Mapping[str, float]

    def recall(self, way: str) -> float:
        """Return the share of the answers that the search has found."""
        return _recall(self.answers, self.found[way])

    def blended_recall(self, weight: float) -> float:
        """Return the same for another weight of the search by meaning."""
        return _recall(self.answers, list(blended(self.by_words, self.similar, weight)))

    def floored_recall(self, floor: float) -> float:
        """Return the same if the meaning of less similar texts doesn't count."""
        scores = {key: (1 - MEANING) * share for key, share in self.by_words.items()}
        for key, near in blended({}, self.similar, 1.0).items():
            scores[key] = scores.get(key, 0.0) + (MEANING * near if near >= floor else 0.0)
        return _recall(self.answers, sorted(scores, key=lambda key: -scores[key]))

    def neighbors_recall(self, part: float, order: Sequence[str]) -> float:
        """Return the same if each turn also gets a part of the score of the turn before or after it."""
        scores, place = blended(self.by_words, self.similar), {key: at for at, key in enumerate(order)}
        around = [{place[key] + step: score for key, score in scores.items()} for step in (-1, 1)]
        raised = {
            key: scores.get(key, 0.0) + part * max(beside.get(at, 0.0) for beside in around)
            for key, at in place.items()
        }
        return _recall(self.answers, sorted(raised, key=lambda key: -raised[key]))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All questions of both sets, with what every search has found."""

    dialogues: Mapping[Language, Sequence[Asked]]
    documents: Sequence[Asked]
    unanswered: int
    """The number of questions without an answer that got no results."""
    spent: list[float]
    """The times of the searches in documents, in milliseconds."""
    speed: str


def halves(asked: Sequence[Asked]) -> tuple[list[Asked], list[Asked]]:
    """Divide each category's questions at random, but always in the same way."""
    tuned, reported = [], []
    for category in dict.fromkeys(each.category for each in asked):
        shuffled = [each for each in asked if each.category == category]
        Random(_SEED).shuffle(shuffled)  # noqa: S311 - no secret
        tuned += shuffled[: len(shuffled) // 2]
        reported += shuffled[len(shuffled) // 2 :]
    return tuned, reported


async def measure(url: str) -> Measured:
    """Store both sets, and ask all questions."""
    database, embedder = Database(url), OfflineEmbedder()
    try:
        spoken = {language: await _dialogue(database, embedder, language) for language in LANGUAGES}
        documents, empty, spent = await _documents(database, embedder)
        speed = await _speed(embedder)
    finally:
        await embedder.aclose()
        await database.aclose()
    return Measured(dialogues=spoken, documents=documents, unanswered=empty, spent=spent, speed=speed)


def report(measured: Measured) -> str:
    """Return the section as Markdown, about the second half of the questions."""
    spoken = {language: halves(asked)[1] for language, asked in measured.dialogues.items()}
    documents = halves(measured.documents)[1]
    rows = [
        [f"{name}, {CATEGORIES[category]}", *_figures([each for each in spoken[language] if each.category == category])]
        for language, name in LANGUAGES.items()
        for category in CATEGORIES
    ]
    rows += [[f"{name}, all", *_figures(spoken[language])] for language, name in LANGUAGES.items()]
    rows += [
        [f"{name} documents", *_figures([each for each in documents if each.category == language])]
        for language, name in LANGUAGES.items()
    ]
    sizes = ", ".join(
        f"{len(turns(language))} turns and {len(spoken[language])} questions in {name}"
        for language, name in LANGUAGES.items()
    )
    spent = measured.spent
    return "\n\n".join(
        (
            f"Recall@10, the share of the answers among the first ten results. The dialogues have {sizes}.\n"
            f"{len(measured.documents)} passages are documents. {len(documents)} of their headings are the questions.",
            table(["questions", *WAYS], rows),
            f"Of {len(FOREIGN)} questions that no document answers, {measured.unanswered} get no results.\n"
            f"A search takes {percentile(spent, 0.5):.0f} ms (p95: {percentile(spent, 0.95):.0f} ms), including the"
            f" question's vector.\n{measured.speed}",
        )
    )


def tuning(measured: Measured) -> str:
    """Return the recall of other settings for the first half of the questions, as Markdown."""
    sets = {f"{LANGUAGES[language]}, all": halves(asked)[0] for language, asked in measured.dialogues.items()}
    tuned = halves(measured.documents)[0]
    sets |= {
        f"{name} documents": [each for each in tuned if each.category == language]
        for language, name in LANGUAGES.items()
    }
    weights = [
        [name, *(f"{mean(each.blended_recall(weight) for each in asked):.3f}" for weight in WEIGHTS)]
        for name, asked in sets.items()
    ]
    orders = {name: [turn.key for turn in turns(language)] for language, name in LANGUAGES.items()}
    neighbors = [
        [
            name,
            *(f"{mean(each.neighbors_recall(part, order) for each in sets[f'{name}, all']):.3f}" for part in NEIGHBORS),
        ]
        for name, order in orders.items()
    ]
    floors = [
        [name, *(f"{mean(each.floored_recall(floor) for each in asked):.3f}" for floor in FLOORS)]
        for name, asked in sets.items()
    ]
    return "\n\n".join(
        (
            f"Recall@10 for weights of the search by meaning; Loom's is {MEANING}:",
            table(["questions", *map(str, WEIGHTS)], weights),
            "Recall@10 if the meaning of less similar texts doesn't count:",
            table(["questions", *map(str, FLOORS)], floors),
            "Recall@10 if a turn also gets a part of its neighbor's score:",
            table(["dialogue", *map(str, NEIGHBORS)], neighbors),
        )
    )


def _recall(answers: frozenset[str], ranking: Sequence[str]) -> float:
    return len(answers.intersection(ranking[:FOUND])) / len(answers)


def _figures(asked: Sequence[Asked]) -> list[str]:
    return [f"{mean(each.recall(way) for each in asked):.2f}" for way in WAYS]


async def _dialogue(database: Database, embedder: OfflineEmbedder, language: Language) -> list[Asked]:
    """Store a dialogue in a session of its own, and ask its questions."""
    said, asked = turns(language), questions(language)
    memory, words = PostgresMemory(database, embedder=embedder), PostgresMemory(database)
    upkeep = PostgresMemoryUpkeep(database, model=embedder.model, dimension=embedder.dimension)
    await memory.remember([_task(turn, language) for turn in said])
    while await promote(upkeep, None, MemorySettings()):
        pass
    await upkeep.expire()
    await embed(upkeep, embedder, MemorySettings().batch)
    plain = dict(zip(_keys(said), await embedder.embed([turn.text for turn in said]), strict=True))
    bm25 = BM25({turn.key: f"{turn.speaker} {turn.text}" for turn in said})
    vectors = await embedder.embed([question.text for question in asked], query=True)
    own = await _own_vectors(database)
    own_vectors = {key: own[f"{language}/{key}"] for key in _keys(said)}
    return [
        Asked(
            category=question.category,
            answers=frozenset(question.answers),
            found={
                WAYS[0]: bm25.ranked(question.text),
                WAYS[1]: list(_similar(plain, vector)),
                WAYS[2]: list(by_words),
                WAYS[3]: list(similar),
                HYBRID: list(await _recalled(memory, question, language)),
            },
            by_words=by_words,
            similar=similar,
        )
        for question, vector in zip(asked, vectors, strict=True)
        for by_words in [await _recalled(words, question, language, limit=NEAREST)]
        for similar in [_similar(own_vectors, vector)]
    ]


def _keys(said: Sequence[Turn]) -> list[str]:
    return [turn.key for turn in said]


def _task(turn: Turn, language: Language) -> Task:
    return Task(
        task_id=f"{language}/{turn.key}",
        run_id=language,
        root_run_id=language,
        session_id=language,
        action=Action.MESSAGE,
        created_at=turn.at,
        parameters={"text": turn.text, "by": turn.speaker},
    )


async def _own_vectors(database: Database) -> dict[str, Vector]:
    """Return the vectors of the stored memories by task. Texts without a vector are small talk."""
    sql = "SELECT task_id, embedding::real[] FROM loom_memory LEFT JOIN loom_memory_vectors USING (id)"
    async with database.connection() as connection:
        rows = await (await connection.execute(sql)).fetchall()
    return {task: vector or [] for task, vector in rows}


async def _recalled(
    memory: MemoryStore, question: Question, language: Language, *, limit: int = FOUND
) -> dict[str, float]:
    """Return the scores of the turns that a search finds, best first."""
    hits = await memory.recall(Query(text=question.text, view=View(session_id=language, owner=Owner(), limit=limit)))
    return {hit.memory.task_id.partition("/")[2]: hit.score for hit in hits}


async def _documents(database: Database, embedder: OfflineEmbedder) -> tuple[list[Asked], int, list[float]]:
    """Index the passages, and ask for each by its heading. Also return how many questions without an answer get no
    results, and the times of searches in milliseconds.
    """
    store = PostgresKnowledge(database, embedder=embedder)
    chunks = tuple(Chunk(text=passage.body) for passage in passages())
    await store.begin(BASE, "tests/corpora/retrieval")
    await store.save(BASE, Document(path="passages", digest="1", chunks=chunks))
    while waiting := await store.unembedded(BASE, 64):
        vectors = await embedder.embed([chunk.told for chunk in waiting])
        await store.set_vectors(embedder.model, dict(zip([chunk.id for chunk in waiting], vectors, strict=True)))
    async with database.connection() as connection:
        await connection.execute("VACUUM ANALYZE loom_knowledge_chunks")
        sql = "SELECT id, content, embedding::real[] FROM loom_knowledge_chunks"
        rows = await (await connection.execute(sql)).fetchall()
    asking = await embedder.embed([passage.heading for passage in passages()], query=True)
    bm25 = BM25({body: body for _, body, _ in rows})
    asked, spent = [], []
    for passage, vector in zip(passages(), asking, strict=True):
        begun = perf_counter()
        hits = await store.search(KnowledgeQuery(text=passage.heading, limit=FOUND))
        spent.append(1000 * (perf_counter() - begun))
        by_words, similar = await _parts(store, database, {name: body for name, body, _ in rows}, passage, vector)
        rankings = (
            bm25.ranked(passage.heading),
            list(_similar({body: own for _, body, own in rows}, vector)),
            list(blended(by_words, None)),
            list(similar),
            [hit.chunk.text for hit in hits],
        )
        asked.append(
            Asked(
                category=passage.language,
                answers=frozenset({passage.body}),
                found=dict(zip(WAYS, rankings, strict=True)),
                by_words=by_words,
                similar=similar,
            )
        )
    empty = [not await store.search(KnowledgeQuery(text=text)) for text in FOREIGN]
    return asked, sum(empty), spent


async def _parts(
    store: PostgresKnowledge, database: Database, bodies: Mapping[int, str], passage: Passage, vector: Vector
) -> tuple[dict[str, float], dict[str, float]]:
    async with database.transaction() as connection:
        rankings = await store.rankings(connection, KnowledgeQuery(text=passage.heading, bases=(BASE,)), vector)
    by_words = {bodies[name]: share for name, share in rankings.by_words.items()}
    return by_words, {bodies[name]: cosine for name, cosine in (rankings.by_meaning or {}).items()}


def _similar(vectors: Mapping[str, Vector], asked: Vector) -> dict[str, float]:
    """Return the nearest texts and their cosine similarities, best first."""
    similar = {
        key: sum(one * other for one, other in zip(vector, asked, strict=True))
        for key, vector in vectors.items()
        if vector
    }
    return dict(sorted(similar.items(), key=lambda scored: -scored[1])[:NEAREST])


class BM25:
    """The usual search by words, without the common words of the question. Chinese is read by pairs of characters."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Index texts by their keys."""
        self._words = {key: Counter(_words(text)) for key, text in texts.items()}
        self._often = Counter(word for words in self._words.values() for word in words)
        self._usual = mean(words.total() for words in self._words.values())

    def ranked(self, question: str) -> Ranking:
        """Return the keys of the best texts, best first."""
        asked = {word for word in _words(question) if word not in _STOP_WORDS}
        scores = {key: self._score(words, asked) for key, words in self._words.items()}
        return sorted((key for key in scores if scores[key]), key=lambda key: -scores[key])[:FOUND]

    def _score(self, words: Mapping[str, int], asked: set[str]) -> float:
        length = 1.2 * (0.25 + 0.75 * sum(words.values()) / self._usual)
        return sum(
            log(1 + (len(self._words) - self._often[word] + 0.5) / (self._often[word] + 0.5))
            * 2.2 * words[word] / (words[word] + length)
            for word in asked if word in words
        )  # fmt: skip


def _words(text: str) -> list[str]:
    found: list[str] = []
    for word in _WORD.findall(text.casefold()):
        is_chinese = "\u3400" <= word[0] <= "\u9fff"
        found += [word[at : at + 2] for at in range(max(1, len(word) - 1))] if is_chinese else [word]
    return found


async def _speed(embedder: OfflineEmbedder) -> str:
    """Return a sentence about the embedder's speed, for turns of the dialogues and for passages."""
    said = [f"{turn.speaker}: {turn.text}" for language in LANGUAGES for turn in turns(language)[:100]]
    rates = []
    for texts in (said, [passage.body for passage in passages()[::10]]):
        begun = perf_counter()
        await embedder.embed(texts)
        rates.append((len(texts) / (perf_counter() - begun), mean(map(len, texts))))
    (turn_rate, turn_length), (body_rate, body_length) = rates
    return (
        f"The offline embedder processes {turn_rate:.0f} turns ({turn_length:.0f} characters on average) or"
        f" {body_rate:.0f} passages ({body_length:.0f} characters) per second."
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write the figures to {DOC.name}")
    parser.add_argument("--tune", action="store_true", help="also print the recall of other settings")
    given = parser.parse_args()
    with servers() as (_, addresses):
        measured = asyncio.run(measure(addresses["postgres"]))
    section = report(measured)
    sys.stdout.write(section + "\n")
    if given.tune:
        sys.stdout.write("\n" + tuning(measured) + "\n")
    if given.write:
        put(DOC, MARKS, section)


if __name__ == "__main__":
    main()
