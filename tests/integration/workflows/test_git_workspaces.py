"""Runs in clones of Git repositories: what they see, what comes back, and what is refused."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError
from temporalio.worker import Worker

from loom.domain.core.errors import BadRequest, RefusedError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import AGENT_RUN, RunStatus
from loom.domain.core.tasks import Action
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, empty, script, text
from loom.testing.stream import told
from loom.testing.waiting import eventually
from tests.certificates import Authority
from tests.git_server import GitServer, git, repository, serving, shown
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

FREELY = {"bash": "allow", "write_file": "allow"}
FIX = calls(ToolUse("bash", {"command": "sed -i s/one/two/ a.txt; echo new > b.txt; git log --oneline | wc -l"}, "fix"))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitServer]:
    """A server with the repository `team/app`, whose certificate the worker's Git trusts."""
    authority = Authority(tmp_path)
    repository(tmp_path / "served" / "team" / "app.git", {"a.txt": "one\n"})
    git(tmp_path / "served" / "team" / "app.git", "config", "http.receivepack", "true")
    monkeypatch.setenv("GIT_SSL_CAINFO", str(authority.path))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    with serving(tmp_path / "served", authority.server("localhost")) as server:
        yield server


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The repository that the server gives out."""
    return tmp_path / "served" / "team" / "app.git"


async def test_a_run_works_in_a_clone_and_its_change_comes_back_as_a_patch_and_a_branch(
    working: Working, server: GitServer, bare: Path, tmp_path: Path
) -> None:
    url = f"{server.url}/team/app.git"
    loom, model = await working(
        script([FIX, text("fixed")]), repositories=(server.url,), push_repositories=(f"{server.url}/team",)
    )

    result = await loom.run("Fix a.txt.\nNow.", workspace={"git": url, "push": "fix/a"}, permissions=FREELY)

    assert result.status is RunStatus.COMPLETED
    commit, pushed = git(bare, "rev-parse", "main"), git(bare, "rev-parse", "fix/a")
    assert result.workspace == {
        "git": url,
        "revision": "main",
        "commit": commit,
        "files": 2,
        "patch": "workspace.patch",
        "branch": "fix/a",
        "pushed": pushed,
        "problem": None,
    }
    assert (
        git(bare, "log", "-1", "--format=%P|%an|%B", "fix/a")
        == f"{commit}|Loom|Fix a.txt.\n\nLoom-Run: {loom.started[0]}"
    )
    assert (shown(bare, "fix/a", "a.txt"), shown(bare, "fix/a", "b.txt")) == ("two", "new")
    patch = await loom.client.artifact(loom.started[0], "workspace.patch")
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(bare), str(other))
    git(other, "apply", "--index", "-", feed=patch.encode())
    assert git(other, "write-tree") == git(bare, "rev-parse", "fix/a^{tree}")
    assert "1" in str(model.requests[1].messages[-1]["content"])  # commits in the clone's history
    events = [
        each.task.parameters
        for each in await told(loom.client, loom.started[0])
        if each.task.action is Action.WORKSPACE
    ]
    assert [event.get("branch") for event in events] == [None, "fix/a"]


async def test_a_run_that_is_aborted_returns_its_change_as_a_patch_and_pushes_nothing(
    working: Working, server: GitServer, bare: Path
) -> None:
    ask = calls(ToolUse("ask_user", {"question": "go on?"}, "ask"))
    loom, _ = await working(script([FIX, ask]), repositories=(server.url,), push_repositories=(server.url,))
    run_id = await loom.start(workspace={"git": f"{server.url}/team/app", "push": "fix"}, permissions=FREELY)
    asked = await loom.until(run_id, lambda status: status["status"] == "waiting_for_input")
    assert asked["workspace"]["revision"] == "main"

    await loom.client.abort(run_id)

    result = await loom.client.result(run_id)
    assert result.status is RunStatus.ABORTED
    assert result.workspace is not None
    assert (result.workspace["files"], result.workspace["branch"]) == (2, None)
    assert result.workspace["problem"] == "nothing was pushed, because the run didn't complete (status: aborted)"
    assert "+two" in await loom.client.artifact(run_id, "workspace.patch")
    assert git(bare, "branch", "--list", "fix") == ""


REVIEWED = """
from loom import LoomApp

