"""Committing from a run: what a commit contains, what a hostile repository may try, and what a crash leaves."""

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from time import time

import pytest

from loom.activities.adapters.sandbox.unsandboxed import Unsandboxed
from loom.activities.adapters.shell.parser import BashParser
from loom.activities.ports import ToolContext
from loom.activities.toolbox.built_in.git_commit import git_commit_tool
from loom.activities.toolbox.built_in.shell import Sandbox, shell_tool
from loom.domain.core.errors import LoomError, ToolExecutionError, ToolUnavailableError, ToolValidationError
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import judge
from tests.sandboxes import SANDBOX, WHY_NOT


def git(place: Path, *words: str) -> str:
    """Run the person's Git, outside the sandbox."""
    trusted = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    return subprocess.run(
        ["git", *words], cwd=place, check=True, env=trusted, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = (tmp_path / "workspace").resolve()
    place.mkdir()
    git(place, "init", "-q", "-b", "trunk")
    git(place, "config", "user.name", "Ada")
    git(place, "config", "user.email", "ada@example.org")
    (place / "a.py").write_text("print(1)\n")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "Begin")
    return place


async def commit(
    place: Path, *paths: str, message: str = "Change", key: str = "key", sandbox: Sandbox | None = SANDBOX
) -> str:
    tool = git_commit_tool(sandbox, 60, WHY_NOT)
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key=key, timeout=60)
    said = await tool.run(tool.parse({"message": message, **({"paths": list(paths)} if paths else {})}), context)
    assert isinstance(said, str)
    return said


async def test_new_changed_and_deleted_files_are_committed(place: Path) -> None:
    (place / "old").write_text("old")
    await commit(place, message="Add old", key="1")
    (place / "old").unlink()
    (place / "a.py").write_text("print(2)\n")
    (place / "sub").mkdir()
    (place / "sub/ü b.txt").write_text("new")
    (place / "link").symlink_to("a.py")
    said = await commit(place, message="Change it all\n\nAnd say why.", key="2")
    head = git(place, "rev-parse", "--short", "HEAD")
    assert said.startswith(f"committed {head} on trunk\n")
    assert "a.py" in said
    assert "4 files changed" in said
    assert git(place, "log", "--format=%an %ae|%s|%b", "-1") == "Ada ada@example.org|Change it all|And say why."
    assert git(place, "status", "--short") == ""
    assert git(place, "-c", "core.quotePath=false", "ls-files") == "a.py\nlink\nsub/ü b.txt"
    git(place, "fsck", "--strict")


async def test_a_change_of_the_same_size_in_the_second_in_which_git_saw_the_file_is_committed(place: Path) -> None:
    then = int(time()) - 10  # as if all of this were ten seconds ago, because Git compares whole seconds
    for number in (3, 4):
        (place / "a.py").write_text(f"print({number})\n")
        os.utime(place / "a.py", (then, then))
        if number == 3:
            git(place, "commit", "-qam", "print 3")
            os.utime(place / ".git/index", (then, then))
    await commit(place)
    assert git(place, "show", "HEAD:a.py") == "print(4)"


async def test_the_first_commit_of_a_repository_is_made(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "a").write_text("a")
    assert "on trunk" in await commit(tmp_path.resolve())
    assert git(tmp_path, "log", "--format=%an|%s") == "Loom|Change"
    assert git(tmp_path, "status", "--short") == ""


async def test_only_the_named_paths_are_committed_and_what_a_person_staged_stays_staged(place: Path) -> None:
    for name in ("b", "c", "d"):
        (place / name).write_text(name)
    git(place, "add", "d")
    await commit(place, "b", "a.py")
    assert git(place, "status", "--short") == "A  d\n?? c"
    assert git(place, "ls-tree", "--name-only", "HEAD") == "a.py\nb"


