"""Attacks on the tools that read and write files: out of the workspace by name, by link, and by being faster."""

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.built_in.files import file_tools
from loom.activities.toolbox.built_in.search import search_tools
from loom.domain.core.errors import LoomError, ToolValidationError


def tools_of(home: Path | None) -> dict[str, Tool]:
    """Those of a worker that keeps Loom's own state there."""
    return {tool.spec.name: tool for tool in (*file_tools(30, home), *search_tools(30, home))}


TOOLS = tools_of(None)
SECRET = "outside-secret"
_EXCHANGE = 2
_TRIES = 150
_ROUNDS = 400
"""How often each race is run at least, and how often the other side swaps meanwhile."""


async def call(name: str, workspace: Path, tools: Mapping[str, Tool] = TOOLS, **arguments: object) -> str:
    """What the model would read, errors included."""
    tool = tools[name]
    context = ToolContext(workspace=workspace, run_id="r", call_id="c", idempotency_key="k", timeout=20)
    try:
        return str(await tool.run(tool.parse(arguments), context))
    except LoomError as error:
        return error.message


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """`workspace` with links that lead out of it, beside a file that no tool may see or change."""
    root = tmp_path.resolve()
    (root / "outside/deep").mkdir(parents=True)
    (root / "outside/f").write_text(SECRET)
    (root / "outside/deep/f").write_text(SECRET)
    workspace = root / "workspace"
    (workspace / "inside").mkdir(parents=True)
    (workspace / "inside/f").write_text("inside")
    links: dict[str, str | Path] = {
        "up": "..",
        "out": "../outside",
        "absolute": root / "outside",
        "file": "../outside/f",
        "twice": "out/deep",
        "missing": "../outside/new",
        "round": "round",
        "proc": "/proc/self/cwd",
        "root": "/",
    }
    for name, target in links.items():
        (workspace / name).symlink_to(target)
    return root


def outside(place: Path) -> dict[str, str]:
    """Every file beside the workspace."""
    found = (path for path in place.rglob("*") if path.is_file() and not path.is_relative_to(place / "workspace"))
    return {str(path.relative_to(place)): path.read_text() for path in found}


UNTOUCHED = {"outside/f": SECRET, "outside/deep/f": SECRET}
STEPS = st.sampled_from(
    [
        *(
            "..",
            ".",
            "",
            "inside",
            "f",
            "new",
            "up",
            "out",
            "absolute",
            "file",
            "twice",
            "missing",
            "round",
            "proc",
            "root",
        ),
        *(
            "outside",
            "workspace",
            "deep",
            "~",
            "~root",
            "$HOME",
            "%2e%2e",
            "..%2f",
            "\uff0e\uff0e",
            "\u2025",
            ".\u200b.",
        ),
        *("..\\outside", "C:", "\u2044", "\uff0f..", "tmp", "etc", "...", ".. ", " ..", "..\n", "\u202e.."),
    ]
)


@st.composite
def paths(draw: st.DrawFn) -> str:
    path = "/".join(draw(st.lists(STEPS, min_size=1, max_size=7)))
    return draw(st.sampled_from(["", "/", "//", "./", "file://"])) + path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=paths(), is_absolute=st.booleans())
async def test_no_path_leads_out_of_the_workspace(place: Path, path: str, is_absolute: bool) -> None:
    named = f"{place}/{path}" if is_absolute else path
    workspace = place / "workspace"
    said = [
        await call("read_file", workspace, path=named),
        await call("list_dir", workspace, path=named),
        await call("edit_file", workspace, path=named, old_string=SECRET, new_string="changed"),
        await call("write_file", workspace, path=named, content="changed"),
        await call("glob", workspace, pattern="**/f", path=named),
    ]
    assert SECRET not in "".join(said)
    assert outside(place) == UNTOUCHED
    (workspace / "inside/f").write_text("inside")


