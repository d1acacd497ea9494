"""What a command finds in its workspace, and what stays there when it has ended."""

import asyncio
import os
import resource
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from loom._worker import _raise_open_files
from loom.activities.adapters.sandbox.bubblewrap import find_program
from loom.activities.adapters.sandbox.namespaces import Bubblewrap
from loom.activities.adapters.sandbox.protected_paths import mounted
from loom.activities.adapters.sandbox.repositories import Repositories
from loom.activities.toolbox.workspace.paths import SECRETS
from loom.domain.core.errors import ToolExecutionError
from loom.domain.permissions.obeyed import NAMES, PRODUCED, REMADE, WorkerFiles
from loom.testing.waiting import eventually
from tests.sandboxes import SANDBOX, WHY_NOT


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path.resolve()


async def run(place: Path, command: str, sandbox: Bubblewrap | None = None) -> str:
    chosen = sandbox or SANDBOX
    assert chosen is not None, WHY_NOT
    finished = await chosen.run(
        ["bash", "-c", command], workspace=place, timeout=20, max_output=9999, on_output=lambda _text: None
    )
    return finished.output


def tree(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


async def test_names_that_are_kept_free_leave_no_trace(place: Path) -> None:
    said = await run(place, "mkdir .git/hooks .loom/x .agents/skills 2>&1 | wc -l; touch mine")
    assert said == "3\n"
    await run(place, "rm -rf .git .loom .agents loom.toml; mv .agents x; chmod 700 .git; git init -q; true")
    said = await run(place, "(echo 'app = \"x.py:app\"' > loom.toml) 2>&1 | wc -l")
    assert said == "1\n"
    assert tree(place) == ["mine"]


async def test_programs_that_walk_the_workspace_trip_over_nothing(place: Path) -> None:
    (place / "a.txt").write_text("text\n")
    tools = "tar cf /tmp/x.tar . && cp -r . /tmp/copy && find . -type f && find . ! -type d ! -type f && ls"
    assert await run(place, tools) == "./a.txt\na.txt\nloom.toml\n"
    assert (await run(place, "git status 2>&1")).startswith("fatal: not a git repository (or any parent")
    subprocess.run(["git", "init", "-q", "-b", "trunk", place], check=True)
    assert await run(place, "git status --short") == "?? a.txt\n"


async def test_commands_at_the_same_time_keep_each_others_names_free(place: Path) -> None:
    waiting = asyncio.create_task(run(place, "until [ -e go ]; do sleep 0.01; done; mkdir .git .agents 2>&1; true"))
    for _ in range(3):
        await run(place, "true")
    (place / "go").touch()
    said = await waiting
    assert said.count("File exists") == 2
    assert tree(place) == ["go"]


async def test_what_a_killed_worker_left_goes_after_the_next_command(place: Path) -> None:
    (place / ".git").mkdir()
    (place / ".git").chmod(0o1555)
    os.mknod(place / ".agents", stat.S_IFSOCK | 0o1555)
    await run(place, "true")
    assert tree(place) == []


async def test_what_is_somebody_elses_stays_even_when_it_is_empty(place: Path) -> None:
    (place / ".git").mkdir()
    (place / ".agents").touch()
    await run(place, "rm -rf .git .agents; mv .git x; true")
    assert tree(place) == [".agents", ".git"]


async def test_git_outside_still_finds_the_repository_around_the_workspace(place: Path) -> None:
    inside = place / "inside"
    inside.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "trunk", place], check=True)
    waiting = asyncio.create_task(run(inside, "touch begun; until [ -e go ]; do sleep 0.01; done"))

    async def has_begun() -> bool:
        return (inside / "begun").exists()

    await eventually(has_begun)
    assert subprocess.check_output(["git", "rev-parse", "--show-prefix"], cwd=inside) == b"inside/\n"
    (inside / "go").touch()
    await waiting


async def test_git_reads_and_does_not_write(place: Path) -> None:
    subprocess.run(["git", "init", "-q", "-b", "trunk", place], check=True)
    (place / "a").write_text("x")
    assert await run(place, "git status --short; git add a 2> /dev/null || echo refused") == "?? a\nrefused\n"


def test_every_repository_in_a_workspace_is_found(place: Path) -> None:
    for folder in (".git", "one/.git", "one/two/.git", "bare/hooks", "no/folder"):
        (place / folder).mkdir(parents=True)
    (place / ".git/config").write_text('[core]\n\thooksPath = "my/hooks"\n')
    (place / "linked").mkdir()
    (place / "linked/.git").write_text("gitdir: ../bare\n")
    (place / "outside").mkdir()
    (place / "outside/.git").write_text("gitdir: /elsewhere/.git\n")
    (place / "loop").symlink_to(place)
    assert set(Repositories().inside(place)) == {
        (".git",),
        ("my", "hooks"),
        ("one", ".git"),
        ("one", "two", ".git"),
        ("linked", ".git"),
        ("bare",),
        ("outside", ".git"),
    }