app = LoomApp()

@app.intercept
class Review:
    def before(self, task):
        pass

    def after(self, task, result):
        if "task" in task.parameters:
            raise ValueError("not reviewed")
"""


async def test_a_run_that_fails_in_an_interceptor_pushes_nothing(
    working: Working, server: GitServer, bare: Path, tmp_path: Path
) -> None:
    (tmp_path / "reviewed.py").write_text(REVIEWED)
    loom, _ = await working(
        script([FIX, text("fixed")]),
        repositories=(server.url,),
        push_repositories=(server.url,),
        app=f"{tmp_path}/reviewed.py:app",
    )

    result = await loom.run(workspace={"git": f"{server.url}/team/app", "push": "fix"}, permissions=FREELY)

    assert (result.status, result.workspace and result.workspace["patch"]) == (RunStatus.FAILED, "workspace.patch")
    assert "(status: failed)" in str(result.workspace)
    assert git(bare, "branch", "--list", "fix") == ""


async def test_files_that_the_server_may_run_as_ci_are_pushed_only_if_the_worker_says_so(
    working: Working, server: GitServer, bare: Path
) -> None:
    write = calls(ToolUse("write_file", {"path": ".github/workflows/x.yml", "content": "on: push"}, "w"))
    workspace = {"git": f"{server.url}/team/app", "push": "ci"}
    allowed = {"repositories": (server.url,), "push_repositories": (server.url,)}

    async def pushed(push_ci_files: str) -> JsonObject:
        loom, _ = await working(script([write, text("done")]), push_ci_files=push_ci_files, **allowed)
        run_id = await loom.start(workspace=workspace)
        await loom.asked(run_id)
        await loom.client.approve(run_id, "w")
        result = await loom.client.result(run_id)
        assert result.status is RunStatus.COMPLETED
        assert result.workspace is not None
        return dict(result.workspace)

    refused = await pushed("off")
    assert "(.github/workflows/x.yml)" in refused["problem"]
    assert "LOOM_PUSH_CI_FILES" in refused["problem"]
    assert refused["patch"] == "workspace.patch"
    assert git(bare, "branch", "--list", "ci") == ""

    allowed_to = await pushed("on")
    assert (allowed_to["branch"], allowed_to["problem"]) == ("ci", None)


async def test_a_branch_can_be_named_after_the_run(working: Working, server: GitServer, bare: Path) -> None:
    loom, _ = await working(script([FIX, text("fixed")]), repositories=(server.url,), push_repositories=(server.url,))
    run_id = f"nightly-{uuid4().hex[:8]}T00:00:00Z"

    workspace = {"git": f"{server.url}/team/app", "push": "fix/{run}"}
    loom.started.append(await loom.client.start("do it", run_id=run_id, workspace=workspace, permissions=FREELY))

    result = await loom.client.result(run_id)
    assert result.workspace is not None
    assert result.workspace["branch"] == f"fix/{run_id.replace(':', '-')}"
    assert shown(bare, result.workspace["branch"], "a.txt") == "two"


def away_with_last(server: GitServer, *replies: Reply) -> Callable[[SeenRequest], Reply]:
    """Return a script at whose last reply the server becomes overloaded."""

    def answer(request: SeenRequest) -> Reply:
        if request.turn == len(replies) - 1:
            server.away.set()
        return replies[request.turn]

    return answer


async def test_a_push_waits_until_the_server_is_back(working: Working, server: GitServer, bare: Path) -> None:
    loom, _ = await working(
        away_with_last(server, FIX, text("fixed")), repositories=(server.url,), push_repositories=(server.url,)
    )
    run_id = await loom.start(workspace={"git": f"{server.url}/team/app", "push": "fix"}, permissions=FREELY)
    waiting = await loom.until(run_id, lambda status: "pushed to fix" in str(status["waiting_on"]))
    assert waiting["status"] == "completed"
    with pytest.raises(RefusedError, match="the run has completed"):
        await loom.client.retry(run_id)
    with pytest.raises(RefusedError, match="is returning its change"):
        await loom.client.files.write(run_id, "c.txt", b"c")  # otherwise, nothing could be pushed any more
    assert await eventually(lambda: _answered(len(server.refused) > 1))

    server.away.clear()

    result = await loom.client.result(run_id)
    assert result.workspace is not None
    assert (result.workspace["branch"], result.workspace["problem"]) == ("fix", None)
    assert shown(bare, "fix", "a.txt") == "two"
    assert (await loom.client.files.write(run_id, "c.txt", b"c")).is_new


async def _answered(holds: bool) -> bool:
    return holds


@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_a_person_can_end_the_wait_for_a_push(working: Working, server: GitServer, bare: Path, how: str) -> None:
    loom, _ = await working(
        away_with_last(server, FIX, text("fixed")), repositories=(server.url,), push_repositories=(server.url,)
    )
    run_id = await loom.start(workspace={"git": f"{server.url}/team/app", "push": "fix"}, permissions=FREELY)
    await loom.until(run_id, lambda status: "pushed to fix" in str(status["waiting_on"]))

    if how == "abort":
        await loom.client.abort(run_id, by="ann", reason="enough")
    else:
        await loom.client.temporal.get_workflow_handle(run_id).cancel()

    result = await loom.client.result(run_id)
    assert (result.status, result.output) == (RunStatus.COMPLETED, "fixed")
    assert result.workspace is not None
    why = "aborted by ann: enough" if how == "abort" else "aborted: cancelled through Temporal"
    assert result.workspace["problem"] == f"the change may not have been pushed, because the wait was {why}"
    assert result.workspace["patch"] == "workspace.patch"
    assert git(bare, "branch", "--list", "fix") == ""


async def test_a_retry_ends_the_wait_for_the_change_to_be_stored_and_the_run_goes_on(
    working: Working, server: GitServer, bare: Path
) -> None:
    more = calls(ToolUse("bash", {"command": "echo more >> b.txt"}, "more"))

    def answer(request: SeenRequest) -> Reply:
        """The machine loses its clones before the run ends, and can't make them while the server is overloaded."""
        if request.turn == 1:
            server.away.set()
            for folder in ("workspaces", "clones"):
                shutil.rmtree(loom.settings.home / folder)
        return (FIX, text("summary"), more, text("done"))[request.turn]

    loom, _ = await working(answer, repositories=(server.url,), push_repositories=(server.url,))
    workspace = {"git": f"{server.url}/team/app", "push": "fix"}
    run_id = await loom.start(workspace=workspace, permissions=FREELY, budget={"tool_calls": 1})
    waiting = await loom.until(run_id, lambda status: "to be stored" in str(status["waiting_on"]))
    assert waiting["status"] == "budget_exhausted"
    with pytest.raises(RefusedError, match="name a larger one"):
        await loom.client.retry(run_id)

    await loom.client.retry(run_id, budget={"tool_calls": 9})
    server.away.clear()

    result = await loom.client.result(run_id)
    assert (result.status, result.retries) == (RunStatus.COMPLETED, 1)
    assert shown(bare, "fix", "b.txt") == "new\nmore"


