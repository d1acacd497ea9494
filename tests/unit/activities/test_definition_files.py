"""A worker tells which of its agent, crew and skill files have changed since its last start, and by which run."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
import structlog

from loom.activities.adapters import definition_files
from loom.activities.adapters.definition_files import DefinitionFiles, DefinitionFolder, FileChange
from loom.activities.ports import ToolContext
from loom.activities.toolbox.built_in.shell import Bash
from loom.activities.toolbox.function_tool import FunctionTool
from loom.activities.toolbox.pipeline import written_paths
from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_calls import Effect, ToolSpec
from loom.domain.permissions.subjects import Subject, Touched

SKILL = "---\nname: brief\ndescription: Be brief.\n---\nBe brief.\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, content in {"agents/a.yaml": "a", "agents/b.yaml": "b", "agents/README.md": "r"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "skills/brief").mkdir(parents=True)
    (tmp_path / "skills/brief/SKILL.md").write_text(SKILL)
    return tmp_path


def started(project: Path) -> DefinitionFiles:
    """The files of a worker that starts now."""
    files = DefinitionFiles(project / ".loom")
    files.add(
        [
            DefinitionFolder(str(project / "agents"), (".yaml",)),
            DefinitionFolder(str(project / "crews"), (".yaml",)),
            DefinitionFolder(str(project / "skills")),
        ]
    )
    return files


def news(project: Path, queue: str = "loom") -> dict[str, FileChange]:
    found = started(project).changes_since_last_start("default", queue)
    return {str(Path(each.path).relative_to(project)): each for each in found}


async def run_writes(project: Path, run_id: str, **contents: str | None) -> None:
    """A run's call that writes or deletes agents."""
    files = started(project)
    paths = {project / f"agents/{name}.yaml": content for name, content in contents.items()}
    async with files.attributed(files.touched([*map(str, paths)]), run_id=run_id, call_id="c1"):
        for path, content in paths.items():
            path.unlink() if content is None else path.write_text(content)


def test_every_file_that_has_changed_is_told_once(project: Path) -> None:
    assert news(project) == {}
    (project / "agents/a.yaml").write_text("other")
    (project / "agents/b.yaml").unlink()
    (project / "agents/README.md").write_text("other")
    (project / "crews").mkdir()
    (project / "crews/new.yaml").write_text("new")
    (project / "skills/brief/more.md").write_text("more")
    changes = {path: (each.change, each.run_id) for path, each in news(project).items()}
    assert changes == {
        "agents/a.yaml": ("changed", ""),
        "agents/b.yaml": ("removed", ""),
        "crews/new.yaml": ("added", ""),
        "skills/brief/more.md": ("added", ""),
    }
    assert news(project) == {}


async def test_the_run_that_changed_a_file_is_named(project: Path) -> None:
    for queue in ("loom", "other"):
        news(project, queue)
    await run_writes(project, "r1", a="evil", b="b")
    await run_writes(project, "r2", new="evil", b=None)
    for queue in ("loom", "other"):  # what a worker has told, another one hasn't
        runs = {path: (each.change, each.run_id, each.is_latest) for path, each in news(project, queue).items()}
        assert runs == {
            "agents/a.yaml": ("changed", "r1", True),
            "agents/b.yaml": ("removed", "r2", True),
            "agents/new.yaml": ("added", "r2", True),
        }


async def test_a_run_is_not_blamed_for_what_others_changed(project: Path) -> None:
    news(project)
    await run_writes(project, "r1", a="evil")
    (project / "agents/a.yaml").write_text("mended")
    (project / "agents/b.yaml").write_text("a person's")
    told = news(project)
    assert (told["agents/a.yaml"].run_id, told["agents/a.yaml"].is_latest) == ("r1", False)
    assert told["agents/b.yaml"].run_id == ""
    (project / "agents/a.yaml").write_text("a person's")
    assert news(project)["agents/a.yaml"].run_id == ""


async def test_a_run_whose_worker_was_killed_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    news(project)
    with monkeypatch.context() as patch:
        patch.setattr(DefinitionFiles, "_end", lambda _self, _record: None)
        await run_writes(project, "r1", a="evil")
    await run_writes(project, "r1", a="evil")  # the next attempt at the same call
    with monkeypatch.context() as patch:
        patch.setattr(DefinitionFiles, "_end", lambda _self, _record: None)
        await run_writes(project, "r2", b="evil", new="evil")  # no other attempt follows
    await run_writes(project, "r3", new="from another run")
    (project / "agents/new.yaml").write_text("a person's")
    assert {path: each.run_id for path, each in news(project).items()} == {
        "agents/a.yaml": "r1",
        "agents/b.yaml": "r2",
        "agents/new.yaml": "r3",
    }
    (project / "agents/b.yaml").write_text("a person's")
    assert news(project)["agents/b.yaml"].run_id == ""


