"""The `memory` commands, which manage memories of past runs.

These commands need Loom's Postgres database, but no worker.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer

from loom.activities.adapters.postgres.collection import PostgresStoredData
from loom.activities.adapters.postgres.database import Database, storable
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.adapters.postgres.person_facts import PostgresPersonFacts
from loom.activities.adapters.postgres.retention import drop, leftovers
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.adapters.redis.deletion import forget_runs
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.memory.ports import Embedder, EmbedderUnavailable
from loom.activities.memory.upkeep import embed
from loom.activities.ports import StoreUnavailable, StreamUnavailable
from loom.added_memory import NO_DATABASE, learn, memory_task
from loom.cli import person_facts
from loom.cli.arguments import Json, new_app
from loom.cli.connection import with_client
from loom.cli.logs import silence
from loom.cli.output import console, counted, one_line, plain, print_json, print_notice
from loom.client import LoomClient
from loom.composition.build import embedder_from
from loom.composition.encryption import opened_database
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.domain.core.errors import BadRequest, RunNotFoundError, UnreachableError
from loom.domain.core.tenants import EVERYBODY, Owner, OwnerFilter
from loom.domain.memory.layers import Forgotten, Layer, MemoryStats, Query, View, hit_view, memory_view
from loom.domain.memory.people import ForgottenFacts, fact_view, owner_named

T = TypeVar("T")

RUNNING_SINCE: Final = "WorkflowType IN ('AgentRun', 'CrewRun') AND (ExecutionStatus = 'Running' OR CloseTime > '{}')"

JsonLines: TypeAlias = Annotated[bool, typer.Option("--json", help="Has no effect: the output is always JSON lines.")]
Session: TypeAlias = Annotated[
    str | None, typer.Option("--session", metavar="S", help="Filter by session; default: all sessions.")
]
OneSession: TypeAlias = Annotated[str | None, typer.Option("--session", metavar="S", help="The session.")]
OneUser: TypeAlias = Annotated[
    str | None, typer.Option("--user", metavar="U", help="The person's id, as in the `user_id` of requests.")
]
OneTenant: TypeAlias = Annotated[
    str | None,
    typer.Option("--tenant", metavar="T", help="The person's tenant. Without --user: everybody in this tenant."),
]
FactId: TypeAlias = Annotated[int, typer.Argument(metavar="ID", help="The fact's id, which `list` prints.")]

_FORMATS: Final = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]

app = new_app("memory", "Search, export and delete memories of past runs.")


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Text to search for.")],
    *,
    session: Session = None,
    user: OneUser = None,
    tenant: OneTenant = None,
    layer: Annotated[
        list[Layer] | None, typer.Option(case_sensitive=False, help="Filter by layer; repeatable.")
    ] = None,
    action: Annotated[list[str] | None, typer.Option(help="Filter by action; repeatable.")] = None,
    node: Annotated[list[str] | None, typer.Option(help="Filter by agent; repeatable.")] = None,
    min_importance: Annotated[float, typer.Option(min=0, max=1, help="Minimum importance of memories.")] = 0.0,
    since: Annotated[
        datetime | None,
        typer.Option(
            formats=_FORMATS,
            metavar="TIME",
            help="Only memories from this time on, such as 2026-01-31 or 2026-01-31T12:00. UTC unless you add a zone.",
        ),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(formats=_FORMATS, metavar="TIME", help="Only memories from before this time.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(min=-1, max=1, help="Minimum similarity of hits that don't contain the words.")
    ] = 0.0,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of hits.")] = 10,
    as_json: Json = False,
) -> None:
    """Search by words and by meaning, best hits first.

    A session belongs to the user and the tenant of its runs, and different people can have sessions of the same name.
    Without --user and --tenant, this searches everybody's memories.
    """
    if not query.strip():
        raise BadRequest("the query is empty: pass words to search for")
    view = View(
        session_id=session,
        owner=None,
        of=_of(user, tenant),
        layers=frozenset(layer or ()),
        actions=frozenset(action or ()),
        nodes=frozenset(node or ()),
        min_importance=min_importance,
        since=_with_zone(since),
        until=_with_zone(until),
        limit=limit,
    )
    hits = _with_memory(lambda opened: opened.memory.recall(Query(text=query, view=view, threshold=threshold)))
    if as_json:
        print_json([hit_view(hit) for hit in hits])
        return
    out = console(wide=True)
    for hit in hits:
        memory = hit.memory
        owner = Owner(user_id=memory.user_id, tenant=memory.tenant).named
        whose = f" of {owner}" if owner else ""
        where = f"session {memory.session_id}{whose}, run {memory.run_id}, {memory.created_at:%Y-%m-%d %H:%M}"
        out.print(plain(f"{memory.id:>6}  {hit.layer}  {hit.score:.2f}  {memory.action} of {memory.node}, {where}"))
        out.print(f"        {one_line(memory.content, 140)}")
    if not hits:
        print_notice("no memory matches")


@app.command()
def add(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text to remember.")],
    *,
    session: Annotated[
        str | None, typer.Option("--session", metavar="S", help="Session whose runs can find it.")
    ] = None,
    for_all: Annotated[bool, typer.Option("--global", help="Let the runs of all sessions find it.")] = False,
    user: OneUser = None,
    tenant: OneTenant = None,
    by: Annotated[str, typer.Option(metavar="NAME", help="Name of the speaker.")] = "",
    importance: Annotated[float, typer.Option(min=0, max=1, help="Importance, from 0 to 1.")] = 0.8,
    as_json: Json = False,
) -> None:
    """Add a memory.

    Runs can find it like a message from a person. With --session, the runs of one session can find it, which belongs to
    the person or the tenant that you name. With --global, all runs of the tenant can find it, or all runs without a
    tenant. With --user or --tenant alone, it is a fact for all runs of a person, or of everybody in a tenant.
    """
    owner = Owner() if user is None and tenant is None else owner_named(user, tenant)
    if owner != Owner() and session is None and not for_all:
        _with_memory(lambda opened: learn(opened.people, owner, text))
        facts = {"user_id": user, "tenant": tenant}
        print_json(facts) if as_json else typer.echo(f"added to the facts about {plain(owner.named)}")
        return
    task = memory_task(text, session, for_all=for_all, by=by, importance=importance, owner=owner)
    _with_memory(lambda opened: opened.memory.remember([task]))
    if as_json:
        print_json({"task_id": task.task_id, "session_id": task.session_id})
        return
    typer.echo(f"added as {task.task_id}")


@app.command()
def show(
    memory_id: Annotated[int, typer.Argument(metavar="ID", help="The memory's id, which `search` prints.")],
    as_json: Json = False,
) -> None:
    """Show a memory and its source.

    The output includes the complete Task if Loom still stores it.
    """
    memory = _with_memory(lambda opened: opened.memory.by_id(memory_id))
    if memory is None:
        raise RunNotFoundError(f"there is no memory {memory_id}: `loom memory search` prints ids")
    facts = memory_view(memory, whole=True)
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if value not in (None, "") and name not in ("content", "task"):
            console().print(plain(f"{name:<15} {value}"))
    console().print(f"\n{plain(memory.content)}")


@app.command()
def stats(session: Session = None, as_json: Json = False) -> None:
    """Count sessions, Tasks, layers and vectors in memory.

    Without --session, this also counts what runs have stored outside their histories. Loom deletes that data when the
    Temporal server has deleted the runs.
    """
    found, data = _with_memory(partial(_stats, session))
    if as_json:
        sizes = {kind.replace(" ", "_"): {"count": count, "bytes": size} for kind, (count, size) in data.items()}
        print_json({**asdict(found), **({"stored": sizes} if sizes else {})})
        return
    for name, value in asdict(found).items():
        shown = ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else value
        console().print(plain(f"{name:<11} {shown}"))
    for kind, (count, size) in data.items():
        console().print(plain(f"stored      {count} {kind} ({size:,} bytes)"))


@app.command("list")
def list_facts(
    user: OneUser = None,
    tenant: OneTenant = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Include facts that newer ones have replaced.")] = False,
    as_json: Json = False,
) -> None:
    """List what Loom remembers about a person, newest first.

    These are preferences, decisions and corrections. The person's runs see them in every session.
    """
    owner = owner_named(user, tenant)
    facts = _with_memory(lambda opened: opened.people.listed(owner, with_replaced=every))
    person_facts.show(owner, facts, as_json=as_json)


@app.command()
def edit(
    fact_id: FactId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The new text.")],
    *,
    user: OneUser = None,
    tenant: OneTenant = None,
    as_json: Json = False,
) -> None:
    """Correct a fact about a person. Loom forgets the old text."""
    owner = owner_named(user, tenant)
    _with_memory(lambda opened: person_facts.edit(opened.people, owner, fact_id, text))
    if as_json:
        print_json({"edited": fact_id})
        return
    typer.echo(f"edited fact {fact_id} of {plain(owner.named)}; it has a new id")


@app.command()
def export(
    session: OneSession = None, user: OneUser = None, tenant: OneTenant = None, as_json: JsonLines = False
) -> None:
    """Print all stored data of a session, or all facts about a person, as JSON lines.

    With --session, --user and --tenant say whose session it is. Without them, this prints the data of everybody who has
    a session of this name. Entries with a version are notes that agents wrote.
    """
    del as_json
    if session is None:
        owner = owner_named(user, tenant)
        for fact in _with_memory(lambda opened: opened.people.listed(owner, with_replaced=True)):
            print_json(fact_view(fact))
        return
    of = _of(user, tenant)

    async def lines(opened: Opened) -> None:
        async for memory in opened.memory.export(session, of):
            print_json(memory_view(memory, whole=True))
        for note in await PostgresScopedMemory(opened.database).export(session, of):
            print_json(note)

    _with_memory(lines)


@app.command()
def forget(
    session: OneSession = None,
    user: OneUser = None,
    tenant: OneTenant = None,
    *,
    fact_id: Annotated[int | None, typer.Option("--id", metavar="ID", help="Only this fact about the person.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Permanently delete all memories of a session, or what Loom remembers about a person.

    With --session, this deletes the session's memories, its agents' notes, stored tool outputs, recorded call results,
    and its runs' data in Redis. --user and --tenant say whose session it is. Without them, this deletes the data of
    everybody who has a session of this name.

    With --user alone, this deletes all facts about the person, and the same data of all runs that named the person, in
    every session. With --id, it deletes only one fact. With --tenant alone, it deletes the facts for everybody in it.
    From its next model call on, no run sees these facts.

    The run histories and the payloads that they need stay on the Temporal server for the namespace's retention period.
    The command lists what it could not delete.
    """
    if session is None:
        _forget_facts(owner_named(user, tenant), fact_id, ask=not yes and not as_json, as_json=as_json)
        return
    if fact_id is not None:
        raise BadRequest("--id is the id of a fact, and facts belong to no session: leave out --session", field="id")
    of = _of(user, tenant)
    whose = "" if of == EVERYBODY else f" of {plain(owner_named(user, tenant).named)}"
    if not yes and not as_json and sys.stdin.isatty():
        typer.confirm(f"Forget all of session {plain(session)!r}{whose or ' of everybody'}?", abort=True)
    gone, live, left = _with_memory(partial(_forget, session, of))
    counts = {**person_facts.trace_counts(gone), "key": live}
    if as_json:
        views = {f"{noun}s": count for noun, count in counts.items()}
        print_json({"session_id": session, "forgotten": gone.memories + gone.notes, **views, "left": left})
        return
    others = person_facts.told_counts(counts)
    memories = counted(gone.memories, "memory", "memories")
    typer.echo(f"forgot {', '.join([memories, *others])} of session {plain(session)}{whose}")
    for reason in left:
        print_notice(reason)


