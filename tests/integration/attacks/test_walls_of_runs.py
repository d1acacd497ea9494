"""Runs, chats, clients and commands of two tenants and their users, with equal names for everything, keep the walls."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from typer.main import get_command

from loom.activities.adapters.postgres.database import Database
from loom.app.loom_app import LoomApp
from loom.chat_session import ChatSession
from loom.cli.main import LazyCommand, build_app
from loom.client import LoomClient
from loom.domain.core.requests import ForkedFrom, RunStatus
from loom.domain.core.tenants import Owner
from loom.exit_codes import COMPLETED, USAGE
from loom.testing.harness import Harness
from loom.testing.model_server import ModelServer, Reply, Script, SeenRequest, ToolUse, calls, text
from loom.testing.waiting import eventually
from loom.workflows.memory_upkeep import upkeep_id
from tests.commands import Commands, commands_in
from tests.integration.activities.conftest import RedisServer
from tests.integration.attacks.walls import (
    OPERATORS,
    READS_OF_ITS_RUN,
    SESSION,
    TOOL_READS,
    TOOLS_THAT_WRITE,
    WRITES,
    Sees,
    Source,
    World,
    any_of,
    collected,
    newest,
    of_tenant,
    own,
    searched,
)
from tests.integration.workflows.conftest import Working

QUESTION: Final = "What is the plan of the company?"
READ_BY_MODEL: Final = (
    *(ToolUse(name, arguments, f"r{number}") for number, (name, (arguments, *_)) in enumerate(TOOL_READS.items())),
    ToolUse(READS_OF_ITS_RUN, {"query": "plan"}, "h1"),
)
OF_A_RUN: Final = any_of(own(*Source), of_tenant(Source.PUBLISHED), searched(Source.DOCUMENT))
"""What the runs of an owner may see."""
OF_A_TENANT: Final = of_tenant(*Source)


@dataclass
class Told:
    """The words that the first run of an owner leaves, by where it leaves them."""

    owner: Owner
    task: str
    local: str
    shared: str
    published: str
    artifact: str
    command: str
    answer: str

    @property
    def run_id(self) -> str:
        """The id of the owner's first run."""
        return f"run-{self.task}"

    @property
    def request(self) -> dict[str, Any]:
        """The fields that name the owner."""
        return {name: of for name, of in (("tenant", self.owner.tenant), ("user_id", self.owner.user_id)) if of}


def _told(world: World, owner: Owner) -> Told:
    fact = (Source.FACT,) if owner.user_id else ()
    sources = ((Source.SAID, *fact), (Source.SAID,), (Source.SAID,), (Source.PUBLISHED,), *[(Source.SAID,)] * 3)
    return Told(owner, *(world.word(owner, *each) for each in sources))


def _script(world: World, told: Sequence[Told]) -> Script:
    """A model that does what the last message of a person is about. In a chat, it tells everything that it has read."""

    def reply(request: SeenRequest) -> Reply:
        texts = [(at, str(m["content"])) for at, m in enumerate(request.messages) if m["role"] == "user"]
        at, said = [(at, said) for at, said in texts if said.startswith(("I always", "Chat", QUESTION))][-1]
        turn = sum(message["role"] == "assistant" for message in request.messages[at:])
        if said.startswith(QUESTION):
            return text("done") if turn else calls(*READ_BY_MODEL)
        words = next((each for each in told if each.task in said), None)
        if words is None or said.startswith("Chat"):
            return text(f"I have read {' '.join(sorted(world.seen_in(request.body)))}.")
        if turn == 0:
            notes = (("plan-local", words.local, "local"), ("plan-shared", words.shared, "shared"))
            return calls(
                *(
                    ToolUse("write_memory", {"id": name, "content": f"The plan is {word}.", "scope": scope}, name)
                    for name, word, scope in notes
                ),
                ToolUse("publish_memory", {"id": "plan-global", "content": f"The plan is {words.published}."}, "p1"),
                ToolUse("share_artifact", {"name": "plan", "content": f"The plan is {words.artifact}."}, "s1"),
            )
        return calls(ToolUse("bash", {"command": f"echo {words.command}"}, "b1")) if turn == 1 else text(words.answer)

    return reply


Call: TypeAlias = Callable[[LoomClient, Told], Any]


async def _fork(loom: LoomClient, told: Told) -> object:
    fork = await loom.fork(told.run_id, turn=1, message="Chat: go on")
    return await loom.result(fork), await loom.transcript(fork)


