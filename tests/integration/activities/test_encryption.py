"""Keys, sealed values and the codec server, without runs."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload, Payloads

from loom.activities.adapters.encryption import data_keys
from loom.activities.adapters.encryption.codec import ENCODING, KEY, RefuseEncrypted
from loom.activities.adapters.encryption.key_ring import new_key, read_keys, write_keys
from loom.activities.adapters.encryption.run_tenants import RunTenants
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_rows import hidden_tsvector
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.adapters.postgres.parts import PostgresParts
from loom.activities.adapters.postgres.person_facts import PostgresPersonFacts
from loom.activities.encryption import MAGIC, PLAIN, TEXT, split, split_text
from loom.composition.encryption import Encryption, encryption_with
from loom.domain.core.errors import BadRequest, EncryptionKeyError
from loom.domain.core.requests import IN_LINE
from loom.domain.core.tenants import Owner
from loom.domain.memory.people import FactKind, NewFact, SaidFact
from loom.serve.codec_server import CodecServer, WorkName
from tests.databases import rows
from tests.integration.activities.conftest import PostgresServer
from tests.memories import WordVectors, task

WORDS = WordVectors()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the keys for the module's database."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(file, [new_key()])
    return file


@pytest.fixture
async def sealing(keys: Path, url: str) -> AsyncIterator[Encryption]:
    """Encryption with tenants' keys in a database."""
    async with aclosing(encryption_with(keys, url)) as encryption:
        yield encryption


@given(
    st.one_of(st.binary(), st.binary().map(lambda data: MAGIC + data), st.binary().map(lambda data: MAGIC * 2 + data))
)
async def test_without_keys_data_comes_back_as_it_was_whatever_it_looks_like(data: bytes) -> None:
    assert await PLAIN.open(await PLAIN.seal(data, "here", ""), "here") == data


@given(
    st.one_of(
        st.text(), st.text().map(lambda text: f"{TEXT}k:{text}"), st.text().map(lambda text: f"loom-plain:1:{text}")
    )
)
async def test_without_keys_text_comes_back_as_it_was(text: str) -> None:
    assert await PLAIN.open_text(await PLAIN.seal_text(text, "here", ""), "here") == text


@pytest.mark.parametrize("tenant", ["", "acme"])
async def test_a_sealed_value_opens_only_in_its_place_and_unchanged(sealing: Encryption, tenant: str) -> None:
    cipher = sealing.cipher
    sealed = await cipher.seal(b"secret", "here", tenant)
    assert b"secret" not in sealed
    assert await cipher.open(sealed, "here") == b"secret"
    assert await cipher.owner(sealed) == tenant
    for changed, place in ((sealed, "there"), (sealed[:-1] + bytes((sealed[-1] ^ 1,)), "here"), (sealed[:-20], "here")):
        with pytest.raises(EncryptionKeyError, match="changed or moved"):
            await cipher.open(changed, place)
    with pytest.raises(EncryptionKeyError, match="doesn't have"):
        await PLAIN.open(sealed, "here")


