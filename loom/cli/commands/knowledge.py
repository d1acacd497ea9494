"""The `knowledge` commands, which manage the documents that runs can search.

These commands need Loom's Postgres database, but no worker. A knowledge base belongs to the tenant that --tenant
names, or to the operator.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer
from rich.table import Table

from loom.activities.adapters.documents.readers import SeparateDocumentReader
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.knowledge import PostgresKnowledge
from loom.activities.knowledge.ingest import Ingestion
from loom.activities.memory.ports import Embedder
from loom.activities.ports import StoreUnavailable
from loom.cli.arguments import Json, local_path, new_app
from loom.cli.output import console, counted, one_line, plain, print_json, print_notice, visible
from loom.composition.build import embedder_from
from loom.composition.load_settings import load_settings
from loom.composition.secret_mask import secret_mask
from loom.composition.settings import Settings
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.tenants import checked_tenant
from loom.domain.memory.knowledge import (
    Ingested,
    KnowledgeBase,
    KnowledgeHit,
    KnowledgeQuery,
    checked_name,
    knowledge_view,
    place_of,
)

T = TypeVar("T")

NO_DATABASE: Final = "knowledge bases need a database: start `loom up`, or set LOOM_DATABASE_URL"
MAX_SKIPPED: Final = 20
"""Maximum number of skipped files to print."""
TIMEOUT: Final = 5.0
"""Timeout in seconds for a query whose result only causes warnings."""

Name: TypeAlias = Annotated[str, typer.Option("--name", metavar="K", help="Name of the knowledge base.")]
OneTenant: TypeAlias = Annotated[
    str | None,
    typer.Option("--tenant", metavar="T", help="The tenant whose knowledge base it is; default: the operator's."),
]

app = new_app("knowledge", "Manage knowledge bases: documents that runs can search.")


@app.command()
def add(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that contains the documents.")],
    name: Name,
    tenant: OneTenant = None,
    reembed: Annotated[
        bool, typer.Option("--reembed", help="Recompute all vectors with the configured embedder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ingest a folder of documents, or its latest changes.

    Loom reads Markdown, text, source code, HTML and PDF files. It skips hidden files and files that Git ignores, and
    redacts secrets before it stores anything. If a knowledge base has a tenant, only runs of this tenant can search it.
    """
    real = _folder(folder)
    checked_name(name)
    whose = _tenant(tenant)
    done = _with_store(lambda opened: _ingest(opened, real, name, whose, reembed=reembed, quiet=as_json))
    if as_json:
        print_json(done)
        return
    _print_ingested(done)


@app.command("list")
def list_bases(
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="T", help="List only the knowledge bases of this tenant.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the knowledge bases of the operator and of all tenants."""
    whose = None if tenant is None else checked_tenant(tenant)
    found = _with_store(lambda opened: opened.store.bases(tenant=whose))
    if whose is not None:
        found = tuple(base for base in found if base.tenant == whose)
    if as_json:
        print_json([_base_view(base) for base in found])
        return
    _print_bases(found)


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A question or keywords.")],
    name: Annotated[str | None, typer.Option("--name", metavar="K", help="Search only this knowledge base.")] = None,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="T", help="Search as runs of this tenant do; default: runs without a tenant."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100, help="Maximum number of passages.")] = 5,
    as_json: Json = False,
) -> None:
    """Search knowledge bases as the search_knowledge tool does.

    With --tenant, this searches the tenant's knowledge bases, and the operator's knowledge bases with other names.
    Otherwise, it searches only the operator's.
    """
    names = () if name is None else (checked_name(name),)
    asked = KnowledgeQuery(text=query, tenant=_tenant(tenant), bases=names, limit=limit)
    hits = _with_store(lambda opened: _search(opened, asked))
    if as_json:
        print_json([knowledge_view(hit) for hit in hits])
        return
    _print_hits(hits)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="K", help="Name of the knowledge base.")],
    tenant: OneTenant = None,
    as_json: Json = False,
) -> None:
    """Delete a knowledge base, but keep the original documents."""
    checked_name(name)
    whose = _tenant(tenant)
    if not _with_store(lambda opened: opened.store.drop(name, tenant=whose)):
        raise _no_base(name, whose)
    if as_json:
        print_json({"removed": name, "tenant": whose})
    else:
        typer.echo(f"forgot {_named(name, whose)}")


