"""Folders of a workspace as archives: what they contain, and that the same files give the same bytes."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from loom.activities.toolbox.workspace import folder_archive, paths
from loom.activities.toolbox.workspace.confined_open import Entry, draft_name
from loom.activities.toolbox.workspace.folder_archive import files_below, packed
from loom.domain.core.errors import BadRequest, ToolValidationError

MOST = 1_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with a script, a link, a repository and Loom's own state."""
    for name in ("src/.git/config", ".loom/password", "own/state", "src/b.txt", "src/sub/a.txt", "src/.env"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "src" / "sub" / "a.txt").chmod(0o700)
    (tmp_path / "src" / "link").symlink_to("/etc/passwd")
    return tmp_path


def contents(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """The mode and the content of each file in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {each.name: (each.mode, opened.extractfile(each).read()) for each in opened}  # type: ignore[union-attr]


def test_an_archive_has_the_regular_files_below_its_folder(root: Path) -> None:
    folder = root / "src"
    archive, unread = packed(root, folder, files_below(root, folder, root / "own")[0], MOST)
    assert (contents(archive), unread) == (
        {
            ".env": (0o644, b"src/.env"),
            "b.txt": (0o644, b"src/b.txt"),
            "sub/a.txt": (0o755, b"src/sub/a.txt"),
        },
        0,
    )


def test_loom_s_own_state_is_in_no_archive(root: Path) -> None:
    assert [path.name for path in files_below(root, root, root / "own")[0]] == [".env", "b.txt", "a.txt"]


def test_the_same_files_give_the_same_bytes(root: Path) -> None:
    folder, files = root / "src", files_below(root, root / "src", None)[0]
    before, _ = packed(root, folder, files, MOST)
    for path in files:
        os.utime(path, (1, 1))
    assert packed(root, folder, files, MOST)[0] == before


def test_a_file_that_was_deleted_meanwhile_is_counted(root: Path) -> None:
    folder, files = root / "src", files_below(root, root / "src", None)[0]
    (folder / "b.txt").unlink()
    archive, unread = packed(root, folder, files, MOST)
    assert (sorted(contents(archive)), unread) == ([".env", "sub/a.txt"], 1)


def test_a_folder_that_is_too_large_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "src"
    files, _ = files_below(root, folder, None)
    with pytest.raises(BadRequest, match="more than 20 bytes as an archive"):
        packed(root, folder, files, 20)
    monkeypatch.setattr(folder_archive, "MOST_UNPACKED", 10)
    with pytest.raises(BadRequest, match="more than 10 bytes in its files"):
        packed(root, folder, files, MOST)
    monkeypatch.setattr(folder_archive, "MOST_FILES", 2)
    with pytest.raises(BadRequest, match="more than 2 files"):
        files_below(root, folder, None)
    monkeypatch.setattr(folder_archive, "MOST_FOLDERS", 0)
    monkeypatch.setattr(folder_archive, "MOST_FILES", 10)
    with pytest.raises(BadRequest, match="more than 0 folders"):
        files_below(root, folder, None)


def test_a_folder_that_is_deleted_meanwhile_is_counted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = paths.visible_entries

    def deleting(workspace: Path, real: Path, home: Path | None) -> Iterator[Entry]:
        entries = list(seen(workspace, real, home))
        if real == root / "src":
            shutil.rmtree(root / "src" / "sub")
        return iter(entries)

    monkeypatch.setattr(paths, "visible_entries", deleting)
    found, unread = files_below(root, root / "src", None)
    assert ([path.name for path in found], unread) == ([".env", "b.txt"], 1)
    with pytest.raises(ToolValidationError):
        files_below(root, root / "gone", None)


def test_folders_may_be_nested_more_deeply_than_python_calls_itself(root: Path) -> None:
    deep = os.open(root / "src", os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("a", dir_fd=deep)
        below = os.open("a", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    try:
        found, unread = files_below(root, root / "src", None)
    finally:
        subprocess.run(["rm", "-r", root / "src" / "a"], check=True)  # Python can't delete it
    assert ([path.name for path in found], unread) == ([".env", "b.txt", "a.txt"], 0)


def test_an_archive_of_large_files_takes_little_memory(root: Path) -> None:
    with (root / "src" / "zeros").open("wb") as file:
        file.truncate(20_000_000)
    files, _ = files_below(root, root / "src", None)
    tracemalloc.start()
    try:
        packed(root, root / "src", files, MOST)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_files_that_are_too_large_together_are_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (root / "src" / "a-hole").open("wb") as file:
        file.truncate(2**40)
    monkeypatch.setattr(folder_archive, "_Pieces", None)
    with pytest.raises(BadRequest, match="in its files"):
        packed(root, root / "src", [root / "src" / "a-hole"], MOST)


def test_the_draft_of_a_worker_that_was_killed_is_no_file_of_the_workspace(root: Path) -> None:
    (root / "src" / draft_name()).write_text("half a fi")
    (root / "src" / ".loom-draft-of-mine").touch()
    names = [path.name for path in files_below(root, root / "src", None)[0]]
    assert names == [".env", ".loom-draft-of-mine", "b.txt", "a.txt"]