OWN_RUN: Final[dict[str, Call]] = {
    "artifact": lambda loom, told: loom.artifact(told.run_id, "shared-plan"),
    "artifact_bytes": lambda loom, told: loom.artifact_bytes(told.run_id, "shared-plan"),
    "artifacts": lambda loom, told: loom.artifacts(told.run_id),
    "events": lambda loom, told: collected(loom.events(told.run_id)),
    "export": lambda loom, told: collected(loom.export(told.run_id, artifacts=True)),
    "fork": _fork,
    "fork_point": lambda loom, told: loom.fork_point(ForkedFrom(run_id=told.run_id, turn=1)),
    "pending_in": lambda loom, told: loom.pending_in(told.run_id),
    "recorded_tasks": lambda loom, told: loom.recorded_tasks(told.run_id),
    "report": lambda loom, told: loom.report(told.run_id),
    "result": lambda loom, told: loom.result(told.run_id),
    "started_by": lambda loom, told: loom.started_by(told.run_id),
    "status": lambda loom, told: loom.status(told.run_id),
    "task_summary": lambda loom, told: loom.task_summary(told.run_id),
    "tenant_of": lambda loom, told: loom.tenant_of(told.run_id),
    "transcript": lambda loom, told: loom.transcript(told.run_id),
    "turns": lambda loom, told: loom.turns(told.run_id),
    "watch": lambda loom, told: collected(loom.watch(told.run_id)),
    "workspace_of": lambda loom, told: loom.workspace_of(told.run_id),
}
"""The methods that return text of one run: none of them returns another owner's."""
OWN_TENANT: Final[dict[str, Call]] = {
    "list": lambda loom, told: loom.list(tenant=told.owner.tenant),
    "pending": lambda loom, told: loom.pending(tenant=told.owner.tenant),
}
"""The methods that return what all runs of a tenant have."""
WRITTEN_FIRST: Final = ("start", "add_memory", "deny")
RETURNS_NO_TEXT: Final = {
    "abort": "a receipt",
    "agent_stats": "numbers",
    "approve": "a receipt",
    "connected": "a client",
    "costs": "numbers of all runs, for operators",
    "estimate": "numbers of an agent's runs",
    "files": "what one run has, if it is of the tenant: tests/integration/serve/test_run_files.py",
    "has_ended": "whether a run has ended",
    "has_gone_on": "whether a run was retried",
    "latest_offset": "a number",
    "pause": "a receipt",
    "publish": "the caller's own Task and its result",
    "refuse_unserved": "nothing",
    "repair": "what it did, for operators",
    "resume": "a receipt",
    "retry": "a receipt",
    "schedules": "the schedules of all tenants, for operators",
    "secret_mask": "what redacts secrets",
    "send": "a receipt",
    "set_permissions": "a receipt",
    "start_crew": "an id; its runs work as others do",
    "upload": "digests of the caller's own files",
    "upload_archive": "the digest of the caller's own archive",
}
"""The other methods, with what they return."""
CHAT: Final = {"ask", "send", "answer", "look", "messages", "status", "own_run_id", "refuse_unknown"}
"""All methods of a chat. The last two return no text."""


def test_every_method_of_the_client_is_tried_or_returns_no_text_of_others() -> None:
    public = {name for name in vars(LoomClient) if not name.startswith("_")}
    tried = {*OWN_RUN, *OWN_TENANT, *WRITTEN_FIRST}
    assert tried.isdisjoint(RETURNS_NO_TEXT)
    assert tried | RETURNS_NO_TEXT.keys() == public
    assert {name for name in vars(ChatSession) if not name.startswith("_")} == CHAT


def _names(owner: Owner) -> list[str]:
    """The options that name the owner."""
    named = (("--tenant", owner.tenant), ("--user", owner.user_id))
    return [word for option, of in named if of for word in (option, of)]


def _message(command: str) -> Callable[[World, Told], list[str]]:
    def words(world: World, told: Told) -> list[str]:
        said = f"Chat: the plan was {world.word(told.owner, Source.SAID)}"
        return [command, said, "--session", world.session, *_names(told.owner), "--json"]

    return words


def _of(command: str) -> Callable[[World, Told], list[str]]:
    return lambda world, told: [command, "--tenant", told.owner.tenant, "--json"]


SERVER_COMMANDS: Final[dict[str, tuple[Callable[[World, Told], list[str]], Sees]]] = {
    "list": (_of("list"), OF_A_TENANT),
    "inbox": (_of("inbox"), OF_A_TENANT),
    "chat": (_message("chat"), OF_A_RUN),
    "run": (_message("run"), OF_A_RUN),
}
"""Commands that ask the server: their words, and what they may show."""