@app.command()
def retain(
    older_than: Annotated[int, typer.Option(min=1, max=100_000, metavar="DAYS", help="Days since the run ended.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report the data to delete without deleting it.")] = False,
    as_json: Json = False,
) -> None:
    """Delete tool outputs and results of runs that ended long ago.

    Loom asks the Temporal server which runs have ended. Memories have separate limits, which you set in
    [memory_limits]. Payloads that are too large for a history are kept as long as the server has their runs.
    """
    before = datetime.now(UTC) - timedelta(days=older_than)
    try:
        done = with_client(lambda loom: _retain(loom, before, dry_run=dry_run))
    except StoreUnavailable as error:
        raise UnreachableError(str(error)) from error
    if as_json:
        print_json({"before": before, "dry_run": dry_run, **done})
        return
    what = (
        f"{counted(done['artifacts'], 'artifact')} and {counted(done['effects'], 'effect')} ({done['bytes']:,} bytes)"
    )
    runs = f"{counted(done['runs'], 'run')} that ended more than {counted(older_than, 'day')} ago"
    others = "still running, or ended later"
    typer.echo(f"{'would delete' if dry_run else 'deleted'} {what} of {runs}; {done['kept']} others are {others}")


@app.command()
def reembed(as_json: Json = False) -> None:
    """Compute missing vectors with the configured embedder.

    Until you run this command, a search finds some memories only by their words: those without a vector, and those
    with another embedder's vector.
    """
    done = _with_memory(_reembed)
    if as_json:
        print_json({"embedded": done})
        return
    typer.echo(f"embedded {counted(done, 'text')}")


