"""Clones of real repositories: what they contain, how changes come back, and what hostile ones can't do."""

import asyncio
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loom.activities.adapters.git import changes as changes_module
from loom.activities.adapters.git import clone as clone_module
from loom.activities.adapters.git import clones as clones_module
from loom.activities.adapters.git import remotes
from loom.activities.adapters.git.bare_repository import run_to_completion
from loom.activities.adapters.git.clone import RunClone
from loom.activities.adapters.git.clones import KEEP_SECONDS, RunClones
from loom.activities.adapters.git.deletion import delete
from loom.activities.adapters.git.remotes import RemoteGit
from loom.activities.adapters.snapshots import store as store_module
from loom.activities.adapters.snapshots import walk
from loom.activities.adapters.snapshots.store import Store
from loom.activities.ports import CloneChange, StoreUnavailable
from loom.domain.core.errors import BadRequest, RefusedError, UnreachableError
from loom.domain.core.repositories import Checkout, GitWorkspace
from loom.testing.waiting import eventually
from tests.git_server import committed, git, repository, shown

NAME = "0" * 32
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Desk:
    """Clones in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clones"
        self.home = folder / "home"
        self.clones = RunClones(self.root, self.home, lambda text: text.replace("s3cret", "[redacted]"))
        self.store = self.home / "clones" / NAME
        self.bare = folder / "app.git"
        self.url = f"file://{self.bare}"
        self.folder = Path(self.clones.folder(NAME))

    async def cloned(self, revision: str = "", url: str = "") -> Checkout:
        """Clone the repository as a run does."""
        async with self.clones.opened(str(self.folder)) as clone:
            checkout = await clone.pin(GitWorkspace(git=url or self.url, revision=revision))
            await clone.build(checkout)
        return checkout

    async def change(self, checkout: Checkout) -> CloneChange:
        """Return the change in the clone."""
        async with self.clones.opened(str(self.folder)) as clone:
            change = await clone.change(checkout)
        assert change is not None
        return change

    async def rebuilt(self, checkout: Checkout, patch: bytes | None) -> None:
        """Make the clone again, from the commit and a patch."""
        assert patch is not None
        async with self.clones.opened(str(self.folder)) as clone:
            await clone.build(checkout, patch, 1)

    async def pushed(self, checkout: Checkout, branch: str = "fix") -> str:
        """Push the change to a branch."""
        async with self.clones.opened(str(self.folder)) as clone:
            change = await clone.change(checkout)
            assert change is not None
            return await clone.push(checkout, change.tree, branch, message="Fix it\n", at=AT)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_a_clone_has_the_files_of_the_revision_and_a_history_to_read(desk: Desk) -> None:
    first = repository(desk.bare, {"README.md": "one\n", "run.sh": "#!/bin/sh\n"})
    second = committed(desk.bare.with_name("app.git-source"), {"README.md": "two\n"}, desk.bare)

    checkout = await desk.cloned()

    assert checkout == Checkout(url=desk.url, commit=second, revision="main", folder=str(desk.folder))
    assert (desk.folder / "README.md").read_text() == "two\n"
    assert git(desk.folder, "log", "--format=%H").split() == [second, first]
    assert git(desk.folder, "status", "--porcelain", "--branch") == "## main"
    assert git(desk.folder, "remote", "get-url", "origin") == desk.url


@pytest.mark.parametrize("name", ["v1", "a commit"])
async def test_a_tag_and_a_commit_are_revisions_too(desk: Desk, name: str) -> None:
    first = repository(desk.bare, {"a.txt": "one\n"})
    git(desk.bare, "tag", "-a", "v1", "-m", "the first", first)
    committed(desk.bare.with_name("app.git-source"), {"a.txt": "two\n"}, desk.bare)

    checkout = await desk.cloned(first if name == "a commit" else name)

    assert checkout.commit == first
    assert (desk.folder / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("revision", ["no-such-branch", "abc1234", "1" * 40])
async def test_an_unknown_revision_is_refused_by_name(desk: Desk, revision: str) -> None:
    repository(desk.bare, {"a.txt": "one\n"})

    with pytest.raises(BadRequest) as refused:
        await desk.cloned(revision)

    assert revision in refused.value.message
    assert refused.value.context["field"] == "workspace.revision"


async def test_the_change_has_new_changed_and_deleted_files_but_none_that_git_ignores(desk: Desk) -> None:
    repository(
        desk.bare,
        {".gitignore": "*.log\nbuild/\n", "a.txt": "one\n", "b.bin": bytes(range(256)), "kept.log": "x", "gone": "x"},
    )
    checkout = await desk.cloned()
    (desk.folder / "a.txt").write_text("two\n")
    (desk.folder / "b.bin").write_bytes(bytes(reversed(range(256))))
    (desk.folder / "kept.log").write_text("the commit has it\n")
    (desk.folder / "gone").unlink()
    (desk.folder / "new file\n").write_bytes("ümlaut".encode("latin-1"))
    (desk.folder / "new file\n").chmod(0o755)
    (desk.folder / "link").symlink_to("/etc/hostname")
    for name in ("debug.log", "build/out", "node_modules/x.js"):
        (desk.folder / name).parent.mkdir(exist_ok=True)
        (desk.folder / name).write_text("not part of the change\n")

    change = await desk.change(checkout)

    assert change.files == 6
    assert b"not part of the change" not in (change.patch or b"")
    before = {
        path: (path.lstat().st_mode, path.read_bytes()) for path in files_of(desk.folder) if "x.js" not in path.name
    }
    await desk.rebuilt(checkout, change.patch)
    after = {path: (path.lstat().st_mode, path.read_bytes()) for path in files_of(desk.folder)}
    ignored = {desk.folder / "debug.log", desk.folder / "build/out"}
    assert after == {path: what for path, what in before.items() if path not in ignored}
    assert (await desk.change(checkout)).tree == change.tree


def files_of(folder: Path) -> list[Path]:
    """The files and links in a clone, except Git's own."""
    return [path for path in folder.rglob("*") if ".git" not in path.parts and (path.is_symlink() or path.is_file())]


