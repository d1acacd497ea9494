"""Parts in a real Postgres, on their way into it and out of it to a model."""

from base64 import b64encode, encodebytes
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pytest

from loom.activities.adapters.documents.readers import SeparateDocumentReader
from loom.activities.adapters.models.media_parts import accepted_by
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.parts import PostgresParts
from loom.activities.adapters.redaction.mask import SecretMask
from loom.activities.adapters.skills.requirements import noting
from loom.activities.part_storing import INLINE_LIMIT, PartKeeper
from loom.activities.parts_for_models import PartLoader
from loom.activities.plan_calls import CallPreparer
from loom.activities.ports import PartStore, StoreUnavailable
from loom.activities.toolbox.built_in.files import file_tools
from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.activities.toolbox.built_in.skills import SkillTools
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.tool_sets import RunTools
from loom.domain.agents.hook_steps import Moment
from loom.domain.agents.hooks import Deny, Hook, Instead, Interceptor, Registered
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest, LLMUnavailableError, UnreachableError
from loom.domain.core.messages import Message, Part, ToolCall, user, with_parts
from loom.domain.core.tasks import Origin, Task
from loom.domain.core.tool_calls import ToolResult
from loom.domain.run.activity_payloads import StorePartsRequest
from loom.part_upload import encoded, uploaded
from tests.databases import fresh_database, rows
from tests.unit.domain.test_media import PDF, png, wav

from .conftest import PostgresServer

ORIGIN = Origin(run_id="run-1", agent="default")
PICTURE = Part(type="image", media_type="image/png", data=b64encode(png()).decode(), name="a.png")
FOLDED = replace(PICTURE, data=encodebytes(png()).decode())
"""The same with line breaks."""
CUT_OFF = replace(PICTURE, data=PICTURE.data[:5], name="b.png")


class Away:
    """A store that isn't there."""

    async def save(self, run_id: str, data: bytes, tenant: str | None) -> str:
        raise StoreUnavailable("away")

    async def adopt(self, run_id: str, digest: str, tenant: str) -> bool:
        raise StoreUnavailable("away")

    async def load(self, digest: str) -> bytes | None:
        raise StoreUnavailable("away")


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[PostgresParts]:
    async with aclosing(Database(postgres.url)) as database:
        yield PostgresParts(database)


def keeper(store: PartStore | None, *registered: Registered) -> PartKeeper:
    tools = {tool.spec.name: tool for tool in file_tools(10.0)}
    sanitizer = OutputSanitizer(SecretMask(()), None)
    own = RunTools(
        made=MadeTools(sandbox=None),
        skills=SkillTools(sandbox=None, missing="", timeout=1, note_of_missing=noting(None)),
    )
    planner = CallPreparer(tools=tools, own=own, sanitizer=sanitizer, registered=lambda *_: registered)
    return PartKeeper(store, tools, sanitizer, planner)


def loader(store: PartStore | None) -> PartLoader:
    return PartLoader(store, SeparateDocumentReader())


def given(data: bytes, name: str = "") -> Part:
    return Part(type="file", data=b64encode(data).decode(), name=name)


async def test_a_content_is_stored_once_and_belongs_to_each_run(store: PostgresParts, postgres: PostgresServer) -> None:
    content = uuid4().bytes
    digest = await store.save("run-a", content, "")
    assert digest == sha256(content).hexdigest()
    assert await store.save("run-b", content, "") == digest
    assert await store.adopt("run-c", digest, "")
    assert await store.load(digest) == content
    found = await rows(
        postgres.url, "SELECT owner FROM loom_payload_owners WHERE payload = %s", [bytes.fromhex(digest)]
    )
    assert sorted(owner for (owner,) in found) == ["run-a", "run-b", "run-c"]
    assert not await store.adopt("run-c", "00" * 32, "")
    assert await store.load("00" * 32) is None