def _forget_facts(owner: Owner, fact_id: int | None, *, ask: bool, as_json: bool) -> None:
    if ask and fact_id is None and sys.stdin.isatty():
        runs = " and all that the user's runs have left" if owner.user_id else ""
        typer.confirm(f"Forget all facts of {plain(owner.named)}{runs}?", abort=True)
    gone, live, left = _with_memory(partial(_forget_of_person, owner, fact_id))
    person_facts.tell_forgotten(owner, gone, live, left, as_json=as_json)


def _of(user: str | None, tenant: str | None) -> OwnerFilter:
    """Return whose memories are meant: everybody's, those of one person, or those of all runs of a tenant.

    Raises BadRequest if a name is invalid.
    """
    if user is None and tenant is None:
        return EVERYBODY
    owner = owner_named(user, tenant)
    return OwnerFilter(tenant=owner.tenant, user_id=user)


def _with_zone(at: datetime | None) -> datetime | None:
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The memory of a worker with these settings."""

    memory: PostgresMemory
    people: PostgresPersonFacts
    database: Database
    embedder: Embedder | None
    settings: Settings


def _with_memory(work: Callable[[Opened], Awaitable[T]]) -> T:
    """Call `work` with the configured memory. Raises UnreachableError if the memory can't be reached."""
    settings = load_settings()
    silence()

    async def opened() -> T:
        async with _opened(settings) as found:
            return await work(found)

    try:
        return asyncio.run(opened())
    except (StoreUnavailable, EmbedderUnavailable) as error:
        raise UnreachableError(str(error)) from error


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Opened]:
    if settings.database_url is None:
        raise UnreachableError(NO_DATABASE)
    embedder = embedder_from(settings)
    try:
        async with opened_database(settings, max_connections=2, name="loom-memory") as database:
            memory = PostgresMemory(database, embedder=embedder, settings=settings.memory_limits)
            people = PostgresPersonFacts(database, embedder=embedder, settings=settings.memory_limits)
            yield Opened(memory=memory, people=people, database=database, embedder=embedder, settings=settings)
    finally:
        if embedder is not None:
            await embedder.aclose()


