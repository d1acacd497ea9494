"""Whom a worker gives the files of runs, and that no path, however it is written, leads out of the workspace."""

import asyncio
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from loom.activities import file_access
from loom.activities.adapters.redaction.mask import SecretMask
from loom.activities.archives import Archives
from loom.activities.file_access import HOOKED_AT_ONCE, FileAccess
from loom.activities.plan_calls import CallPreparer
from loom.activities.run_workspaces import RunWorkspaces
from loom.activities.start_gate import StartGate
from loom.activities.toolbox.built_in.files import file_tools
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.tool_sets import RunTools
from loom.domain.agents.hook_steps import Moment
from loom.domain.agents.hooks import Ask, Deny, Hook, Interceptor, Registered
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import UnreachableError
from loom.domain.core.messages import ToolCall
from loom.domain.core.repositories import Repositories
from loom.domain.core.run_files import CallerLimits, CarriedContent, FileOperation, FilesAnswer, FilesRequest
from loom.domain.core.tasks import Origin
from loom.domain.permissions.bounds import Bounds
from loom.domain.permissions.obeyed import NO_FILES
from loom.domain.run.activity_payloads import FilesCall, RunWorkspace

SECRET = b"nobody's business"
TOOLS = {tool.spec.name: tool for tool in file_tools(10.0)}


class OneRun:
    """The only run that there is. Its first answers fail."""

    def __init__(self, run: RunWorkspace | None, fails: int = 0) -> None:
        self.run = run
        self.fails = fails

    async def workspace_of(self, run_id: str, task_queue: str) -> RunWorkspace | None:
        """See the port."""
        del run_id, task_queue
        if self.fails:
            self.fails -= 1
            raise UnreachableError("the run doesn't answer")
        return self.run


class NoClones:
    """A worker without clones."""

    def exposes(self, path: Path) -> bool:
        """See the port."""
        del path
        return False


def access_to(
    run: RunWorkspace | None,
    *registered: Registered,
    bounds: Bounds | None = None,
    requires_signature: bool = False,
    own_rules: Callable[[str], AgentSpec] | None = None,
    fails: int = 0,
) -> FileAccess:
    """A worker's access to the files of a run, with these hooks and interceptors, and without a database."""
    sanitizer = OutputSanitizer(SecretMask(frozenset()), None)
    workspaces = RunWorkspaces(
        clones=cast("Any", NoClones()),
        repositories=Repositories(),
        archives=Archives(None),
        patches=None,
        redact=lambda text: text,
    )
    planner = CallPreparer(
        tools=TOOLS, own=cast("RunTools", None), sanitizer=sanitizer, registered=lambda *_: registered
    )
    return FileAccess(
        lookup=OneRun(run, fails),
        workspaces=workspaces,
        gate=StartGate(None, requires_signature=requires_signature),
        bounds=bounds or Bounds(),
        owner_bounds=Bounds(),
        planner=planner,
        tools=TOOLS,
        obeyed=None,
        own_rules=own_rules,
        contents=None,
        home=Path("/nowhere/.loom"),
        redact=lambda text: text,
    )


def run_in(workspace: Path, permissions: Mapping[str, str] | None = None, **known: Any) -> RunWorkspace:
    """A run that works in this folder."""
    spec = AgentSpec(name="default", model="demo", workspace=str(workspace), permissions=permissions or {})
    return RunWorkspace(origin=Origin(run_id="r", tenant=known.pop("tenant", "")), spec=spec, **known)


async def ask(
    access: FileAccess,
    operation: FileOperation,
    path: str,
    content: bytes | CarriedContent | None = None,
    limits: CallerLimits | None = None,
) -> FilesAnswer:
    """Ask for files as the workflow does."""
    carried = CarriedContent(data=b64encode(content).decode()) if isinstance(content, bytes) else content
    request = FilesRequest(run_id="r", operation=operation, path=path, content=carried, limits=limits)
    call = FilesCall(request=request)
    answer: FilesAnswer = await ActivityEnvironment().run(access.access_files, call)
    return answer