async def test_a_run_is_not_blamed_if_its_call_is_aborted_before_it_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news(project)
    begins, goes_on, ends = threading.Event(), threading.Event(), threading.Event()
    begin = DefinitionFiles._begin

    def slowly(files: DefinitionFiles, folders: list[str], run_id: str, call_id: str) -> Path | None:
        begins.set()
        goes_on.wait(timeout=10)
        try:
            return begin(files, folders, run_id, call_id)
        finally:
            ends.set()

    monkeypatch.setattr(DefinitionFiles, "_begin", slowly)
    call = asyncio.create_task(run_writes(project, "r1", a="evil"))
    assert await asyncio.to_thread(begins.wait, 10)
    call.cancel()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(ends.wait, 10)
    assert list((project / ".loom/definitions/begun").iterdir()) == []
    (project / "agents/a.yaml").write_text("a person's")
    assert news(project)["agents/a.yaml"].run_id == ""


async def test_a_record_that_cannot_be_read_hides_no_other(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    news(project)
    with monkeypatch.context() as patch:
        patch.setattr(DefinitionFiles, "_end", lambda _self, _record: None)
        await run_writes(project, "r1", a="evil")
    for name in ("0.json", "z.json"):
        (project / ".loom/definitions/begun" / name).mkdir()
    with structlog.testing.capture_logs() as logs:
        assert news(project)["agents/a.yaml"].run_id == "r1"
    assert [each["event"] for each in logs] == ["file_changes_not_recorded"] * 2


def test_only_the_first_of_very_many_files_are_compared(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_files, "MOST_FILES", 3)
    data = project / "skills/brief/data"
    data.mkdir()
    for name in "bcdef":
        (data / name).touch()
    news(project)
    (data / "a").touch()  # the third file is no longer one of the first, which doesn't mean that it was removed
    (data / "f").write_text("other")
    (project / "skills/brief/SKILL.md").write_text(SKILL + "More.")
    with structlog.testing.capture_logs() as logs:
        assert list(news(project)) == ["skills/brief/SKILL.md", "skills/brief/data/a"]
    assert [each["why"] for each in logs] == [
        f"{project}/skills contains too many files: only the first 3 are compared"
    ]


def test_a_folder_with_the_name_of_an_agent_file_leaves_no_descriptor_open(project: Path) -> None:
    (project / "agents/folder.yaml").mkdir()
    before = os.listdir("/proc/self/fd")
    assert news(project) == {}
    assert os.listdir("/proc/self/fd") == before


async def test_records_that_cannot_be_read_or_written_are_logged_and_stop_nothing(project: Path) -> None:
    news(project)
    (record,) = (project / ".loom/definitions/known").iterdir()
    record.write_text("{")
    with structlog.testing.capture_logs() as logs:
        assert news(project) == {}
    assert [each["event"] for each in logs] == ["worker_files_not_compared"]
    assert "is damaged" in logs[0]["why"]
    (project / "agents/a.yaml").write_text("other")
    assert list(news(project)) == ["agents/a.yaml"]  # the damaged record was replaced

    (project / ".loom").rename(project / "old")
    (project / ".loom").write_text("a file")
    with structlog.testing.capture_logs() as logs:
        assert news(project) == {}
        await run_writes(project, "r1", a="written all the same")
    assert [each["event"] for each in logs] == ["worker_files_not_compared", "file_changes_not_recorded"]
    assert (project / "agents/a.yaml").read_text() == "written all the same"


def test_a_call_touches_the_folders_that_its_paths_are_in_or_contain(project: Path) -> None:
    (project / "link").symlink_to(project / "agents")
    files = DefinitionFiles(project / ".loom")
    files.add([DefinitionFolder(str(project / "link"), (".yaml",))])
    for path in ("agents/x.yaml", "agents", ".", "link/x.yaml"):
        assert files.touched([str(project / path)]) == [str(project / "link")], path
    for path in ("agents2/x.yaml", "src/agents/x.yaml", "src"):
        assert files.touched([str(project / path)]) == [], path


@pytest.mark.parametrize("is_sandboxed", [False, True])
def test_the_paths_of_a_call_are_those_that_it_may_write(is_sandboxed: bool) -> None:
    async def run(_arguments: Bash, _context: ToolContext) -> str:
        return ""

    files = (Touched(tool="read_file", loose="/w/read"), Touched(tool="write_file", loose="/w/x/../agents/a.yaml"))
    tool = FunctionTool(
        spec=ToolSpec(name="bash", description="", parameters={}, effect=Effect.ONCE),
        arguments=Bash,
        function=run,
        touches=lambda _arguments, _workspace: (Subject(text="cp", loose="cp read agents/a.yaml", files=files),),
        is_sandboxed=is_sandboxed,
    )
    for arguments, expected in (({"command": "cp"}, {"/w/agents/a.yaml"}), ({"wrong": 1}, set())):
        call = ToolCall(id="c1", name="bash", arguments=arguments)
        found = written_paths(call, box={"bash": tool}, workspace=Path("/w"))
        assert found == (set() if is_sandboxed else expected)