async def test_a_repository_below_the_workspace_is_found_by_the_path(place: Path) -> None:
    inner = place / "inner"
    inner.mkdir()
    git(inner, "init", "-q", "-b", "main")
    (inner / "x").write_text("x")
    assert "on main" in await commit(place, "inner/x", key="1")
    (place / "b").write_text("b")
    assert "left out, because it is a repository of its own: inner/" in await commit(place, key="2")
    with pytest.raises(ToolValidationError, match="different repositories"):
        await commit(place, "inner/x", "b")


async def test_what_cannot_be_committed_says_why(place: Path) -> None:
    with pytest.raises(ToolExecutionError, match="nothing to commit"):
        await commit(place)
    (place / ".gitignore").write_text("secret\n")
    (place / "secret").write_text("x")
    for path in ("secret", "missing"):
        with pytest.raises(ToolExecutionError, match=f"{path}: no file to commit"):
            await commit(place, path)
    with pytest.raises(ToolValidationError, match=r"is in \.git"):
        await commit(place, ".git/config")
    with pytest.raises(ToolValidationError, match="outside the workspace"):
        await commit(place, "../x")
    (place / ".git/MERGE_HEAD").write_text("x")
    with pytest.raises(ToolExecutionError, match="a merge or rebase is unfinished"):
        await commit(place)


async def test_a_second_attempt_finds_the_commit_of_the_first(place: Path) -> None:
    (place / "b").write_text("b")
    first = await commit(place)
    (place / "b").write_text("changed since")
    assert await commit(place) == first
    assert git(place, "rev-list", "--count", "HEAD") == "2"
    await commit(place, key="another call")
    assert git(place, "rev-list", "--count", "HEAD") == "3"


async def test_an_attempt_that_died_before_the_branch_moved_is_made_again(place: Path) -> None:
    (place / "b").write_text("b")
    await commit(place)
    git(place, "reset", "-q", "--soft", "HEAD~1")  # the entry in the reflog stays, as after a death between both
    assert "committed" in await commit(place)
    assert git(place, "rev-list", "--count", "HEAD") == "2"


@pytest.mark.parametrize(
    "delay", [0.05, 0.12, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.01, 0.1, 0.14, 0.16, 0.2))]
)
async def test_an_attempt_killed_at_any_time_leaves_one_commit_in_the_end(place: Path, delay: float) -> None:
    (place / "b").write_text("b")
    first = asyncio.ensure_future(commit(place))
    await asyncio.sleep(delay)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert "b | 1 +" in await commit(place)
    assert git(place, "rev-list", "--count", "HEAD") == "2"
    assert git(place, "status", "--short") == ""


@pytest.mark.parametrize("lock", ["HEAD.lock", "index.lock", "refs/heads/trunk.lock"])
async def test_a_lock_that_a_killed_attempt_left_is_removed(place: Path, lock: str) -> None:
    (place / "b").write_text("b")
    (place / ".git/loom-commit").touch()
    (place / ".git" / lock).touch()
    assert "b | 1 +" in await commit(place)
    assert git(place, "status", "--short") == ""
    assert not (place / ".git/loom-commit").exists()


@pytest.mark.parametrize("lock", ["HEAD.lock", "refs/heads/trunk.lock"])
async def test_a_lock_of_somebody_else_stays(place: Path, lock: str) -> None:
    (place / "b").write_text("b")
    (place / ".git" / lock).touch()
    os.utime(place / ".git" / lock, (1, 1))
    (place / ".git/loom-commit").touch()
    with pytest.raises(ToolExecutionError, match="Another Git process works in this repository"):
        await commit(place)
    assert (place / ".git" / lock).exists()


async def test_calls_at_the_same_time_wait_for_each_other(place: Path) -> None:
    for name in "bcd":
        (place / name).write_text(name)
    await asyncio.gather(*(commit(place, name, key=name) for name in "bcd"))
    assert git(place, "rev-list", "--count", "HEAD") == "4"
    assert git(place, "status", "--short") == ""