async def refusal(access: FileAccess, operation: FileOperation = "list", path: str = ".") -> tuple[str | None, str]:
    """The type of the error with which a request is refused, and what it says."""
    with pytest.raises(ApplicationError) as caught:
        await ask(access, operation, path)
    return caught.value.type, caught.value.message


async def test_a_run_that_is_not_prepared_has_no_files() -> None:
    assert (await refusal(access_to(None)))[0] == "RefusedError"


async def test_a_run_of_another_tenant_does_not_exist(tmp_path: Path) -> None:
    assert (await refusal(access_to(run_in(tmp_path, tenant="acme"))))[0] == "RunNotFoundError"


async def test_where_starts_need_a_signature_so_do_files(tmp_path: Path) -> None:
    assert "LOOM_REQUIRE_SIGNED" in (await refusal(access_to(run_in(tmp_path), requires_signature=True)))[1]
    assert "takes only signed requests" in (await refusal(access_to(run_in(tmp_path, steering_key="ab"))))[1]


async def test_an_unsigned_request_reaches_only_folders_where_anybody_may_start_runs(tmp_path: Path) -> None:
    access = access_to(run_in(tmp_path), bounds=Bounds(roots=("/elsewhere",)))
    assert "outside the folders that this worker serves" in (await refusal(access))[1]


async def test_a_folder_that_is_not_on_this_machine_is_named() -> None:
    assert "isn't on this worker's machine" in (await refusal(access_to(run_in(Path("/not/here")))))[1]


async def test_a_rule_that_denies_is_named_and_one_that_asks_is_not_asked(tmp_path: Path) -> None:
    access = access_to(run_in(tmp_path, {"list_dir": "ask", "write_file(a.txt)": "deny", "write_file": "ask"}))
    assert (await ask(access, "list", ".")).entries == ()
    assert (await ask(access, "write", "b.txt", b"b")).is_new
    kind, said = await refusal(access, "write", "a.txt")
    assert (kind, "nothing to write" in said) == ("BadRequest", True)
    with pytest.raises(ApplicationError, match=r"\(write_file\(a.txt\)\)") as caught:
        await ask(access, "write", "a.txt", b"a")
    assert caught.value.type == "AccessDeniedError"


async def test_a_protected_file_is_written_only_if_a_rule_names_it(tmp_path: Path) -> None:
    with pytest.raises(ApplicationError, match="guard: write to conftest.py"):
        await ask(access_to(run_in(tmp_path, {"write_file": "allow"})), "write", "conftest.py", b"")
    allowed = access_to(run_in(tmp_path, {"write_file(conftest.py)": "allow"}))
    assert (await ask(allowed, "write", "conftest.py", b"")).is_new


@pytest.mark.parametrize("rule", ["write_file(**)", "write_file(*)", "write_file(conftest.py)"])
async def test_a_rule_that_asks_opens_no_protected_file(tmp_path: Path, rule: str) -> None:
    access = access_to(run_in(tmp_path, {rule: "ask"}))
    for path in ("conftest.py", ".env", ".github/workflows/a.yml"):
        with pytest.raises(ApplicationError, match="guard: write to"):
            await ask(access, "write", path, b"")


