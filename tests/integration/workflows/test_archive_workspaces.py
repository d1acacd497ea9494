"""Runs that work on the files of an archive: what they see, what comes back, and who may use it."""

import ast
import asyncio
import shutil
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest

from loom.chat_session import ChatSession
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunStatus
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, script, text
from loom.testing.worker_processes import environment
from tests.archives import link, member, tar, tar_of
from tests.docs_pages import blocks_of, shell
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

PACKED = tar_of({"app/a.txt": "one\n"})
DIGEST = sha256(PACKED).hexdigest()
FREELY = {"bash": "allow"}
FIX = calls(ToolUse("bash", {"command": "sed -i s/one/two/ app/a.txt; echo new > b.txt; git log --oneline"}, "fix"))
ARCHIVE: Any = {"archive": {"data": PACKED, "name": "app.tar.gz"}}


async def test_a_run_works_on_an_archive_and_its_change_comes_back_as_a_patch(working: Working) -> None:
    loom, model = await working(script([FIX, text("fixed")]))

    result = await loom.run("Fix a.txt.", workspace=ARCHIVE, permissions=FREELY)

    assert result.status is RunStatus.COMPLETED, result.error
    assert result.workspace is not None
    commit = result.workspace["commit"]
    assert result.workspace == {
        "archive": DIGEST,
        "name": "app.tar.gz",
        "commit": commit,
        "files": 2,
        "patch": "workspace.patch",
        "branch": None,
        "pushed": None,
        "problem": None,
    }
    assert f"{commit[:7]} The archive's content" in str(model.requests[1].messages[-1]["content"])
    patch = await loom.client.artifact(loom.started[0], "workspace.patch")
    assert "-one\n+two\n" in patch
    status = await loom.client.status(loom.started[0])
    assert status["workspace"] == result.workspace
    exported = [record async for record in loom.client.export(loom.started[0], artifacts=True)]
    (packed,) = [record for record in exported if record.get("id") == DIGEST]
    assert (packed["name"], packed["content"]) == ("app.tar.gz", b64encode(PACKED).decode())
    history = await loom.client.temporal.get_workflow_handle(loom.started[0]).fetch_history()
    assert not any(b64encode(PACKED) in event.SerializeToString() for event in history.events)  # the client stored it


