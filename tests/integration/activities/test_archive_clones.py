"""Clones of archives: real Git stores what a child process reads, and equal files make the same commit."""

import asyncio
import os
from pathlib import Path

import pytest

from loom.activities.adapters.git import unpacking
from loom.activities.adapters.git.clone import RunClone
from loom.activities.adapters.git.clones import RunClones
from loom.activities.adapters.snapshots.store import TookTooLong
from loom.activities.ports import StoreUnavailable
from loom.domain.core.errors import BadRequest
from loom.domain.core.repositories import Checkout
from loom.testing.waiting import eventually
from tests.archives import link, member, tar, tar_of, zipped
from tests.git_server import git

FILES = {"app/a.txt": "one\n", "app/b/c.txt": "two\n"}
COMMIT = "9e6a6196eeca0146a8fea5a2a4d9ff46a850e00a"


class Desk:
    """A machine with one clone."""

    def __init__(self, home: Path) -> None:
        self.clones = RunClones(home / "workspaces", home, str)
        self.folder = Path(self.clones.folder("0" * 32))

    async def unpacked(self, content: bytes, name: str = "app.tar.gz") -> Checkout:
        async with self.clones.opened(str(self.folder)) as clone:
            checkout = await clone.unpack(content, name)
            await clone.build(checkout)
        return checkout

    def left(self) -> list[str]:
        """Return what the repository has besides its objects: packs, and what Git and Loom work in."""
        repository = self.folder.parent.with_name("clones") / self.folder.name
        return [path.name for path in (*repository.glob("incoming-*"), *repository.glob("objects/pack/*"))]

    async def patch(self, checkout: Checkout) -> bytes | None:
        async with self.clones.opened(str(self.folder)) as clone:
            change = await clone.change(checkout)
        return None if change is None else change.patch


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_an_archive_becomes_one_commit_whose_change_is_a_patch(desk: Desk) -> None:
    checkout = await desk.unpacked(tar_of(FILES))

    (desk.folder / "app/a.txt").write_text("three\n")

    assert git(desk.folder, "log", "--format=%H|%an|%ae|%at|%s") == (
        f"{checkout.commit}|Loom|loom@localhost|0|The archive's content"
    )
    assert git(desk.folder, "branch", "--show-current") == "main"
    assert git(desk.folder, "remote") == ""
    assert git(desk.folder, "status", "--porcelain") == "M app/a.txt"
    assert b"-one\n+three\n" in (await desk.patch(checkout) or b"")


async def test_equal_files_make_the_same_commit_on_any_machine_and_of_any_format(tmp_path: Path) -> None:
    archives = [tar_of(FILES), tar_of(dict(reversed(FILES.items())), "w:xz"), zipped(*_bytes(FILES))]

    commits = {(await Desk(tmp_path / str(n)).unpacked(each)).commit for n, each in enumerate(archives)}

    assert commits == {COMMIT}  # stored runs name it


def _bytes(files: dict[str, str]) -> list[tuple[str, bytes]]:
    return [(name, content.encode()) for name, content in files.items()]


async def test_another_machine_needs_the_archive_and_the_patch(desk: Desk, tmp_path: Path) -> None:
    checkout = await desk.unpacked(tar_of(FILES))
    (desk.folder / "app/new").write_text("new\n")
    patch = await desk.patch(checkout)
    assert patch is not None
    other = Desk(tmp_path / "other")

    async with other.clones.opened(str(other.folder)) as clone:
        with pytest.raises(StoreUnavailable, match="isn't unpacked"):
            await clone.build(checkout, patch, 1)
        assert (await clone.unpack(tar_of(FILES), "app.tar.gz")).commit == checkout.commit
        await clone.build(checkout, patch, 1)

    assert (other.folder / "app/new").read_text() == "new\n"