async def test_where_rules_ask_a_service_lets_only_callers_who_may_approve(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    rules = {"read_file(a.txt)": "ask", "write_file(b.txt)": "allow", "write_file": "ask"}
    access = access_to(run_in(tmp_path, rules))
    limits = CallerLimits(objection="'otto' may not approve")
    for refused in (ask(access, "read", "a.txt", limits=limits), ask(access, "write", "c.txt", b"", limits=limits)):
        with pytest.raises(ApplicationError, match="'otto' may not approve") as caught:
            await refused
        assert caught.value.type == "AccessDeniedError"
    assert (await ask(access, "read", ".", limits=limits)).left_out == 1
    assert (await ask(access, "write", "b.txt", b"", limits=limits)).is_new
    assert (await ask(access, "write", "c.txt", b"", limits=CallerLimits())).is_new


@pytest.mark.parametrize("rules", [{"write_file": "ask"}, {"write_file": "allow"}])
async def test_where_approvals_must_be_proven_only_what_the_workers_own_rules_allow_is_open(
    tmp_path: Path, rules: Mapping[str, str]
) -> None:
    """Whoever reaches the Temporal server can ask for files, and can change the rules of a run."""
    own = AgentSpec(name="default", model="demo", permissions={"write_file": "allow", "write_file(src/**)": "ask"})
    asks = Hook(moment=Moment.TOOL_CALL, name="asks", function=lambda call, run_id: Ask("look at it"))
    access = access_to(run_in(tmp_path, rules), own_rules=lambda _: own)
    hooked = access_to(run_in(tmp_path, rules), asks, own_rules=lambda _: own)
    (tmp_path / "src").mkdir()

    for refused in (ask(access, "write", "src/a.py", b"x"), ask(hooked, "write", "a.txt", b"x")):
        with pytest.raises(ApplicationError, match="must be proven"):
            await refused
    assert not list(tmp_path.rglob("a.*"))
    assert (await ask(access, "list", ".")).entries
    if rules["write_file"] == "allow":
        assert (await ask(access, "write", "a.txt", b"x")).is_new


async def test_a_write_waits_until_the_run_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_access, "RETRY_INTERVAL", 0.0)
    access = access_to(run_in(tmp_path, {"write_file": "allow"}), fails=2)
    assert (await ask(access, "write", "a.txt", b"x")).is_new


async def test_files_and_folders_whose_names_no_tool_takes_do_not_close_the_others(tmp_path: Path) -> None:
    for name in (" ", "\n", "a.txt"):
        (tmp_path / name).write_text(name)
    answer = await ask(access_to(run_in(tmp_path)), "read", ".")
    assert (answer.is_archive, answer.left_out) == (True, 2)


async def test_a_list_is_no_longer_than_an_answer_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        (tmp_path / f"{number}.txt").touch()
    monkeypatch.setattr(file_access, "LONGEST_LIST", 30)
    answer = await ask(access_to(run_in(tmp_path)), "list", ".")
    assert ([each.path for each in answer.entries], answer.left_out) == (["0.txt", "1.txt", "2.txt", "3.txt"], 6)


async def test_a_service_and_a_worker_both_limit_the_folders(tmp_path: Path) -> None:
    access = access_to(run_in(tmp_path), bounds=Bounds(roots=(str(tmp_path),)))
    assert (await ask(access, "list", ".", limits=CallerLimits(roots=(str(tmp_path),)))).entries == ()
    with pytest.raises(ApplicationError, match="outside the folders"):
        await ask(access, "list", ".", limits=CallerLimits(roots=("/elsewhere",)))


async def test_a_link_is_judged_by_its_own_name_and_by_its_target_which_is_what_is_opened(tmp_path: Path) -> None:
    for name in ("open.txt", "closed.txt"):
        (tmp_path / name).write_text(name)
    (link := tmp_path / "link").symlink_to("open.txt")

    async def swap(call: ToolCall, run_id: str) -> None:
        del call, run_id
        link.unlink()
        link.symlink_to("closed.txt")

    rules = {"read_file(closed.txt)": "deny", "write_file(closed.txt)": "deny"}
    hook = Hook(moment=Moment.TOOL_CALL, name="swap", function=swap)
    read = await ask(access_to(run_in(tmp_path, rules), hook), "read", "link")
    assert read.content == CarriedContent(data=b64encode(b"open.txt").decode())
    with pytest.raises(ApplicationError, match="closed.txt"):
        await ask(access_to(run_in(tmp_path, rules)), "read", "link")
    link.unlink()
    link.symlink_to("open.txt")
    assert (await ask(access_to(run_in(tmp_path, rules), hook), "write", "link", b"new")).path == "open.txt"
    assert (tmp_path / "closed.txt").read_text() == "closed.txt"


