"""Compare search by words, by meaning and by both, in two languages. This is the first half of `make bench-memory`.

The questions are headings, and the passages are the texts below them (tests/corpora/retrieval). All passages are in one
knowledge base. One half of the questions is used to choose how rankings are fused, and the other half to measure.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Final

from bench.report import percentile, put, table
from bench.stage import servers
from loom.activities.adapters.embedders.offline import OfflineEmbedder
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.knowledge import K, PostgresKnowledge
from loom.activities.adapters.postgres.knowledge_search import DEPTH
from loom.activities.knowledge.ports import Document
from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeQuery
from loom.domain.memory.rank_fusion import fused
from tests.corpora.retrieval import Passage, passages

DOC: Final = Path(__file__).parent.parent / "docs" / "knowledge.md"
MARKS: Final = ("<!-- measured by make bench-memory -->", "<!-- end of what was measured -->")
BASE: Final = "bench"
TRIED: Final = (1, 2, 5, 10, 20, 40, 60)
"""The values of k to compare."""
FOREIGN: Final = (
    "best recipe for a chocolate cake", "who won the football world cup in 1998", "symptoms of the common cold",
    "cheap flights to Paris in spring", "how to train a puppy", "exercises against back pain", "biography of Mozart",
    "how deep is the Pacific ocean", "红烧肉怎么做", "北京明天的天气", "世界杯冠军是谁", "感冒了吃什么药",
    "如何学习弹钢琴", "唐朝最有名的诗人", "减肥期间吃什么水果", "去云南旅游的最佳季节",
)  # fmt: skip
"""Questions that no passage answers."""

Ranking = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question, the id of the passage that answers it, and the rankings of the passages."""

    passage: Passage
    answer: int
    by_words: Ranking
    by_meaning: Ranking
    shown: Ranking
    """The passages that a run would receive: only relevant ones, at most ten."""


async def measure(url: str) -> str:
    """Return the section as Markdown."""
    database = Database(url)
    embedder = OfflineEmbedder()
    store = PostgresKnowledge(database, embedder=embedder)
    try:
        begun = perf_counter()
        ids = await _filled(store, database, embedder)
        filled = perf_counter() - begun
        vectors = await embedder.embed([passage.heading for passage in passages()], query=True)
        asked = [
            await _asked(store, database, ids, passage, vector)
            for passage, vector in zip(passages(), vectors, strict=True)
        ]
        spent = await _spent(store)
        empty = [not await store.search(KnowledgeQuery(text=text)) for text in FOREIGN]
    finally:
        await embedder.aclose()
        await database.aclose()
    return _told(asked, filled, spent, sum(empty))


async def _filled(store: PostgresKnowledge, database: Database, embedder: OfflineEmbedder) -> dict[str, int]:
    """Store the passages, and return their ids by text."""
    chunks = tuple(Chunk(text=passage.body) for passage in passages())
    await store.begin(BASE, "tests/corpora/retrieval")
    await store.save(BASE, Document(path="passages", digest="1", chunks=chunks))
    while waiting := await store.unembedded(BASE, 64):
        vectors = await embedder.embed([chunk.told for chunk in waiting])
        await store.set_vectors(embedder.model, dict(zip([chunk.id for chunk in waiting], vectors, strict=True)))
    async with database.connection() as connection:
        await connection.execute("VACUUM ANALYZE loom_knowledge_chunks")
        return dict(await (await connection.execute("SELECT content, id FROM loom_knowledge_chunks")).fetchall())


async def _asked(
    store: PostgresKnowledge, database: Database, ids: Mapping[str, int], passage: Passage, vector: Sequence[float]
) -> Asked:
    query = KnowledgeQuery(text=passage.heading, bases=(BASE,), limit=10)
    async with database.transaction() as connection:
        rankings = await store.rankings(connection, query, vector)
    return Asked(
        passage=passage,
        answer=ids[passage.body],
        by_words=tuple(rankings.by_words),
        by_meaning=tuple(rankings.by_meaning),
        shown=tuple(ids[hit.chunk.text] for hit in await store.search(query)),
    )


async def _spent(store: PostgresKnowledge) -> list[float]:
    """Return the times of searches in milliseconds, including the time to embed the question."""
    spent = []
    for passage in passages()[::10]:
        begun = perf_counter()
        await store.search(KnowledgeQuery(text=passage.heading))
        spent.append(1000 * (perf_counter() - begun))
    return spent


def _told(asked: Sequence[Asked], filled: float, spent: Sequence[float], empty: int) -> str:
    chosen, held_out = _halves(asked)
    by_k = {k: _mrr(chosen, _hybrid(k)) for k in TRIED}
    best = max(by_k, key=lambda k: by_k[k])
    ways: Mapping[str, Callable[[Asked], Ranking]] = {
        "words only (BM25)": lambda each: each.by_words,
        "vectors only": lambda each: each.by_meaning,
        f"both, k = {K} (built-in value)": _hybrid(K),
        "both, k = 60 (usual value)": _hybrid(60),
        "both, only relevant passages (as in a run)": lambda each: each.shown,
    }
    header = ["searched by", "English", "Chinese", "all"]
    rows = [
        [name, *(_figures(held_out, way, language) for language in ("en", "zh", None))] for name, way in ways.items()
    ]
    tried = ", ".join(f"k = {k}: {value:.3f}" for k, value in by_k.items())
    languages = {name: sum(each.passage.language == name for each in asked) for name in ("en", "zh")}
    return "\n\n".join(
        (
            f"The corpus has {len(asked)} passages, {languages['en']} in English and {languages['zh']} in Chinese."
            f" The {DEPTH} best results of each search are fused.\n"
            f"The table shows MRR / recall@10 for the {len(held_out)} questions that were not used to choose k:",
            table(header, rows),
            f"The other {len(chosen)} questions were used to choose k. Their MRR is best for k = {best}."
            f" The built-in value is {K}.\nThe choice hardly affects the MRR:\n{tried}.",
            f"Of {len(FOREIGN)} questions that no passage answers, {empty} get no results.\n"
            f"With one embedder thread, a search takes {percentile(list(spent), 0.5):.0f} ms"
            f" (p95: {percentile(list(spent), 0.95):.0f} ms), and indexing a passage takes"
            f" {1000 * filled / len(asked):.0f} ms.",
        )
    )


def _halves(asked: Sequence[Asked]) -> tuple[list[Asked], list[Asked]]:
    """Split the questions by a digest, which is as good as a random split and always the same."""
    first = [sha256(each.passage.heading.encode()).digest()[-1] % 2 == 0 for each in asked]
    return (
        [each for each, mine in zip(asked, first, strict=True) if mine],
        [each for each, mine in zip(asked, first, strict=True) if not mine],
    )


def _hybrid(k: int) -> Callable[[Asked], Ranking]:
    return lambda each: tuple(fused([each.by_words, each.by_meaning], k))


def _mrr(asked: Sequence[Asked], way: Callable[[Asked], Ranking]) -> float:
    return mean(_reciprocal(way(each), each.answer) for each in asked)


def _figures(asked: Sequence[Asked], way: Callable[[Asked], Ranking], language: str | None) -> str:
    some = [each for each in asked if language in (None, each.passage.language)]
    return f"{_mrr(some, way):.3f} / {mean(each.answer in way(each)[:10] for each in some):.3f}"


def _reciprocal(ranking: Ranking, answer: int) -> float:
    return 1 / (ranking.index(answer) + 1) if answer in ranking else 0.0


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
