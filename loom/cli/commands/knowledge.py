"""knowledge: documents that runs may look things up in. It needs Loom's Postgres, and no worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from loom.cli.output import console, counted, one_line, plain, print_json, tell, visible
from loom.domain.core.errors import BadRequest, UnreachableError

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.activities.adapters.postgres.knowledge import PostgresKnowledge
    from loom.activities.memory.ports import Embedder
    from loom.composition.settings import Settings
    from loom.domain.memory.knowledge import Ingested, KnowledgeBase, KnowledgeHit, KnowledgeQuery

T = TypeVar("T")

NO_DATABASE: Final = "there are no knowledge bases without a database: start `loom up`, or set LOOM_DATABASE_URL"
MOST_SKIPPED: Final = 20
"""Files left out that people are shown."""
_PATIENCE: Final = 5.0
"""Seconds for a question whose answer is only good to know."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
Name = Annotated[str, typer.Option("--name", metavar="K", help="Which knowledge base.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Knowledge bases: documents that runs may look things up in.", no_args_is_help=True)
    group.command("add")(add)
    group.command("list")(list_bases)
    group.command("search")(search)
    group.command("remove")(remove)
    app.add_typer(group, name="knowledge")


def add(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of documents.")],
    name: Name,
    reembed: Annotated[
        bool, typer.Option("--reembed", help="Make all vectors anew, with the embedder of now.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take a folder in, or what has changed in it since: Markdown, text, source code, HTML, PDF.

    Hidden files and those that Git ignores are left out, and secrets are cut out before anything is kept.
    """
    from loom.domain.memory.knowledge import checked_name  # noqa: PLC0415

    real = _folder(folder)
    checked_name(name)
    done = _with_store(lambda opened: _taken_in(opened, real, name, reembed=reembed, quiet=as_json))
    if as_json:
        print_json(done)
        return
    _print_done(done)


def list_bases(as_json: Json = False) -> None:
    """List the knowledge bases."""
    found = _with_store(lambda opened: opened.store.bases())
    if as_json:
        print_json([_base(base) for base in found])
        return
    _print_bases(found)


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Question or words.")],
    name: Annotated[str | None, typer.Option("--name", metavar="K", help="Only this knowledge base.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100, help="Most passages.")] = 5,
    as_json: Json = False,
) -> None:
    """Look something up, as a run would with search_knowledge."""
    from loom.domain.memory.knowledge import KnowledgeQuery, checked_name, knowledge_view  # noqa: PLC0415

    asked = KnowledgeQuery(text=query, bases=() if name is None else (checked_name(name),), limit=limit)
    hits = _with_store(lambda opened: _found(opened, asked))
    if as_json:
        print_json([knowledge_view(hit) for hit in hits])
        return
    _print_hits(hits)


def remove(
    name: Annotated[str, typer.Argument(metavar="K", help="Which knowledge base.")], as_json: Json = False
) -> None:
    """Forget a knowledge base; the documents themselves stay where they are."""
    from loom.domain.memory.knowledge import checked_name  # noqa: PLC0415

    checked_name(name)
    if not _with_store(lambda opened: opened.store.drop(name)):
        raise _no_base(name)
    if as_json:
        print_json({"removed": name})
    else:
        typer.echo(f"forgot {name}")


def missing_bases(settings: "Settings", names: Sequence[str]) -> tuple[str, ...]:
    """Those of the names that no base has; none where there is no database to ask, or it does not answer."""
    from loom.activities.ports import StoreUnavailable  # noqa: PLC0415

    async def asked() -> tuple[str, ...]:
        async with _open(settings.model_copy(update={"embedder": "off"})) as opened, asyncio.timeout(_PATIENCE):
            return await opened.store.missing(names)

    if settings.database_url is None or not names:
        return ()
    try:
        return asyncio.run(asked())
    except (StoreUnavailable, TimeoutError):
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opened:
    store: "PostgresKnowledge"
    embedder: "Embedder | None"
    settings: "Settings"


def _with_store(work: "Callable[[_Opened], Awaitable[T]]") -> T:
    """Do `work` with the store of these settings; raises UnreachableError when it is not there."""
    from loom.activities.ports import StoreUnavailable  # noqa: PLC0415
    from loom.composition.load_settings import load_settings  # noqa: PLC0415

    settings = load_settings()
    if settings.database_url is None:
        raise UnreachableError(NO_DATABASE)

    async def opened() -> T:
        async with _open(settings) as ready:
            return await work(ready)

    try:
        return asyncio.run(opened())
    except StoreUnavailable as error:
        raise UnreachableError(str(error)) from None


@asynccontextmanager
async def _open(settings: "Settings") -> AsyncIterator[_Opened]:
    from loom.activities.adapters.postgres.database import Database  # noqa: PLC0415
    from loom.activities.adapters.postgres.knowledge import PostgresKnowledge  # noqa: PLC0415
    from loom.composition.build import embedder_from  # noqa: PLC0415

    embedder = embedder_from(settings)
    database = Database(settings.database_url or "", max_connections=2, name="loom-knowledge")
    try:
        yield _Opened(store=PostgresKnowledge(database, embedder=embedder), embedder=embedder, settings=settings)
    finally:
        await database.aclose()
        if embedder is not None:
            await embedder.aclose()


async def _taken_in(opened: _Opened, folder: Path, name: str, *, reembed: bool, quiet: bool) -> "Ingested":
    from loom.activities.adapters.documents.readers import SeparateDocumentReader  # noqa: PLC0415
    from loom.activities.knowledge.ingest import Ingestion  # noqa: PLC0415
    from loom.composition.build import secret_mask  # noqa: PLC0415

    ingestion = Ingestion(
        opened.store,
        reader=SeparateDocumentReader(),
        redact=secret_mask(opened.settings).redact,
        embedder=opened.embedder,
        tell=(lambda _line: None) if quiet else (lambda line: tell(one_line(line))),
    )
    return await ingestion.take_in(folder, name, reembed=reembed)


async def _found(opened: _Opened, asked: "KnowledgeQuery") -> "tuple[KnowledgeHit, ...]":
    """What a base has; one that is not there is said to be missing, not to know nothing."""
    known = {base.name for base in await opened.store.bases()} if asked.bases else set()
    if missing := next((name for name in asked.bases if name not in known), None):
        raise _no_base(missing)
    return await opened.store.search(asked)


def _no_base(name: str) -> BadRequest:
    return BadRequest(f"there is no knowledge base {name!r}: `loom knowledge list` shows them", field="name")


def _folder(given: Path) -> Path:
    folder = given.expanduser().resolve()
    if not folder.is_dir():
        raise BadRequest(f"{given} is not a folder: name one with documents", field="dir")
    return folder


def _print_done(done: "Ingested") -> None:
    typer.echo(
        f"{done.name}: {done.added} added, {done.changed} changed, {done.removed} removed, {done.unchanged} unchanged;"
        f" {counted(done.chunks, 'new chunk')}, {counted(done.embedded, 'vector')}"
    )
    for path, reason in list(done.skipped.items())[:MOST_SKIPPED]:
        tell(f"left out: {visible(path)}: {one_line(reason)}")
    if len(done.skipped) > MOST_SKIPPED:
        tell(f"left out: … and {len(done.skipped) - MOST_SKIPPED} more")
    if done.waiting:
        waits = "waits" if done.waiting == 1 else "wait"
        tell(f"{counted(done.waiting, 'chunk')} {waits} for a vector, found by words alone: {done.without_vectors}")


def _print_bases(found: "tuple[KnowledgeBase, ...]") -> None:
    if not found:
        tell("there are none: loom knowledge add DIR --name K")
        return
    from rich.table import Table  # noqa: PLC0415

    table = Table("name", "documents", "chunks", "vectors", "folder", box=None)
    for base in found:
        table.add_row(base.name, str(base.documents), str(base.chunks), _vectors(base.vectors), plain(base.folder))
    console(wide=True).print(table)


def _vectors(vectors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {plain(model)}" for model, count in vectors.items()) or "none"


def _base(base: "KnowledgeBase") -> dict[str, Any]:
    return {
        "name": base.name,
        "folder": base.folder,
        "documents": base.documents,
        "chunks": base.chunks,
        "vectors": base.vectors,
        "updated_at": base.updated_at,
    }


def _print_hits(hits: "tuple[KnowledgeHit, ...]") -> None:
    from loom.domain.memory.knowledge import place_of  # noqa: PLC0415

    if not hits:
        tell("nothing relevant was found: ask in other words")
    for number, hit in enumerate(hits, start=1):
        typer.echo(f"[{number}] {hit.base}: {visible(place_of(hit.path, hit.chunk))} (score {hit.score:.2f})")
        typer.echo("".join(f"    {line}\n" for line in plain(hit.chunk.text).splitlines()))