async def test_what_the_page_shows_works_from_the_archive_to_the_patch(
    working: Working, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = calls(ToolUse("edit_file", {"path": "src/a.txt", "old_string": "one", "new_string": "two"}, "e"))
    loom, _ = await working(script([edit, text("fixed"), text("looked")]))
    here = tmp_path / "here"
    for folder in ("src", "tests"):
        (here / folder).mkdir(parents=True)
    (here / "src" / "a.txt").write_text("one\n")
    (commands,) = [each for each in blocks_of("docs/workspaces.md", "sh") if "--archive app.tar.gz" in each.text]
    (program,) = [each for each in blocks_of("docs/workspaces.md", "python") if "app.tar.gz" in each.text]
    allowed = commands.text.replace("--archive", """--permissions '{"edit_file": "allow"}' --archive""")

    await asyncio.to_thread(shell, allowed.replace("RUN", "@last"), here, environment(loom.settings, tmp_path))

    assert (here / "src" / "a.txt").read_text() == "two\n"
    monkeypatch.chdir(here)
    names: dict[str, Any] = {"loom": loom.client, "Path": Path}
    await eval(compile(program.text, "workspaces.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    loom.started.append(names["run_id"])
    result = await loom.client.result(names["run_id"])
    assert (result.output, (result.workspace or {})["name"]) == ("looked", "app.tar.gz")


async def test_another_machine_unpacks_the_archive_again_and_goes_on(working: Working) -> None:
    more = calls(ToolUse("bash", {"command": "cat app/a.txt; echo more >> b.txt"}, "more"))

    def answer(request: SeenRequest) -> Reply:
        if request.turn == 1:  # the machine loses its disk
            for folder in ("workspaces", "clones"):
                shutil.rmtree(loom.settings.home / folder)
        return (FIX, more, text("done"))[request.turn]

    loom, model = await working(answer)

    result = await loom.run(workspace=ARCHIVE, permissions=FREELY)

    assert result.status is RunStatus.COMPLETED, result.error
    told = str(model.requests[2].messages[-1]["content"])
    assert "The workspace was recreated in its state after bash (fix)." in told
    assert "two" in told
    assert "+new\n+more\n" in await loom.client.artifact(loom.started[0], "workspace.patch")


async def test_a_retry_goes_on_in_the_files_of_the_run_that_ended(working: Working) -> None:
    more = calls(ToolUse("bash", {"command": "cat b.txt >> app/a.txt"}, "more"))
    loom, _ = await working(script([FIX, text("summary"), more, text("done")]))
    run_id = await loom.start(workspace=ARCHIVE, permissions=FREELY, budget={"tool_calls": 1})
    assert (await loom.client.result(run_id)).status is RunStatus.BUDGET_EXHAUSTED

    await loom.client.retry(run_id, budget={"tool_calls": 9})

    result = await loom.client.result(run_id)
    assert (result.status, result.retries) == (RunStatus.COMPLETED, 1)
    assert "+two\n+new\n" in await loom.client.artifact(run_id, "workspace.patch")


async def test_the_members_of_a_crew_work_on_its_archive(working: Working) -> None:
    read = calls(ToolUse("read_file", {"path": "app/a.txt"}, "r"))
    loom, model = await working(script([read, text("read"), text("checked")]))
    crew = {"name": "team", "mode": "sequential", "members": [{"name": "reader"}, {"name": "checker"}]}

    run_id = await loom.client.start_crew(crew, "Read a.txt.", workspace=ARCHIVE)

    loom.started.append(run_id)
    result = await loom.client.result(run_id)
    assert result.workspace is not None
    assert result.workspace["archive"] == DIGEST
    assert "     1\tone" in str(model.requests[1].messages[-1]["content"])


async def test_sub_agents_work_in_the_clone_of_their_root(working: Working) -> None:
    read = calls(ToolUse("read_file", {"path": "b.txt"}, "r"))
    whole = [FIX, calls(delegate("a part", "the part")), text("done")]
    loom, model = await working(by_task({"the whole": whole, "the part": [read, text("read")]}))

    await loom.run("the whole", workspace=ARCHIVE, permissions=FREELY)

    results = [
        message["content"] for request in model.requests for message in request.messages if message["role"] == "tool"
    ]
    assert "     1\tnew" in results


async def test_a_request_in_any_language_has_the_content_in_base64(working: Working) -> None:
    loom, _ = await working(script([text("done")]))
    workspace = {"archive": {"data": b64encode(PACKED).decode()}}
    handle = await loom.client.temporal.start_workflow(
        "AgentRun", {"task": "Look.", "workspace": workspace}, id="inline-archive", task_queue=loom.settings.task_queue
    )

    result = await handle.result()

    assert result["workspace"]["archive"] == DIGEST
    assert result["workspace"]["name"] is None
    events = [event.SerializeToString() for event in (await handle.fetch_history()).events]
    having = [number for number, event in enumerate(events) if b64encode(PACKED) in event]
    assert len(having) == 2, "the run's input and that of prepare_run"


@pytest.mark.parametrize("tenant", ["acme", None])
async def test_the_digest_of_a_run_s_archive_gives_only_its_tenant_the_right_to_use_it(
    working: Working, tenant: str | None
) -> None:
    loom, _ = await working(script([text("done"), text("done")]))
    packed = tar_of({"secret.txt": f"of {tenant}\n"})
    own = await loom.run(workspace={"archive": {"data": packed}}, tenant="acme")
    assert own.status is RunStatus.COMPLETED, own.error

    other = await loom.run(workspace={"archive": {"digest": sha256(packed).hexdigest()}}, tenant=tenant)

    assert other.status is (RunStatus.COMPLETED if tenant == "acme" else RunStatus.FAILED)
    if other.error:
        assert "no archive is stored under the digest" in other.error.message


async def test_a_hostile_archive_refuses_the_run_by_the_name_of_the_member(working: Working) -> None:
    loom, _ = await working(script([text("never")]))

    result = await loom.run(workspace={"archive": {"data": tar(member("a", b"x"), link("out", "/etc"))}})

    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert result.error.type == "BadRequest"
    assert "'out' is a link to '/etc', which may lead out of the folder" in result.error.message


async def test_a_worker_without_a_database_says_what_it_needs(working: Working) -> None:
    loom, _ = await working(script([text("never")]), database_url=None)

    result = await loom.run(workspace=ARCHIVE)

    assert result.error is not None
    assert "set LOOM_DATABASE_URL on the worker" in result.error.message


async def test_a_fork_of_such_a_run_needs_a_folder(working: Working) -> None:
    loom, _ = await working(script([text("done")]))
    await loom.run(workspace=ARCHIVE)

    with pytest.raises(BadRequest, match=r"its own clone of the archive app\.tar\.gz, .* name a folder"):
        await loom.client.fork(loom.started[0], turn=0)
    with pytest.raises(BadRequest, match="a fork can't have a repository or an archive"):
        await loom.client.fork(loom.started[0], turn=0, workspace=ARCHIVE)


async def test_a_chat_works_on_an_archive(working: Working) -> None:
    loom, _ = await working(script([FIX, text("fixed"), text("bye")]))
    chat = ChatSession(loom.client, loom.settings.task_queue, workspace=ARCHIVE, permissions=FREELY)
    loom.started.append(chat.run_id)

    assert (await chat.ask("Fix a.txt.")).output == "fixed"
    assert (await chat.ask("Thanks.")).output == "bye"

    status = await loom.client.status(chat.run_id)
    assert status["workspace"] is not None
    assert status["workspace"]["archive"] == DIGEST


async def test_the_next_chat_of_a_session_stores_the_archive_again(working: Working) -> None:
    loom, _ = await working(script([text("one"), text("two")]))
    packed = tar_of({"a.txt": "of a chat\n"})
    digest = sha256(packed).digest()
    chat = ChatSession(loom.client, loom.settings.task_queue, workspace={"archive": {"data": packed}})
    loom.started.append(chat.run_id)
    assert (await chat.ask("Hello.")).output == "one"
    await loom.client.abort(chat.run_id)
    await loom.client.result(chat.run_id)
    with psycopg.connect(str(loom.settings.database_url)) as connection:  # as if the chat had left the server
        connection.execute("DELETE FROM loom_payload_owners WHERE payload = %s", (digest,))
        connection.execute("DELETE FROM loom_payloads WHERE id = %s", (digest,))

    assert (await chat.ask("Hello again.")).output == "two"


async def test_a_message_of_a_chat_without_a_database_has_room_for_its_parts_and_the_archive(working: Working) -> None:
    loom, _ = await working(script([]))
    client = LoomClient(loom.client.temporal, task_queue=loom.settings.task_queue)
    packed = tar(member("x", bytes(900_000)))
    chat = ChatSession(client, "without-a-database", workspace={"archive": {"data": packed}})

    with pytest.raises(BadRequest, match="bytes of parts and archives, and without a database, it may have at most"):
        await chat.ask("Hello.", parts=[{"data": b"word " * 100_000, "name": "a.txt"}])


async def test_a_schedule_has_no_archive(working: Working) -> None:
    loom, _ = await working(script([text("never")]))

    with pytest.raises(BadRequest, match="a schedule's runs can't work on an archive"):
        await loom.client.schedules.add("0 7 * * *", "Look.", workspace=ARCHIVE)
