"""Files of runs, listed, read and written by people, on a real server: in folders and in clones."""

import asyncio
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.exceptions import ApplicationError

from loom import run_files
from loom.activities.toolbox.workspace import paths
from loom.activities.toolbox.workspace.confined_open import draft_name
from loom.client import LoomClient
from loom.domain.core.errors import (
    AccessDeniedError,
    BadRequest,
    NoSuchFileError,
    RefusedError,
    RunNotFoundError,
    UnreachableError,
)
from loom.domain.core.media import MOST_BYTES
from loom.domain.core.run_files import INLINE_LIMIT, RUN_FILES, CallerLimits, FileEntry
from loom.testing.harness import Harness
from loom.testing.model_server import ModelServer, ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import environment
from tests.docs_pages import blocks_of, shell
from tests.git_server import repository
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_signed_requests import stranger

ASK = calls(ToolUse("ask_user", {"question": "which file?"}, "ask"))
SHOW = calls(ToolUse("bash", {"command": "cat given.txt"}, "show"))


async def asking(loom: Harness, **request: Any) -> str:
    """A run that waits for an answer."""
    run_id = await loom.start(**request)
    await loom.until(run_id, lambda status: status["status"] == "waiting_for_input")
    return run_id


def names_in(archive: bytes) -> list[str]:
    """The names of the files in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return opened.getnames()


async def test_files_of_a_run_are_listed_read_and_written_while_it_runs_and_afterwards(
    working: Working, workspace: Path
) -> None:
    loom, model = await working(script([ASK, SHOW, text("done")]))
    (workspace / "sub").mkdir()
    (workspace / "sub" / "a.bin").write_bytes(b"\x00\xff")
    (workspace / (odd := os.fsdecode(b"caf\xe9"))).write_text("an odd name")
    run_id = await asking(loom, permissions={"bash": "allow"})
    files = loom.client.files

    written = await files.write(run_id, "given.txt", b"for the agent\n", by="ann")
    listed = await files.list(run_id)

    assert (written.is_new, written.note) == (True, "")
    assert (await files.read(run_id, odd)).data == b"an odd name"
    assert ((await files.write(run_id, odd, b"new")).path, (workspace / odd).read_text()) == ("caf\\xe9", "new")
    assert FileEntry(path="given.txt", kind="file", bytes=14) in listed.entries
    assert FileEntry(path="sub", kind="folder") in listed.entries
    await loom.client.send(run_id, "given.txt")
    await loom.client.result(run_id)
    assert "for the agent" in str(model.requests[-1].messages[-1]["content"])
    assert (await files.read(run_id, "sub/a.bin")).data == b"\x00\xff"
    folder = await files.read(run_id, "sub")
    assert (folder.is_archive, names_in(folder.data)) == (True, ["a.bin"])
    assert not (await files.write(run_id, "given.txt", b"")).is_new
    assert (await files.read(run_id, "given.txt")).data == b""
    with pytest.raises(NoSuchFileError, match="no file or folder 'none'"):
        await files.read(run_id, "none")
    with pytest.raises(RunNotFoundError):
        await files.list("nobody's")


async def test_the_commands_on_the_page_list_get_and_put(working: Working, workspace: Path, tmp_path: Path) -> None:
    loom, _ = await working(script([text("done")]))
    (workspace / "src").mkdir()
    (workspace / "src" / "a.py").write_text("a = 1\n")
    (workspace / "report.md").write_text("Fine.\n")
    run_id = await loom.start()
    await loom.client.result(run_id)
    (here := tmp_path / "here").mkdir()
    (here / "data.csv").write_text("a,b\n")
    (block,) = [each for each in blocks_of("docs/workspaces.md", "sh") if "loom files" in each.text]

    env = environment(loom.settings, tmp_path)
    printed = await asyncio.to_thread(shell, block.text.replace("RUN", run_id), here, env)

    assert "Fine.\n" in printed
    assert [line.split()[-1] for line in printed.splitlines() if line.endswith(("src/", "report.md"))] == [
        "report.md",
        "src/",
    ]
    assert names_in((here / "src.tar.gz").read_bytes()) == ["a.py"]
    assert (workspace / "data.csv").read_text() == "a,b\n"


async def with_held_clone(working: Working, tmp_path: Path) -> tuple[Harness, ModelServer, str, Path]:
    """Start a run whose call holds its clone until there is a file `go` in it, and return its id and the clone."""
    repository(tmp_path / "served" / "app.git", {"a.txt": "one\n"})
    until = calls(ToolUse("bash", {"command": "touch begun; until [ -e go ]; do sleep 0.05; done; ls"}, "until"))
    loom, model = await working(script([until, text("done")]), repositories=(f"file://{tmp_path}/served/",))
    run_id = await loom.start(workspace={"git": f"file://{tmp_path}/served/app.git"}, permissions={"bash": "allow"})
    await loom.until_runs(run_id, "bash")
    clone = Path(await loom.client.workspace_of(run_id))
    await eventually(lambda: asyncio.to_thread((clone / "begun").exists))
    return loom, model, run_id, clone


async def test_a_clone_takes_a_file_and_returns_it_with_the_run_s_change(working: Working, tmp_path: Path) -> None:
    repository(tmp_path / "served" / "app.git", {"a.txt": "one\n"})
    loom, _ = await working(script([ASK, SHOW, text("done")]), repositories=(f"file://{tmp_path}/served/",))
    run_id = await asking(loom, workspace={"git": f"file://{tmp_path}/served/app.git"}, permissions={"bash": "allow"})

    draft = Path(await loom.client.workspace_of(run_id)) / draft_name()
    draft.write_text("what a worker leaves that is killed while it writes a file")
    await loom.client.files.write(run_id, "given.txt", b"new\n")
    listed = await loom.client.files.list(run_id)

    assert [entry.path for entry in listed.entries] == ["a.txt", "given.txt"]
    await loom.client.send(run_id, "given.txt")
    await loom.client.result(run_id)
    patch = await loom.client.artifact(run_id, "workspace.patch")
    assert ("+new" in patch, draft.name in patch) == (True, False)
    assert (await loom.client.files.read(run_id, "a.txt")).data == b"one\n"


async def test_a_write_waits_for_a_call_that_holds_the_clone(working: Working, tmp_path: Path) -> None:
    loom, model, run_id, clone = await with_held_clone(working, tmp_path)

    writing = asyncio.create_task(loom.client.files.write(run_id, "given.txt", b"new\n"))
    await eventually(lambda: is_at_work(loom))
    assert not writing.done()
    (clone / "go").touch()

    assert (await writing).is_new
    await loom.client.result(run_id)
    assert "given.txt" not in str(model.requests[-1].messages[-1]["content"])
    assert (await loom.client.files.read(run_id, "given.txt")).data == b"new\n"


async def test_a_write_whose_caller_no_longer_waits_is_not_made_later(working: Working, tmp_path: Path) -> None:
    loom, _, run_id, clone = await with_held_clone(working, tmp_path)
    writing = asyncio.create_task(loom.client.files.write(run_id, "given.txt", b"new\n"))
    await eventually(lambda: is_at_work(loom))

    writing.cancel()
    await asyncio.wait({writing})
    (clone / "go").touch()

    await loom.client.result(run_id)
    assert [each.status for each in await requests(loom)] == [WorkflowExecutionStatus.CANCELED]
    assert not (clone / "given.txt").exists()


async def test_a_write_that_the_server_is_accepting_when_its_caller_goes_is_withdrawn(
    working: Working, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loom, _, run_id, clone = await with_held_clone(working, tmp_path)
    start, accepted, answers = loom.client.temporal.start_workflow, asyncio.Event(), asyncio.Event()

    async def slowly(*given: Any, **named: Any) -> Any:
        handle = await start(*given, **named)
        accepted.set()
        await answers.wait()
        return handle

    monkeypatch.setattr(loom.client.temporal, "start_workflow", slowly)
    writing = asyncio.create_task(loom.client.files.write(run_id, "given.txt", b"new\n"))
    await accepted.wait()
    writing.cancel()
    answers.set()
    await asyncio.wait({writing})
    (clone / "go").touch()

    await loom.client.result(run_id)
    assert writing.cancelled()
    assert not (clone / "given.txt").exists()


async def test_a_request_that_ends_while_it_is_withdrawn_has_its_result(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    loom, _ = await working(script([ASK]))
    run_id = await asking(loom)
    cancel = WorkflowHandle.cancel

    async def late(handle: WorkflowHandle[Any, Any]) -> None:
        await handle.result()
        await cancel(handle)

    monkeypatch.setattr(WorkflowHandle, "cancel", late)
    monkeypatch.setattr(run_files, "LOOK_EVERY", 0.001)
    monkeypatch.setattr(run_files, "SILENT_LOOKS", 1)
    monkeypatch.setattr(run_files, "BUSY_LOOKS", 1)
    assert (await loom.client.files.write(run_id, "a.txt", b"a")).is_new


async def test_where_all_workers_are_busy_the_error_says_so(
    working: Working, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = calls(ToolUse("bash", {"command": "touch begun; until [ -e go ]; do sleep 0.05; done"}, "until"))
    loom, _ = await working(script([until, text("done")]), max_concurrent_activities=1)
    run_id = await loom.start(permissions={"bash": "allow"})
    await eventually(lambda: asyncio.to_thread((workspace / "begun").exists))
    monkeypatch.setattr(run_files, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(run_files, "BUSY_LOOKS", 2)

    with pytest.raises(UnreachableError, match="are busy"):
        await loom.client.files.write(run_id, "a.txt", b"a")
    (workspace / "go").touch()
    await loom.client.result(run_id)
    assert not (workspace / "a.txt").exists()


async def test_a_write_is_attempted_once_because_the_agent_may_have_edited_the_file_since(
    working: Working, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loom, _ = await working(script([ASK]))
    run_id = await asking(loom)

    def edited(root: Path, real: Path, data: bytes) -> bool:
        del root, real, data
        with (workspace / "a.txt").open("a") as file:
            file.write("an edit\n")
        raise UnreachableError("as if the worker had been killed after it wrote the file")

    monkeypatch.setattr(paths, "replace_file", edited)
    with pytest.raises(UnreachableError, match="as if the worker had been killed"):
        await loom.client.files.write(run_id, "a.txt", b"a")
    assert (workspace / "a.txt").read_text() == "an edit\n"


async def test_an_unknown_field_of_a_request_is_refused(working: Working) -> None:
    loom, _ = await working(script([ASK]))
    run_id = await asking(loom)
    request = {"run_id": run_id, "operation": "list", "path": ".", "paths": ["a"]}
    with pytest.raises(WorkflowFailureError) as caught:
        await loom.client.temporal.execute_workflow(
            RUN_FILES, request, id=f"loom-files-{run_id}-x", task_queue=loom.settings.task_queue
        )
    assert isinstance(caught.value.cause, ApplicationError)
    assert (caught.value.cause.type, "paths" in caught.value.cause.message) == ("BadRequest", True)


async def requests(loom: Harness) -> list[WorkflowExecutionDescription]:
    """The requests for files."""
    query = f"WorkflowType = '{RUN_FILES}' AND TaskQueue = '{loom.settings.task_queue}'"
    found = [each async for each in loom.client.temporal.list_workflows(query)]
    return [await loom.client.temporal.get_workflow_handle(each.id).describe() for each in found]


async def is_at_work(loom: Harness) -> bool:
    """Whether a worker has begun a request for files."""
    return any(pending.attempt for each in await requests(loom) for pending in each.raw_description.pending_activities)


async def test_a_file_in_a_clone_moves_along_to_another_machine(working: Working, tmp_path: Path) -> None:
    repository(tmp_path / "served" / "app.git", {"a.txt": "one\n"})
    loom, _ = await working(script([ASK]), repositories=(f"file://{tmp_path}/served/",))
    run_id = await asking(loom, workspace={"git": f"file://{tmp_path}/served/app.git"})
    await loom.client.files.write(run_id, "given.txt", b"new\n")

    for folder in ("workspaces", "clones"):
        (loom.settings.home / folder).rename(tmp_path / f"old-{folder}")  # as if this were another machine

    read = await loom.client.files.read(run_id, "given.txt")
    assert (read.data, "recreated" in read.note) == (b"new\n", True)


async def test_what_the_rules_of_a_run_deny_is_refused_and_left_out(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([ASK]))
    (workspace / "open.txt").write_text("open")
    (workspace / "closed.txt").write_text("closed")
    rules = {"read_file(closed.txt)": "deny", "write_file(open.txt)": "deny", "write_file": "ask"}
    run_id = await asking(loom, permissions=rules)
    files = loom.client.files

    for refused in (files.read(run_id, "closed.txt"), files.write(run_id, "open.txt", b"")):
        with pytest.raises(AccessDeniedError, match=r"(closed|open)\.txt\)"):
            await refused
    with pytest.raises(AccessDeniedError, match="guard: write to .env"):
        await files.write(run_id, ".env", b"KEY=1")
    whole = await files.read(run_id)
    assert (names_in(whole.data), whole.left_out) == (["open.txt"], 1)
    assert (await files.write(run_id, "asked.txt", b"")).is_new  # where rules ask, nobody is asked

    await loom.client.set_permissions(run_id, {"write_file": "deny"})
    with pytest.raises(AccessDeniedError, match="denied by the rule write_file"):
        await files.write(run_id, "later.txt", b"")


async def test_no_path_leads_out_of_the_workspace_or_into_git(
    working: Working, workspace: Path, tmp_path: Path
) -> None:
    loom, _ = await working(script([ASK]))
    (tmp_path / "secret.txt").write_text("secret")
    (workspace / "out").symlink_to(tmp_path)
    (workspace / ".git").mkdir(exist_ok=True)
    (workspace / ".git" / "config").write_text("[core]")
    run_id = await asking(loom)
    files = loom.client.files

    for path in ("../secret.txt", "out/secret.txt", str(tmp_path / "secret.txt"), ".git/config", "a/../.git"):
        with pytest.raises(BadRequest):
            await files.read(run_id, path)
        with pytest.raises((BadRequest, AccessDeniedError)):
            await files.write(run_id, path, b"x")
    assert [entry.path for entry in (await files.list(run_id)).entries] == ["out"]
    assert names_in((await files.read(run_id)).data) == []
    assert (tmp_path / "secret.txt").read_text() == "secret"


async def test_a_client_without_a_database_gets_and_puts_a_megabyte(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([ASK]))
    run_id = await asking(loom)
    plain = LoomClient(loom.client.temporal, task_queue=loom.settings.task_queue)
    content = bytes(range(256)) * (INLINE_LIMIT // 256)

    await plain.files.write(run_id, "big.bin", content)
    assert (await plain.files.read(run_id, "big.bin")).data == content

    (workspace / "big.bin").write_bytes(content * 2)
    assert (await loom.client.files.read(run_id, "big.bin")).data == content * 2
    for refused in (plain.files.read(run_id, "big.bin"), plain.files.write(run_id, "big.bin", content * 2)):
        with pytest.raises(BadRequest, match="LOOM_DATABASE_URL"):
            await refused


async def test_with_a_database_a_file_has_at_most_20_megabytes(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([ASK]))
    run_id = await asking(loom)
    files = loom.client.files

    assert (await files.write(run_id, "big.bin", bytes(MOST_BYTES))).bytes == MOST_BYTES
    assert len((await files.read(run_id, "big.bin")).data) == MOST_BYTES
    with (workspace / "big.bin").open("ab") as file:
        file.write(b"0")
    for refused in (files.read(run_id, "big.bin"), files.write(run_id, "big.bin", bytes(MOST_BYTES + 1))):
        with pytest.raises(BadRequest, match="20,000,000 bytes"):
            await refused


async def test_strangers_reach_only_files_where_they_may_start_runs(working: Working, tmp_path: Path) -> None:
    (outside := tmp_path / "outside").mkdir()
    loom, _ = await working(script([ASK]))
    run_id = await asking(loom, workspace=str(outside))
    theirs = LoomClient(await stranger(loom), task_queue=loom.settings.task_queue)

    assert (await loom.client.files.write(run_id, "a.txt", b"a")).is_new
    with pytest.raises(BadRequest, match="takes only signed requests"):
        await theirs.files.list(run_id)
    with pytest.raises(BadRequest, match="outside the folders"):  # `loom serve` signs what its callers ask for
        await loom.client.files.for_caller(CallerLimits()).list(run_id)


async def test_a_run_without_files_says_so(working: Working) -> None:
    loom, _ = await working(script([]))
    run_id = await loom.start_unseen(agent="nobody")
    await loom.client.result(run_id)
    with pytest.raises(RefusedError, match="hasn't begun its work, or was refused"):
        await loom.client.files.list(run_id)


async def test_a_request_that_no_worker_takes_is_withdrawn(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(run_files, "SILENT_LOOKS", 2)
    loom, _ = await working(script([]))
    temporal = loom.client.temporal
    handle = await temporal.start_workflow("AgentRun", {"task": "x"}, id="unserved", task_queue="unserved")

    with pytest.raises(UnreachableError, match="no worker of the task queue 'unserved'"):
        await loom.client.files.write(handle.id, "a.txt", b"a")

    async def is_withdrawn() -> bool:
        query = f"WorkflowType = '{RUN_FILES}' AND TaskQueue = 'unserved' AND ExecutionStatus = 'Terminated'"
        found: int = (await temporal.count_workflows(query)).count
        return found == 1

    await eventually(is_withdrawn)
    await handle.terminate()