def test_a_link_in_the_place_of_something_protected_is_not_mounted(place: Path) -> None:
    (place / ".git").symlink_to("/etc")
    (place / ".vscode").mkdir()
    with mounted(place, Repositories()) as mounts:
        places = [word for word in mounts.words if word.startswith(str(place))]
    assert f"{place}/.git" not in places
    assert f"{place}/.vscode" in places


VISIBLE = sorted(name for name in NAMES if name.split("/")[0] not in (*SECRETS, ".git"))
"""What programs obey. Commands see no secrets, and tests of their own cover repositories."""
CHANGES = """
import os

os.symlink("/tmp", "link")
for path in PATHS:
    for change, *names in (
        (open, f"{path}/x", "w"), (open, path, "w"), (os.unlink, f"{path}/kept"), (os.unlink, path), (os.rmdir, path),
        (os.rename, path, "moved"), (os.replace, "link", path),
    ):
        try:
            change(*names)
            print("ESCAPED", path, change)
        except OSError:
            pass
os.unlink("link")
print("tried")
"""


async def changed(place: Path, paths: Sequence[str], sandbox: Bubblewrap | None = None) -> str:
    """Try in the sandbox to write, to remove, to move and to replace each of these paths."""
    chosen = sandbox or SANDBOX
    assert chosen is not None, WHY_NOT
    program = CHANGES.replace("PATHS", repr(list(paths)))
    finished = await chosen.run(
        [chosen.python, "-c", program], workspace=place, timeout=20, max_output=9999, on_output=lambda _text: None
    )
    return finished.output


@pytest.mark.parametrize("is_folder", [False, True], ids=["files", "folders"])
@pytest.mark.parametrize("above", ["", "packages/one/"], ids=["at the top", "nested"])
async def test_no_command_changes_what_programs_obey(place: Path, above: str, is_folder: bool) -> None:
    for some in (VISIBLE[start : start + 90] for start in range(0, len(VISIBLE), 90)):
        paths = [place / f"{above}{name}" for name in some]
        for path in paths:
            path.mkdir(parents=True, exist_ok=True) if is_folder else path.parent.mkdir(parents=True, exist_ok=True)
            (path / "kept" if is_folder else path).write_text("kept")
        new = Bubblewrap(find_program() or "")  # another one may remember the files of the previous round for a while
        assert await changed(place, [f"{above}{name}" for name in some], new) == "tried\n"
        assert {(path / "kept" if is_folder else path).read_text() for path in paths} == {"kept"}
        shutil.rmtree(place)
        place.mkdir()


@pytest.mark.parametrize("modules", [1, 100], ids=["few modules", "many modules"])
async def test_no_command_changes_what_the_worker_reads(place: Path, modules: int) -> None:
    files = ["app.py", *(f"src/shop/m{number}.py" for number in range(modules))]
    for name in ("agents/a.yaml", "team/crews/c.yaml", "src/shop/data/x.txt", "other.py", *files):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("kept")
    reads = WorkerFiles(
        folders=frozenset(str(place / each) for each in ("agents", "team/crews")),
        files=frozenset(str(place / each) for each in (*files, "app/__init__.py")),
    )
    sandbox = Bubblewrap(find_program() or "", obeyed=lambda _workspace: reads)
    before = tree(place)
    own = ("agents/a.yaml", "agents", "team/crews/c.yaml", "team/crews", *files)
    move = f"{sandbox.python} -c 'import os, sys; os.rename(sys.argv[1], \"moved\")'"
    moved = f"for p in team src src/shop; do {move} $p 2> /dev/null && echo ESCAPED $p; done"
    made = "for p in agents/b.yaml team/crews/d.yaml; do echo x 2> /dev/null > $p && echo ESCAPED $p; done"

    assert await changed(place, own, sandbox) == "tried\n"
    assert await run(place, f"{moved}; {made}; true", sandbox) == ""
    assert [each for each in before if each not in tree(place)] == []
    assert {(place / each).read_text() for each in ("agents/a.yaml", "team/crews/c.yaml", *files)} == {"kept"}
    assert await run(place, "echo x > other.py && echo x > src/new.py && mkdir app && mv other.py app/", sandbox) == ""