async def test_only_runs_of_the_tenant_read_a_content_by_its_digest(store: PostgresParts) -> None:
    content = b"the plan of acme " + uuid4().hex.encode()
    ours, theirs, nobodys = (Origin(run_id=uuid4().hex, tenant=tenant) for tenant in ("acme", "evil", ""))
    (part,) = await keeper(store).attached([given(content)], None, ours)
    named = Part(type="file", digest=part.digest)

    for other in (theirs, nobodys, replace(theirs, run_id=ours.run_id)):
        # The answer is the same as for a content that nobody has stored.
        with pytest.raises(BadRequest, match=f"no content is stored under the digest {part.digest}"):
            await keeper(store).attached([named], None, other)
        (told,) = (await keeper(store).store_parts(StorePartsRequest(origin=other, parts=(named,)))).parts
        assert "can't be shown: parts.0: no content is stored under the digest" in told.text
        result = await keeper(store).kept(ToolResult(content="", parts=(named,)), other)
        assert (result.parts, "was left out: no content is stored" in result.content) == ((), True)

    child = replace(ours, run_id=f"{ours.run_id}/look")
    assert await keeper(store).attached([named], None, child) == (part,)
    for run in (ours, replace(ours, run_id=uuid4().hex)):
        assert (await keeper(store).kept(ToolResult(content="", parts=(named,)), run)).parts == (named,)

    # Equal contents are stored once, and each tenant that has the content reads it.
    assert await keeper(store).attached([given(content)], None, theirs) == (part,)
    assert await store.adopt(uuid4().hex, part.digest, "evil")
    assert await store.adopt(uuid4().hex, part.digest, "acme")
    assert not await store.adopt(uuid4().hex, part.digest, "")


async def test_what_a_client_stores_belongs_to_the_run_that_it_is_for(store: PostgresParts) -> None:
    content, run, other = uuid4().hex.encode(), uuid4().hex, uuid4().hex
    (sent,) = await uploaded(encoded([{"data": content}]), store, run)
    digest = sent["digest"]
    for tenant in ("", "acme"):
        assert not await store.adopt(other, digest, tenant), "the run has not taken it yet"
    assert await store.adopt(run, digest, "acme")
    assert await store.adopt(run, digest, "acme"), "the activity runs again"

    await uploaded(encoded([{"data": content}]), store, run)
    assert await store.adopt(f"{run}/look", digest, "acme"), "a message brings what the run has already"
    assert await store.adopt(run, digest, "acme")
    assert not await store.adopt(run, digest, "evil"), "a later run with the same id"
    assert await store.save(run, content, "evil") == digest
    assert await store.adopt(other, digest, "evil")


async def test_what_was_stored_without_tenants_belongs_to_its_run_and_to_runs_without_one(
    postgres: PostgresServer,
) -> None:
    runs, contents = [uuid4().hex for _ in range(2)], [uuid4().bytes for _ in range(2)]
    async with fresh_database(postgres.url, "template1") as url, aclosing(Database(url)) as database:
        store = PostgresParts(database)
        digests = [await store.save(run, content, None) for run, content in zip(runs, contents, strict=True)]
        await rows(url, "ALTER TABLE loom_payload_owners DROP COLUMN tenant, DROP COLUMN offered")

        assert not await store.adopt(uuid4().hex, digests[0], "acme")
        assert await store.adopt(runs[0], digests[0], "acme")
        assert await store.adopt(uuid4().hex, digests[0], "acme")
        assert await store.adopt(uuid4().hex, digests[1], "")
        assert await rows(url, "SELECT owner FROM loom_payload_owners WHERE owner = ''") == []

        # A client of an earlier release names no tenant.
        insert = "INSERT INTO loom_payloads (id, data, size, owner) VALUES (%s, 'x', 1, 'run-x')"
        await rows(url, insert, [sha256(b"x").digest()])
        assert not await store.adopt("run-y", sha256(b"x").hexdigest(), "")