async def test_without_a_sandbox_bash_is_the_way(place: Path) -> None:
    (place / "b").write_text("b")
    with pytest.raises(ToolUnavailableError, match="commit with bash"):
        await commit(place, sandbox=Unsandboxed())


async def test_bash_says_how_to_commit(place: Path) -> None:
    assert SANDBOX is not None, WHY_NOT
    tool = shell_tool(SANDBOX, BashParser(), 60, "")
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=60)
    for command in ("touch b && git add b", "git commit --allow-empty -m x", "git checkout -b y"):
        with pytest.raises(ToolExecutionError, match="call the tool git_commit"):
            await tool.run(tool.parse({"command": command}), context)


def test_a_commit_is_asked_for_and_reads_what_it_commits(place: Path) -> None:
    tool = git_commit_tool(SANDBOX, 60, WHY_NOT)

    def verdict(rules: dict[str, str], *paths: str) -> Verdict:
        arguments = tool.parse({"message": "m", **({"paths": list(paths)} if paths else {})})
        return judge("git_commit", tool.subjects(arguments, place), rules).verdict

    assert verdict({}) is Verdict.ASK
    assert verdict({"git_commit": "allow"}) is Verdict.ALLOW
    assert verdict({"git_commit(src/**)": "allow"}, "src/x") is Verdict.ALLOW
    assert verdict({"git_commit(src/**)": "allow"}, "src/x", "a.py") is Verdict.ASK
    assert verdict({"git_commit": "allow", "read_file(.env)": "deny"}, ".env") is Verdict.DENY
    assert verdict({"git_commit": "allow", "read_file(.env)": "deny"}) is Verdict.ASK


PROGRAM = "#!/bin/sh\ntouch {mark} {inside}\ncat\n"

HOSTILE = {
    "filter": '[filter "evil"]\n\tclean = {program}\n\tprocess = {program}\n\tsmudge = {program}\n\trequired = true\n',
    "fsmonitor": "[core]\n\tfsmonitor = {program}\n",
    "hooks": "[core]\n\thooksPath = {hooks}\n",
    "gpg": "[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = {program}\n[user]\n\tsigningKey = x\n",
    "editor": "[core]\n\teditor = {program}\n\tpager = {program}\n\tsshCommand = {program}\n[pager]\n\tdiff = true\n",
    "diff": '[diff]\n\texternal = {program}\n[diff "evil"]\n\ttextconv = {program}\n\tcommand = {program}\n',
    "merge": '[merge "evil"]\n\tdriver = {program}\n',
    "alias": "[alias]\n\tread-tree = !{program}\n\tupdate-index = !{program}\n",
    "include": "[include]\n\tpath = {included}\n",
    "trace": "[trace2]\n\tnormalTarget = {mark}\n\teventTarget = {mark}\n",
    "log": "[log]\n\tshowSignature = true\n[gpg]\n\tprogram = {program}\n",
    "gc": "[gc]\n\tauto = 1\n[maintenance]\n\tauto = true\n[hook]\n\tx = {program}\n",
}


def prepared(place: Path, text: str, *, attributes: str = "* diff=evil merge=evil\n") -> tuple[Path, Path]:
    """Make the repository hostile. Return the files that its programs create."""
    mark, inside = place.parent / "escaped", place / "ran"
    hooks = place / "hooks"
    for folder in (hooks, place / ".git/hooks"):
        folder.mkdir(exist_ok=True)
        for name in (
            *("pre-commit", "commit-msg", "post-commit", "prepare-commit-msg", "post-index-change", "pre-auto-gc"),
            *("reference-transaction", "post-rewrite", "fsmonitor-watchman", "post-checkout", "update"),
        ):
            (folder / name).write_text(PROGRAM.format(mark=mark, inside=inside))
            (folder / name).chmod(0o755)
    (place / ".gitattributes").write_text(attributes)
    included = place / "included"
    values = {"program": hooks / "update", "hooks": hooks, "mark": mark, "included": included}
    included.write_text("".join(part.format(**values) for part in HOSTILE.values()))
    with (place / ".git/config").open("a") as config:
        config.write(text.format(**values))
    return mark, inside


