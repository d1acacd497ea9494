"""Compare Loom's search with its parts and with simple searches. This is the first part of `make bench-memory`.

Dialogues (tests/corpora/dialogues) are in memory, in the form in which Loom keeps them permanently: as summaries with
vectors. Documents (tests/corpora/retrieval) are in a knowledge base, and their headings are the questions. Both are in
English and Chinese. Every search is measured in the same run, and finds ten texts for each question.
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
from loom.domain.memory.blended_search import blended
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

Vector: TypeAlias = Sequence[float]
Ranking: TypeAlias = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question, the keys of the texts that answer it, and what each search has found."""

    category: str
    answers: frozenset[str]
    found: Mapping[str, Ranking]

    def recall(self, way: str) -> float:
        """Return the share of the answers that the search has found."""
        return len(self.answers.intersection(self.found[way][:FOUND])) / len(self.answers)


async def measure(url: str) -> str:
    """Return the section as Markdown."""
    database, embedder = Database(url), OfflineEmbedder()
    try:
        spoken = {language: await _dialogue(database, embedder, language) for language in LANGUAGES}
        documents, empty, spent = await _documents(database, embedder)
        speed = await _speed(embedder)
    finally:
        await embedder.aclose()
        await database.aclose()
    rows = [
        [f"{name}, {CATEGORIES[category]}", *_figures([each for each in asked if each.category == category])]
        for language, name in LANGUAGES.items()
        for asked in (spoken[language],)
        for category in CATEGORIES
    ]
    rows += [[f"{name}, all", *_figures(spoken[language])] for language, name in LANGUAGES.items()]
    passages_rows = [
        [f"{name} documents", *_figures([each for each in documents if each.category == language])]
        for language, name in LANGUAGES.items()
    ]
    sizes = ", ".join(
        f"{len(turns(language))} turns and {len(questions(language))} questions in {name}"
        for language, name in LANGUAGES.items()
    )
    return "\n\n".join(
        (
            f"Recall@10, the share of the answers among the first ten results. The dialogues have {sizes}.\n"
            f"{len(documents)} passages are documents, and their headings are the questions.",
            table(["questions", *WAYS], rows + passages_rows),
            f"Of {len(FOREIGN)} questions that no document answers, {empty} get no results.\n"
            f"A search takes {percentile(spent, 0.5):.0f} ms (p95: {percentile(spent, 0.95):.0f} ms), including the"
            f" question's vector.\n{speed}",
        )
    )


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
    return [
        Asked(
            category=question.category,
            answers=frozenset(question.answers),
            found={
                WAYS[0]: bm25.ranked(question.text),
                WAYS[1]: _nearest(plain, vector),
                WAYS[2]: await _recalled(words, question, language),
                WAYS[3]: _nearest({key: own[f"{language}/{key}"] for key in _keys(said)}, vector),
                HYBRID: await _recalled(memory, question, language),
            },
        )
        for question, vector in zip(asked, vectors, strict=True)
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


async def _recalled(memory: MemoryStore, question: Question, language: Language) -> Ranking:
    hits = await memory.recall(Query(text=question.text, view=View(session_id=language, limit=FOUND)))
    return [hit.memory.task_id.partition("/")[2] for hit in hits]


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
        found = await _parts(store, database, {name: body for name, body, _ in rows}, passage, vector)
        found |= {
            WAYS[0]: bm25.ranked(passage.heading),
            WAYS[1]: _nearest({body: own for _, body, own in rows}, vector),
        }
        found[HYBRID] = [hit.chunk.text for hit in hits]
        asked.append(Asked(category=passage.language, answers=frozenset({passage.body}), found=found))
    empty = [not await store.search(KnowledgeQuery(text=text)) for text in FOREIGN]
    return asked, sum(empty), spent


async def _parts(
    store: PostgresKnowledge, database: Database, bodies: Mapping[int, str], passage: Passage, vector: Vector
) -> dict[str, Ranking]:
    async with database.transaction() as connection:
        rankings = await store.rankings(connection, KnowledgeQuery(text=passage.heading, bases=(BASE,)), vector)
    near = rankings.by_meaning or {}
    return {
        WAYS[2]: [bodies[name] for name in blended(rankings.by_words, None)],
        WAYS[3]: [bodies[name] for name in near],
    }


def _nearest(vectors: Mapping[str, Vector], asked: Vector) -> Ranking:
    similar = {
        key: sum(one * other for one, other in zip(vector, asked, strict=True))
        for key, vector in vectors.items()
        if vector
    }
    return sorted(similar, key=lambda key: -similar[key])[:FOUND]


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
    given = parser.parse_args()
    with servers() as (_, addresses):
        section = asyncio.run(measure(addresses["postgres"]))
    sys.stdout.write(section + "\n")
    if given.write:
        put(DOC, MARKS, section)


if __name__ == "__main__":
    main()