async def test_a_result_refers_to_its_parts(store: PostgresParts) -> None:
    mislabeled = replace(PICTURE, data=b64encode(b"<svg/>").decode())
    result = await keeper(store).kept(ToolResult(content="2", parts=(PICTURE, mislabeled)), ORIGIN)
    picture, unknown = result.parts
    assert (picture.data, picture.media_type, picture.size, picture.name) == ("", "image/png", len(png()), "a.png")
    assert await store.load(picture.digest) == png()
    assert (unknown.type, unknown.media_type) == ("file", "application/octet-stream")


async def test_base64_with_line_breaks_is_a_content_and_what_is_no_base64_becomes_a_note(store: PostgresParts) -> None:
    result = await keeper(store).kept(ToolResult(content="2", parts=(FOLDED, CUT_OFF)), ORIGIN)
    assert [(part.digest, part.media_type) for part in result.parts] == [(sha256(png()).hexdigest(), "image/png")]
    assert result.content == "2\n([image: b.png, image/png, 3 bytes] was left out: its `data` is not base64)"
    inline = await keeper(None).kept(ToolResult(content="2", parts=(FOLDED,)), ORIGIN)
    assert inline.parts[0].data == PICTURE.data


async def test_a_part_that_an_earlier_release_kept_although_it_is_no_base64_is_told() -> None:
    (shown,) = await loader(None).shown((Message(role="tool", content=(FOLDED, CUT_OFF)),), {"image"})
    assert shown.content == (
        PICTURE,
        Part(type="text", text="[image: b.png, image/png, 3 bytes] Its `data` is not base64."),
    )


async def test_a_picture_that_providers_reject_is_left_out_when_it_comes_and_when_it_is_shown() -> None:
    cut = replace(PICTURE, media_type="image/jpeg", data=b64encode(png()[:60]).decode(), name="cut.png")
    empty = Part(type="image", media_type="image/png", name="empty.png")
    kept = await keeper(None).kept(ToolResult(content="2", parts=(cut, PICTURE, empty)), ORIGIN)
    assert [part.name for part in kept.parts] == ["a.png"]
    assert kept.content.splitlines()[1:] == [
        "([image: cut.png, image/png, 60 bytes] was left out: it is damaged or cut off: use the whole file)",
        "([image: empty.png, image/png] was left out: it is empty)",
    ]
    (shown,) = await loader(None).shown((Message(role="tool", content=(cut, PICTURE, empty)),), {"image"})
    assert [(part.type, part.told) for part in shown.content if isinstance(part, Part)] == [
        (
            "text",
            "[image: cut.png, image/png, 60 bytes] It was left out, because it is damaged or cut off: use the whole"
            " file.",
        ),
        ("image", PICTURE.told),
        ("text", "[image: empty.png, image/png] It is empty."),
    ]


@pytest.mark.parametrize("store_or_none", [None, Away()], ids=["no store", "store away"])
async def test_without_a_store_small_parts_stay_and_large_ones_are_left_out(store_or_none: PartStore | None) -> None:
    large = replace(PICTURE, data=b64encode(png() + bytes(INLINE_LIMIT)).decode(), name="b.png")
    result = await keeper(store_or_none).kept(ToolResult(content="2", parts=(large, PICTURE)), ORIGIN)
    assert [part.name for part in result.parts] == ["a.png"]
    assert result.parts[0].data == PICTURE.data
    assert "[image: b.png, image/png, 1,000,0" in result.content
    assert "was left out: without a database" in result.content


async def test_each_kind_of_attachment_is_recognized_and_stored(store: PostgresParts) -> None:
    parts = [given(png(), "a.bin"), given(PDF, "r.pdf"), given(wav(), "s.wav"), given(b"a,b", "n.csv")]
    stored = await keeper(store).attached(parts, None, ORIGIN)
    assert [(part.type, part.media_type, part.data) for part in stored] == [
        ("image", "image/png", ""),
        ("file", "application/pdf", ""),
        ("audio", "audio/wav", ""),
        ("file", "text/csv", ""),
    ]
    again = await keeper(store).attached([Part(type="file", digest=stored[0].digest, name="b.png")], None, ORIGIN)
    assert again == (replace(stored[0], name="b.png"),)