@pytest.mark.parametrize("name", ["filter", "fsmonitor", "hooks"])
def test_the_same_repository_runs_programs_in_plain_git(place: Path, name: str) -> None:
    mark, _ = prepared(place, HOSTILE[name], attributes="* filter=evil\n")
    (place / "b").write_text("b")
    subprocess.run(["git", "add", "b"], cwd=place, check=False, capture_output=True)
    subprocess.run(["git", "commit", "-m", "x"], cwd=place, check=False, capture_output=True)
    assert mark.exists()


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_program_of_a_hostile_repository_runs(place: Path, name: str) -> None:
    mark, inside = prepared(place, HOSTILE[name])
    settings = (place / ".git/config").read_bytes()
    (place / "b").write_text("b")
    await commit(place, "b", "a.py", ".gitattributes")
    assert not mark.exists()
    assert not inside.exists()
    assert (place / ".git/config").read_bytes() == settings
    assert {entry.name for entry in (place / ".git").iterdir()} <= {
        *("HEAD", "config", "description", "hooks", "info", "objects", "refs", "logs", "index", "branches"),
        "COMMIT_EDITMSG",
    }


async def test_a_file_that_a_filter_would_convert_is_refused(place: Path) -> None:
    mark, inside = prepared(place, HOSTILE["filter"], attributes="*.bin filter=evil\n")
    (place / "x.bin").write_text("x")
    with pytest.raises(ToolExecutionError, match=r"x\.bin has the filter evil"):
        await commit(place, "x.bin")
    assert not mark.exists()
    assert not inside.exists()


async def test_a_hostile_submodule_starts_nothing(place: Path) -> None:
    inner = place / "inner"
    inner.mkdir()
    git(inner, "init", "-q", "-b", "main")
    git(inner, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "--allow-empty", "-m", "x")
    (place / ".gitmodules").write_text('[submodule "inner"]\n\tpath = inner\n\turl = ./inner\n\tignore = none\n')
    git(place, "add", "inner", ".gitmodules")
    git(place, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "With a submodule")
    mark, inside = prepared(inner, "".join(HOSTILE.values()), attributes="* filter=evil\n")
    mark, inside = place / "escaped", inner / "ran"
    (inner / "dirty").write_text("x")
    (place / "b").write_text("b")
    await commit(place)
    assert not mark.exists()
    assert not inside.exists()


@pytest.mark.parametrize("name", ["HEAD", "refs", "objects", "logs", "index", "config", "commondir"])
async def test_links_in_the_repository_are_not_written_through(place: Path, name: str) -> None:
    outside = place.parent / "outside"
    real = place / ".git" / name
    if real.exists():
        real.rename(outside)
    real.symlink_to(outside)
    (place / "b").write_text("b")
    with pytest.raises(LoomError):
        await commit(place, "b")


async def test_a_reference_that_links_outside_writes_nothing_there(place: Path) -> None:
    target = place.parent / "target"
    target.write_text("mine")
    (place / ".git/refs/heads/trunk").unlink()
    (place / ".git/refs/heads/trunk").symlink_to(target)
    (place / "b").write_text("b")
    with suppress(ToolExecutionError):
        await commit(place, "b")
    assert target.read_text() == "mine"


async def test_a_repository_whose_settings_are_elsewhere_is_refused_or_not_obeyed(place: Path) -> None:
    evil = place / "evil"
    git(place, "init", "-q", "--bare", str(evil))
    mark, inside = prepared(place, "")
    (evil / "config").write_text((place / "included").read_text())
    (place / ".git/commondir").write_text("../evil\n")
    (place / "b").write_text("b")
    await commit(place, "b")
    assert not mark.exists()
    assert not inside.exists()