async def test_a_new_key_encrypts_and_a_process_that_meets_it_reads_the_file_again(
    sealing: Encryption, keys: Path, url: str
) -> None:
    before = await sealing.cipher.seal(b"old", "here", "acme")
    write_keys(keys, [new_key(), *read_keys(keys)])
    async with aclosing(encryption_with(keys, url)) as rotated:
        assert rotated.keys is not None
        assert await rotated.keys.wrap_again() > 0
        for tenant in ("", "acme"):
            assert await sealing.cipher.open(await rotated.cipher.seal(b"new", "here", tenant), "here") == b"new"
        assert await rotated.cipher.open(before, "here") == b"old"
    write_keys(keys, read_keys(keys)[:1])
    async with aclosing(encryption_with(keys, url)) as later:
        assert await later.cipher.open(before, "here") == b"old", "the tenant's key no longer needs the older key"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "contains no key"),
        ("k1 short", "line 1 must have"),
        (f"k 1 {base64.b64encode(bytes(32)).decode()}", "line 1 must have"),
        (f"k1 {base64.b64encode(bytes(32)).decode()}\n" * 2, "more than one key with the id k1"),
    ],
)
def test_an_unusable_file_says_why(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text(content)
    with pytest.raises(BadRequest, match=why):
        read_keys(file)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", [new_key()])
    (tmp_path / "keys").chmod(0o640)
    with pytest.raises(BadRequest, match="chmod 600"):
        read_keys(tmp_path / "keys")


def test_a_sub_agent_works_for_the_tenant_of_the_runs_above_it() -> None:
    runs = RunTenants()
    runs.learn("root", "acme")
    runs.learn("root", "")  # from a sender that doesn't know it
    runs.learn("team/one", "other")
    assert [runs.tenant_of(run) for run in ("root", "root/a", "root/a/b", "team", "team/two", "new")] == [
        *["acme"] * 3, "other", "", ""
    ]  # fmt: skip


async def test_a_file_that_becomes_unusable_hinders_nobody_who_knows_the_keys(sealing: Encryption, keys: Path) -> None:
    sealed = await sealing.cipher.seal(b"secret", "here", "acme")
    assert await sealing.cipher.open(sealed, "here") == b"secret"
    await asyncio.to_thread(keys.rename, away := keys.with_name("away"))
    try:
        assert await sealing.cipher.open(sealed, "here") == b"secret"
    finally:
        away.rename(keys)


async def test_while_postgres_is_away_few_values_wait_for_it(
    keys: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_keys, "REMEMBERED", 0.0)  # as if a minute had passed
    tenant = f"acme-{uuid4().hex}"
    async with aclosing(encryption_with(keys, postgres.url)) as encryption:
        sealed = await encryption.cipher.seal(b"secret", "here", tenant)
        await encryption.cipher.open(sealed, "here")
        await postgres.stop()
        try:
            async with asyncio.timeout(30):  # each attempt to connect takes two seconds: 40 for all
                for _ in range(10):
                    assert await encryption.cipher.open(sealed, "here") == b"secret"
                    await encryption.cipher.seal(b"more", "here", tenant)
        finally:
            await postgres.start()


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 64])
async def test_what_is_no_tenant_s_name_is_not_forgotten(sealing: Encryption, name: str) -> None:
    assert sealing.keys is not None
    words = await sealing.keys.words()
    for act in (sealing.keys.forget, sealing.keys.rotate):
        with pytest.raises(BadRequest, match="no tenant can have the name"):
            await act(name)
    assert await sealing.keys.words() == words, "the key of the search index belongs to no tenant"


async def test_hidden_words_rank_like_plain_ones_and_contain_none(sealing: Encryption) -> None:
    text = "Anna painted the painting"
    hidden, length = await hidden_tsvector(sealing.cipher, text)
    plain, same = await hidden_tsvector(PLAIN, text)
    assert length == same == 4
    assert "'painting':4" in plain
    assert "paint" not in hidden
    (begins,) = await sealing.cipher.hidden_words(["^paint"])
    assert f"'{begins}':2,4" in hidden, "both words are found by their stem"


async def remember(database: Database, tenant: str) -> None:
    """Store a memory, which is due for each step of upkeep, and a fact of the tenant."""
    said = task(
        f"the deploy of {tenant} needs the VPN",
        session_id=tenant,
        run_id=f"run-{tenant}",
        hours_ago=25,
        metadata={"user_id": "ann", "tenant": tenant, "importance": 0.9},
    )
    assert await PostgresMemory(database).remember([said]) == 1
    fact = NewFact(
        owner=Owner(user_id="ann", tenant=tenant),
        said=SaidFact(kind=FactKind.DECISION, content=f"{tenant} deploys on Mondays"),
        source="rule",
        at=datetime.now(UTC),
    )
    assert await PostgresPersonFacts(database).learn([fact]) == 1


async def remembered(url: str, tenant: str) -> int:
    """How many memories and facts of the tenant are stored."""
    memories = await rows(url, "SELECT id FROM loom_memory WHERE session_id = %s", [tenant])
    return len(memories) + len(await rows(url, "SELECT id FROM loom_person_facts WHERE tenant = %s", [tenant]))


async def due(step: str, database: Database) -> list[str]:
    """The next text, of any tenant, for a step of upkeep."""
    memory = PostgresMemoryUpkeep(database, model=WORDS.model, dimension=WORDS.dimension)
    people = PostgresPersonFacts(database, embedder=WORDS)
    match step:
        case "summary":
            return [each.content for each in await memory.due_for_summary(1)]
        case "vector":
            return [each.content for each in await memory.due_for_vector(1)]
        case "comparison of facts":
            return [each.new.content for each in await people.due_for_comparison(1)]
        case _:
            return [each.content for each in await people.due_for_vector(1)]