def _in_session(*command: str) -> Callable[[World, Owner], list[str]]:
    return lambda world, owner: [*command, "--session", world.session, *_names(owner), "--json"]


def _with_names(*command: str) -> Callable[[World, Owner], list[str]]:
    return lambda world, owner: [*command, *_names(owner), "--json"]


def _with_tenant(*command: str) -> Callable[[World, Owner], list[str]]:
    return lambda world, owner: [*command, "--tenant", owner.tenant]


def _searched_base(world: World, owner: Owner) -> list[str]:
    asked = ["knowledge", "search", "the plan of the company", "--name", world.base, "--limit", "100"]
    return [*asked, "--tenant", owner.tenant, "--json"]


STORE_COMMANDS: Final[dict[str, tuple[str, Callable[[World, Owner], list[str]], Sees]]] = {
    "hits": ("memory search", _with_names("memory", "search", "the plan", "--limit", "500"), OPERATORS),
    "a session": ("memory export", _in_session("memory", "export"), own(*SESSION)),
    "facts": ("memory export", _with_names("memory", "export"), own(Source.FACT)),
    "valid facts": ("memory list", _with_names("memory", "list"), own(Source.FACT)),
    "bases": ("knowledge list", _with_tenant("knowledge", "list", "--json"), newest(of_tenant(Source.FOLDER))),
    "passages": ("knowledge search", _searched_base, searched(Source.DOCUMENT)),
    "acts": ("audit list", _with_tenant("audit", "list", "--json"), of_tenant(Source.AUDITED)),
    "all acts": ("audit export", _with_tenant("audit", "export"), of_tenant(Source.AUDITED)),
}
"""Commands that read the database: their names, their words, and what they show."""
WRITING_COMMANDS: Final = ("memory add", "memory edit", "memory forget", "knowledge add", "knowledge remove")
SHOWS_NO_TEXT: Final = {
    "abort": "the tasks of the runs that it ends, as `list` does",
    "crew run": "a run of its own, as `run` does",
    "keys rotate": "the id of a key",
    "schedule add": "the name of the schedule",
    "skills add": "nothing of others: with --user, the skill is for all runs of this machine's user",
    "tokens add": "a token of its own",
}
"""The other commands that name a tenant or a user, with what they show."""


def _leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    loaded = command.load() if isinstance(command, LazyCommand) else command
    if not hasattr(loaded, "commands"):
        yield " ".join(path), loaded
    for name, below in getattr(loaded, "commands", {}).items():
        yield from _leaves(below, (*path, name))


def test_every_command_for_a_tenant_or_a_user_is_tried_or_shows_no_text_of_others() -> None:
    options = {
        name: {option for given in command.params for option in given.opts}
        for name, command in _leaves(get_command(build_app()))
    }
    for_owners = {name for name, given in options.items() if given & {"--tenant", "--user"}}
    tried = {*SERVER_COMMANDS, *WRITING_COMMANDS, *(name for name, *_ in STORE_COMMANDS.values())}
    assert tried.isdisjoint(SHOWS_NO_TEXT)
    assert tried | SHOWS_NO_TEXT.keys() == for_owners


def _write_with_commands(loom: Commands, world: World, owner: Owner, folder: Path) -> None:
    """Add a fact, a memory of the session and one for all, and replace the tenant's knowledge base."""

    def add(source: Source, *options: str) -> None:
        said = loom("memory", "add", f"I always use the plan {world.word(owner, source)}", *options, *_names(owner))
        assert said.code == COMPLETED, said.err

    add(Source.FACT)
    add(Source.SAID, "--session", world.session)
    add(Source.ADDED_TO_ALL, "--global")
    folder = folder / world.word(owner, Source.FOLDER)
    folder.mkdir()
    (folder / "plan.md").write_text(f"The plan of the company is {world.word(owner, Source.DOCUMENT)}.")
    its = ("--name", world.base, "--tenant", owner.tenant)
    refused = loom("knowledge", "add", str(folder), *its)
    assert (refused.code, "would lose all of them" in refused.err) == (USAGE, True)
    assert world.seen_in(refused.err) <= world.visible(of_tenant(Source.FOLDER), owner)
    assert loom("knowledge", "remove", world.base, "--tenant", owner.tenant).code == COMPLETED
    assert loom("knowledge", "add", str(folder), *its).code == COMPLETED