async def test_a_run_that_changes_nothing_pushes_nothing(working: Working, server: GitServer, bare: Path) -> None:
    loom, _ = await working(
        script([text("fine as it is")]), repositories=(server.url,), push_repositories=(server.url,)
    )

    result = await loom.run(workspace={"git": f"{server.url}/team/app", "push": "fix"})

    assert result.workspace is not None
    assert (result.workspace["files"], result.workspace["patch"], result.workspace["branch"]) == (0, None, None)
    assert git(bare, "branch", "--list", "fix") == ""


async def test_a_branch_that_exists_is_left_alone_and_the_patch_is_still_there(
    working: Working, server: GitServer, bare: Path
) -> None:
    before = git(bare, "rev-parse", "main")
    loom, _ = await working(script([FIX, text("fixed")]), repositories=(server.url,), push_repositories=(server.url,))

    result = await loom.run(workspace={"git": f"{server.url}/team/app", "push": "main"}, permissions=FREELY)

    assert result.status is RunStatus.COMPLETED
    assert result.workspace is not None
    assert "the branch main already exists" in result.workspace["problem"]
    assert result.workspace["patch"] == "workspace.patch"
    assert git(bare, "rev-parse", "main") == before


async def test_a_run_that_a_person_retries_after_its_end_pushes_once_it_has_completed(
    working: Working, server: GitServer, bare: Path
) -> None:
    more = calls(ToolUse("bash", {"command": "echo more >> b.txt"}, "more"))
    loom, _ = await working(
        script([FIX, text("summary"), more, text("done")]), repositories=(server.url,), push_repositories=(server.url,)
    )
    workspace = {"git": f"{server.url}/team/app", "push": "fix"}
    run_id = await loom.start(workspace=workspace, permissions=FREELY, budget={"tool_calls": 1})
    first = await loom.client.result(run_id)
    assert first.status is RunStatus.BUDGET_EXHAUSTED
    assert first.workspace is not None

    await loom.client.retry(run_id, budget={"tool_calls": 9})
    second = await loom.client.result(run_id)

    assert second.status is RunStatus.COMPLETED
    assert second.workspace is not None
    assert (first.workspace["patch"], first.workspace["pushed"]) == ("workspace.patch", None)
    assert (second.workspace["patch"], second.workspace["problem"]) == ("workspace.patch", None)
    assert git(bare, "rev-list", "main..fix").split() == [second.workspace["pushed"]]
    assert shown(bare, "fix", "b.txt") == "new\nmore"
    assert "+more" in await loom.client.artifact(run_id, second.workspace["patch"])