async def test_the_change_is_pushed_to_a_new_branch_and_once_however_often_it_is_tried(desk: Desk) -> None:
    base = repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    (desk.folder / "a.txt").write_text("two\n")

    first, again = await desk.pushed(checkout), await desk.pushed(checkout)

    assert first == again == git(desk.bare, "rev-parse", "fix")
    assert git(desk.bare, "rev-list", "fix").split() == [first, base]
    assert shown(desk.bare, "fix", "a.txt") == "two"


async def test_workers_with_another_home_are_refused_because_they_see_no_locks(desk: Desk) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    await desk.cloned()
    again, other = RunClones(desk.root, desk.home, str), RunClones(desk.root, desk.home.with_name("other"), str)
    async with again.opened(str(desk.folder)) as clone:
        assert clone.state is not None
    with pytest.raises(BadRequest, match="another LOOM_HOME"):
        async with other.opened(str(desk.folder)):
            pass


async def test_a_branch_with_other_commits_is_left_alone(desk: Desk) -> None:
    base = repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    (desk.folder / "a.txt").write_text("two\n")

    with pytest.raises(RefusedError, match="already exists"):
        await desk.pushed(checkout, "main")

    assert git(desk.bare, "rev-parse", "main") == base


async def test_nothing_that_an_agent_leaves_in_git_s_folder_runs_in_the_worker(desk: Desk, tmp_path: Path) -> None:
    repository(desk.bare, {"a.txt": "one\n", "sub/b.txt": "one\n"})
    checkout = await desk.cloned()
    proof = tmp_path / "proof"
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\necho $0 >> {proof}\ncat\n")
    trap.chmod(0o755)
    settings = f"""
[core]
    fsmonitor = {trap}
    hooksPath = {tmp_path}/hooks
    sshCommand = {trap}
    pager = {trap}
[filter "evil"]
    clean = {trap}
    smudge = {trap}
    process = {trap}
    required = true
[diff "evil"]
    textconv = {trap}
    command = {trap}
[diff]
    external = {trap}
[remote "origin"]
    uploadpack = {trap}
    url = ext::{trap}
[url "ext::{trap}"]
    insteadOf = {desk.url}
"""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for place in (desk.folder / ".git" / "hooks", hooks):
        place.mkdir(exist_ok=True)
        for name in ("post-index-change", "pre-push", "reference-transaction", "post-checkout", "fsmonitor-watchman"):
            (place / name).write_bytes(trap.read_bytes())
            (place / name).chmod(0o755)
    with (desk.folder / ".git" / "config").open("a") as file:
        file.write(settings)
    (desk.folder / ".gitattributes").write_text("* filter=evil diff=evil text eol=crlf working-tree-encoding=UTF-16\n")
    nested = desk.folder / "sub"
    git(nested, "init", "-q")
    with (nested / ".git" / "config").open("a") as file:
        file.write(settings)
    (nested / "b.txt").write_text("two\n")
    (nested / "new.txt").write_text("new\n")

    change = await desk.change(checkout)
    await desk.pushed(checkout)
    kept = desk.folder.rename(tmp_path / "kept")
    await desk.rebuilt(checkout, change.patch)

    assert not proof.exists()
    git(kept, "status")
    assert proof.exists()  # the traps work: this is what Git does with the clone's own settings
    assert change.files == 3  # with the attributes, and without the repository below
    assert (desk.folder / "sub" / "b.txt").read_bytes() == b"two\n"