def _change_with_commands(loom: Commands, world: World, owner: Owner, other: Owner) -> None:
    """Edit and forget facts by their numbers: only the owner's own are found."""
    (theirs, *_), (mine, *_) = (
        json.loads(loom("memory", "list", *_names(each), "--json").out) for each in (other, owner)
    )
    for command in (("edit", str(theirs["id"]), "hacked"), ("forget", "--id", str(theirs["id"]))):
        refused = loom("memory", *command, *_names(owner))
        assert refused.code == USAGE
        assert not world.seen_in(refused.err)
    (old,) = world.seen_in(mine["content"])
    world.forgotten_word(old, Source.FACT)
    new = f"I always use the plan {world.word(owner, Source.FACT)}"
    assert loom("memory", "edit", str(mine["id"]), new, *_names(owner)).code == COMPLETED


def test_commands_show_and_change_only_what_their_tenant_and_user_have(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commands_in(tmp_path, monkeypatch, LOOM_DATABASE_URL=url, LOOM_EMBEDDER="off") as loom:
        world = asyncio.run(_filled(url, tmp_path))
        ann, of_t2, everybody = world.owners[0], world.owners[2], world.owners[6]
        for owner in (ann, of_t2, everybody):
            _write_with_commands(loom, world, owner, tmp_path)
        _change_with_commands(loom, world, ann, of_t2)

        def look_with_commands(owner: Owner) -> None:
            for name, (_, words, sees) in STORE_COMMANDS.items():
                ran = loom(*words(world, owner))
                assert ran.code == COMPLETED, ran.err
                assert world.seen_in(ran.out + ran.err) == world.visible(sees, owner), f"{name} for {owner.named}"

        for owner in (ann, of_t2):
            look_with_commands(owner)
        assert loom("memory", "forget", "--session", world.session, *_names(of_t2), "--yes").code == COMPLETED
        assert loom("memory", "forget", *_names(of_t2), "--yes").code == COMPLETED
        world.forgotten(Source.FACT, Source.ADDED_TO_ALL, *SESSION, of=lambda each: each == of_t2)
        for owner in (ann, of_t2):
            look_with_commands(owner)


async def _filled(url: str, home: Path) -> World:
    """A world in which everybody has left something."""
    async with aclosing(Database(url)) as database:
        world = World(database=database, home=home, tools={})
        names = ("say", "say_to_all", "add_fact", "note_in_each_scope", "index_a_document", "record_an_act")
        for name, owner in product(names, world.owners):
            await WRITES[name](world, owner)
    return world


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis whose bus only these tests use."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.kill()


def _environment(loom: Harness) -> dict[str, str]:
    """What lets commands reach the same servers as the worker."""
    its = loom.settings
    return {
        "LOOM_DATABASE_URL": str(its.database_url),
        "LOOM_REDIS_URL": str(its.redis_url),
        "LOOM_TASK_QUEUE": its.task_queue,
        "LOOM_WORKSPACE": str(loom.workspace),
        "LOOM_EMBEDDER": "off",
        "TEMPORAL_ADDRESS": its.temporal_address,
        "TEMPORAL_NAMESPACE": its.temporal_namespace,
    }


@dataclass(frozen=True)
class Running:
    """Runs of all owners in one session. Each has told something, and waits for an answer about a command."""

    world: World
    told: tuple[Told, ...]
    loom: Harness
    model: ModelServer

    @property
    def of_tenants(self) -> tuple[Told, ...]:
        """Those who name a tenant."""
        return tuple(each for each in self.told if each.owner.tenant)

    @property
    def request(self) -> dict[str, Any]:
        """The fields that are equal for all owners."""
        return {"session_id": self.world.session, "workspace": str(self.loom.workspace)}

    def check(self, each: Told, told: object, sees: Sees, way: str) -> set[str]:
        """Return the words in what the owner was told, none of which may be another's."""
        seen, world = self.world.seen_in(told), self.world
        of_others = seen - world.visible(sees, each.owner)
        assert not of_others, f"{way} shows {each.owner.named or 'nobody'} words of others: {of_others}"
        return seen

    async def begin(self, each: Told) -> None:
        """Start the owner's first run, and add a memory beside it."""
        client, task = self.loom.client, f"I always use the plan {each.task}"
        await client.start(task, run_id=each.run_id, **self.request, **each.request)
        added = f"The plan was {self.world.word(each.owner, Source.SAID)}"
        await client.add_memory(added, session_id=self.world.session, **each.request)
        await self.loom.asked(each.run_id)

    async def are_listed(self) -> bool:
        """Whether the server lists all runs of the tenants."""
        listed = [await self.loom.client.list(tenant=each.owner.tenant, waiting="approval") for each in self.of_tenants]
        return all(len(runs) >= 2 for runs in listed)

    async def end(self, each: Told) -> None:
        """Let the owner's first run end."""
        await self.loom.client.deny(each.run_id)
        assert (await self.loom.client.result(each.run_id)).status is RunStatus.COMPLETED

    async def are_remembered(self) -> bool:
        """Whether memory has what the first runs said last."""
        ended = "SELECT count(*) FROM loom_memory_tasks WHERE run_id = ANY(%s) AND action = 'node.complete'"
        async with self.world.database.connection() as connection:
            row = await (await connection.execute(ended, ([each.run_id for each in self.told],))).fetchone()
        return row == (len(self.told),)

    async def ask_again(self, each: Told) -> None:
        """Let another run of the owner, with the same task as those of the others, read in every way."""
        begun = len(self.model.requests)
        ended = await self.loom.client.result(await self.loom.client.start(QUESTION, **self.request, **each.request))
        assert ended.status is RunStatus.COMPLETED, ended.error
        bodies = [request.body for request in self.model.requests[begun:]]
        assert "there is no tool" not in str(bodies)
        self.check(each, bodies, OF_A_RUN, "a run")
        results = [message for message in self.model.requests[-1].messages if message["role"] == "tool"]
        assert {each.task, each.answer} <= self.world.seen_in(results), "the tools work for another owner than the run"

    async def read_own_run(self, each: Told) -> None:
        """Read what the client returns of the owner's run."""
        for name, call in OWN_RUN.items():
            self.check(each, await call(self.loom.client, each), OF_A_RUN, f"client.{name}")

    async def talk(self, each: Told) -> None:
        """Chat in the same session. The model tells everything that it has read."""
        chat = ChatSession(self.loom.client, self.world.session, workspace=str(self.loom.workspace), **each.request)
        said = self.world.word(each.owner, Source.SAID)
        sent = await chat.send(f"Chat: the plan was {said}")
        answers = [
            await chat.answer(sent),
            await chat.ask("Chat: what was the plan?"),
            await chat.look(sent.message_id),
        ]
        seen = self.check(each, [answers, await chat.messages(), await chat.status()], OF_A_RUN, "the chat")
        assert said in seen


@pytest.fixture
async def running(
    working: Working, database: Database, tmp_path: Path, url: str, redis_url: str
) -> AsyncIterator[Running]:
    """A worker and its runs."""
    world = World(database=database, home=tmp_path, tools={})
    told = tuple(_told(world, owner) for owner in world.owners[:5])
    app, tools = LoomApp(), [*TOOL_READS, *TOOLS_THAT_WRITE, READS_OF_ITS_RUN, "bash"]
    rules = {"publish_memory": "allow", "bash": "ask"}
    app.create_agent("default", tools=tools, knowledge=[world.base], permissions=rules)
    given = {"database_url": url, "redis_url": redis_url, "memory": "on", "embedder": "off"}
    loom, model = await working(_script(world, told), app=app, replay=False, **given)
    runs = Running(world, told, loom, model)
    for each in told:
        await WRITES["index_a_document"](world, each.owner)
    await asyncio.gather(*map(runs.begin, told))
    await eventually(runs.are_listed)
    yield runs
    await loom.client.temporal.get_workflow_handle(upkeep_id(loom.settings.task_queue)).terminate()


async def test_runs_chats_clients_and_commands_of_equal_names_keep_the_walls(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each, (name, call) in product(running.of_tenants, OWN_TENANT.items()):
        assert running.check(each, await call(running.loom.client, each), OF_A_TENANT, f"client.{name}")
    with commands_in(tmp_path, monkeypatch, **_environment(running.loom)) as command:
        for each, (name, (words, sees)) in product(running.of_tenants, SERVER_COMMANDS.items()):
            ran = await asyncio.to_thread(command, *words(running.world, each))
            assert ran.code == COMPLETED, ran.err
            assert running.check(each, (ran.out, ran.err), sees, f"loom {name}")
    await asyncio.gather(*map(running.end, running.told))
    await eventually(running.are_remembered)
    for (
        each
    ) in running.told:  # one after the other: their tasks are equal, so only the order tells their requests apart
        await running.ask_again(each)
    await asyncio.gather(*map(running.read_own_run, running.told), *map(running.talk, running.told))