async def _forget(session: str, of: OwnerFilter, opened: Opened) -> tuple[Forgotten, int, list[str]]:
    """Return the counts of deleted entries and Redis keys, and messages about data that couldn't be deleted."""
    gone = await opened.memory.forget(session, of)
    return gone, *(await _forget_runs(opened, gone))


async def _forget_of_person(owner: Owner, fact_id: int | None, opened: Opened) -> tuple[ForgottenFacts, int, list[str]]:
    """Return the same for a person. Without a user, and with a fact's id, only facts are deleted."""
    gone = await person_facts.forget(opened.people, owner, fact_id)
    if gone.traces is None:
        told = "not deleted: memories of session {}; use `loom memory forget --session`"
        return gone, 0, [told.format(name) for name in gone.sessions]
    live, left = await _forget_runs(opened, gone.traces)
    left.append("not deleted: what the person said in runs that name another user, or none")
    if gone.traces.unnamed:
        left.append("not deleted: memories of an earlier release, which don't name a user; they belong to sessions")
    return gone, live, left


async def _forget_runs(opened: Opened, gone: Forgotten) -> tuple[int, list[str]]:
    """Delete the data of these runs in Redis. Return the number of keys, and the runs with remaining data."""
    live, left = 0, []
    if gone.effects_left:
        left.append(f"not deleted: {counted(gone.effects_left, 'effect')} of runs that may still be running")
    if opened.settings.redis_url is not None and gone.runs:
        try:
            live = await forget_runs(opened.settings.redis_url, gone.runs)
        except (StreamUnavailable, TimeoutError):
            runs = counted(len(gone.runs), "run")
            left.append(f"not deleted: data of {runs} in Redis, which is not responding; it expires within seven days")
    return live, left