async def test_sub_agents_work_in_the_clone_of_their_root(working: Working, server: GitServer) -> None:
    read = calls(ToolUse("read_file", {"path": "b.txt"}, "r"))
    whole = [FIX, calls(delegate("a part", "the part")), text("done")]
    loom, model = await working(
        by_task({"the whole": whole, "the part": [read, text("read")]}), repositories=(server.url,)
    )

    await loom.run("the whole", workspace={"git": f"{server.url}/team/app"}, permissions=FREELY)

    results = [
        message["content"] for request in model.requests for message in request.messages if message["role"] == "tool"
    ]
    assert "     1\tnew" in results


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ({}, {}, "LOOM_REPOSITORIES"),
        ({}, {"repositories": ("https://git.example",)}, "LOOM_REPOSITORIES"),
        ({"push": "fix"}, {"repositories": ("{url}",)}, "LOOM_PUSH_REPOSITORIES"),
        ({"revision": "nowhere"}, {"repositories": ("{url}",)}, "has no branch or tag 'nowhere'"),
        ({"git": "{url}/team/none"}, {"repositories": ("{url}",)}, "not found"),
        ({"git": "{url}/moved/app"}, {"repositories": ("{url}/moved",)}, "returned error: 302"),
    ],
)
async def test_a_repository_that_can_t_be_used_fails_the_run_with_the_reason(
    working: Working, server: GitServer, given: dict[str, str], settings: dict[str, Any], said: str
) -> None:
    server.redirects["/moved/"] = f"{server.url}/team/"
    named = {"git": "{url}/team/app", **given}
    allowed = {name: tuple(each.format(url=server.url) for each in value) for name, value in settings.items()}
    loom, _ = await working(script([empty()]), **allowed)

    result = await loom.run(workspace={name: value.format(url=server.url) for name, value in named.items()})

    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert result.error.type == "BadRequest"
    assert said in result.error.message
    assert not any(path.startswith("/team/app") for path in server.asked) or "revision" in given


