"""Images, PDFs, recordings and texts in runs, from people and tools, to both providers over HTTP."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from loom.chat_session import ChatSession
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import Part
from loom.domain.core.requests import RunStatus
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, text
from tests.databases import rows
from tests.integration.activities.test_parts import minimal_pdf
from tests.integration.workflows.conftest import Working
from tests.trees import delegate
from tests.unit.domain.test_media import png, wav

PDF = minimal_pdf("Hello from page one")
WAV = wav(0.2)
PARTS: list[Any] = [
    {"data": png(40, 40), "name": "shop.png"},
    {"data": PDF, "name": "report.pdf"},
    {"data": WAV, "name": "call.wav"},
    {"data": b"a,b", "name": "sums.csv"},
]
ENCODED = [b64encode(data).decode() for data in (png(40, 40), PDF, WAV)]


def sent(request: Any) -> list[dict[str, Any]]:
    """The blocks of the last message from the user."""
    content: list[dict[str, Any]] = [m for m in request.messages if m["role"] == "user"][-1]["content"]
    return [{name: value for name, value in block.items() if name != "cache_control"} for block in content]


async def history_of(loom: Harness, run_id: str) -> str:
    return "".join([history.to_json() for history in await loom.histories(run_id)])


async def test_openai_gets_each_kind_and_history_only_refers_to_them(working: Working) -> None:
    loom, model = await working(script([text("seen")]))
    run_id = await loom.start("look", model="openai:gpt-audio", parts=PARTS)
    assert (await loom.client.result(run_id)).output == "seen"

    picture, document, sound = ENCODED
    blocks = sent(model.requests[0])
    assert blocks[0] == {"type": "text", "text": "look"}
    assert {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}} in blocks
    as_file = {"filename": "report.pdf", "file_data": f"data:application/pdf;base64,{document}"}
    assert {"type": "file", "file": as_file} in blocks
    assert {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}} in blocks
    assert {"type": "text", "text": "(sums.csv:)\na,b"} in blocks

    history = await history_of(loom, run_id)
    for data in ENCODED:
        assert data not in history
        assert b64encode(data.encode()).decode()[:60] not in history
    (task, _) = await loom.client.transcript(run_id)
    assert [part.type for part in task.content if isinstance(part, Part)] == ["text", "image", "file", "audio", "file"]


async def test_anthropic_gets_pictures_and_documents_and_is_told_of_sounds(working: Working) -> None:
    loom, model = await working(script([text("seen")]))
    assert (await loom.run("look", model="anthropic:scripted", parts=PARTS)).output == "seen"
    picture, document, _ = ENCODED
    blocks = sent(model.requests[0])
    image = {"type": "base64", "media_type": "image/png", "data": picture}
    assert {"type": "image", "source": image} in blocks
    pdf = {"type": "base64", "media_type": "application/pdf", "data": document}
    assert {"type": "document", "source": pdf} in blocks
    told = f"[audio: call.wav, audio/wav, {len(WAV):,} bytes] This model can't take it."
    assert {"type": "text", "text": told} in blocks


async def test_a_model_of_texts_gets_the_text_of_a_pdf(working: Working) -> None:
    loom, model = await working(script([text("seen")]))
    await loom.run("look", parts=PARTS[:2], model_options={"accepts": ["text"]})
    words = json.dumps(sent(model.requests[0]))
    assert "Hello from page one" in words
    assert "[image: shop.png, image/png" in words
    assert ENCODED[0] not in words


@pytest.mark.parametrize("name", ["openai:scripted", "anthropic:scripted"])
async def test_read_file_shows_an_image_and_a_pdf(working: Working, workspace: Path, name: str) -> None:
    (workspace / "a.png").write_bytes(png(40, 40))
    (workspace / "r.pdf").write_bytes(PDF)
    uses = calls(ToolUse("read_file", {"path": "a.png"}, "c1"), ToolUse("read_file", {"path": "r.pdf"}, "c2"))
    loom, model = await working(script([uses, text("seen")]))
    run_id = await loom.start("look", model=name)
    assert (await loom.client.result(run_id)).output == "seen"
    seen = json.dumps(model.requests[1].messages)
    assert ENCODED[0] in seen
    assert ENCODED[1] in seen
    assert "a.png: image/png" in seen
    history = await history_of(loom, run_id)
    assert b64encode(ENCODED[0].encode()).decode()[:60] not in history


@pytest.mark.parametrize("name", ["openai:scripted", "anthropic:scripted"])
async def test_a_message_brings_its_parts_to_the_next_turn(working: Working, workspace: Path, name: str) -> None:
    (workspace / "b.png").write_bytes(png(8, 8))
    ask = calls(ToolUse("ask_user", {"question": "which one?"}, "q1"))
    loom, model = await working(script([ask, text("thanks")]))
    run_id = await loom.start("look", model=name)
    await loom.until(run_id, lambda status: status["status"] == "waiting_for_input")
    parts: list[Any] = [PARTS[0], {"path": "b.png"}, {"path": "../x.png"}]
    await loom.client.send(run_id, "these", parts=parts, by="ann")
    assert (await loom.client.result(run_id)).output == "thanks"

    words = json.dumps(model.requests[1].messages)
    assert "these" in words
    assert ENCODED[0] in words
    assert b64encode(png(8, 8)).decode() in words
    assert "(../x.png was attached, but can't be shown: parts.2: ../x.png is outside the workspace" in words


async def test_each_message_of_a_chat_brings_its_own_parts(working: Working) -> None:
    loom, model = await working(script([text("a shop"), text("a report")]))
    chat = ChatSession(loom.client, f"s-{uuid4().hex[:8]}")
    loom.started.append(chat.run_id)
    assert (await chat.ask("what is it?", parts=PARTS[:1])).output == "a shop"
    assert (await chat.ask("and this?", parts=PARTS[1:2])).output == "a report"
    assert ENCODED[0] in json.dumps(model.requests[0].messages)
    first, second = (json.dumps(request.messages) for request in model.requests)
    assert ENCODED[1] not in first
    assert ENCODED[1] in second
    history = await history_of(loom, chat.run_id)
    assert not any(b64encode(data.encode()).decode()[:60] in history for data in ENCODED)
    with pytest.raises(BadRequest, match="own_run doesn't support a message with parts"):
        await chat.send("more", parts=PARTS[:1], when_busy="own_run")


async def test_a_run_reads_no_part_of_another_tenant(working: Working) -> None:
    ask = calls(ToolUse("ask_user", {"question": "which one?"}, "q1"))
    loom, model = await working(script([ask, text("thanks"), ask, text("none"), text("seen")]))
    content = f"the plan of acme {uuid4().hex}".encode()
    ours = await loom.start("look", tenant="acme")
    await loom.until(ours, lambda status: status["status"] == "waiting_for_input")
    await loom.client.send(ours, "this", parts=[{"data": content}])
    assert (await loom.client.result(ours)).output == "thanks"
    assert content.decode() in json.dumps(model.requests[1].messages)

    named: list[Any] = [{"digest": sha256(content).hexdigest()}]
    for tenant in ("evil", None):
        refused = await loom.run("look", parts=named, tenant=tenant)
        assert refused.error is not None
        assert "parts.0: no content is stored under the digest" in refused.error.message
    theirs = await loom.start("look", tenant="evil")
    await loom.until(theirs, lambda status: status["status"] == "waiting_for_input")
    await loom.client.send(theirs, "this", parts=named)
    assert (await loom.client.result(theirs)).output == "none"
    words = json.dumps(model.requests[3].messages)
    assert "can't be shown: parts.0: no content is stored" in words
    assert content.decode() not in words

    assert (await loom.run("look", parts=named, tenant="acme")).output == "seen"
    assert content.decode() in json.dumps(model.requests[4].messages)


async def test_a_request_with_a_wrong_part_is_refused(working: Working) -> None:
    loom, _ = await working(script([]))
    with pytest.raises(BadRequest, match="parts.0: x.bin has a format that no model can read"):
        await loom.start(parts=[{"data": b"\0\1", "name": "x.bin"}])
    refused = await loom.run(parts=[{"path": "../secret.png"}])
    assert refused.status is RunStatus.FAILED
    assert refused.error is not None
    assert (refused.error.type, refused.error.message[:40]) == (
        "BadRequest",
        "parts.0: ../secret.png is outside the wo",
    )
    local = await loom.run(parts=[{"url": "http://127.0.0.1:9/a.png"}])
    assert local.error is not None
    assert "only the public web can be fetched" in local.error.message


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_fork_and_a_sub_agent_still_read_the_part(working: Working, tenant: str | None) -> None:
    def given_away(request: Any) -> Any:
        told = json.dumps(request.messages)
        part = told.partition("(image shop.png, id ")[2][:12]
        return calls(delegate("look", f"describe part {part}"))

    loom, model = await working(
        lambda request: (
            (text("all") if any(m["role"] == "tool" for m in request.messages) else given_away(request))
            if "the root" in json.dumps(request.messages)
            else text("a shop")
        )
    )
    run_id = await loom.start("the root", parts=PARTS[:1], tenant=tenant)
    assert (await loom.client.result(run_id)).output == "all"
    child = model.requests[1]
    assert "the root" not in json.dumps(child.messages)
    assert ENCODED[0] in json.dumps(child.messages)

    fork = await loom.client.fork(run_id, turn=0, fork_id=f"{run_id}-fork", message="again")
    loom.started.append(fork)
    await loom.client.result(fork)
    assert ENCODED[0] in json.dumps(model.requests[3].messages)


async def test_a_run_that_continues_as_new_keeps_only_references(working: Working) -> None:
    uses = [calls(ToolUse("list_dir", {"path": "."}, f"c{n}")) for n in range(20)]
    loom, model = await working(script([*uses, text("done")]), rotate_after_events=100)
    run_id = await loom.start("look", parts=PARTS[:1])
    assert (await loom.client.result(run_id)).output == "done"
    assert len(await loom.histories(run_id)) > 1
    assert ENCODED[0] in json.dumps(model.requests[-1].messages)
    assert b64encode(ENCODED[0].encode()).decode()[:60] not in await history_of(loom, run_id)


async def test_without_a_database_small_parts_stay_in_history(working: Working) -> None:
    loom, model = await working(script([text("seen")]), database_url=None)
    await loom.run("look", parts=PARTS[:1])
    assert ENCODED[0] in json.dumps(model.requests[0].messages)
    with pytest.raises(BadRequest, match="set LOOM_DATABASE_URL to send more"):
        await loom.start(parts=[{"data": png() + bytes(1_100_000), "name": "large.png"}])


async def test_the_run_keeps_its_parts_for_as_long_as_it_is_on_the_server(working: Working) -> None:
    loom, _ = await working(script([text("seen")]))
    run_id = await loom.start("look", parts=PARTS[:1])
    result = await loom.client.result(run_id)
    assert result.status is RunStatus.COMPLETED
    (task, _) = await loom.client.transcript(run_id)
    digest = next(part.digest for part in task.content if isinstance(part, Part) and part.digest)
    owners = await rows(
        loom.settings.database_url or "",
        "SELECT owner FROM loom_payload_owners WHERE payload = %s AND owner = %s",
        [bytes.fromhex(digest), run_id],
    )
    assert owners == [(run_id,)]


async def test_the_program_of_the_docs_attaches_both_files(working: Working, workspace: Path, tmp_path: Path) -> None:
    docs = (Path(__file__).parents[3] / "docs/attachments.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", docs, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program, "docs/attachments.md", "exec"), names)
    (workspace / "docs").mkdir()
    (workspace / "docs/plan.pdf").write_bytes(PDF)
    (tmp_path / "a.png").write_bytes(png(40, 40))
    loom, model = await working(script([text("it does")]))

    assert await names["ask"](loom.client, tmp_path / "a.png") == "it does"
    words = json.dumps(model.requests[0].messages)
    assert ENCODED[0] in words
    assert ENCODED[1] in words