async def _retain(loom: LoomClient, before: datetime, *, dry_run: bool) -> dict[str, Any]:
    """Delete the remaining data of runs that ended before `before`. With `dry_run`, only count that data."""
    url = load_settings().database_url
    if url is None:
        raise UnreachableError("nothing is stored without a database: start `loom up`, or set LOOM_DATABASE_URL")
    database = Database(url, max_connections=2, name="loom-retain")
    try:
        found = await leftovers(database, before)
        # Query the server after the database. A run that starts between the two queries can't have left data this old.
        running = await _running_since(loom, before)
        ended = [left for left in found if running.isdisjoint(_with_ancestors(left.run_id))]
        if not dry_run:
            await drop(database, [left.run_id for left in ended], before)
    finally:
        await database.aclose()
    return {
        "runs": len(ended),
        "artifacts": sum(left.artifacts for left in ended),
        "effects": sum(left.effects for left in ended),
        "bytes": sum(left.size for left in ended),
        "kept": len(found) - len(ended),
    }


async def _running_since(loom: LoomClient, since: datetime) -> Set[str]:
    """Return the ids of runs that are still running or ended after `since`."""
    query = RUNNING_SINCE.format(since.strftime("%Y-%m-%dT%H:%M:%SZ"))
    return {storable(execution.id) async for execution in TemporalRuns(loom.temporal).found(query)}


def _with_ancestors(run_id: str) -> list[str]:
    """Return the run's id and its ancestors' ids.

    While a root run is running, its sub-agents' outputs may still be read. A run's id starts with its ancestors' ids.
    """
    parts = run_id.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


async def _stats(session: str | None, opened: Opened) -> tuple[MemoryStats, dict[str, tuple[int, int]]]:
    found = await opened.memory.stats(session)
    return found, {} if session else await PostgresStoredData(opened.database).sizes()


async def _reembed(opened: Opened) -> int:
    embedder = opened.embedder
    if embedder is None:
        raise BadRequest("no embedder is configured, so there are no vectors to compute", field="embedder")
    limits = opened.settings.memory_limits
    upkeep = PostgresMemoryUpkeep(opened.database, model=embedder.model, dimension=embedder.dimension, settings=limits)
    done = 0
    for store in (upkeep, opened.people):
        done += await embed(store, embedder, limits.batch, other_models=True)
        done += await embed(store, embedder, limits.batch)
    return done
