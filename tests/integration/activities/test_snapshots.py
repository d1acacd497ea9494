"""Snapshots of real folders by the real Git: what comes back, what stays untouched, what is survived."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom.activities.adapters.snapshots import restore as shadow_restore
from loom.activities.adapters.snapshots.cleanup import is_due, tidy
from loom.activities.adapters.snapshots.restore import Content, Restoration, RestoreChanges
from loom.activities.adapters.snapshots.shadow_git import ChangedFile, ShadowGit
from loom.activities.adapters.snapshots.store import Blobs, Store
from loom.activities.adapters.snapshots.walk import LARGEST, scan
from loom.activities.ports import Snapshots, StoreUnavailable
from loom.domain.core.errors import BadRequest, RefusedError, RunNotFoundError
from loom.testing.waiting import eventually

State: TypeAlias = dict[str, tuple[str, object, int]]
RUN: Final = "run-1"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = (tmp_path / "workspace").resolve()
    folder.mkdir()
    return folder


@pytest.fixture
def snapshots(tmp_path: Path) -> ShadowGit:
    return ShadowGit(tmp_path / "home")


def state(folder: Path) -> State:
    """Everything below a folder: kind, content and permissions."""
    return {str(path.relative_to(folder)): _entry(path) for path in sorted(folder.rglob("*"))}


def _entry(path: Path) -> tuple[str, object, int]:
    status = path.lstat()
    if path.is_symlink():
        return ("link", os.readlink(path), 0)
    if path.is_dir():
        return ("folder", None, stat.S_IMODE(status.st_mode))
    return ("file", path.read_bytes(), stat.S_IMODE(status.st_mode))


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    name = ("-c", "user.name=U", "-c", "user.email=u@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *name, *words], cwd=folder, env=env, check=True, capture_output=True, text=True)
    return done.stdout


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def store_of(snapshots: ShadowGit, place: Path) -> Store:
    return Store.of(snapshots._root, place)


def test_it_is_the_port(snapshots: ShadowGit) -> None:
    port: Snapshots = snapshots
    assert port is snapshots


# What comes back

NAMES: Final = ("a", "b", "c.txt", "-x", "sp ace", "new\nline", 'quo"te\\', "ümläut")
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(lambda parts: Path(*parts))
edits = st.one_of(
    st.tuples(st.just("write"), paths, st.binary(max_size=20)),
    st.tuples(st.just("remove"), paths, st.none()),
    st.tuples(st.just("folder"), paths, st.none()),
    st.tuples(st.just("link"), paths, st.sampled_from(("a", "../outside", "/etc/passwd", "nowhere"))),
    st.tuples(st.just("mode"), paths, st.sampled_from((0o600, 0o644, 0o755, 0o700, 0o664))),
    st.tuples(st.just("rename"), paths, paths),
)


def apply(folder: Path, edit: tuple[str, Path, Any]) -> None:
    """One edit as a tool might make it; those that cannot be are none."""
    kind, path, more = edit
    target = folder / path
    if not any((folder / part).is_symlink() for part in path.parents):
        with suppress(OSError):
            EDITS[kind](target, more)


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def _remove(target: Path, _: None) -> None:
    shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()


EDITS: Final[dict[str, Callable[[Path, Any], object]]] = {
    "write": lambda target, content: None if target.is_symlink() else _write(target, content),
    "remove": _remove,
    "folder": lambda target, _: target.mkdir(parents=True),
    "link": lambda target, to: target.symlink_to(to),
    "mode": lambda target, mode: target.chmod(mode) if target.is_file() and not target.is_symlink() else None,
    "rename": lambda target, to: target.rename(target.parents[0] / to.name),
}


@settings(max_examples=settings().max_examples // 6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
async def test_any_state_comes_back_byte_for_byte_after_any_edits(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        home, place = Path(scratch).resolve() / "home", Path(scratch).resolve() / "workspace"
        place.mkdir()
        snapshots, seen = ShadowGit(home), dict[int, State]()
        for turn in range(1, 4):
            for edit in data.draw(st.lists(edits, min_size=1, max_size=8)):
                apply(place, edit)
            seen[turn] = state(place)
            await snapshots.take(place, RUN, turn, "c")
        for edit in data.draw(st.lists(edits, max_size=8)):
            apply(place, edit)
        for turn in data.draw(st.permutations(sorted(seen))):
            before = state(place)
            done = snapshots.restore(RUN, turn=turn)
            assert (state(place), done.left) == (seen[turn], {})
            snapshots.restore(RUN, snapshot=done.undo)
            assert state(place) == before


async def test_what_git_would_ignore_is_kept_and_what_a_command_brings_back_is_not(
    place: Path, snapshots: ShadowGit
) -> None:
    fill(place, {".gitignore": ".env\nbuild/\n", ".env": "KEY=1", "build/out": "o", "untracked": "u"})
    fill(place, {"node_modules/a/x.js": "x", "pkg/__pycache__/m.pyc": "p", ".loom/state": "s", ".git/HEAD": "h"})
    fill(place, {"env/pyvenv.cfg": "home=/usr", "env/bin/python": "p"})
    fill(place, {"target/CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n", "target/big": "b"})
    fill(place, {"app/pyvenv.cfg": "home=/usr", "app/main.py": "sources beside an environment"})
    commit = await snapshots.take(place, RUN, 1, "c")
    kept = store_of(snapshots, place).kept(commit)
    assert sorted(kept.files) == [".env", ".gitignore", "app/main.py", "app/pyvenv.cfg", "build/out", "untracked"]
    assert kept.facts.not_kept == {"env": "a virtual environment", "target": "a cache, marked by its CACHEDIR.TAG"}

    shutil.rmtree(place / "app")
    (place / ".env").unlink()
    (place / "node_modules/a/x.js").write_text("newer")
    snapshots.restore(RUN, turn=1)
    assert (place / "app/main.py").read_text() == "sources beside an environment"
    assert (place / ".env").read_text() == "KEY=1"
    assert (place / "node_modules/a/x.js").read_text() == "newer"
    assert (place / "target/big").read_text() == "b"


async def test_names_that_are_no_text_come_back(place: Path, snapshots: ShadowGit) -> None:
    odd = [b"\xff\xfe", b"-rf", b'"quoted"', b"new\nline", b"tab\t", b"back\\slash", b"git~1", b"M 100644 inline x"]
    for name in odd:
        Path(os.fsdecode(os.fsencode(place) + b"/" + name)).write_bytes(name)
    before = state(place)
    await snapshots.take(place, RUN, 1, "c")
    for path in list(place.iterdir()):
        path.unlink()
    snapshots.restore(RUN, turn=1)
    assert state(place) == before


async def test_a_workspace_that_is_gone_comes_back(place: Path, snapshots: ShadowGit) -> None:
    fill(place, {"a/b": "1", "c": "2"})
    before = state(place)
    await snapshots.take(place, RUN, 1, "c")
    shutil.rmtree(place)
    with pytest.raises(RefusedError, match="is gone: `loom restore` restores it"):
        snapshots.diff(RUN)
    _, todo = snapshots.plan(RUN, turn=1)
    assert sorted(todo.write) == ["a/b", "c"]
    snapshots.restore(RUN, turn=1)
    assert state(place) == before


async def test_only_what_differs_is_written(place: Path, snapshots: ShadowGit) -> None:
    fill(place, {"same": "1", "changed": "1"})
    await snapshots.take(place, RUN, 1, "c")
    (place / "changed").write_text("2")
    untouched = (place / "same").stat()
    snapshots.restore(RUN, turn=1)
    now = (place / "same").stat()
    assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (
        untouched.st_ino,
        untouched.st_mtime_ns,
        untouched.st_ctime_ns,
    )


async def test_a_change_that_hides_behind_the_same_size_and_time_is_seen(place: Path, tmp_path: Path) -> None:
    snapshots = ShadowGit(tmp_path / "home", settled=0.05)
    fill(place, {"a": "one"})
    times = (place / "a").stat()

    async def is_settled() -> bool | None:
        return not scan(place, tmp_path / "home", 0.05).fresh or None

    await eventually(is_settled)
    await snapshots.take(place, RUN, 1, "c")
    (place / "a").write_text("two")
    os.utime(place / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    await snapshots.take(place, RUN, 2, "c")
    snapshots.restore(RUN, turn=1)
    assert (place / "a").read_text() == "one"
    snapshots.restore(RUN, turn=2)
    assert (place / "a").read_text() == "two"


async def test_a_settled_file_is_not_read_again(place: Path, tmp_path: Path) -> None:
    snapshots = ShadowGit(tmp_path / "home", settled=0.05)
    fill(place, {"a": "one", "b/c": "two"})

    async def is_settled() -> bool | None:
        return not scan(place, tmp_path / "home", 0.05).fresh or None

    await eventually(is_settled)
    first = await snapshots.take(place, RUN, 1, "c")
    os.utime(place / "a", ns=(0, (place / "a").stat().st_mtime_ns))
    unread = (place / "b/c").stat().st_atime_ns
    second = await snapshots.take(place, RUN, 1, "d")
    store = store_of(snapshots, place)
    assert store.kept(first) == store.kept(second)
    assert store.base().marks == {
        path: marks if path == "b/c" else () for path, marks in scan(place, tmp_path / "home", 0).files.items()
    }
    assert (place / "b/c").stat().st_atime_ns == unread


async def test_a_file_over_the_limit_is_named_and_never_touched(place: Path, snapshots: ShadowGit) -> None:
    fill(place, {"small": "1", "grows": "1"})
    with (place / "huge").open("wb") as file:
        file.truncate(LARGEST + 1)
    commit = await snapshots.take(place, RUN, 1, "c")
    assert store_of(snapshots, place).kept(commit).facts.not_kept == {"huge": "larger than 50 MB"}
    with (place / "grows").open("r+b") as file:
        file.truncate(LARGEST + 1)
    (place / "huge").write_text("small now")
    done = snapshots.restore(RUN, turn=1)
    assert done.left == {
        "grows": "not in the snapshot taken before the restore: larger than 50 MB",
        "huge": "not in the snapshot: larger than 50 MB",
    }
    assert (place / "huge").read_text() == "small now"
    assert (place / "grows").stat().st_size == LARGEST + 1


async def test_pipes_and_sockets_are_left_alone(place: Path, snapshots: ShadowGit) -> None:
    os.mkfifo(place / "pipe")
    fill(place, {"a": "1"})
    commit = await snapshots.take(place, RUN, 1, "c")
    assert store_of(snapshots, place).kept(commit).facts.not_kept == {"pipe": "a pipe, socket or device"}
    snapshots.restore(RUN, turn=1)
    assert stat.S_ISFIFO((place / "pipe").stat().st_mode)


# What stays untouched


async def test_the_users_own_repository_is_untouched(place: Path, snapshots: ShadowGit) -> None:
    git(place, "init")
    fill(place, {"a": "1", "b": "1", "sub/c": "1"})
    git(place, "add", ".")
    git(place, "commit", "-m", "first")
    fill(place, {"a": "2", "new": "n"})
    git(place, "add", "a")
    before = _repository(place), git(place, "--no-optional-locks", "status", "--porcelain=v2")
    await snapshots.take(place, RUN, 1, "c")
    fill(place, {"b": "lost", "came": "since"})
    (place / "sub/c").unlink()
    snapshots.restore(RUN, turn=1)
    assert _repository(place) == before[0]
    assert git(place, "--no-optional-locks", "status", "--porcelain=v2") == before[1]


def _repository(place: Path) -> dict[str, tuple[object, int]]:
    """All of `.git` with its time stamps: index, HEAD, refs, objects."""
    return {
        str(path): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in (place / ".git").rglob("*")
    }


async def test_a_nested_repository_is_kept_as_files(place: Path, snapshots: ShadowGit) -> None:
    git(place, "init")
    (place / "sub").mkdir()
    git(place / "sub", "init")
    fill(place, {"sub/file": "1", "sub/deep/file": "2"})
    git(place / "sub", "add", ".")
    git(place / "sub", "commit", "-m", "first")
    nested = _repository(place / "sub")
    await snapshots.take(place, RUN, 1, "c")
    fill(place, {"sub/file": "lost"})
    shutil.rmtree(place / "sub/deep")
    snapshots.restore(RUN, turn=1)
    assert (place / "sub/file").read_text() == "1"
    assert (place / "sub/deep/file").read_text() == "2"
    assert _repository(place / "sub") == nested


async def test_a_patch_names_files_in_any_script(place: Path, snapshots: ShadowGit) -> None:
    await snapshots.take(place, RUN, 1, "c")
    fill(place, {"报告.md": "good\n"})
    assert "\ndiff --git a/报告.md b/报告.md\n" in "\n" + snapshots.diff(RUN).patch.decode()


async def test_attributes_filters_and_hooks_of_the_workspace_do_nothing(
    place: Path, snapshots: ShadowGit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwned = tmp_path / "pwned"
    config = tmp_path / "gitconfig"
    config.write_text(
        f'[core]\n autocrlf = true\n fsmonitor = "touch {pwned}"\n hooksPath = {place}/hooks\n'
        f'[filter "evil"]\n clean = "touch {pwned}; echo bad"\n smudge = "touch {pwned}; echo bad"\n'
        f'[diff "evil"]\n command = "touch {pwned}"\n textconv = "touch {pwned}; cat"\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {pwned}")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    fill(place, {".gitattributes": "* filter=evil diff=evil text=auto eol=crlf ident\n", "a.txt": "one\r\n$Id$\n"})
    fill(place, {"hooks/reference-transaction": f"#!/bin/sh\ntouch {pwned}\n"})
    (place / "hooks/reference-transaction").chmod(0o755)
    (place / "a.txt").write_bytes(b"one\r\ntwo\n$Id$\n")
    await snapshots.take(place, RUN, 1, "c")
    (place / "a.txt").write_bytes(b"other")
    patch = snapshots.diff(RUN).patch
    snapshots.restore(RUN, turn=1)
    assert (place / "a.txt").read_bytes() == b"one\r\ntwo\n$Id$\n"
    assert b"+other" in patch
    assert not pwned.exists()
    assert not (tmp_path / "elsewhere").exists()


async def test_nobody_else_can_read_what_is_kept(place: Path, snapshots: ShadowGit, tmp_path: Path) -> None:
    fill(place, {".env": "KEY=1", "b": "1"})
    (place / ".env").chmod(0o600)
    await snapshots.take(place, RUN, 1, "c")
    root = tmp_path / "home/snapshots"
    assert [path for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o077] == []
    (place / ".env").unlink()
    snapshots.restore(RUN, turn=1)
    assert stat.S_IMODE((place / ".env").stat().st_mode) == 0o600


async def test_no_link_leads_a_restore_out_of_the_workspace(place: Path, snapshots: ShadowGit, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    fill(outside, {"file": "not yours"})
    fill(place, {"folder/file": "1", "folder/below/file": "2"})
    before = state(place)
    await snapshots.take(place, RUN, 1, "c")
    shutil.rmtree(place / "folder")
    (place / "folder").symlink_to(outside)
    snapshots.restore(RUN, turn=1)
    assert state(place) == before
    assert state(outside) == {"file": ("file", b"not yours", 0o644)}


async def test_a_link_swapped_in_while_a_restore_works_stops_it_there(
    place: Path, snapshots: ShadowGit, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    fill(outside, {"remove": "not yours", "change": "not yours", "mode": "not yours"})
    fill(place, {"folder/change": "1", "folder/mode": "1"})
    await snapshots.take(place, RUN, 1, "c")
    fill(place, {"folder/remove": "1", "folder/change": "2"})
    (place / "folder/mode").chmod(0o600)
    _, todo = snapshots.plan(RUN, turn=1)
    marks = scan(place, tmp_path / "home", 0).files
    (place / "folder").rename(place / "gone")
    (place / "folder").symlink_to(outside)
    with Blobs(store_of(snapshots, place)) as blobs:
        work = Restoration(place, marks, blobs)
        work.perform(todo)
    assert sorted(work.left) == ["folder/change", "folder/mode", "folder/remove"]
    assert {path: content for path, (_, content, _) in state(outside).items()} == dict.fromkeys(
        ("change", "mode", "remove"), b"not yours"
    )


async def test_what_changed_after_the_snapshot_before_a_restore_is_left(
    place: Path, snapshots: ShadowGit, tmp_path: Path
) -> None:
    fill(place, {"a": "1"})
    await snapshots.take(place, RUN, 1, "c")
    fill(place, {"a": "2", "new": "1"})
    _, todo = snapshots.plan(RUN, turn=1)
    marks = scan(place, tmp_path / "home", 0).files
    fill(place, {"a": "typed just now", "new": "this, too"})
    with Blobs(store_of(snapshots, place)) as blobs:
        work = Restoration(place, marks, blobs)
        work.perform(todo)
    why = "it has changed since the snapshot that was taken before the restore"
    assert work.left == {"a": why, "new": why}
    assert (place / "a").read_text() == "typed just now"
    assert (place / "new").read_text() == "this, too"


# What is survived


async def test_snapshots_of_one_workspace_can_be_taken_at_the_same_time(place: Path, tmp_path: Path) -> None:
    fill(place, {f"f{number}": str(number) for number in range(50)})
    several = [ShadowGit(tmp_path / "home") for _ in range(3)]
    takes = [each.take(place, f"run-{number}", turn, "c") for number, each in enumerate(several) for turn in range(4)]
    ids = await asyncio.gather(*takes)
    assert len(set(ids)) == 12
    listed = [[each.turn for each in several[0].list(f"run-{number}")] for number in range(3)]
    assert [sorted(turn for turn in turns if turn is not None) for turns in listed] == [[0, 1, 2, 3]] * 3


async def test_a_workspace_that_changes_meanwhile_does_not_fail_a_snapshot(place: Path, snapshots: ShadowGit) -> None:
    fill(place, {f"still/{number}": str(number) for number in range(20)})
    stop = threading.Event()
    thread = threading.Thread(target=_stir, args=(place, stop.is_set))
    thread.start()
    try:
        for turn in range(15):
            commit = await snapshots.take(place, RUN, turn, "c")
            kept = store_of(snapshots, place).kept(commit)
            assert {path for path in kept.files if path.startswith("still/")} == {f"still/{n}" for n in range(20)}
    finally:
        stop.set()
        thread.join()


def _stir(place: Path, is_stopped: Callable[[], bool]) -> None:
    number = 0
    while not is_stopped():
        number += 1
        folder = place / f"moving{number % 3}"
        fill(folder, {"a/b": "x" * (number % 500), "c": "y"})
        shutil.rmtree(folder / "a")
        (folder / "a").symlink_to("c")
        shutil.rmtree(folder)


TAKE: Final = """
import asyncio, sys
from pathlib import Path
from loom.activities.adapters.snapshots.shadow_git import ShadowGit
print(asyncio.run(ShadowGit(Path(sys.argv[1])).take(Path(sys.argv[2]), "killed", 1, "c")))
"""


async def killed_while_writing(home: Path, place: Path) -> bool:
    """Kill a process in the middle of its snapshot, unless it ends before."""
    process = subprocess.Popen([sys.executable, "-c", TAKE, str(home), str(place)], stdout=subprocess.DEVNULL)

    async def is_writing() -> bool:
        with suppress(FileNotFoundError):
            return any(path.stat().st_size > 2**20 for path in home.rglob("tmp_pack_*")) or process.poll() is not None
        return False

    try:
        await eventually(is_writing)
    finally:
        process.kill()
        code = await asyncio.to_thread(process.wait)
    assert code in (0, -signal.SIGKILL)
    return code != 0


async def test_after_a_kill_in_the_middle_the_next_snapshot_is_whole(
    place: Path, snapshots: ShadowGit, tmp_path: Path
) -> None:
    for number in range(24):
        (place / str(number)).write_bytes(os.urandom(2**19))
    home = tmp_path / "home"
    while not await killed_while_writing(home, place):  # it was faster than the test, which others kept waiting
        shutil.rmtree(home)
    (store_of(snapshots, place).path / "refs/base/latest.lock").parent.mkdir(parents=True, exist_ok=True)
    (store_of(snapshots, place).path / "refs/base/latest.lock").touch()  # as a kill a little later would leave it
    before = state(place)
    await snapshots.take(place, RUN, 1, "c")
    with pytest.raises(RunNotFoundError):
        snapshots.list("killed")
    (place / "0").write_bytes(b"lost")
    (place / "23").unlink()
    snapshots.restore(RUN, turn=1)
    assert state(place) == before


async def test_a_damaged_store_gets_the_next_snapshot_whole(place: Path, snapshots: ShadowGit) -> None:
    fill(place, {"a/b": "1", "c": "2"})
    await snapshots.take(place, RUN, 1, "c")
    for damaged in (store_of(snapshots, place).path / "objects").glob("??/*"):
        damaged.chmod(0o600)
        damaged.write_bytes(b"")  # what a power failure can leave of a file
    (place / "c").write_text("3")
    before = state(place)
    await snapshots.take(place, RUN, 2, "c")
    shutil.rmtree(place / "a")
    snapshots.restore(RUN, turn=2)
    assert state(place) == before


async def test_old_and_surplus_snapshots_go_and_the_rest_stays_whole(place: Path, snapshots: ShadowGit) -> None:
    for turn in range(1, 6):
        fill(place, {"a": f"{turn}", "b": os.urandom(50_000).hex()})
        await snapshots.take(place, RUN, turn, "c")
    store = store_of(snapshots, place)
    before = _size(store.path)
    tidy(store, keep_most=2)
    assert [each.turn for each in snapshots.list(RUN)] == [4, 5]
    assert _size(store.path) < before * 0.7
    assert not is_due(store)
    snapshots.restore(RUN, turn=4)
    assert (place / "a").read_text() == "4"
    await snapshots.take(place, RUN, 6, "c")
    assert [each.turn for each in snapshots.list(RUN)] == [4, 5, None, 6]


async def test_a_store_is_tidied_in_the_background_once_a_day(place: Path, snapshots: ShadowGit) -> None:
    await snapshots.take(place, RUN, 1, "c")
    store = store_of(snapshots, place)
    os.utime(store.path / "ready", (0, 0))
    assert is_due(store)

    async def is_tidy() -> bool | None:
        return (not is_due(store) and (store.path / "packed-refs").exists()) or None

    await snapshots.take(place, RUN, 2, "c")
    await eventually(is_tidy)
    assert [each.turn for each in snapshots.list(RUN)] == [1, 2]


async def test_stores_that_nobody_has_used_for_long_go(place: Path, snapshots: ShadowGit, tmp_path: Path) -> None:
    other = (tmp_path / "other").resolve()
    other.mkdir()
    for folder in (place, other):
        fill(folder, {"a": "1"})
        await snapshots.take(folder, folder.name, 1, "c")
    os.utime(store_of(snapshots, other).path / "count", (0, 0))
    tidy(store_of(snapshots, place))
    assert not store_of(snapshots, other).path.exists()
    assert len(snapshots.list("workspace")) == 1
    await snapshots.take(other, "other", 2, "c")
    assert [each.turn for each in snapshots.list("other")] == [2]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# What is said


async def test_a_run_and_a_turn_show_what_they_changed(place: Path, snapshots: ShadowGit) -> None:
    fill(place, {"a": "one\n", "b": "one\n"})
    await snapshots.take(place, RUN, 1, "c1")
    fill(place, {"a": "two\n"})
    await snapshots.take(place, RUN, 1, "c2")
    (place / "b").unlink()
    await snapshots.take(place, RUN, 3, "c3")
    (place / "new\n").write_bytes(b"\0binary")

    whole = snapshots.diff(RUN)
    assert (whole.before.call_id, whole.after) == ("c1", None)
    assert whole.files == (
        ChangedFile(path="a", change="modified", added=1, removed=1),
        ChangedFile(path="b", change="removed", added=0, removed=1),
        ChangedFile(path="new\n", change="added", added=None, removed=None),
    )
    first = snapshots.diff(RUN, 1)
    assert [each.path for each in first.files] == ["a", "b"]
    assert first.after == snapshots.list(RUN)[2]
    assert b"-one\n+two\n" in first.patch
    assert [each.path for each in snapshots.diff(RUN, 3).files] == ["new\n"]


async def test_what_is_asked_for_wrongly_is_answered_with_what_there_is(place: Path, snapshots: ShadowGit) -> None:
    with pytest.raises(RunNotFoundError, match="on the machine of the worker"):
        snapshots.diff(RUN)
    await snapshots.take(place, RUN, 1, "c")
    await snapshots.take(place, RUN, 4, "c")
    with pytest.raises(BadRequest, match="turn 2 has no snapshot: it changed nothing. Turns with a snapshot: 1, 4"):
        snapshots.diff(RUN, 2)
    with pytest.raises(BadRequest, match="--turn N or --snapshot ID"):
        snapshots.restore(RUN)
    with pytest.raises(BadRequest, match="no snapshot 'zzz'"):
        snapshots.restore(RUN, snapshot="zzz")


async def test_a_plan_changes_nothing(place: Path, snapshots: ShadowGit) -> None:
    fill(place, {"a": "1", "gone/b": "1"})
    await snapshots.take(place, RUN, 1, "c")
    fill(place, {"a": "2", "came/c": "1"})
    shutil.rmtree(place / "gone")
    before = state(place)
    target, todo = snapshots.plan(RUN, turn=1)
    kept = store_of(snapshots, place).kept(target.id)
    assert todo == RestoreChanges(
        remove=("came/c",),
        drop=("came",),
        make=("gone",),
        write={name: Content(oid=kept.files[name][1], mode=0o644) for name in ("a", "gone/b")},
    )
    assert shadow_restore.plan(kept, kept).is_empty
    assert (state(place), len(snapshots.list(RUN))) == (before, 1)


async def test_without_git_it_is_said_what_to_do(
    place: Path, snapshots: ShadowGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(StoreUnavailable, match="install it, or disable them"):
        await snapshots.take(place, RUN, 1, "c")


async def test_looms_own_folder_is_no_workspace(snapshots: ShadowGit, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with pytest.raises(StoreUnavailable, match="is Loom's own state"):
        await snapshots.take(tmp_path / "home", RUN, 1, "c")


async def test_any_text_can_be_a_runs_id(place: Path, snapshots: ShadowGit) -> None:
    ids = ["../../x", "a b\nc", "ü", "x" * 900, "-d", "a.lock", "@{0}"]
    for number, run_id in enumerate(ids):
        await snapshots.take(place, run_id, number, "c")
    assert [[each.turn for each in snapshots.list(run_id)] for run_id in ids] == [[number] for number in range(7)]


async def test_the_files_at_the_end_of_a_turn_are_put_into_a_new_folder(place: Path, snapshots: ShadowGit) -> None:
    for turn in (1, 3):
        (place / "a.txt").write_text(f"before {turn}")
        await snapshots.take(place, "r1", turn, f"c{turn}")
    (place / "a.txt").write_text("now")

    for turn, content in ((0, "before 1"), (1, "before 3"), (2, "before 3"), (3, "now")):
        folder = place.parent / f"after-{turn}"
        found = snapshots.extract("r1", after=turn, folder=folder)
        assert ((folder / "a.txt").read_text(), found is None) == (content, content == "now")
    assert (place / "a.txt").read_text() == "now"
    with pytest.raises(RefusedError, match="already exists"):
        snapshots.extract("r1", after=1, folder=place)