async def test_a_path_is_read_by_the_agents_own_tool_under_its_rules(store: PostgresParts, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "n.txt").write_text("hello")
    spec = AgentSpec(name="default", model="m", workspace=str(tmp_path), permissions={"read_file(*.txt)": "ask"})
    picture, note = await keeper(store).attached(
        [Part(type="file", path="a.png"), Part(type="file", path="n.txt")], spec, ORIGIN
    )
    assert (picture.media_type, picture.name) == ("image/png", "a.png")
    assert note.text == "n.txt:\n     1\thello"

    for path, rules, why in (
        ("../x.png", {}, "parts.0: ../x.png is outside the workspace"),
        ("no.png", {}, "parts.0: no.png does not exist: did you mean a.png"),
        ("a.png", {"read_file(a.png)": "deny"}, "parts.0: the run's rules don't allow read_file here"),
    ):
        with pytest.raises(BadRequest, match=why):
            await keeper(store).attached([Part(type="file", path=path)], replace(spec, permissions=rules), ORIGIN)


async def test_hooks_and_interceptors_apply_to_what_is_read(store: PostgresParts, tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("hello")
    spec = AgentSpec(name="default", model="m", workspace=str(tmp_path))
    part = Part(type="file", path="n.txt")

    def gate(call: ToolCall, _run_id: str) -> Deny:
        return Deny(f"no {call.arguments['path']} today")

    def refuse(task: Task) -> Deny:
        return Deny(f"no {task.parameters['arguments']['path']} today")

    for denies in (
        Hook(moment=Moment.TOOL_CALL, name="gate", function=gate, tools=("read_file",)),
        Interceptor(name="gate", before=refuse),
    ):
        with pytest.raises(BadRequest, match="no n.txt today"):
            await keeper(store, denies).attached([part], spec, ORIGIN)
    other_tool = Hook(moment=Moment.TOOL_CALL, name="gate", function=gate, tools=("bash",))
    (read,) = await keeper(store, other_tool).attached([part], spec, ORIGIN)
    assert "hello" in read.text

    answers = Interceptor(name="cache", before=lambda _task: Instead("a cached copy"))
    (read,) = await keeper(store, answers).attached([part], spec, ORIGIN)
    assert read.text == "n.txt:\na cached copy"
    changes = Interceptor(name="masked", after=lambda _task, result: result.replace("hello", "***"))
    (read,) = await keeper(store, changes).attached([part], spec, ORIGIN)
    assert read.text == "n.txt:\n     1\t***"


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Part(type="file", data="??"), "parts.0: `data` is not base64"),
        (given(b"\0\1", "x.bin"), "parts.0: x.bin has a format that no model can read"),
        (Part(type="file", digest="00" * 32), "parts.0: no content is stored under the digest 0000"),
    ],
)
async def test_an_attachment_that_cannot_be_used_is_refused(store: PostgresParts, part: Part, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as caught:
        await keeper(store).attached([part], None, ORIGIN)
    assert caught.value.context["field"] == "parts.0"


async def test_too_much_for_a_history_is_refused_without_a_store() -> None:
    with pytest.raises(BadRequest, match="parts: 1,000,0.. bytes are too much: without a database"):
        await keeper(None).attached([given(png() + bytes(INLINE_LIMIT))], None, ORIGIN)


async def test_a_model_gets_what_it_takes_and_words_for_the_rest(store: PostgresParts) -> None:
    parts = await keeper(store).attached([given(png(), "a.png"), given(wav(), "s.wav")], None, ORIGIN)
    (shown,) = await loader(store).shown((with_parts(user("look"), parts),), accepted_by("openai", "gpt-5"))
    assert isinstance(shown.content, tuple)
    text, label, picture, _, sound = shown.content
    assert (text.text, picture.data, picture.digest) == ("look", PICTURE.data, "")
    assert label.text == f"(image a.png, id {parts[0].id}; a sub-agent gets it if its prompt names the id)"
    assert sound.text == f"[audio: s.wav, audio/wav, {len(wav()):,} bytes] This model can't take it."
    (heard,) = await loader(store).shown((Message(role="tool", content=parts),), accepted_by("openai", "gpt-audio"))
    assert [part.type for part in heard.content if isinstance(part, Part)] == ["image", "audio"]


async def test_a_pdf_becomes_its_text_where_the_model_cannot_take_it(store: PostgresParts) -> None:
    document = minimal_pdf("Hello from page one")
    parts = await keeper(store).attached([given(document, "r.pdf")], None, ORIGIN)
    (shown,) = await loader(store).shown((Message(role="tool", content=parts),), ("text",))
    assert "Its text:" in shown.text
    assert "Hello from page one" in shown.text
    broken = await keeper(store).attached([given(PDF, "x.pdf")], None, ORIGIN)
    (told,) = await loader(store).shown((Message(role="tool", content=broken),), ())
    assert told.text.endswith("It is damaged or too large to read.")


async def test_only_the_newest_parts_are_sent_if_they_are_too_large_together(
    store: PostgresParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loom.activities.parts_for_models.MOST_BYTES", len(png()))
    parts = await keeper(store).attached([given(png(), "a.png")], None, ORIGIN)
    old, new = await loader(store).shown((with_parts(user("1"), parts), with_parts(user("2"), parts)), {"image"})
    assert "This model can't take it." in old.text
    assert [part.type for part in new.content if isinstance(part, Part)] == ["text", "text", "image"]


async def test_a_missing_part_is_told_and_a_store_that_is_away_is_waited_for(store: PostgresParts) -> None:
    lost = with_parts(user("look"), (Part(type="image", media_type="image/png", digest="00" * 32, name="a.png"),))
    (shown,) = await loader(store).shown((lost,), {"image"})
    assert shown.text.endswith("[image: a.png, image/png] It is no longer stored.")
    with pytest.raises(LLMUnavailableError, match="can't be loaded: away"):
        await loader(Away()).shown((lost,), {"image"})


async def test_a_clients_request_refers_to_the_stored_content(store: PostgresParts) -> None:
    parts = encoded([{"data": png(), "name": "a.png"}, {"url": "https://x.org/a.png"}])
    first, second = await uploaded(parts, store, "run-1")
    assert first == {"digest": sha256(png()).hexdigest(), "name": "a.png"}
    assert second == {"url": "https://x.org/a.png"}
    assert await uploaded(parts, None, "run-1") == parts
    with pytest.raises(BadRequest, match="parts.0: a.bin has a format"):
        await uploaded(encoded([{"data": b"\0", "name": "a.bin"}]), store, "run-1")
    with pytest.raises(UnreachableError, match="the parts can't be stored: away"):
        await uploaded(parts, Away(), "run-1")


async def test_a_message_with_a_part_that_cannot_be_used_says_so(store: PostgresParts) -> None:
    request = StorePartsRequest(origin=ORIGIN, parts=(given(b"\0", "x.bin"), given(png(), "a.png")))
    told, picture = [
        part for n, part in enumerate(request.parts) for part in await keeper(store)._usable(part, n, request, 1000)
    ]
    assert told.text.startswith("(x.bin was attached, but can't be shown: parts.0: x.bin has a format")
    assert picture.media_type == "image/png"
    (large,) = await keeper(store)._usable(request.parts[1], 1, request, 10)
    assert large.text == "(a.png was attached, but can't be shown: the attachments are too large together)"


def minimal_pdf(text: str) -> bytes:
    """A PDF with one page and this text."""
    stream = f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type /Catalog /Pages 2 0 R>>",
        b"<</Type /Pages /Kids [3 0 R] /Count 1>>",
        b"<</Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R /Resources <</Font <</F1 5 0 R>>>>>>",
        b"<</Length %d>> stream\n%b\nendstream" % (len(stream), stream),
        b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica>>",
    ]
    body, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj %b endobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    return body + b"xref\n0 %d\n0000000000 65535 f \n%btrailer <</Size %d /Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        size,
        table,
        size,
        len(body),
    )