async def test_folders_that_the_worker_would_read_are_kept_free(place: Path) -> None:
    (place / "project").mkdir()
    folders = frozenset(str(place / each) for each in ("agents", "crews", "project/agents", "missing/agents"))
    sandbox = Bubblewrap(find_program() or "", obeyed=lambda _workspace: WorkerFiles(folders=folders))
    names = "agents crews project/agents"
    attack = f"for d in {names}; do mkdir -p $d; echo x > $d/default.yaml && echo ESCAPED; rm -rf $d; done; mv agents x"
    assert "ESCAPED" not in await run(place, f"({attack}) 2> /dev/null", sandbox)
    assert tree(place) == ["project"]


async def test_commands_make_environments_and_packages_again(place: Path) -> None:
    remade = sorted(name for name in REMADE)
    produced = sorted({*PRODUCED, "a/node_modules", "a/vendor", "model"} - REMADE)
    for name in remade:
        (place / name).mkdir(parents=True)
        (place / name / "x.pth").write_text("old")
    for name in produced:
        for inner in ("package/.npmrc", "package/AGENTS.md", "package/.github/workflows/ci.yml"):
            (place / name / inner).parent.mkdir(parents=True, exist_ok=True)
            (place / name / inner).write_text("old")
    for inner in ("package/.npmrc", "package/AGENTS.md", "package/.github"):
        subprocess.run(["rm", "-rf", place / "model" / inner], check=True)
    (place / "model/weights.pth").write_text("old")

    every = " ".join((*remade, *produced))
    said = await run(place, f"for d in {every}; do rm -r $d && mkdir -p $d && echo new > $d/x.pth || echo $d; done")

    assert said == ""


def test_what_is_at_the_top_is_found_without_a_delay(place: Path) -> None:
    for name in ("AGENTS.md", ".github/workflows", ".config/fish", "loom.toml"):
        (place / name).mkdir(parents=True)
    searched_before = Repositories({place: (float("inf"), ())})
    with mounted(place, searched_before) as mounts:
        places = mounts.words
    for name in ("AGENTS.md", ".github/workflows", ".config/fish", "loom.toml"):
        assert str(place / name) in places


def test_of_very_many_files_that_programs_obey_the_folders_are_read_only(place: Path) -> None:
    for number in range(230):
        (place / f"packages/p{number:03}").mkdir(parents=True)
        (place / f"packages/p{number:03}/AGENTS.md").touch()
    (place / "conftest.py").touch()
    (place / "packages/p007/.git").mkdir()
    *found, repository = Repositories().inside(place)
    single = {path[:-1] for path in found[1:200]}
    assert found[0] == ("conftest.py",)
    assert {path[-1] for path in found[1:200]} == {"AGENTS.md"}
    assert single.isdisjoint(found[200:])
    assert sorted({*single, *found[200:]}) == [("packages", f"p{number:03}") for number in range(230)]
    assert repository == ("packages", "p007", ".git")


def test_only_where_most_of_them_are_the_folders_further_up_are_read_only(place: Path) -> None:
    names = [f"a{number:03}/AGENTS.md" for number in range(220)]  # all but 20 are protected one by one
    names += [f"packages/p{number:03}/conftest.py" for number in range(15)]
    names += [f"services/{team}/s{number}/conftest.py" for team in ("b", "c") for number in range(8)]
    for name in (*names, "docs/guide/deep/AGENTS.md"):
        (place / name).parent.mkdir(parents=True)
        (place / name).touch()
    repositories = Repositories()
    found = repositories.inside(place)
    services = {("services", "b", f"s{number}") for number in range(8)}
    services |= {("services", "c", f"s{number}") for number in range(8)}
    top = {(f"a{number:03}",) for number in range(220)} - {path[:-1] for path in found[:200]}
    assert set(found[200:]) == {("packages",), *top, *services, ("docs", "guide", "deep")}


def test_the_hint_names_the_number_of_other_folders(place: Path) -> None:
    closed = frozenset({("a",), ("b",)})
    hint = Repositories(_closed={place: closed}).hint(place, "x: Read-only file system")
    assert hint.startswith("a and 1 other folder are read-only for commands, because")


@pytest.mark.parametrize("above", ["", "packages/"], ids=["at the top", "nested"])
async def test_no_command_changes_one_of_500_files_that_programs_obey(place: Path, above: str) -> None:
    paths = [f"{above}p{number:03}/AGENTS.md" for number in range(500)]
    for path in paths:
        (place / path).parent.mkdir(parents=True)
        (place / path).write_text("kept")
    sandbox = Bubblewrap(find_program() or "")
    attack = "for f in p*/AGENTS.md; do echo x >> $f || rm $f || mv ${f%/*} x; done 2> /dev/null; touch p400/x"
    finished = await sandbox.run(
        ["bash", "-c", f"cd ./{above}; {attack}"],
        workspace=place,
        timeout=20,
        max_output=9999,
        on_output=lambda _text: None,
    )
    assert {(place / path).read_text() for path in paths} == {"kept"}
    closed = "packages is" if above else "the whole workspace is"
    assert finished.limit.startswith(f"{closed} read-only for commands, because the workspace contains more than 200")