@pytest.mark.parametrize(
    "setting", ["core.worktree=/", "core.bare=true", "core.sparseCheckout=true", "extensions.partialClone=x"]
)
async def test_a_repository_of_another_kind_is_refused(place: Path, setting: str) -> None:
    git(place, "config", *setting.split("="))
    with pytest.raises(ToolUnavailableError, match="does not know what to do with this repository's setting"):
        await commit(place)


async def test_a_git_file_is_refused(place: Path) -> None:
    (place / ".git").rename(place / "data")
    (place / ".git").write_text("gitdir: data\n")
    with pytest.raises(ToolValidationError, match="is not a folder"):
        await commit(place)


async def test_files_that_the_sandbox_hides_are_not_taken_for_deleted(place: Path) -> None:
    (place / ".ssh").mkdir()
    (place / ".ssh/config").write_text("x")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "Dotfiles")
    (place / "b").write_text("b")
    assert "1 file changed" in await commit(place)
    assert git(place, "ls-files") == ".ssh/config\na.py\nb"


async def test_paths_are_never_patterns_or_options(place: Path) -> None:
    (place / "*").write_text("star")
    (place / "b").write_text("b")
    (place / "--help").write_text("x")
    await commit(place, "*", "--help", message="--amend")
    assert git(place, "ls-tree", "--name-only", "HEAD") == "*\n--help\na.py"
    assert git(place, "log", "-1", "--format=%s") == "--amend"


CACHES = (
    "__pycache__/a.cpython-311.pyc",
    "sub/__pycache__/b.pyc",
    ".pytest_cache/v/lastfailed",
    ".mypy_cache/x.json",
    ".ruff_cache/0.1/1",
    "web/node_modules/.cache/x",
    ".coverage",
    ".coverage.host.12",
    "old.pyc",
    "target/CACHEDIR.TAG",
    "target/debug/x",
    "odd (folder)+/CACHEDIR.TAG",
    "odd (folder)+/x",
)


def written(place: Path, *names: str) -> None:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)


async def test_what_programs_make_again_is_left_out_and_told(place: Path) -> None:
    written(place, *CACHES, "sub/b.py", ".coveragerc", "targets/x", "oddfolder/x", "cache.py")
    said = await commit(place)
    assert git(place, "ls-files").split() == [".coveragerc", "a.py", "cache.py", "oddfolder/x", "sub/b.py", "targets/x"]
    told = said.splitlines()[-1]
    assert told.startswith("left out, because programs make it again (name it to commit it): .coverage ")
    assert told.endswith(" …")
    assert ".mypy_cache/ " in told
    assert ".mypy_cache/x" not in told


async def test_what_is_tracked_or_named_is_committed_although_programs_make_it_again(place: Path) -> None:
    written(place, "__pycache__/tracked.pyc", "node_modules/x")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "caches")
    (place / "__pycache__/tracked.pyc").write_text("changed")
    (place / "node_modules/x").unlink()
    written(place, "__pycache__/new.pyc", ".coverage", "sub/__pycache__/x.pyc")
    said = await commit(place, ".", ".coverage")
    assert git(place, "ls-files").split() == [".coverage", "__pycache__/tracked.pyc", "a.py"]
    assert git(place, "show", "HEAD:__pycache__/tracked.pyc") == "changed"
    assert said.endswith("(name it to commit it): __pycache__/ sub/__pycache__/")


async def test_a_commit_of_nothing_but_caches_is_refused_with_their_names(place: Path) -> None:
    written(place, "__pycache__/new.pyc")
    with pytest.raises(ToolExecutionError, match=r"nothing to commit.*has to be named to be committed: __pycache__/"):
        await commit(place)


async def test_a_file_whose_name_is_not_utf8_is_committed_by_the_name_that_tools_show(place: Path) -> None:
    os.close(os.open(os.fsencode(place) + b"/caf\xe9.txt", os.O_CREAT))
    await commit(place, r"caf\xe9.txt")
    assert git(place, "status", "--short") == ""