async def test_a_search_does_not_follow_links_out(place: Path) -> None:
    assert SECRET not in await call("grep", place / "workspace", pattern="secret")
    assert SECRET not in await call("grep", place / "workspace", pattern="secret", path="out")


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[list[int]]:
    """A thread that puts each in the other's place, in one step, as often as it can; the number of times is inside."""
    library, stopped, rounds = ctypes.CDLL(None), threading.Event(), [0]
    names = [os.fsencode(one), os.fsencode(other)]

    def swap() -> None:
        while not stopped.is_set():
            library.renameat2(-100, names[0], -100, names[1], _EXCHANGE)
            rounds[0] += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield rounds
    finally:
        stopped.set()
        thread.join()


def racing(rounds: list[int]) -> Iterator[None]:
    """Until both sides have had turns enough."""
    tries = 0
    while tries < _TRIES or rounds[0] < _ROUNDS:
        yield
        tries += 1


async def test_a_folder_swapped_for_a_link_leads_nowhere(place: Path) -> None:
    workspace, heard = place / "workspace", set[str]()
    with exchanging(workspace / "inside", workspace / "out") as rounds:
        for _ in racing(rounds):
            heard.add(await call("read_file", workspace, path="inside/f"))
            heard.add(await call("edit_file", workspace, path="inside/f", old_string=SECRET, new_string="changed"))
            heard.add((await call("write_file", workspace, path="inside/new/deep/f", content="changed"))[:9])
            heard.add(await call("list_dir", workspace, path="inside"))
    assert SECRET not in "".join(heard)
    assert outside(place) == UNTOUCHED
    assert any("inside" in text for text in heard)


async def test_a_file_swapped_for_a_link_leads_nowhere(place: Path) -> None:
    workspace, heard = place / "workspace", set[str]()
    with exchanging(workspace / "inside/f", workspace / "file") as rounds:
        for _ in racing(rounds):
            heard.add(await call("read_file", workspace, path="inside/f"))
            heard.add(await call("write_file", workspace, path="inside/f", content="inside"))
    assert SECRET not in "".join(heard)
    assert outside(place) == UNTOUCHED


async def test_a_workspace_inside_another_one_is_not_swapped_away(place: Path) -> None:
    """Its parent belongs to another run, which puts a link in its place."""
    workspace = place / "workspace/nested"
    workspace.mkdir()
    (workspace / "f").write_text("nested")
    (place / "workspace/away").symlink_to(place / "outside")
    heard = set[str]()
    with exchanging(workspace, place / "workspace/away") as rounds:
        for _ in racing(rounds):
            with suppress(OSError):  # the path is a link when it is resolved: then it is refused before
                heard.add(await call("read_file", workspace, path="f"))
                heard.add(await call("write_file", workspace, path="new", content="changed"))
                heard.add(await call("list_dir", workspace, path="."))
    assert SECRET not in "".join(heard)
    assert outside(place) == UNTOUCHED


async def test_devices_pipes_and_sockets_are_not_read(place: Path) -> None:
    workspace = place / "workspace"
    os.mkfifo(workspace / "pipe")
    (workspace / "zero").symlink_to("/dev/zero")
    assert "not a regular file" in await call("read_file", workspace, path="pipe")
    assert "outside the workspace" in await call("read_file", workspace, path="zero")
    assert "not a regular file" in await call("write_file", workspace, path="pipe", content="x")


@pytest.fixture
def workspace(place: Path) -> Path:
    """A workspace that holds Loom's own state under another name than the usual one, with links to it."""
    workspace = place / "workspace"
    (workspace / "var/state/agents").mkdir(parents=True)
    (workspace / "var/state/stack.json").write_text(SECRET)
    for name, target in {
        "short": "var/state",
        "direct": "var/state/stack.json",
        "over": "var",
        "home": "short",
    }.items():
        (workspace / name).symlink_to(target)
    return workspace


STATE = ["var/state", "home"]
"""`LOOM_HOME` as it may be given: the folder itself, or by links."""