STEPS = ("summary", "vector", "comparison of facts", "vector of a fact")


@pytest.mark.parametrize("step", STEPS)
async def test_what_is_stored_after_a_tenant_was_forgotten_hinders_no_upkeep_of_other_tenants(
    sealing: Encryption, keys: Path, url: str, step: str
) -> None:
    forgotten, other = f"acme-{uuid4().hex}", f"other-{uuid4().hex}"
    assert sealing.keys is not None
    async with (
        aclosing(encryption_with(keys, url)) as slow,
        aclosing(Database(url, cipher=slow.cipher)) as late,
        aclosing(Database(url, cipher=sealing.cipher)) as database,
    ):
        await slow.cipher.open(await slow.cipher.seal(b"", "here", forgotten), "here")  # it knows the key for a minute
        gone = await sealing.keys.forget(forgotten)
        await remember(late, forgotten)
        await remember(database, other)
        (text,) = await due(step, database)
        assert other in text
        assert await remembered(url, forgotten) == 1, "upkeep has deleted what it met"
        assert await sealing.keys.forget(forgotten) == gone
        assert await remembered(url, forgotten) == 0, "the command deletes the rest if it is repeated"
        await sealing.keys.forget(other)


@pytest.mark.parametrize("step", STEPS)
async def test_upkeep_without_the_stacks_key_names_it_and_deletes_nothing(
    sealing: Encryption, tmp_path: Path, url: str, step: str
) -> None:
    tenant = f"acme-{uuid4().hex}"
    write_keys(tmp_path / "other", [new_key()])
    assert sealing.keys is not None
    async with (
        aclosing(encryption_with(tmp_path / "other", url)) as without,
        aclosing(Database(url, cipher=without.cipher)) as unable,
        aclosing(Database(url, cipher=sealing.cipher)) as database,
    ):
        await remember(database, tenant)
        with pytest.raises(EncryptionKeyError, match="doesn't have") as caught:
            await due(step, unable)
        assert (caught.value.is_forgotten, caught.value.context["tenant"]) == (False, tenant)
        assert await remembered(url, tenant) == 2
        await sealing.keys.forget(tenant)


async def test_a_file_that_a_tenant_stores_again_with_its_next_key_is_forgotten_with_the_tenant(
    sealing: Encryption, url: str
) -> None:
    tenant, content = f"acme-{uuid4().hex}", uuid4().bytes
    sealing.cipher.learn("run", tenant)
    assert sealing.keys is not None
    async with aclosing(Database(url, cipher=sealing.cipher)) as database:
        parts = PostgresParts(database)
        digest = await parts.save("run", content, tenant)
        await sealing.keys.rotate(tenant)
        assert await parts.save("run", content, tenant) == digest
        assert await parts.load(digest) == content
        await sealing.keys.forget(tenant)
        with pytest.raises(EncryptionKeyError, match="loom tenants forget") as caught:
            await parts.load(digest)
        assert caught.value.is_forgotten
        assert await parts.save("run", content, tenant) == digest
        assert await parts.load(digest) == content, "the tenant has come back, and nobody else has stored the file"
        await sealing.keys.forget(tenant)
        with pytest.raises(EncryptionKeyError, match="loom tenants forget"):
            await parts.load(digest)


async def test_a_file_that_a_client_has_stored_is_forgotten_with_the_tenant_of_its_run(
    sealing: Encryption, url: str
) -> None:
    tenant, content = f"acme-{uuid4().hex}", uuid4().bytes
    assert sealing.keys is not None
    async with aclosing(Database(url, cipher=sealing.cipher)) as database:
        parts = PostgresParts(database)
        for run in ("run", "another"):  # the second time, the tenant has the file already
            digest = await parts.save(run, content, None)
            assert await parts.adopt(run, digest, tenant)
            assert await parts.save(run, content, tenant) == digest
            assert await parts.load(digest) == content
        await sealing.keys.forget(tenant)
        with pytest.raises(EncryptionKeyError, match="loom tenants forget"):
            await parts.load(digest)


