"""memory: what is remembered of runs; searching, showing, exporting and forgetting it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from loom.cli.commands.memory_retain import retain
from loom.cli.output import console, counted, one_line, plain, print_json, tell
from loom.domain.core.errors import BadRequest, RunNotFoundError, UnreachableError
from loom.domain.memory.layers import Layer, Query, View, hit_view, memory_view

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.activities.adapters.postgres.database import Database
    from loom.activities.adapters.postgres.memory import PostgresMemory
    from loom.activities.memory.ports import Embedder
    from loom.composition.settings import Settings
    from loom.domain.memory.layers import Forgotten

T = TypeVar("T")

NO_DATABASE: Final = "nothing is remembered without a database: start `loom up`, or set LOOM_DATABASE_URL"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Changes nothing: JSON lines are all that is printed.")]
Session = Annotated[str | None, typer.Option("--session", metavar="S", help="Only this session; default: all.")]
ThisSession = Annotated[str, typer.Option("--session", metavar="S", help="The session.")]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The memory that a worker with these settings has."""

    memory: "PostgresMemory"
    database: "Database"
    embedder: "Embedder | None"
    settings: "Settings"


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Memory: what is kept of runs, by session.", no_args_is_help=True)
    for command in (search, show, stats, export, forget, retain, reembed):
        group.command()(command)
    app.add_typer(group, name="memory")


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for, in words.")],
    *,
    session: Session = None,
    layer: Annotated[
        list[Layer] | None, typer.Option(case_sensitive=False, help="Only this layer; repeatable.")
    ] = None,
    action: Annotated[list[str] | None, typer.Option(help="Only this action; repeatable.")] = None,
    node: Annotated[list[str] | None, typer.Option(help="Only this agent; repeatable.")] = None,
    min_importance: Annotated[float, typer.Option(min=0, max=1, help="Only what is at least that important.")] = 0.0,
    threshold: Annotated[
        float, typer.Option(min=-1, max=1, help="Least similarity of what only means the same.")
    ] = 0.0,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Most hits.")] = 10,
    as_json: Json = False,
) -> None:
    """Search by words and by meaning, best first."""
    view = View(
        session_id=session,
        layers=frozenset(layer or ()),
        actions=frozenset(action or ()),
        nodes=frozenset(node or ()),
        min_importance=min_importance,
        limit=limit,
    )
    hits = _with_memory(lambda opened: opened.memory.recall(Query(text=query, view=view, threshold=threshold)))
    if as_json:
        print_json([hit_view(hit) for hit in hits])
        return
    out = console(wide=True)
    for hit in hits:
        memory = hit.memory
        where = f"session {memory.session_id}, run {memory.run_id}, {memory.created_at:%Y-%m-%d %H:%M}"
        out.print(plain(f"{memory.id:>6}  {hit.layer}  {hit.score:.2f}  {memory.action} of {memory.node}, {where}"))
        out.print(f"        {one_line(memory.content, 140)}")
    if not hits:
        tell("nothing of that is remembered")


def show(
    memory_id: Annotated[int, typer.Argument(metavar="ID", help="The memory's id, as a search gives it.")],
    as_json: Json = False,
) -> None:
    """Show one memory with where it comes from, and its Task where that is still kept whole."""
    memory = _with_memory(lambda opened: opened.memory.by_id(memory_id))
    if memory is None:
        raise RunNotFoundError(f"there is no memory {memory_id}: `loom memory search` gives ids")
    facts = memory_view(memory, whole=True)
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if value not in (None, "") and name not in ("content", "task"):
            console().print(plain(f"{name:<15} {value}"))
    console().print(f"\n{plain(memory.content)}")


def stats(session: Session = None, as_json: Json = False) -> None:
    """How much is remembered: sessions, Tasks, layers, vectors."""
    found = _with_memory(lambda opened: opened.memory.stats(session))
    if as_json:
        print_json(found)
        return
    for name, value in asdict(found).items():
        shown = ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else value
        console().print(plain(f"{name:<11} {shown}"))


def export(session: ThisSession, as_json: JsonLines = False) -> None:
    """Print everything that is kept of a session, one JSON object a line; agents' notes are those with a version."""
    from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory  # noqa: PLC0415

    del as_json  # it always is

    async def lines(opened: Opened) -> None:
        async for memory in opened.memory.export(session):
            print_json(memory_view(memory, whole=True))
        for note in await PostgresScopedMemory(opened.database).export(session):
            print_json(note)

    _with_memory(lines)