@pytest.mark.parametrize("home", STATE)
@pytest.mark.parametrize("way", ["var/state", "inside/../var/./state", "short", "over/state", "home", "{}/short"])
async def test_no_name_leads_into_loom_s_own_state(workspace: Path, home: str, way: str) -> None:
    tools, folder = tools_of(workspace / home), way.format(workspace)
    named = f"{folder}/stack.json"
    said = [
        await call("read_file", workspace, tools, path=named),
        await call("read_file", workspace, tools, path="direct"),
        await call("edit_file", workspace, tools, path=named, old_string=SECRET, new_string="changed"),
        await call("write_file", workspace, tools, path=named, content="changed"),
        await call("write_file", workspace, tools, path=f"{folder}/agents/mine.yaml", content="name: mine"),
        await call("list_dir", workspace, tools, path=folder),
        await call("glob", workspace, tools, pattern="*", path=folder),
        await call("grep", workspace, tools, pattern="secret", path=folder),
        await call("grep", workspace, tools, pattern="secret", path=named),
    ]
    assert [text for text in said if "is Loom's own state" not in text] == []
    kept = [path for path in (workspace / "var/state").rglob("*") if path.is_file()]
    assert [(path.name, path.read_text()) for path in kept] == [("stack.json", SECRET)]


@pytest.mark.parametrize("home", STATE)
async def test_a_search_from_above_leaves_loom_s_own_state_out(workspace: Path, home: str) -> None:
    (workspace / "var/stack.json").write_text("no secret here")
    tools = tools_of(workspace / home)
    for path in (".", "var"):
        assert await call("glob", workspace, tools, pattern="stack.json", path=path) == "var/stack.json"
        found = await call("grep", workspace, tools, pattern="secret", path=path)
        assert found == "var/stack.json:1:no secret here"


async def test_loom_s_own_state_is_kept_free_before_it_is_there(workspace: Path) -> None:
    tools = tools_of(workspace / "later/state")
    said = await call("write_file", workspace, tools, path="later/state/agents/mine.yaml", content="name: mine")
    assert "is Loom's own state" in said
    assert not (workspace / "later").exists()
    assert "created" in await call("write_file", workspace, tools, path="later/stated", content="")


async def test_rules_are_not_asked_about_loom_s_own_state(workspace: Path) -> None:
    tools = tools_of(workspace / "var/state")
    for name, more in {"read_file": {}, "write_file": {"content": ""}, "grep": {"pattern": "x"}}.items():
        with pytest.raises(ToolValidationError, match="is Loom's own state"):
            tools[name].subjects(tools[name].parse({"path": "short/stack.json", **more}), workspace)


async def test_a_workspace_below_loom_s_own_state_is_a_workspace_as_any(place: Path) -> None:
    workspace = place / "workspace/inside"
    assert await call("read_file", workspace, tools_of(place / "workspace"), path="f") == "     1\tinside"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
async def test_a_hard_link_to_another_users_file_is_outside(place: Path) -> None:
    theirs = place / "outside/f"
    os.chown(theirs, 12345, 12345)
    os.link(theirs, place / "workspace/theirs")
    workspace = place / "workspace"
    assert "outside the workspace" in await call("read_file", workspace, path="theirs")
    assert "outside the workspace" in await call(
        "edit_file", workspace, path="theirs", old_string=SECRET, new_string="x"
    )
    assert SECRET not in await call("grep", workspace, pattern=SECRET)
    os.chown(theirs, 0, 0)
    assert SECRET in await call("read_file", workspace, path="theirs")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(min_size=1), edits=st.booleans())
async def test_no_write_goes_through_a_hard_link(place: Path, text: str, edits: bool) -> None:
    name = place / "workspace/link"
    name.unlink(missing_ok=True)
    os.link(place / "outside/f", name)
    if edits:
        await call("edit_file", name.parent, path="link", old_string=SECRET, new_string=text)
    else:
        await call("write_file", name.parent, path="link", content=text)
    assert (place / "outside/f").read_text() == SECRET
    assert name.read_text() != SECRET