async def test_a_file_that_two_tenants_have_stored_stays_when_they_are_forgotten(sealing: Encryption, url: str) -> None:
    tenants, content = {run: f"{run}-{uuid4().hex}" for run in ("ours", "theirs")}, uuid4().bytes
    assert sealing.keys is not None
    async with aclosing(Database(url, cipher=sealing.cipher)) as database:
        parts = PostgresParts(database)
        for run, tenant in tenants.items():
            sealing.cipher.learn(run, tenant)
        (digest,) = {await parts.save(run, content, tenant) for run, tenant in tenants.items()}
        for tenant in tenants.values():
            await sealing.keys.forget(tenant)
            assert await parts.load(digest) == content


async def _who_knows_the_token(work: WorkName, scope: Any) -> bool:
    del work
    return dict(scope["headers"]).get(b"authorization") == b"Bearer t"


async def test_an_encrypted_payload_still_says_that_it_stays_in_line(sealing: Encryption) -> None:
    marked, plain = Payload(metadata={IN_LINE: b"true"}, data=b"text"), Payload(data=b"text")
    sealed = await sealing.codec.encode([marked, plain])
    assert [IN_LINE in each.metadata for each in sealed] == [True, False]
    assert await sealing.codec.decode(sealed) == [marked, plain]


@pytest.mark.parametrize("tenant", ["", "acme"])
@given(place=st.one_of(st.text(max_size=40), st.sampled_from(["", "payload ", ":payload"])), changed=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_codec_opens_nothing_but_payloads(
    sealing: Encryption, tenant: str, place: str, changed: st.DataObject
) -> None:
    """Whoever reads the database, and may use the codec server, reads no values of stores with it."""
    secret = Payload(data=b"secret").SerializeToString()
    stored = split(await sealing.cipher.seal(secret, place, tenant))
    text = split_text(await sealing.cipher.seal_text(secret.decode(), place, tenant))
    assert stored is not None
    assert text is not None
    for key, data in (stored, text):
        names = st.one_of(st.just(key.encode()), st.just(b"words"), st.binary(max_size=60))
        metadata = {"encoding": ENCODING, KEY: changed.draw(names)}
        with pytest.raises(EncryptionKeyError):
            await sealing.codec.decode([Payload(metadata=metadata, data=data[: changed.draw(st.integers(0, 90))])])
        with pytest.raises(EncryptionKeyError):
            await sealing.codec.decode([Payload(metadata=metadata, data=data)])


async def test_the_codec_server_decodes_for_a_browser_that_may_read(sealing: Encryption) -> None:
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"secret"')
    (sealed,) = await sealing.codec.encode([plain])
    assert sealed.metadata["encoding"] == ENCODING
    body = MessageToDict(Payloads(payloads=[sealed]))
    ui, known = "http://127.0.0.1:8233", {"authorization": "Bearer t", "origin": "http://127.0.0.1:8233"}
    app = CodecServer(sealing.codec, origins=[ui], may_use=_who_knows_the_token)
    refusing = CodecServer(RefuseEncrypted(), origins=[ui], may_use=_who_knows_the_token)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://codec") as client:
        asked = await client.options("/codec/decode", headers=known)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, ui)
        decoded = await client.post("/codec/decode", json=body, headers=known)
        assert base64.b64decode(decoded.json()["payloads"][0]["data"]) == b'"secret"'
        again = await client.post("/codec/encode", json=decoded.json(), headers=known)
        assert again.json()["payloads"][0]["metadata"].keys() >= {"encryption-key-id"}
        stranger = await client.post("/codec/decode", json=body, headers={"origin": "http://elsewhere"})
        assert (stranger.status_code, "access-control-allow-origin" in stranger.headers) == (403, False)
        for broken in (b"[", b"null", b"1", b"[1]", b"NaN", b"\xff", b'{"payloads": [{"data": 1}]}', b"[" * 100_000):
            assert (await client.post("/codec/decode", content=broken, headers=known)).status_code == 400
        assert (await client.get("/codec/decode", headers=known)).status_code == 405
        assert (await client.post("/codec", json=body, headers=known)).status_code == 404
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=refusing), base_url="http://codec") as client:
        without = await client.post("/decode", content=json.dumps(body), headers=known)
        assert (without.status_code, "doesn't have" in without.json()["message"]) == (422, True)