async def test_hooks_judge_only_files_that_the_rules_allow_and_many_at_a_time(tmp_path: Path) -> None:
    for name in range(3 * HOOKED_AT_ONCE):
        (tmp_path / f"{name}.txt").touch()
    at_once: list[int] = []
    seen: set[str] = set()
    running = 0

    async def look(call: ToolCall, run_id: str) -> Deny | None:
        nonlocal running
        del run_id
        seen.add(str(call.arguments["path"]))
        running += 1
        at_once.append(running)
        await asyncio.sleep(0)
        running -= 1
        return Deny("no") if call.arguments["path"] == "1.txt" else None

    hook = Hook(moment=Moment.TOOL_CALL, name="look", function=look)
    answer = await ask(access_to(run_in(tmp_path, {"read_file(0.txt)": "deny"}), hook), "read", ".")
    assert (answer.left_out, "0.txt" in seen, max(at_once)) == (2, False, HOOKED_AT_ONCE)


async def test_a_run_whose_results_an_interceptor_changes_shows_no_files(tmp_path: Path) -> None:
    censor = Interceptor(name="censor", after=lambda task, result: result)
    access = access_to(run_in(tmp_path), censor)
    assert "'censor' changes results" in (await refusal(access, "list"))[1]
    assert (await refusal(access, "read"))[0] == "AccessDeniedError"
    assert (await ask(access, "write", "a.txt", b"")).is_new


async def test_rules_judge_many_files_without_stopping_the_worker(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    access = access_to(run_in(tmp_path))
    threads: set[int] = set()
    access._obeyed = lambda workspace: threads.add(threading.get_ident()) or NO_FILES  # type: ignore[func-returns-value]
    await ask(access, "read", ".")
    assert threads
    assert threading.get_ident() not in threads


async def test_what_no_file_can_be_is_refused_at_once(tmp_path: Path) -> None:
    access = access_to(run_in(tmp_path))
    assert "a path may have at most 4,096" in (await refusal(access, "read", "x/" * 500_000))[1]
    with pytest.raises(ApplicationError, match=r"content\.digest: must be a SHA-256"):
        await ask(access, "write", "a.txt", CarriedContent(digest="zz"))


async def test_errors_are_for_people_and_do_not_repeat_a_long_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    access = access_to(run_in(tmp_path))
    for path, said in (
        ("new/", "new/ names a folder"),
        ("folder", "folder is a folder: name a file in it"),
        ("file/x", "file isn't a folder"),
    ):
        with pytest.raises(ApplicationError, match=said):
            await ask(access, "write", path, b"")
    for operation in ("read", "write"):
        with pytest.raises(ApplicationError) as caught:
            await ask(access, operation, "x" * 4000, b"")
        assert len(caught.value.message) < 300


STEPS = st.one_of(
    st.sampled_from(
        ["..", ".", "", "out", "sub", ".git", ".loom", "up", "a.txt", "~", "\\x2e\\x2e", "secret.txt", "\0"]
    ),
    st.text(max_size=6),
)
PATHS = st.builds(lambda steps, root: root + "/".join(steps), st.lists(STEPS, max_size=6), st.sampled_from(["", "/"]))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a secret, in which there is a workspace with links to it."""
    house = tmp_path_factory.mktemp("house")
    (house / "secret.txt").write_bytes(SECRET)
    workspace = house / "workspace"
    for name in (".git", ".loom", "sub"):
        (workspace / name).mkdir(parents=True)
        (workspace / name / "secret.txt").write_bytes(SECRET if name != "sub" else b"open")
    (workspace / "out").symlink_to(house)
    (workspace / "sub" / "up").symlink_to("../..")
    (workspace / "a.txt").symlink_to("../secret.txt")
    return house


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(path=PATHS)
def test_no_path_leads_out_of_the_workspace(house: Path, path: str) -> None:
    access = access_to(run_in(house / "workspace", {"write_file": "allow"}))

    async def everything() -> None:
        for operation in ("list", "read", "write"):
            try:
                answer = await ask(access, operation, path, b"written")
            except ApplicationError:
                continue
            assert all(".git" not in entry.path and ".loom" not in entry.path for entry in answer.entries)
            if answer.content is not None and not answer.is_archive:
                assert answer.content.data != b64encode(SECRET).decode()

    asyncio.run(everything())
    assert sorted(each.name for each in house.iterdir()) == ["secret.txt", "workspace"]
    for kept in (house, house / "workspace" / ".git", house / "workspace" / ".loom"):
        assert (kept / "secret.txt").read_bytes() == SECRET