def missing_bases(settings: Settings, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that no base has, neither of the operator nor of a tenant.

    The result is empty if the database is missing or unavailable.
    """

    async def query() -> tuple[str, ...]:
        async with _open(settings.model_copy(update={"embedder": "off"})) as opened, asyncio.timeout(TIMEOUT):
            return await opened.store.missing(names)

    if settings.database_url is None or not names:
        return ()
    try:
        return asyncio.run(query())
    except (StoreUnavailable, TimeoutError):
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    store: PostgresKnowledge
    embedder: Embedder | None
    settings: Settings


def _with_store(work: Callable[[Opened], Awaitable[T]]) -> T:
    """Call `work` with the configured store. Raises UnreachableError if the store can't be reached."""
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
async def _open(settings: Settings) -> AsyncIterator[Opened]:
    embedder = embedder_from(settings)
    database = Database(settings.database_url or "", max_connections=2, name="loom-knowledge")
    try:
        yield Opened(store=PostgresKnowledge(database, embedder=embedder), embedder=embedder, settings=settings)
    finally:
        await database.aclose()
        if embedder is not None:
            await embedder.aclose()


async def _ingest(opened: Opened, folder: Path, name: str, tenant: str, *, reembed: bool, quiet: bool) -> Ingested:
    ingestion = Ingestion(
        opened.store,
        reader=SeparateDocumentReader(),
        redact=secret_mask(opened.settings).redact,
        embedder=opened.embedder,
        tell=(lambda _line: None) if quiet else (lambda line: print_notice(one_line(line))),
    )
    return await ingestion.take_in(folder, name, tenant=tenant, reembed=reembed)


async def _search(opened: Opened, asked: KnowledgeQuery) -> tuple[KnowledgeHit, ...]:
    """Search the bases. Raises BadRequest if a base doesn't exist."""
    for name in await opened.store.missing(asked.bases, tenant=asked.tenant):
        raise _no_base(name, asked.tenant)
    return await opened.store.search(asked)


def _tenant(given: str | None) -> str:
    """Return the name of the tenant, or an empty string for the operator. Raises BadRequest if the name is invalid."""
    return "" if given is None else checked_tenant(given)


def _named(name: str, tenant: str) -> str:
    return f"{name} of the tenant {tenant}" if tenant else name


def _no_base(name: str, tenant: str) -> BadRequest:
    whose = f" for the tenant {tenant}" if tenant else ""
    return BadRequest(
        f"there is no knowledge base {name!r}{whose}: `loom knowledge list` shows all bases", field="name"
    )


def _folder(given: Path) -> Path:
    folder = local_path(given, "DIR").resolve()
    if not folder.is_dir():
        raise BadRequest(f"{given} is not a folder", field="dir")
    return folder


def _print_ingested(done: Ingested) -> None:
    typer.echo(
        f"{_named(done.name, done.tenant)}:"
        f" {done.added} added, {done.changed} changed, {done.removed} removed, {done.unchanged} unchanged;"
        f" {counted(done.chunks, 'new chunk')}, {counted(done.embedded, 'vector')}"
    )
    for path, reason in list(done.skipped.items())[:MAX_SKIPPED]:
        print_notice(f"skipped: {visible(path)}: {one_line(reason)}")
    if len(done.skipped) > MAX_SKIPPED:
        print_notice(f"skipped: … and {len(done.skipped) - MAX_SKIPPED} more")
    if done.waiting:
        print_notice(f"{counted(done.waiting, 'chunk')} without a vector, found by words only: {done.without_vectors}")


def _print_bases(found: tuple[KnowledgeBase, ...]) -> None:
    if not found:
        print_notice("no knowledge bases; add one with `loom knowledge add DIR --name K`")
        return

    table = Table("name", "tenant", "documents", "chunks", "vectors", "folder", box=None)
    for base in found:
        counts = (str(base.documents), str(base.chunks), _vectors(base.vectors))
        table.add_row(base.name, base.tenant, *counts, plain(base.folder))
    console(wide=True).print(table)


def _vectors(vectors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {plain(model)}" for model, count in vectors.items()) or "none"


def _base_view(base: KnowledgeBase) -> dict[str, Any]:
    return {
        "name": base.name,
        "tenant": base.tenant,
        "folder": base.folder,
        "documents": base.documents,
        "chunks": base.chunks,
        "vectors": base.vectors,
        "updated_at": base.updated_at,
    }


def _print_hits(hits: tuple[KnowledgeHit, ...]) -> None:
    if not hits:
        print_notice("no passage matches; try other words")
    for number, hit in enumerate(hits, start=1):
        place = f"{_named(hit.base, hit.tenant)}: {visible(place_of(hit.path, hit.chunk))}"
        typer.echo(f"[{number}] {place} (score {hit.score:.2f})")
        typer.echo("".join(f"    {line}\n" for line in plain(hit.chunk.text).splitlines()))