def forget(
    session: ThisSession,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete everything of a session for good; what was said in it until now never comes back.

    With its memories go what its agents wrote, whole outputs, results of calls, and what Redis has of its runs. The
    histories of its runs on the Temporal server stay, with the payloads they need: their retention is the namespace's.
    """
    if not yes and not as_json and sys.stdin.isatty():
        typer.confirm(f"Forget all of session {plain(session)!r}?", abort=True)
    gone, live, left = _with_memory(partial(_forgotten, session))
    counts = {"note": gone.notes, "artifact": gone.artifacts, "effect": gone.effects, "key": live}
    if as_json:
        told = {f"{noun}s": count for noun, count in counts.items()}
        print_json({"session_id": session, "forgotten": gone.memories + gone.notes, **told, "left": left})
        return
    others = [f"{counted(n, noun)}{' in Redis' if noun == 'key' else ''}" for noun, n in counts.items() if n]
    memories = counted(gone.memories, "memory", "memories")
    typer.echo(f"forgot {', '.join([memories, *others])} of session {plain(session)}")
    for reason in left:
        tell(reason)


async def _forgotten(session: str, opened: Opened) -> "tuple[Forgotten, int, list[str]]":
    from loom.activities.adapters.redis.deletion import forget_runs  # noqa: PLC0415
    from loom.activities.ports import StreamUnavailable  # noqa: PLC0415

    gone, live, left = await opened.memory.forget(session), 0, []
    if gone.effects_left:
        left.append(f"left: {counted(gone.effects_left, 'effect')} of runs that may still go on")
    if opened.settings.redis_url is not None and gone.runs:
        try:
            live = await forget_runs(opened.settings.redis_url, gone.runs)
        except (StreamUnavailable, TimeoutError):
            left.append(f"left: what Redis has of {counted(len(gone.runs), 'run')}, for up to seven days: it is away")
    return gone, live, left


def reembed(as_json: Json = False) -> None:
    """Give vectors of the configured embedder to what has those of another; until then it is found by words only."""
    done = _with_memory(_reembedded)
    if as_json:
        print_json({"embedded": done})
        return
    typer.echo(f"embedded {counted(done, 'text')}")


async def _reembedded(opened: Opened) -> int:
    from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep  # noqa: PLC0415
    from loom.activities.memory.upkeep import embed  # noqa: PLC0415

    embedder = opened.embedder
    if embedder is None:
        raise BadRequest("no embedder is configured, so there are no vectors to make", field="embedder")
    limits = opened.settings.memory_limits
    upkeep = PostgresMemoryUpkeep(opened.database, model=embedder.model, dimension=embedder.dimension, settings=limits)
    others = await embed(upkeep, embedder, limits.batch, other_models=True)
    return others + await embed(upkeep, embedder, limits.batch)


def _with_memory(work: "Callable[[Opened], Awaitable[T]]") -> T:
    """Do `work` with the memory of the settings; raises UnreachableError when it is not there."""
    from loom.activities.memory.ports import EmbedderUnavailable  # noqa: PLC0415
    from loom.activities.ports import StoreUnavailable  # noqa: PLC0415
    from loom.cli.connection import quiet_logs  # noqa: PLC0415
    from loom.composition.load_settings import load_settings  # noqa: PLC0415

    settings = load_settings()
    quiet_logs()

    async def opened() -> T:
        async with _opened(settings) as found:
            return await work(found)

    try:
        return asyncio.run(opened())
    except (StoreUnavailable, EmbedderUnavailable) as error:
        raise UnreachableError(str(error)) from error


@asynccontextmanager
async def _opened(settings: "Settings") -> AsyncIterator[Opened]:
    from loom.activities.adapters.postgres.database import Database  # noqa: PLC0415
    from loom.activities.adapters.postgres.memory import PostgresMemory  # noqa: PLC0415
    from loom.composition.build import embedder_from  # noqa: PLC0415

    if settings.database_url is None:
        raise UnreachableError(NO_DATABASE)
    embedder = embedder_from(settings)
    database = Database(settings.database_url, max_connections=2, name="loom-memory")
    memory = PostgresMemory(database, embedder=embedder, settings=settings.memory_limits)
    try:
        yield Opened(memory=memory, database=database, embedder=embedder, settings=settings)
    finally:
        await database.aclose()
        if embedder is not None:
            await embedder.aclose()