async def test_nothing_in_a_hostile_repository_runs_when_it_is_cloned(desk: Desk, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    repository(
        desk.bare,
        {
            ".gitattributes": "* filter=lfs text eol=crlf\n",
            ".lfsconfig": f"[lfs]\n\turl = file://{tmp_path}\n",
            ".gitmodules": f'[submodule "x"]\n\tpath = x\n\turl = ext::touch {proof}\n\tupdate = !touch {proof}\n',
            "a.txt": "one\n",
            "out": "->..",
            "etc": "->/etc",
            "-c": "an option\n",
        },
    )
    source = desk.bare.with_name("app.git-source")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},x")
    git(source, "commit", "-q", "-m", "a submodule")
    git(source, "push", "-q", "--all", str(desk.bare))
    around = sorted(tmp_path.iterdir())

    checkout = await desk.cloned()
    (desk.folder / "a.txt").write_text("two\n")
    change = await desk.change(checkout)

    assert not proof.exists()
    assert sorted(tmp_path.iterdir()) == sorted((*around, desk.root, desk.home))
    assert change.files == 1  # the submodule, which isn't cloned, is still there
    assert (desk.folder / "etc").is_symlink()


@pytest.mark.parametrize(
    "name", [".git/hooks/post-checkout", ".GIT/config", "a/../../out", "git~1/config", ".g\u200cit/x"]
)
async def test_a_commit_with_names_that_lead_elsewhere_is_not_checked_out(desk: Desk, name: str) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    source = desk.bare.with_name("app.git-source")
    blob = git(source, "hash-object", "-w", "--stdin", feed=b"#!/bin/sh\n")
    tree = blob
    for number, part in enumerate(reversed(name.split("/"))):
        entry = f"{'40000' if number else '100755'} {part}".encode() + b"\0" + bytes.fromhex(tree)
        tree = git(source, "hash-object", "-w", "--literally", "-t", "tree", "--stdin", feed=entry)
    git(source, "update-ref", "refs/heads/main", git(source, "commit-tree", "-m", "evil", tree))
    git(source, "push", "-q", "-f", str(desk.bare), "main")

    with pytest.raises(BadRequest, match="which Git doesn't check out"):
        await desk.cloned()

    assert not desk.folder.exists()


