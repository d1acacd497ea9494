"""A worker that is killed while it fetches a repository, and what the Git process that outlives it can do."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path
from textwrap import dedent

from loom.activities.adapters.git.clones import RunClones
from loom.domain.core.repositories import GitWorkspace
from loom.testing.waiting import eventually
from tests.git_server import git, repository

NAME = "0" * 32
PINS = dedent("""
    import asyncio, sys
    from pathlib import Path
    from loom.activities.adapters.git.clones import RunClones
    from loom.domain.core.repositories import GitWorkspace

    async def pin(root, home, url, commit):
        clones = RunClones(Path(root), Path(home), str)
        async with clones.opened(clones.folder(sys.argv[5])) as clone:
            await clone.pin(GitWorkspace(git=url, revision=commit))

    asyncio.run(pin(*sys.argv[1:5]))
""")
"""What a worker does when a run begins."""


def late_git(folder: Path) -> tuple[Path, Path]:
    """Make a Git whose server answers late. Return the file that says it was asked, and the one that lets it answer."""
    asked, may_answer = folder / "asked", folder / "may-answer"
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        dedent(f"""\
            #!/bin/sh
            case " $* " in
            *" fetch "*) ;;
            *" upload-pack "*) touch {asked}; until [ -e {may_answer} ]; do sleep 0.02; done ;;
            esac
            exec {shutil.which("git")} "$@"
        """)
    )
    program.chmod(0o755)
    return asked, may_answer


def is_running(pid: int) -> bool:
    """Whether the process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose current directory is in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
        except OSError:
            continue
    return found


async def test_a_fetch_that_outlives_its_worker_disturbs_no_later_one(tmp_path: Path) -> None:
    bare, root, home = tmp_path / "app.git", tmp_path / "clones", tmp_path / "home"
    commit = repository(bare, {"a.txt": "one\n"})
    asked, may_answer = late_git(tmp_path)
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PINS, root, home, f"file://{bare}", commit, NAME),
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
    )
    await eventually(lambda: _looked(asked.exists()))
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    orphans = processes_in(home)
    assert orphans

    clones = RunClones(root, home, str)
    async with clones.opened(clones.folder(NAME)) as clone:
        checkout = await clone.pin(GitWorkspace(git=f"file://{bare}", revision=commit))
        await clone.build(checkout)
        may_answer.touch()
        await eventually(lambda: _looked(not any(map(is_running, orphans))))
        (Path(checkout.folder) / "a.txt").write_text("two\n")
        change = await clone.change(checkout)
        assert change is not None
        assert change.files == 1
        await clone.build(checkout, change.patch or b"", 1)

    assert (Path(checkout.folder) / "a.txt").read_text() == "two\n"
    assert git(home / "clones" / NAME, "fsck", "--strict") == ""
    async with clones.opened(clones.folder(NAME)) as clone:
        await clone.pin(GitWorkspace(git=f"file://{bare}", revision=commit))
    assert not list((home / "clones" / NAME).glob("incoming-*"))


async def _looked(seen: bool) -> bool:
    return seen