def test_with_too_many_open_files_everything_is_protected_or_the_command_does_not_run(place: Path) -> None:
    names = (
        "AGENTS.md",
        ".github/workflows",
        "packages/one/AGENTS.md",
        "packages/one/.git/config",
        "hooks",
        "src/app.py",
    )
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
    (place / "packages/one/.git/config").write_text("[core]\n\thooksPath = ../../hooks\n")
    reads = WorkerFiles(
        folders=frozenset({str(place / "packages/agents")}), files=frozenset({str(place / "src/app.py")})
    )

    def protected(repositories: Repositories) -> list[str]:
        with mounted(place, repositories, obeyed=reads) as mounts:
            assert (place / "packages/agents").is_dir()  # its name is occupied
            return [word for word in mounts.words if not word.isdigit()]

    everything = protected(Repositories())
    assert {str(place / name).removesuffix("/config") for name in names} <= {*everything}
    repositories = Repositories()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused: list[str] = []
    for limit in range(3, 1000):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            found = protected(repositories)
        except ToolExecutionError as error:
            refused.append(error.message)
            continue
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert found == everything
        break
    assert 10 < len(refused) < 900
    assert all("Too many open files" in each for each in refused)


def test_a_worker_may_open_as_many_files_as_the_system_permits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        _raise_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 65_536), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_workspace_swapped_for_a_link_is_not_entered(place: Path) -> None:
    (place / "real").mkdir()
    (place / "workspace").symlink_to(place / "real")
    with pytest.raises(Exception, match="is not a folder on this worker"):
        await run(place / "workspace", "true")


async def test_a_hidden_folder_inside_the_workspace_is_hidden(place: Path) -> None:
    (place / "state").mkdir()
    (place / "state/secret").write_text("secret")
    sandbox = Bubblewrap(find_program() or "", hidden=[place / "state"])
    assert await run(place, "ls -A state; touch state/x 2> /dev/null || echo refused", sandbox) == "refused\n"


async def test_a_hidden_folder_is_hidden_although_it_is_made_later(place: Path) -> None:
    sandbox = Bubblewrap(find_program() or "", hidden=[place / "state"])
    (place / "state").mkdir()
    (place / "state/secret").write_text("secret")
    assert await run(place, "ls -A state; touch state/x 2> /dev/null || echo refused", sandbox) == "refused\n"


async def test_a_hidden_file_in_an_opened_folder_is_hidden(place: Path) -> None:
    workspace, opened = place / "workspace", place / "opened"
    for folder in (workspace, opened):
        folder.mkdir()
    for name in ("key", "programs"):
        (opened / name).write_text(name)
    sandbox = Bubblewrap(find_program() or "", hidden=[opened / "key"], opened=[opened])
    assert await run(workspace, f"cat {opened}/key {opened}/programs 2> /dev/null; true", sandbox) == "programs"


async def test_what_holds_a_hidden_folder_is_not_moved_with_it_to_where_it_is_seen(place: Path) -> None:
    (place / "var/lib/state").mkdir(parents=True)
    (place / "var/lib/state/secret").write_text("secret")
    (place / "var/mine").write_text("mine")
    sandbox = Bubblewrap(find_program() or "", hidden=[place / "var/lib/state"])
    for name in ("var", "var/lib", "var/lib/state"):
        assert "busy" in await run(place, f"mv {name} moved-$RANDOM 2>&1", sandbox)
    assert await run(place, "find . -name secret; mv var/mine here && cat here", sandbox) == "mine"
    assert [str(path.relative_to(place)) for path in place.rglob("secret")] == ["var/lib/state/secret"]


async def test_a_folder_that_others_made_sticky_is_not_taken_for_ours_while_it_holds_something(place: Path) -> None:
    (place / ".agents").mkdir()
    (place / ".agents/skill").touch()
    (place / ".agents").chmod(0o1555)
    await run(place, "true")
    assert tree(place) == [".agents", ".agents/skill"]


def test_every_descriptor_is_closed_again(place: Path) -> None:
    assert isinstance(SANDBOX, Bubblewrap)
    before = set(os.listdir("/proc/self/fd"))
    with SANDBOX.prepared(place):
        pass
    assert set(os.listdir("/proc/self/fd")) == before