async def test_a_crash_leaves_no_clone_that_is_incomplete(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(desk.bare, {"a.txt": "one\n"})

    def killed(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            await desk.cloned()
    assert not desk.folder.exists()

    checkout = await desk.cloned()

    async with desk.clones.opened(str(desk.folder)) as clone:
        assert clone.state is not None
        assert (clone.state.commit, clone.state.version) == (checkout.commit, 0)
    assert [path.name for path in files_of(desk.folder)] == ["a.txt"]


async def test_a_clone_that_another_worker_keeps_elsewhere_is_refused(desk: Desk) -> None:
    with pytest.raises(BadRequest, match="LOOM_RUN_WORKSPACES"):
        await desk.clones.opened("/elsewhere/run").__aenter__()


async def test_a_clone_that_is_made_again_has_another_id(desk: Desk) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    found = []
    for _ in range(2):
        async with desk.clones.opened(str(desk.folder)) as clone:
            assert clone.state is not None
            found.append(clone.state.generation)
        await desk.rebuilt(checkout, b"")

    assert all(found)
    assert found[0] != found[1]


async def test_a_cancelled_step_ends_before_others_may_use_the_clone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    begun, may_end = threading.Event(), threading.Event()
    build = RunClone._build

    def slowly(self: RunClone, checkout: Checkout, patch: bytes) -> None:
        begun.set()
        may_end.wait()
        build(self, checkout, patch)

    monkeypatch.setattr(RunClone, "_build", slowly)
    building = asyncio.create_task(desk.rebuilt(checkout, b""))
    try:
        await asyncio.to_thread(begun.wait)
        waiting = asyncio.create_task(desk.rebuilt(checkout, b""))
        for _ in range(2):
            building.cancel()
            waiting.cancel()
            await asyncio.wait((building, waiting), timeout=0.05)

        with Store(desk.store).locked_now() as lock:
            assert lock is None
        with pytest.raises(asyncio.CancelledError):
            await waiting  # who only waits for the clone leaves at once
    finally:
        may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await building
    with Store(desk.store).locked_now() as lock:
        assert lock is not None


async def test_git_reads_no_ignore_rules_from_the_files_of_the_clone(desk: Desk) -> None:
    repository(desk.bare, {".gitignore": "*.log\n", "sub/.gitignore": "*.tmp\n", "a.txt": "one\n"})
    checkout = await desk.cloned()
    (desk.folder / ".gitignore").unlink()
    os.mkfifo(desk.folder / ".gitignore")
    (desk.folder / "sub" / ".gitignore").write_text("*.new\n!keep.new\n/*/\n")
    (desk.folder / "link").mkdir()
    (desk.folder / "link" / ".gitignore").symlink_to("/dev/zero")
    for name in (
        "a.log",
        "b.txt",
        ":!x",
        ":(top)y.log",
        "sub/a.tmp",
        "sub/b.new",
        "sub/keep.new",
        "sub/below/x",
        "link/x",
    ):
        (desk.folder / name).parent.mkdir(exist_ok=True)
        (desk.folder / name).write_text("new\n")

    change = await desk.change(checkout)

    names = git(desk.store, "diff-tree", "-r", "--name-only", checkout.commit, change.tree).split()
    assert names == [":!x", "b.txt", "link/.gitignore", "link/x", "sub/.gitignore", "sub/a.tmp", "sub/keep.new"]


async def test_a_git_process_that_takes_too_long_is_ended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    await desk.cloned()
    monkeypatch.setattr(store_module, "LONGEST", 0.2)

    def wait_for_git() -> bytes:
        with Store(desk.store).running("-c", "core.quotePath=true", "cat-file", "--batch") as process:
            return process.stdout.read() if process.stdout else b""  # it waits for input

    with pytest.raises(StoreUnavailable, match=r"git cat-file was ended .* took longer than"):
        await asyncio.to_thread(wait_for_git)


async def test_a_server_that_never_answers_times_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        desk.url = f"https://127.0.0.1:{silent.getsockname()[1]}/app"

        with pytest.raises(UnreachableError, match="takes too long: git ls-remote was ended"):
            await desk.cloned()


async def test_what_git_leaves_behind_when_it_is_killed_breaks_nothing(desk: Desk) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    (desk.folder / "a.txt").write_text("two\n")
    before = await desk.change(checkout)
    names = ("HEAD.lock", "shallow.lock", "packed-refs.lock", "change-index.lock", "patched-index.lock", "config.lock")
    for name in (*names, "refs/loom/pinned.lock", "refs/loom/files.lock", "objects/info/commit-graph.lock"):
        (desk.store / name).parent.mkdir(exist_ok=True)
        (desk.store / name).touch()
    (desk.store / "incoming-1" / "objects").mkdir(parents=True)
    (desk.store / "ignore").mkdir()
    desk.folder.with_name(f"{NAME}.new").mkdir()

    assert (await desk.change(checkout)).tree == before.tree
    await desk.rebuilt(checkout, before.patch)
    assert await desk.cloned() == checkout

    assert list(desk.store.glob("incoming-*")) == list(desk.store.glob("*.lock")) == []
    assert sorted(path.name for path in desk.root.iterdir()) == [".owner", NAME]


async def test_a_repository_that_is_too_large_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(desk.bare, {"large": random.Random(1).randbytes(200_000), "b/c": "x", "d": "x"})

    with monkeypatch.context() as patched:
        patched.setattr(remotes, "LARGEST", 100_000)
        with pytest.raises(BadRequest, match="is too large: Loom fetches no more than"):
            await desk.cloned()
    for name, most in (("MOST", 2), ("LARGEST", 100_000)):
        with monkeypatch.context() as patched:
            patched.setattr(clone_module, name, most)
            with pytest.raises(BadRequest, match="is too large: a clone has at most"):
                await desk.cloned()

    assert not desk.folder.exists()
    assert list(desk.store.glob("incoming-*")) == []


def bomb(desk: Desk, *, folders: int = 12, depth: int = 9) -> None:
    """Commit few objects that are very many folders."""
    repository(desk.bare, {"a.txt": "one\n"})
    source = desk.bare.with_name("app.git-source")
    tree = git(source, "mktree")
    for _ in range(depth):
        entries = "".join(f"040000 tree {tree}\td{number}\n" for number in range(folders))
        tree = git(source, "mktree", feed=entries.encode())
    git(source, "push", "-q", "-f", str(desk.bare), f"{git(source, 'commit-tree', '-m', 'x', tree)}:refs/heads/main")


async def test_a_commit_with_too_many_folders_is_refused_at_once(desk: Desk) -> None:
    bomb(desk)

    with pytest.raises(BadRequest, match="is too large: a clone has at most"):
        await desk.cloned()


async def test_a_commit_that_git_can_t_read_in_time_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb(desk)
    monkeypatch.setattr(clone_module, "MOST", 10**12)
    running = Store.running

    def impatient(self: Store, *words: str, **options: object) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return running(self, *words, **options | ({"seconds": 0.2} if "ls-tree" in words else {}))  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "running", impatient)

    with pytest.raises(BadRequest, match="can't be cloned: git ls-tree was ended"):
        await desk.cloned()


async def test_a_commit_that_takes_git_too_much_memory_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    source = desk.bare.with_name("app.git-source")
    commit = git(source, "commit-tree", "-F", "-", "HEAD^{tree}", feed=b"a" * 17 * 2**20)
    git(source, "push", "-q", "-f", str(desk.bare), f"{commit}:refs/heads/main")

    with pytest.raises(BadRequest, match=r"is too large: its message, .* more than 16 MB"):
        await desk.cloned()
    monkeypatch.setattr(remotes, "MEMORY", 32 * 2**20)
    with pytest.raises(BadRequest, match=r"[Oo]ut of memory"):
        await desk.cloned()


async def test_work_on_clones_leaves_the_worker_s_other_threads_free() -> None:
    async def work_beside_clones() -> str:
        loop, may_end = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(max_workers=1))
        busy = [asyncio.create_task(run_to_completion(may_end.wait)) for _ in range(10)]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                return await asyncio.to_thread(lambda: "free")
        finally:
            may_end.set()
            await asyncio.gather(*busy)

    # In a loop of its own: other tests need the threads of this one.
    assert await asyncio.to_thread(asyncio.run, work_beside_clones()) == "free"


