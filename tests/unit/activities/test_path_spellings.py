r"""A file has one name, however a path spells it: rules judge the file that is opened.

The bytes of names that aren't UTF-8 are shown, and can be sent, as `\xNN`.
"""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loom.activities.ports import Tool
from loom.activities.toolbox.built_in.files import file_tools
from loom.activities.toolbox.built_in.git_commit import git_commit_tool
from loom.activities.toolbox.built_in.search import search_tools
from loom.activities.toolbox.pipeline import authorize
from loom.activities.toolbox.workspace import paths
from loom.activities.toolbox.workspace.text_bytes import name_from, with_characters
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import LoomError
from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_calls import Verdict
from loom.file_changes import change_of

BOX: dict[str, Tool] = {tool.spec.name: tool for tool in (*file_tools(60), *search_tools(60))}
DENIED = ("机密", "é", "caf\udce9", ".env", "deep/机密")


def spelled(text: str) -> str:
    """Spell every byte of a text."""
    return "".join(rf"\x{byte:02x}" for byte in os.fsencode(text))


def halves(text: str) -> str:
    """Spell every byte of a text as half a surrogate pair, as in the names of files that aren't UTF-8."""
    return "".join(chr(byte if byte < 0x80 else 0xDC00 + byte) for byte in os.fsencode(text))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spellings").resolve()
    for folder in (*DENIED, "open", r"open/caf\xe9", "deep/open"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a.txt").write_text("x")
    (root / "open" / "link").symlink_to("../机密")
    (root / "机密" / "link.txt").symlink_to("../open/a.txt")
    return root


NAMES = [
    "机密",
    "é",
    "caf\udce9",
    r"caf\xe9",
    r"caf\xE9",
    ".env",
    "open",
    "deep",
    "link",
    "a.txt",
    "link.txt",
    "..",
    "",
]
PIECES = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES).map(spelled),
    st.sampled_from(NAMES).map(halves),
    st.sampled_from(NAMES).map(lambda name: spelled(name).upper().replace("X", "x")),
    st.sampled_from(
        ["机", "密", spelled("机")[:8], spelled("机")[8:], halves("密")[:1], halves("密")[1:], r"\x2e", "\ud800"]
    ),
)
PATHS = st.lists(st.lists(PIECES, max_size=3).map("".join), min_size=1, max_size=4).map("/".join)


@given(path=PATHS)
@example(path=r"\xe6\x9c\xba\xe5\xaf\x86/a.txt")
@example(path=r"\xE6\x9c" + "\udcba" + r"\xe5\xaf\x86/a.txt")
@example(path=r"caf\xe9/a.txt")
def test_what_the_rules_judge_is_what_is_opened(place: Path, path: str) -> None:
    try:
        real = paths.resolve(place, path, home=None, must_exist=False)
        link = paths.unresolved(place, path, home=None)
    except LoomError:
        return
    judged = {each.loose: each.text for each in paths.subjects(place, path, home=None)}
    assert judged[str(real)] == paths.shown(place, real)
    assert judged[str(link)] == paths.shown(place, link)
    assert os.fsdecode(os.fsencode(real)) == str(real)


@given(path=PATHS, name=st.sampled_from(["read_file", "write_file", "delete_file", "list_dir", "grep"]))
@example(path=r"\xe6\x9c\xba\xe5\xaf\x86/a.txt", name="read_file")
@example(path=r"open/link/link.txt", name="delete_file")
def test_no_spelling_reaches_a_denied_path(place: Path, path: str, name: str) -> None:
    rules = {name: "allow", **{f"{name}({denied}/**)": "deny" for denied in ("机密", "é", r"caf\xe9", ".env")}}
    spec = AgentSpec(
        name="a", model="demo", tools=tuple(t.spec for t in BOX.values()), permissions=rules, workspace=str(place)
    )
    given_ = {"path": path} | {"write_file": {"content": ""}, "grep": {"pattern": "x"}}.get(name, {})
    try:
        arguments = BOX[name].parse(given_)
        verdict = authorize(ToolCall(id="c", name=name, arguments=given_), BOX[name], arguments, spec).judgement.verdict
        reached = paths.unresolved if name == "delete_file" else paths.resolve
        opened = os.fsencode(reached(place, arguments.path, home=None)).removeprefix(os.fsencode(place) + b"/")  # type: ignore[attr-defined]
    except (LoomError, FileNotFoundError):
        return
    if opened.startswith(("机密/".encode(), "é/".encode(), b"caf\xe9/", b".env/")):
        assert verdict is not Verdict.ALLOW


@pytest.mark.parametrize("spelling", [spelled("机密"), spelled("机") + "密", spelled("机密").upper().replace("X", "x")])
def test_a_rule_about_the_argument_sees_the_name(place: Path, spelling: str) -> None:
    arguments = BOX["read_file"].parse({"path": f"{spelling}/a.txt"})
    assert arguments.path == "机密/a.txt"  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", [r"\x2eenv/a.txt", r"\x2e\x65nv/a.txt", r"\x2e\x2e/a.txt"])
def test_ascii_cannot_be_spelled(place: Path, path: str) -> None:
    assert with_characters(path) == name_from(path) == path
    with pytest.raises(LoomError, match="does not exist"):
        paths.resolve(place, path, home=None)


def test_an_approval_shows_the_name_of_the_file_that_changes(place: Path) -> None:
    written = {"path": spelled("机密") + "/a.txt", "content": "y"}
    assert "--- a/机密/a.txt\n+++ b/机密/a.txt" in (change_of("write_file", written, str(place)) or "")


@pytest.mark.parametrize("path", [spelled("机密"), "机密", "./open/../" + spelled("机密")])
def test_a_folder_that_a_commit_reads_is_known_by_every_spelling(place: Path, path: str) -> None:
    tool = git_commit_tool(None, 60, "no sandbox")
    given_ = {"message": "m", "paths": [path]}
    rules = {"git_commit": "allow", "git_commit(机密/a.txt)": "deny"}
    spec = AgentSpec(name="a", model="demo", tools=(tool.spec,), permissions=rules, workspace=str(place))
    call = ToolCall(id="c", name="git_commit", arguments=given_)
    assert authorize(call, tool, tool.parse(given_), spec).judgement.verdict is not Verdict.ALLOW


@given(st.text(st.sampled_from("\\xXeE9fF0\udce9é/"), max_size=12))
def test_any_text_names_something(text: str) -> None:
    assert isinstance(name_from(text), str)
    assert isinstance(with_characters(text), str)
