"""Runs with encryption on real servers: what their files contain, rotation, missing keys, and forgotten tenants."""

import gzip
import re
import sqlite3
import zlib
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
from google.protobuf.message import Message
from psycopg import sql
from redis.asyncio import Redis
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from loom.activities.adapters.encryption.codec import ENCODING
from loom.activities.adapters.encryption.key_ring import new_key, read_keys, write_keys
from loom.activities.adapters.temporal.errors import own_message
from loom.client import LoomClient
from loom.composition.encryption import encryption_from, opened_database
from loom.composition.live_workers import live_catalogs
from loom.composition.settings import Settings
from loom.domain.core.errors import EncryptionKeyError
from loom.domain.core.requests import RunStatus
from loom.domain.core.run_files import RUN_FILES
from loom.run_overviews import RunOverviews
from loom.serve.task_summaries import TaskSummaries
from loom.stack.services import temporal_database
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, script, status, text
from loom.testing.waiting import eventually
from tests.databases import as_superuser
from tests.disguises import words_in
from tests.integration.activities.conftest import RedisServer
from tests.trees import delegate
from tests.webhook_receiver import SECRET, WebhookReceiver

PIECES: Final = (
    *("task", "message", "argument", "result", "error", "answer", "note", "fact", "artifact", "reason"),
    *("description", "prompt", "question", "reply", "field", "provider", "forked", "stop", "agent", "persona"),
)
FAILED: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
RULES: Final = {"default": "allow", "bash": "ask"}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file with one key."""
    file = tmp_path / "keys"
    write_keys(file, [new_key()])
    return file


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis of this module."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.kill()


def marked() -> dict[str, str]:
    """A word for each kind of content, which appears nowhere else."""
    return {piece: f"{piece}{uuid4().hex[:12]}" for piece in PIECES}


async def tell_everything(loom: Harness, words: dict[str, str], **request: Any) -> str:
    """Let runs take in and leave each word, in their tasks, a message, arguments, results, errors, memory and so on.
    Return the one that tells most of them.
    """
    task = f"Do the {words['task']}"
    run = await loom.start(task, agent="clerk", user_id="ann", permissions=RULES, **request)
    await loom.asked(run)
    await loom.client.send(run, f"I prefer {words['fact']} and {words['message']}")
    await loom.client.deny(run, reason=words["reason"])
    await loom.until(run, lambda status: bool(status["question"]))
    await loom.client.send(run, words["reply"])
    assert (await loom.client.result(run)).status is RunStatus.COMPLETED
    assert (await loom.run(f"FAIL {words['provider']}", **request)).status is RunStatus.FAILED
    fork = await loom.client.fork(run, turn=1, message=words["forked"])
    loom.started.append(fork)
    await loom.client.abort(fork, reason=words["stop"])
    assert (await loom.client.result(fork)).status is RunStatus.ABORTED
    return run


def telling(words: dict[str, str], workspace: Path) -> Any:
    """The script of such a run. The results are in files, so that no argument contains them."""
    (agents := workspace.parent / "agents").mkdir(exist_ok=True)
    (agents / "clerk.toml").write_text(f'description = "{words["agent"]}"\nsystem_prompt = "{words["persona"]}"\n')
    (workspace / "found.txt").write_text(words["result"])
    (workspace / "long.txt").write_text("\n".join(f"{number} {words['artifact']}" for number in range(9000)))
    todo = [{"task": words["field"], "status": "pending"}]
    replies = [
        calls(
            ToolUse("read_file", {"path": "found.txt"}, "r1"),
            ToolUse("bash", {"command": f"echo {words['argument']}"}, "b1"),
        ),
        calls(
            ToolUse("read_file", {"path": f"{words['error']}.txt"}, "r2"),
            ToolUse("read_file", {"path": "long.txt"}, "r3"),
        ),
        calls(ToolUse("write_memory", {"id": "n", "content": words["note"]}, "w1"), ToolUse("todo", {"items": todo})),
        calls(delegate(words["description"], words["prompt"])),
        calls(ToolUse("ask_user", {"question": words["question"]})),
        text(words["answer"]),
    ]

    def reply(request: SeenRequest) -> Reply:
        told = str(request.messages)
        if words["provider"] in told:
            return status(400, message=f"it can't do {words['provider']}")
        return text("done") if words["prompt"] in told and words["task"] not in told else replies[request.turn]

    return reply


async def places(words: dict[str, str], home: Path, url: str, redis: str) -> dict[str, set[str]]:
    """Which of these words are in the files of Temporal's server and of Postgres, in the tables of both, and in Redis.

    A file may contain a value in pieces, so values are also read whole, and searched for disguised words.
    """
    stored = {
        "temporal": _rows_of_temporal(temporal_database(home)),
        "tables": await _tables(as_superuser(home, url)),
        "redis": await _redis(redis),
    }
    found = {where: words_in(data, words.values()) for where, data in stored.items()}
    files = b"".join(file.read_bytes() for file in (home / "postgres").rglob("*") if file.is_file())
    found["temporal"] |= {word for file in home.glob("temporal/*") for word in _plain(file.read_bytes(), words)}
    found["postgres"] = _plain(files, words)
    return {where: {piece for piece, word in words.items() if word in there} for where, there in found.items()}


def _plain(data: bytes, words: dict[str, str]) -> set[str]:
    return {word for word in words.values() if word.encode() in data}


def _rows_of_temporal(file: Path) -> bytes:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for name in names for row in connection.execute(f'SELECT * FROM "{name}"')]
    return b"\n".join(each if isinstance(each, bytes) else str(each).encode() for row in rows for each in row)


async def _tables(url: str) -> bytes:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("CHECKPOINT")
        names = await (
            await connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        ).fetchall()
        rows = b""
        for (name,) in names:
            async with connection.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(name))) as copied:
                async for line in copied:
                    rows += bytes(line)
        return rows


async def _redis(url: str) -> bytes:
    async with Redis.from_url(url) as client:
        await client.config_set("rdbcompression", "no")  # else long texts are in the file in pieces
        await client.save()
        folder, file = [(await client.config_get(name))[name] for name in ("dir", "dbfilename")]
    return Path(str(folder), str(file)).read_bytes()


def test_words_are_found_in_every_disguise() -> None:
    plain = b'{"text": "the secret word"}'
    for hidden in (
        plain,
        b64encode(b"x" + plain),
        urlsafe_b64encode(plain),
        plain.hex().encode(),
        gzip.compress(plain),
    ):
        assert words_in(b"before " + hidden + b" after", ["secret"]) == {"secret"}
    assert words_in(b64encode(zlib.compress(plain * 9)), ["secret", "absent"]) == {"secret"}


async def test_no_store_contains_a_piece_of_what_runs_said(  # noqa: PLR0917 - each is a server or a folder
    addresses: Addresses, url: str, redis: str, keys: Path, workspace: Path, receiver: WebhookReceiver
) -> None:
    told = {"notify_url": receiver.url, "notify_secret": SECRET, "audit": "on"}
    agents = workspace.parent / "agents"
    given: dict[str, Any] = {"database_url": url, "redis_url": redis, "memory": "on", "agents": (agents,), **told}
    plain, sealed = marked(), marked()
    async with harness(addresses, workspace, telling(plain, workspace), embedder="off", **given) as (loom, _):
        await tell_everything(loom, plain)
        await eventually(partial(_knows_facts, loom.settings, 1))
        await eventually(partial(_has_told, plain, addresses.home, url, redis))  # else the search proves nothing
    async with harness(addresses, workspace, telling(sealed, workspace), encryption_keys=keys, **given) as (loom, _):
        run = await tell_everything(loom, sealed, tenant="acme")
        await eventually(partial(_knows_facts, loom.settings, 2))
        notify = f"WorkflowType = 'Notify' AND TaskQueue = '{loom.settings.task_queue}'"
        children = [each.id async for each in loom.client.temporal.list_workflows(f"WorkflowId STARTS_WITH '{run}/'")]
        ids = [run, *children, *(await eventually(lambda: _listed(loom, notify)))]
        handles = [loom.client.temporal.get_workflow_handle(each) for each in ids]
        events = [event for each in handles for event in (await each.fetch_history()).events]
        described = [(await each.describe()).raw_description for each in handles]
        assert children
        assert not [place for each in (*events, *described) for place in plain_payloads(each)]
        assert not words_in(await _redis(redis), sealed.values()), "also in what the worker reports while it runs"
        ((_, catalog),) = await live_catalogs(loom.settings)
        assert sealed["agent"] in str(catalog.agents)
    assert not [found for found in (await places(sealed, addresses.home, url, redis)).items() if found[1]]


def plain_payloads(message: Message, place: str = "") -> Iterator[str]:
    """Where a message of Temporal's API has payloads that aren't encrypted: summaries, memos, failures, markers and so
    on. Search Attributes can't be encrypted, headers contain signatures, and the SDK itself writes names of patches and
    of local activities, and times, into markers.
    """
    if isinstance(message, Payload):
        if message.metadata.get("encoding") != ENCODING and message.data:
            yield place
        return
    for field, value in message.ListFields():
        if field.name in ("search_attributes", "header"):
            continue
        if field.name == "marker_recorded_event_attributes":
            for name in ("data", "patch-data"):
                value.details.pop(name, None)
        here = f"{place}.{field.name}"
        inner = value.values() if isinstance(value, Mapping) else [value] if isinstance(value, Message) else value
        for each in inner if field.message_type else ():
            yield from plain_payloads(each, here)


async def _has_told(words: dict[str, str], home: Path, url: str, redis: str) -> bool:
    found = await places(words, home, url, redis)
    certain = set(PIECES) - {"forked"}  # the fork may be aborted before it leaves anything outside Temporal
    return (
        found["temporal"] >= set(PIECES) - {"agent"}
        and certain - {"agent", "persona"} <= found["tables"]
        and certain <= found["redis"]
    )


async def _knows_facts(settings: Settings, count: int) -> bool:
    async with opened_database(settings) as database, database.connection() as connection:
        cursor = await connection.execute("SELECT count(*) FROM loom_person_facts")
        return (await cursor.fetchone() or (0,))[0] == count


def two_asks(request: SeenRequest) -> Reply:
    """Two commands that need approval, and an answer."""
    number = request.turn + 1
    return text("the end") if number > 2 else calls(ToolUse("bash", {"command": f"echo {number}"}, f"b{number}"))


async def test_a_run_goes_on_when_encryption_is_turned_on_and_when_the_key_is_replaced(
    addresses: Addresses, url: str, redis: str, keys: Path, workspace: Path
) -> None:
    (old,) = read_keys(keys)
    given: dict[str, Any] = {"database_url": url, "redis_url": redis, "task_queue": f"test-{uuid4().hex}"}
    async with harness(addresses, workspace, two_asks, **given) as (loom, _):
        run = await loom.start(permissions=RULES)
        await loom.asked(run)
    async with harness(addresses, workspace, two_asks, encryption_keys=keys, **given) as (loom, _):
        await loom.client.approve(run)
        await loom.until(run, lambda status: [call["call_id"] for call in status["pending_approvals"]] == ["b2"])
    new = new_key()
    write_keys(keys, [new, old])
    async with harness(addresses, workspace, two_asks, encryption_keys=keys, **given) as (loom, _):
        loom.started.append(run)  # so that it is replayed
        await loom.client.approve(run)
        assert (await loom.client.result(run)).output == "the end"
        assert [message.role for message in await loom.client.transcript(run)][-1] == "assistant"
        (history,) = await loom.histories(run)
    named = [
        each.id for each in (old, new) if each.id.encode() in b"".join(e.SerializeToString() for e in history.events)
    ]
    assert named == [old.id, new.id], "both keys have encrypted a part of the history"


async def test_only_the_right_keys_read_and_a_forgotten_tenant_is_read_by_nobody(
    addresses: Addresses, url: str, redis: str, keys: Path, workspace: Path
) -> None:
    told = script([text("the end"), text("the end")])
    tenant = f"acme-{uuid4().hex[:8]}"
    given: dict[str, Any] = {"database_url": url, "redis_url": redis, "encryption_keys": keys}
    async with harness(addresses, workspace, told, **given) as (loom, _):
        ours, theirs = await loom.start(), await loom.start(tenant=tenant)
        for run in (ours, theirs):
            assert (await loom.client.result(run)).output == "the end"
        await _refused(loom.settings, ours, None, read_keys(keys)[0].id)
        other = keys.with_name("other")
        write_keys(other, [new_key()])
        await _refused(loom.settings, ours, other, read_keys(keys)[0].id)
        write_keys(other, [replace(new_key(), id=read_keys(keys)[0].id)])
        await _refused(loom.settings, ours, other, "another key under this id")
        await _listed_without_keys(loom.settings, ours)
        encryption = encryption_from(loom.settings)
        async with aclosing(encryption):
            assert encryption.keys is not None
            (forgotten,) = await encryption.keys.forget(tenant)
        await _refused(loom.settings, theirs, keys, forgotten)
        async with LoomClient.connected(loom.settings) as client:
            assert (await client.result(ours)).output == "the end"


async def _listed_without_keys(settings: Settings, run: str) -> None:
    """One run that a process can't read doesn't hide the others from its lists."""
    reader = settings.model_copy(update={"encryption_keys": None})
    async with LoomClient.connected(reader) as client:
        listed = [each for each in await client.list(limit=20) if each.run_id == run]
        (seen,) = await RunOverviews(client.temporal).of(listed)
        assert (seen.task, seen.turns) == ("", None)
        assert await TaskSummaries(client).of([run]) == {}
        assert all([(await client.costs(by)).groups for by in ("agent", "user")])


async def _refused(settings: Settings, run: str, keys: Path | None, named: str) -> None:
    """Nobody with these keys can read the result or the events of a run, and the error names what is wrong."""
    async with LoomClient.connected(settings.model_copy(update={"encryption_keys": keys})) as client:
        with pytest.raises(EncryptionKeyError, match=named):
            await client.result(run)
        with pytest.raises(EncryptionKeyError, match=named):
            async for _ in client.watch(run):
                pass


async def test_the_key_of_a_tenant_encrypts_its_notifications(
    addresses: Addresses, url: str, keys: Path, workspace: Path, receiver: WebhookReceiver
) -> None:
    tenant = f"acme-{uuid4().hex[:8]}"
    told: dict[str, Any] = {"notify_url": receiver.url, "notify_secret": SECRET, "encryption_keys": keys}
    async with harness(addresses, workspace, script([text("the end")]), database_url=url, **told) as (loom, _):
        await loom.run(tenant=tenant)
        async with aclosing(encryption_from(loom.settings)) as encryption:
            assert encryption.keys is not None
            (own,) = [key.id for key in await encryption.keys.listed() if key.tenant == tenant]
        query = f"WorkflowType = 'Notify' AND TaskQueue = '{loom.settings.task_queue}'"
        (notify,) = await eventually(lambda: _listed(loom, query))
        history = await loom.client.temporal.get_workflow_handle(notify).fetch_history()
        named = set(re.findall(r'"encryption-key-id": "([^"]+)"', history.to_json()))
        assert {b64decode(name).decode() for name in named} == {own}


async def test_the_key_of_a_tenant_encrypts_the_files_that_people_exchange_with_its_runs(
    addresses: Addresses, url: str, keys: Path, workspace: Path
) -> None:
    tenant, content = f"acme-{uuid4().hex[:8]}", uuid4().bytes
    given: dict[str, Any] = {"database_url": url, "encryption_keys": keys}
    async with harness(addresses, workspace, script([text("the end")]), **given) as (loom, _):
        await loom.run(tenant=tenant)
        await loom.client.files.write(loom.started[0], "secret-plan.txt", content)
        assert (await loom.client.files.read(loom.started[0], "secret-plan.txt")).data == content
        async with aclosing(encryption_from(loom.settings)) as encryption:
            assert encryption.keys is not None
            (own,) = [key.id for key in await encryption.keys.listed() if key.tenant == tenant]
        query = f"WorkflowType = '{RUN_FILES}' AND TaskQueue = '{loom.settings.task_queue}'"
        for each in await eventually(lambda: _listed(loom, query)):
            history = (await loom.client.temporal.get_workflow_handle(each).fetch_history()).to_json()
            named = set(re.findall(r'"encryption-key-id": "([^"]+)"', history))
            assert {b64decode(name).decode() for name in named} == {own}
    assert content.hex().encode() not in await _tables(as_superuser(addresses.home, url))


async def _listed(loom: Harness, query: str) -> list[str] | None:
    return [each.id async for each in loom.client.temporal.list_workflows(query)] or None


async def test_a_run_whose_key_is_missing_waits_for_a_worker_that_has_it(
    addresses: Addresses, url: str, redis: str, keys: Path, workspace: Path
) -> None:
    given: dict[str, Any] = {"database_url": url, "redis_url": redis, "task_queue": f"test-{uuid4().hex}"}
    async with harness(addresses, workspace, two_asks, encryption_keys=keys, **given) as (loom, _):
        run = await loom.start(permissions=RULES)
        await loom.asked(run)
        right = loom.settings
    write_keys(other := keys.with_name("other"), [new_key()])
    async with (
        harness(addresses, workspace, two_asks, encryption_keys=other, **given) as (loom, _),
        LoomClient.connected(right) as client,
    ):
        await client.temporal.get_workflow_handle(run).signal("approve", {"call_id": "b1"})
        fault = await eventually(partial(_fault, loom.client.temporal, run))
        assert read_keys(keys)[0].id in fault
    async with harness(addresses, workspace, two_asks, encryption_keys=keys, **given) as (loom, _):
        await loom.until(run, lambda status: [call["call_id"] for call in status["pending_approvals"]] == ["b2"])
        await loom.client.approve(run)
        assert (await loom.client.result(run)).output == "the end"


async def _fault(client: Client, run: str) -> str | None:
    """Why a workflow task of the run has failed, as this client reads it."""
    events = (await client.get_workflow_handle(run).fetch_history()).events
    failures = [each.workflow_task_failed_event_attributes.failure for each in events if each.event_type == FAILED]
    return await own_message(client.data_converter, failures[-1]) if failures else None