async def test_git_folders_of_an_archive_are_left_out_and_named(desk: Desk) -> None:
    packed = tar(member("app/a", b"x"), member("app/.git/config", b"[core]\n\tfsmonitor = touch /tmp/pwned\n"))

    checkout = await desk.unpacked(packed)

    assert checkout.left_out == ("app/.git",)
    assert sorted(path.name for path in (desk.folder / "app").iterdir()) == ["a"]


HOSTILE = {
    "link out": (tar(link("out", "/etc")), "'out' is a link to '/etc'"),
    "name of Git": (tar(member("a/.g\u200cit/x", b"x")), "has a name that Git doesn't check out: rename it"),
    "no archive": (b"a note", "isn't one that Loom unpacks"),
    "cut off": (tar_of(FILES)[:60], "the archive can't be read: pack the files again"),
    "cut off at its end": (tar_of(FILES, "w:xz")[:-20], "the archive can't be read: pack the files again"),
    "bomb": (tar(member("zeros", bytes(3 * 2**20)), mode="w:xz"), "has more than"),
    "many files": (tar(*(member(str(number)) for number in range(9))), "more than 5 files and folders"),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_archive_is_refused_and_leaves_nothing(
    desk: Desk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, said = HOSTILE[kind]
    monkeypatch.setattr(unpacking, "MOST", 5)
    monkeypatch.setattr(unpacking, "LARGEST", 2**20)

    with pytest.raises(BadRequest) as refused:
        await desk.unpacked(content)

    assert said in refused.value.message
    assert not desk.folder.exists()


async def test_an_archive_that_takes_too_long_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "SECONDS", 0.1)
    monkeypatch.setattr(unpacking, "_CHILD", "import signal; signal.pause()")

    with pytest.raises(BadRequest, match=r"the archive takes longer than 0\.1 s to unpack"):
        await desk.unpacked(tar_of(FILES))


KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"


@pytest.mark.parametrize(("child", "said"), [(KILLED, "ended with code -15: it was killed"), ("import gone", "gone")])
async def test_an_archive_is_not_blamed_for_a_reader_that_is_killed_or_cannot_start(
    desk: Desk, child: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "_CHILD", child)

    with pytest.raises(StoreUnavailable, match=said):
        await desk.unpacked(tar_of(FILES))


async def test_a_cancellation_ends_the_reader_and_git(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    name = desk.folder.parent.with_name("child")  # leads to the child's process id
    monkeypatch.setattr(
        unpacking, "_CHILD", f"import os, signal; os.symlink(str(os.getpid()), {str(name)!r}); signal.pause()"
    )
    unpacking_it = asyncio.create_task(desk.unpacked(tar_of(FILES)))

    async def child() -> int | None:
        return int(os.readlink(name)) if os.path.lexists(name) else None

    pid = await eventually(child)
    unpacking_it.cancel()

    with pytest.raises(asyncio.CancelledError):
        await unpacking_it
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert desk.left() == []


async def test_a_refused_archive_leaves_nothing_in_the_repository(desk: Desk) -> None:
    with pytest.raises(BadRequest):
        await desk.unpacked(tar(member("a", os.urandom(2**20)), link("out", "/etc")))

    assert desk.left() == []


async def test_what_git_refuses_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git 2.48 refuses more paths than those before it."""
    refuses = "!echo \"fatal: invalid path 'x/y'\" >&2; exit 128"
    monkeypatch.setattr(unpacking, "_IMPORT", ("-c", f"alias.refuses={refuses}", "refuses"))

    with pytest.raises(BadRequest, match="the archive has the path 'x/y', which Git refuses: rename the file"):
        await desk.unpacked(tar_of(FILES))


async def test_a_build_that_takes_too_long_is_the_archive_s_fault(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> None:
        raise TookTooLong("git read-tree was ended")

    monkeypatch.setattr(RunClone, "_clone", late)

    with pytest.raises(BadRequest, match=r"the archive app\.tar\.gz can't be cloned: git read-tree was ended"):
        await desk.unpacked(tar_of(FILES))