async def test_a_fork_of_a_run_in_a_clone_needs_a_folder(working: Working, server: GitServer) -> None:
    loom, _ = await working(script([FIX, text("fixed"), text("again")]), repositories=(server.url,))
    result = await loom.run(workspace={"git": f"{server.url}/team/app"}, permissions=FREELY)
    assert result.status is RunStatus.COMPLETED

    with pytest.raises(BadRequest, match="name a folder"):
        await loom.client.fork(loom.started[0], turn=1)

    fork = await loom.client.fork(loom.started[0], turn=1, workspace=str(loom.workspace))
    assert (await loom.client.result(fork)).status is RunStatus.COMPLETED


async def test_a_chat_pushes_nothing(working: Working, server: GitServer) -> None:
    loom, _ = await working(script([text("never")]))
    with pytest.raises(BadRequest, match="leave `push` out"):
        await loom.client.start("hi", chat=True, workspace={"git": f"{server.url}/team/app", "push": "fix"})


@workflow.defn(sandboxed=False)
class Impostor:
    """A workflow of somebody who may start workflows on the server, with a child that it says is in a tree."""

    @workflow.run
    async def run(self, child: str, request: object, lineage: object, queue: str) -> str:
        try:
            await workflow.execute_child_workflow(AGENT_RUN, args=[request, lineage], id=child, task_queue=queue)
        except ChildWorkflowError as error:
            return str(error.cause)
        return "it has run"


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("own", {}, "isn't in the tree of run"),
        ("root", {"root_execution": "0" * 12}, "works only in the clone of its own tree"),
        ("root", {"url": "file:///etc"}, "doesn't clone file:///etc"),
        ("root", {"folder": "/etc"}, "works only in the clone of its own tree"),
    ],
)
async def test_a_made_up_lineage_leads_to_no_clone(
    working: Working, server: GitServer, name: str, changed: dict[str, str], said: str
) -> None:
    loom, _ = await working(script([FIX, text("fixed"), text("never")], repeat_last=True), repositories=(server.url,))
    result = await loom.run(workspace={"git": f"{server.url}/team/app"}, permissions=FREELY)
    assert result.workspace is not None
    root = loom.started[0]
    folder = await loom.client.workspace_of(root)
    (history,) = await loom.histories(loom.started.pop())
    execution = history.events[0].workflow_execution_started_event_attributes.original_execution_run_id[-12:]
    parent = root if name == "root" else f"impostor-{uuid4().hex[:8]}"  # the run has ended, so its id is free
    checkout = {
        "url": changed.get("url", result.workspace["git"]),
        "commit": result.workspace["commit"],
        "revision": "main",
        "folder": changed.get("folder", folder),
    }
    lineage = {
        "parent_run_id": parent,
        "root_run_id": root,
        "depth": 1,
        "limits": {"depth": 3, "children": 9},
        "above": [{"whose": "impostor", "rules": {"bash": "allow"}}],
        "root_execution": changed.get("root_execution", execution),
        "checkout": checkout,
    }
    request = {"task": "read it", "workspace": checkout["folder"]}
    queue = f"impostor-{uuid4().hex[:8]}"
    async with Worker(loom.client.temporal, task_queue=queue, workflows=[Impostor]):
        answer = await loom.client.temporal.execute_workflow(
            Impostor.run,
            args=[f"{parent}/d1", request, lineage, loom.settings.task_queue],
            id=parent,
            task_queue=queue,
        )
    assert said in answer


async def test_another_run_can_t_name_the_folder_of_a_clone(working: Working, server: GitServer) -> None:
    loom, _ = await working(script([FIX, text("fixed"), text("never")]), repositories=(server.url,))
    await loom.run(workspace={"git": f"{server.url}/team/app"}, permissions=FREELY)
    folder = await loom.client.workspace_of(loom.started[0])
    assert Path(folder).is_dir()

    result = await loom.run_unseen(workspace=folder)

    assert result.error is not None
    assert "the clones of runs" in result.error.message
