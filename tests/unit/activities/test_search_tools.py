"""Looking for files and lines."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.built_in import search
from loom.activities.toolbox.built_in.search import search_tools
from loom.domain.core.errors import ToolValidationError
from loom.testing.waiting import eventually

TOOLS: dict[str, Tool] = {tool.spec.name: tool for tool in search_tools(120)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    for name, text in {
        "a.py": "import os\nTODO one\n",
        "src/b.py": "todo two\n",
        "src/deep/c.ts": "x\n",
        "src/deep/d.tsx": "TODO three\n",
        ".git/config": "TODO hidden\n",
        ".loom/state": "TODO state\n",
        "build/out.py": "TODO built\n",
        "src/.gitignore": "*.log\n!keep.log\n",
        "src/x.log": "TODO log\n",
        "src/keep.log": "TODO keep\n",
        ".gitignore": "# comment\nbuild/\n",
        ".venv/lib/site.py": "TODO theirs\n",
        "env/pyvenv.cfg": "home = /usr\n",
        "env/lib/site.py": "TODO theirs\n",
        "src/node_modules/m.py": "TODO theirs\n",
    }.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    return workspace.resolve()


async def call(name: str, place: Path, **arguments: object) -> list[str]:
    tool = TOOLS[name]
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=5)
    output = await tool.run(tool.parse(arguments), context)
    assert isinstance(output, str)
    return output.split("\n")


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("*.py", ".", ["a.py", "src/b.py"]),
        ("**/*.py", ".", ["a.py", "src/b.py"]),
        ("src/*.py", ".", ["src/b.py"]),
        ("./src/*", ".", ["src/.gitignore", "src/b.py", "src/keep.log"]),
        ("src/**/*.{ts,tsx}", ".", ["src/deep/c.ts", "src/deep/d.tsx"]),
        ("deep/*", "src", ["src/deep/c.ts", "src/deep/d.tsx"]),
        ("[ab].py", ".", ["a.py", "src/b.py"]),
        ("[!a].py", ".", ["src/b.py"]),
        ("?.ts", ".", ["src/deep/c.ts"]),
        ("*.rs", ".", ["(no file matches)"]),
        ("*.py", "build", ["build/out.py"]),
        ("*.py", ".venv", [".venv/lib/site.py"]),
        ("*.py", "env/lib", ["env/lib/site.py"]),
    ],
)
async def test_files_are_found_by_name(place: Path, pattern: str, path: str, found: list[str]) -> None:
    assert await call("glob", place, pattern=pattern, path=path) == found


async def test_lines_are_found_with_path_and_number(place: Path) -> None:
    assert await call("grep", place, pattern=r"TODO \w+") == [
        "a.py:2:TODO one",
        "src/deep/d.tsx:1:TODO three",
        "src/keep.log:1:TODO keep",
    ]
    assert await call("grep", place, pattern="todo", ignore_case=True, glob="*.py") == [
        "a.py:2:TODO one",
        "src/b.py:1:todo two",
    ]
    assert await call("grep", place, pattern="todo", path="src/b.py") == ["src/b.py:1:todo two"]
    assert await call("grep", place, pattern="nowhere") == ["(no line matches)"]


async def test_binary_files_and_links_are_left_out(place: Path) -> None:
    (place.parent / "outside").mkdir()
    (place.parent / "outside/a.py").write_text("SECRET\n")
    (place / "link").symlink_to(place.parent / "outside")
    (place / "file.py").symlink_to(place.parent / "outside/a.py")
    (place / "binary").write_bytes(b"SECRET\0")
    assert await call("grep", place, pattern="SECRET") == ["(no line matches)"]
    assert await call("glob", place, pattern="**/*.py") == ["a.py", "src/b.py"]
    with pytest.raises(ToolValidationError, match="outside the workspace"):
        await call("grep", place, pattern="SECRET", path="link")


async def test_many_results_are_cut_with_a_note(place: Path) -> None:
    (place / "many.txt").write_text("hit\n" * 1000)
    found = await call("grep", place, pattern="hit")
    assert len(found) == 301
    assert found[-1] == "(only the first 300 are shown: narrow path, glob or pattern)"


async def test_long_lines_are_cut(place: Path) -> None:
    (place / "long.txt").write_text("hit" + "x" * 1000)
    assert await call("grep", place, pattern="hit") == ["long.txt:1:hit" + "x" * 297 + "…"]


async def test_a_pattern_that_is_none_is_explained(place: Path) -> None:
    with pytest.raises(ToolValidationError, match=r"is not a regular expression: .*put a backslash"):
        await call("grep", place, pattern="foo(")


async def test_an_explosive_pattern_stops_in_time_and_blocks_nobody(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_SECONDS", 2.0)
    (place / "trap.txt").write_text("hit a\n" + "a" * 60 + "b\n")
    searching = asyncio.ensure_future(call("grep", place, pattern="(a+)+$|hit", path="trap.txt"))
    others = 0
    while not searching.done():
        others += 1
        await asyncio.sleep(0)
    assert others > 100  # others go on meanwhile; without its end, the search would take years
    assert (await searching)[0] == "trap.txt:1:hit a"
    assert "stopped after 2 s" in (await searching)[-1]


async def test_a_cancelled_search_leaves_no_process(place: Path) -> None:
    (place / "trap.txt").write_text("a" * 60 + "b\n")
    before = set(psutil.Process().children())
    searching = asyncio.ensure_future(call("grep", place, pattern="(a+)+$", path="trap.txt"))

    async def searches() -> bool | None:
        return bool(set(psutil.Process().children()) - before) or None

    async def searches_no_more() -> bool | None:
        return not set(psutil.Process().children()) - before or None

    await eventually(searches)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    await eventually(searches_no_more)


async def test_names_and_lines_that_are_not_utf8_are_shown_and_other_encodings_searched(place: Path) -> None:
    named = os.open(os.fsencode(place) + b"/src/caf\xe9.txt", os.O_CREAT | os.O_WRONLY)
    os.write(named, b"needle \xe9\n")
    os.close(named)
    (place / "src/wide.txt").write_bytes("\ufeffone\r\nneedle ü\r\n".encode("utf-16-le"))
    assert await call("glob", place, pattern="caf*") == [r"src/caf\xe9.txt"]
    assert await call("grep", place, pattern="needle", path="src") == [
        r"src/caf\xe9.txt:1:needle \xe9",
        "src/wide.txt:2:needle ü",
    ]