async def test_a_change_whose_patch_is_too_large_can_still_be_pushed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    (desk.folder / "large").write_bytes(random.Random(1).randbytes(200_000))
    monkeypatch.setattr(changes_module, "LARGEST_PATCH", 100_000)

    change = await desk.change(checkout)

    assert (change.patch, change.files) == (None, 1)
    assert await desk.pushed(checkout) == git(desk.bare, "rev-parse", "fix")


async def test_names_that_git_refuses_are_left_out_of_the_change(desk: Desk) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    refused = {"git~1", "GIT~1 .:x/config", ".git ", ".git. ./config", ".g\u200cit", "a\\.git\\config", "sub/git~1/x"}
    fine = {"git~", "git~1x", ".gitx", ".gitmodules", "sub/.gitkeep", ".github/x"}
    for name in refused | fine:
        (desk.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (desk.folder / name).write_text("new\n")
    (desk.folder / "sub" / ".gitmodules").symlink_to("x")

    change = await desk.change(checkout)
    await desk.rebuilt(checkout, change.patch)

    assert set(change.left_out) == {*refused, "sub/.gitmodules"}
    assert {str(path.relative_to(desk.folder)) for path in files_of(desk.folder)} == {"a.txt", *fine}
    git(desk.bare, "-c", "core.protectNTFS=true", "fetch", "-q", str(desk.store), await desk.pushed(checkout))


def below(folder: Path, *names: str, content: str) -> None:
    """Write a file whose path may be longer than the system allows."""
    *folders, name = names
    here = os.open(folder, os.O_RDONLY)
    for each in folders:
        os.mkdir(each, dir_fd=here)
        deeper = os.open(each, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    with os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=here), "w") as file:
        file.write(content)
    os.close(here)


@pytest.mark.parametrize("name", [".gitignore", "x"])
async def test_files_with_very_long_paths_are_left_out_of_the_change(desk: Desk, name: str) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    below(desk.folder, *["n" * 250] * 18, name, content="x\n")
    (desk.folder / "b.txt").write_text("new\n")

    change = await desk.change(checkout)
    await desk.rebuilt(checkout, change.patch)

    assert change.left_out == ("/".join([*["n" * 250] * 18, name]),)
    assert {path.name for path in files_of(desk.folder)} == {"a.txt", "b.txt"}
    assert sorted(path.name for path in desk.root.iterdir()) == [".owner", NAME]


async def test_what_git_can_t_restore_from_a_patch_is_left_out_of_it(desk: Desk) -> None:
    repository(desk.bare, {"a.txt": "one\n", "was /empty": "", "was /full": "one\n"})
    checkout = await desk.cloned()
    for name, content in (("e /empty", b""), ("e /binary", b"\0"), ("fine", b""), ("was /full", b"two\n")):
        (desk.folder / name).parent.mkdir(exist_ok=True)
        (desk.folder / name).write_bytes(content)
    (desk.folder / "was " / "empty").unlink()

    change = await desk.change(checkout)
    async with desk.clones.opened(str(desk.folder)) as clone:
        assert await clone.change(checkout, unless=change.tree) is None
    await desk.rebuilt(checkout, change.patch)

    assert change.left_out == ("e /binary", "e /empty", "was /empty", "was /full")
    assert (await desk.change(checkout)).tree == change.tree
    assert (desk.folder / "fine").exists()
    with pytest.raises(BadRequest, match="Git can't apply the run's change"):
        await desk.rebuilt(checkout, b"diff --git a/e /x b/e /x\nnew file mode 100644\nindex 0000000..e69de29\n")


async def test_a_clone_with_too_many_files_has_no_change(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    (desk.folder / "b.txt").touch()
    monkeypatch.setattr(walk, "MOST", 2)

    with pytest.raises(BadRequest, match=r"has more than .* files and folders"):
        await desk.change(checkout)


async def test_ignore_rules_that_take_git_too_long_end_with_a_reason(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    for number in range(500):
        (desk.folder / f"{number}{'x' * 200}").touch()
    (desk.folder / ".gitignore").write_text("".join(f"*{number}*x*y*z\n" for number in range(50_000)))
    monkeypatch.setattr(changes_module, "IGNORING_SECONDS", 0.1)

    with pytest.raises(BadRequest, match="to apply the .gitignore files in"):
        await desk.change(checkout)


async def test_only_so_many_bytes_of_ignore_rules_apply(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(desk.bare, {".gitignore": "*.one\n", "sub/.gitignore": "*.two\n"})
    checkout = await desk.cloned()
    (desk.folder / "sub" / "x.one").touch()
    (desk.folder / "sub" / "x.two").touch()
    monkeypatch.setattr(changes_module, "LARGEST_IGNORING", 10)

    change = await desk.change(checkout)

    assert git(desk.store, "diff-tree", "-r", "--name-only", checkout.commit, change.tree).split() == ["sub/x.two"]


async def test_files_in_the_place_of_what_is_not_cloned_are_a_change(desk: Desk) -> None:
    repository(desk.bare, {"a.txt": "one\n", "node_modules/x": "one\n"})
    source = desk.bare.with_name("app.git-source")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    git(source, "commit", "-q", "-m", "a submodule")
    git(source, "push", "-q", "--all", str(desk.bare))
    checkout = await desk.cloned()
    (desk.folder / "module").mkdir(exist_ok=True)
    (desk.folder / "module" / "new").write_text("new\n")
    shutil.rmtree(desk.folder / "node_modules")
    (desk.folder / "node_modules").write_text("a file\n")

    change = await desk.change(checkout)

    names = git(desk.store, "diff-tree", "-r", "--name-only", checkout.commit, change.tree).split()
    assert names == ["module", "module/new", "node_modules", "node_modules/x"]


def test_a_folder_that_nobody_may_write_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").touch()
    (folder / "link").symlink_to(tmp_path)
    for path, mode in ((folder / "a" / "b", 0o555), (folder / "a", 0), (folder, 0o555)):
        path.chmod(mode)
    program = (
        "import sys; from pathlib import Path; from loom.activities.adapters.git.deletion import delete;"
        "delete(Path(sys.argv[1]))"
    )
    # Root may delete everything, unless it has given up this right.
    ordinary = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--") if os.geteuid() == 0 else ()

    subprocess.run([*ordinary, sys.executable, "-c", program, str(folder)], check=True)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_deleted_however_deep_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    folder.mkdir()
    below(folder, *["d"] * 1_200, "x", content="x")

    delete(folder)

    assert list(tmp_path.iterdir()) == []


async def test_hooks_of_a_repository_on_the_worker_s_machine_do_not_run(desk: Desk, tmp_path: Path) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    proof, trap = tmp_path / "proof", tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\necho $0 >> {proof}\n")
    trap.chmod(0o755)
    (desk.bare / "hooks").mkdir(exist_ok=True)
    for name in ("pre-receive", "update", "post-receive", "post-update", "reference-transaction", "proc-receive"):
        (desk.bare / "hooks" / name).write_bytes(trap.read_bytes())
        (desk.bare / "hooks" / name).chmod(0o755)
    git(tmp_path, "clone", "-q", "--bare", str(desk.bare), str(tmp_path / "other.git"))
    (desk.bare / "objects" / "info").mkdir(exist_ok=True)
    (desk.bare / "objects" / "info" / "alternates").write_text(f"{tmp_path / 'other.git' / 'objects'}\n")
    git(desk.bare, "config", "core.alternateRefsCommand", str(trap))

    checkout = await desk.cloned()
    (desk.folder / "a.txt").write_text("two\n")
    await desk.pushed(checkout)

    assert shown(desk.bare, "fix", "a.txt") == "two"
    assert not proof.exists()
    git(tmp_path, "clone", "-q", str(desk.bare), "mine")
    git(tmp_path / "mine", "push", "-q", "origin", "HEAD:refs/heads/mine")
    assert proof.exists()  # the traps work


async def test_errors_contain_no_tokens(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    to = "https://ann:passw0rd@localhost:1/s3cret/app?private_token=t0ken&x="
    (tmp_path / ".gitconfig").write_text(f'[url "{to}"]\n\tinsteadOf = https://localhost:1/\n')

    with pytest.raises(UnreachableError) as failed:
        await RemoteGit(lambda text: text.replace("s3cret", "[redacted]")).refs(tmp_path, "https://localhost:1/app")

    assert "localhost:1/[redacted]/app" in failed.value.message
    assert all(word not in failed.value.message for word in ("passw0rd", "s3cret", "t0ken"))


async def test_old_clones_and_what_is_left_of_others_are_deleted_while_runs_go_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clones_module, "_EVERY", 0.0)
    repository(desk.bare, {"a.txt": "one\n"})
    await desk.cloned()
    old, half_made, unknown = (f"{number}" * 32 for number in (1, 2, 3))
    stores = desk.home / "clones"
    for folder in (desk.root / old, stores / old, stores / half_made, desk.root / f"{old}.old-1", desk.root / unknown):
        (folder / "below").mkdir(parents=True)
    for name in (old, half_made):
        (stores / f"{name}.lock").touch()
        os.utime(stores / f"{name}.lock", (0, AT.timestamp() - 2 * KEEP_SECONDS))
    (desk.root / "of-somebody-else").mkdir()

    await desk.cloned()

    async def are_deleted() -> bool:
        return sorted(path.name for path in stores.iterdir()) == [
            NAME,
            f"{NAME}.lock",
            f"{unknown}.lock",
            "owner",
            "swept",
        ]

    await eventually(are_deleted)
    assert sorted(path.name for path in desk.root.iterdir()) == [".owner", NAME, unknown, "of-somebody-else"]


async def test_a_clone_that_can_t_be_deleted_fails_no_call(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> None:
        raise RecursionError(f"{folder} can't be deleted")

    repository(desk.bare, {"a.txt": "one\n"})
    await desk.cloned()
    os.utime(desk.store.with_name(f"{NAME}.lock"), (0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(clones_module, "delete", broken)

        desk.clones.sweep()

    assert desk.folder.exists()
    desk.clones.sweep()
    assert not desk.folder.exists()


@pytest.mark.parametrize(
    ("workspace", "is_refused"),
    [
        *(("clones", True), (f"clones/{NAME}", True), (f"clones/{NAME}/sub", True), ("clones-of-others", False)),
        *((".", True), ("home", True), ("home/clones", True), (f"home/clones/{NAME}", True), ("home/else", False)),
    ],
)
def test_no_run_works_in_or_around_the_folder_of_the_clones(desk: Desk, workspace: str, is_refused: bool) -> None:
    assert desk.clones.exposes(desk.root.parent / workspace) is is_refused


def test_a_run_may_work_around_loom_s_own_state_because_that_is_hidden(tmp_path: Path) -> None:
    clones = RunClones(tmp_path / "home" / "workspaces", tmp_path / "home", str)

    assert not clones.exposes(tmp_path)
    assert clones.exposes(tmp_path / "home")
    assert clones.exposes(tmp_path / "home" / "workspaces" / NAME)


async def test_no_patch_is_computed_if_the_tree_is_unchanged(desk: Desk) -> None:
    repository(desk.bare, {"a.txt": "one\n"})
    checkout = await desk.cloned()
    (desk.folder / "a.txt").write_text("two\n")
    known = await desk.change(checkout)

    async with desk.clones.opened(str(desk.folder)) as clone:
        assert await clone.change(checkout, unless=known.tree) is None
        (desk.folder / "a.txt").write_text("three\n")
        assert await clone.change(checkout, unless=known.tree) is not None


async def test_a_change_names_the_files_that_a_host_runs(desk: Desk) -> None:
    repository(desk.bare, {".github/workflows/test.yml": "one\n", "a.txt": "one\n"})
    checkout = await desk.cloned()
    (desk.folder / ".github" / "workflows" / "test.yml").unlink()
    for name in (
        ".cnb.yml",
        ".workflow/x.yml",
        ".gitlab-ci.yml",
        ".github/actions/x/action.yml",
        "deep/Jenkinsfile",
        ".github/notes.md",
        "b.txt",
    ):
        (desk.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (desk.folder / name).write_text("new\n")

    change = await desk.change(checkout)

    assert change.ci_files == (
        ".cnb.yml",
        ".github/actions/x/action.yml",
        ".github/workflows/test.yml",
        ".gitlab-ci.yml",
        ".workflow/x.yml",
        "deep/Jenkinsfile",
    )


async def test_a_push_from_a_commit_that_is_on_no_branch_brings_its_ci_files(desk: Desk) -> None:
    tip = repository(desk.bare, {".github/workflows/test.yml": "one\n", "a.txt": "one\n"})
    source = desk.bare.with_name("app.git-source")
    (source / ".github" / "workflows" / "evil.yml").write_text("on: push\n")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "of a fork")
    fork = git(source, "rev-parse", "HEAD")
    git(source, "push", "-q", str(desk.bare), f"{fork}:refs/pull/1/head")

    found = {}
    for commit in (tip, fork):
        checkout = await desk.cloned(commit)
        assert (await desk.change(checkout)).ci_files == ()
        (desk.folder / "a.txt").write_text("two\n")
        found[commit] = (await desk.change(checkout)).ci_files

    assert found == {tip: (), fork: (".github/workflows/evil.yml", ".github/workflows/test.yml")}


async def test_a_clone_that_changes_often_needs_no_more_and_more_room(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "_MAY_GROW", 10**6)
    first = repository(desk.bare, {"a.txt": "one\n"})
    committed(desk.bare.with_name("app.git-source"), {"a.txt": "two\n"}, desk.bare)
    checkout = await desk.cloned()
    sizes = []
    for number in range(8):
        (desk.folder / "large").write_bytes(random.Random(number).randbytes(500_000))
        change = await desk.change(checkout)
        sizes.append(sum(path.stat().st_size for path in (desk.store / "objects").rglob("*") if path.is_file()))

    assert max(sizes) < 2_500_000
    await desk.rebuilt(checkout, change.patch)
    assert (await desk.change(checkout)).tree == change.tree
    assert git(desk.bare, "rev-list", await desk.pushed(checkout)).split()[1:] == [checkout.commit, first]


async def test_a_clone_that_was_made_anew_has_not_changed(desk: Desk) -> None:
    repository(desk.bare, {"a.txt": "one\n", ".gitignore": "build\n"})
    checkout = await desk.cloned()
    for patch in (b"", None):
        (desk.folder / "b.txt").write_text("new\n")
        await desk.rebuilt(checkout, (await desk.change(checkout)).patch if patch is None else patch)
        (desk.folder / "build").write_text("ignored\n")
        async with desk.clones.opened(str(desk.folder)) as clone:
            assert clone.state is not None
            assert await clone.change(checkout, unless=clone.state.tree) is None
