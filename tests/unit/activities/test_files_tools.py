"""Reading, writing and editing files, and what keeps it inside the workspace."""

import os
import threading
import time
from pathlib import Path

import pytest

from loom.activities.adapters.documents.yaml_syntax import parse_yaml
from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.built_in.edit_feedback import Parsers
from loom.activities.toolbox.built_in.files import file_tools
from loom.domain.core.errors import ToolExecutionError, ToolUnavailableError, ToolValidationError
from loom.domain.permissions.subjects import Subject
from loom.file_changes import change_of

PARSERS: Parsers = dict.fromkeys(("yaml", "yml"), ("YAML", parse_yaml))
TOOLS: dict[str, Tool] = {tool.spec.name: tool for tool in file_tools(120, parsers=PARSERS)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return workspace.resolve()


async def call(name: str, place: Path, **arguments: object) -> str:
    tool = TOOLS[name]
    context = ToolContext(workspace=place, run_id="r", call_id="c", idempotency_key="k", timeout=5)
    output = await tool.run(tool.parse(arguments), context)
    return output if isinstance(output, str) else output.text


async def test_a_file_is_read_with_line_numbers(place: Path) -> None:
    (place / "a.txt").write_text("one\ntwo\r\n\nfour")
    assert await call("read_file", place, path="a.txt") == "     1\tone\n     2\ttwo\n     3\t\n     4\tfour"


async def test_a_part_of_a_file_says_how_to_go_on(place: Path) -> None:
    (place / "a.txt").write_text("".join(f"line {number}\n" for number in range(1, 101)))
    text = await call("read_file", place, path="a.txt", offset=10, limit=2)
    assert text == "    10\tline 10\n    11\tline 11\n(the file continues: read on with offset=12)"
    assert await call("read_file", place, path="a.txt", offset=100) == "   100\tline 100"


async def test_a_long_file_is_cut_at_a_line_and_can_be_paged_to_its_end(place: Path) -> None:
    lines = [f"{number} " + "x" * 90 for number in range(1, 501)]
    (place / "a.txt").write_text("\n".join(lines))
    seen: list[str] = []
    while len(seen) < 500:
        text = await call("read_file", place, path="a.txt", offset=len(seen) + 1)
        assert len(text) <= 10_000
        seen += [line.partition("\t")[2] for line in text.split("\n") if "\t" in line]
    assert seen == lines


async def test_a_very_long_line_is_cut(place: Path) -> None:
    (place / "a.txt").write_text("x" * 300_000)
    text = await call("read_file", place, path="a.txt")
    assert len(text) < 2100
    assert text.endswith("(298000 more characters in this line)")


async def test_an_empty_file_is_said_to_be_empty(place: Path) -> None:
    (place / "a.txt").touch()
    assert await call("read_file", place, path="a.txt") == "(the file is empty)"


async def test_reading_past_the_end_says_how_long_the_file_is(place: Path) -> None:
    (place / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(ToolValidationError, match="has only 2 lines"):
        await call("read_file", place, path="a.txt", offset=9)


async def test_a_binary_file_is_refused_with_a_hint(place: Path) -> None:
    (place / "a.bin").write_bytes(b"ab\0c")
    with pytest.raises(ToolValidationError, match="binary file: look at it with bash"):
        await call("read_file", place, path="a.bin")


async def test_a_missing_file_names_its_like(place: Path) -> None:
    (place / "src").mkdir()
    (place / "src/report.py").touch()
    with pytest.raises(ToolValidationError, match=r"did you mean src/report\.py"):
        await call("read_file", place, path="src/raport.py")
    with pytest.raises(ToolValidationError, match="nor does the folder"):
        await call("read_file", place, path="no/such.py")


async def test_a_folder_is_not_a_file(place: Path) -> None:
    (place / "src").mkdir()
    with pytest.raises(ToolValidationError, match=r"not a regular file|folder"):
        await call("read_file", place, path="src")
    with pytest.raises(ToolValidationError, match="not a regular file"):
        await call("write_file", place, path="src", content="x")


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "out/secret", "link", "loop", "a/../../secret", "~root/../../secret"]
)
@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file"])
async def test_nothing_outside_the_workspace_is_touched(place: Path, tool: str, path: str) -> None:
    secret = place.parent / "secret"
    secret.write_text("secret")
    (place / "out").symlink_to(place.parent)
    (place / "link").symlink_to(secret)
    (place / "loop").symlink_to(place / "loop")
    extra = {"read_file": {}, "write_file": {"content": "x"}, "edit_file": {"old_string": "secret", "new_string": "x"}}
    with pytest.raises((ToolValidationError, ToolExecutionError)):
        await call(tool, place, path=path, **extra[tool])
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("path", ["", "  ", "a\0b", "x" * 5000])
async def test_what_is_no_path_is_refused(place: Path, path: str) -> None:
    with pytest.raises((ToolValidationError, ToolExecutionError)):
        await call("write_file", place, path=path, content="x")


async def test_links_that_stay_inside_work(place: Path) -> None:
    (place / "real").mkdir()
    (place / "real/a.txt").write_text("one\n")
    (place / "link").symlink_to(place / "real")
    assert await call("read_file", place, path="link/a.txt") == "     1\tone"
    await call("write_file", place, path="link/a.txt", content="two\n")
    assert (place / "real/a.txt").read_text() == "two\n"
    assert (place / "link").is_symlink()


async def test_an_absolute_path_inside_is_taken(place: Path) -> None:
    await call("write_file", place, path=str(place / "a.txt"), content="x")
    assert (place / "a.txt").read_text() == "x"


async def test_pipes_and_devices_are_refused_at_once(place: Path) -> None:
    os.mkfifo(place / "pipe")
    for tool, extra in (("read_file", {}), ("write_file", {"content": "x"})):
        with pytest.raises(ToolValidationError, match="not a regular file"):
            await call(tool, place, path="pipe", **extra)


async def test_a_link_swapped_in_while_reading_never_leads_outside(place: Path) -> None:
    (place.parent / "outside").mkdir()
    (place.parent / "outside/a.txt").write_text("secret")
    (place / "real").mkdir()
    (place / "real/a.txt").write_text("fine")
    (place / "folder").symlink_to("real")
    stopped = threading.Event()

    def swap() -> None:
        while not stopped.is_set():
            for target in ("../outside", "real"):
                (place / "next").symlink_to(target)
                (place / "next").replace(place / "folder")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen: set[str] = set()
        for _ in range(1500):
            try:
                seen.add(await call("read_file", place, path="folder/a.txt"))
                await call("write_file", place, path="folder/a.txt", content="fine")
            except (ToolValidationError, ToolExecutionError):
                continue
    finally:
        stopped.set()
        thread.join()
    assert seen <= {"     1\tfine"}
    assert (place.parent / "outside/a.txt").read_text() == "secret"
    assert list((place.parent / "outside").iterdir()) == [place.parent / "outside/a.txt"]


async def test_writing_makes_folders_and_says_what_it_did(place: Path) -> None:
    assert await call("write_file", place, path="a/b/c.txt", content="é\n") == "created a/b/c.txt (1 lines, 3 bytes)"
    assert await call("write_file", place, path="a/b/c.txt", content="") == "overwrote a/b/c.txt (0 lines, 0 bytes)"
    assert list((place / "a/b").iterdir()) == [place / "a/b/c.txt"]


async def test_writing_keeps_the_mode_of_a_file(place: Path) -> None:
    script = place / "run.sh"
    script.write_text("old")
    script.chmod(0o755)
    await call("write_file", place, path="run.sh", content="new")
    assert script.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "sub/.git/config"])
async def test_what_git_obeys_is_not_written(place: Path, path: str) -> None:
    with pytest.raises(ToolValidationError, match="is protected"):
        await call("write_file", place, path=path, content="x")
    assert not (place / path).exists()


async def test_no_tool_sees_into_the_state_of_loom_itself(place: Path) -> None:
    (place / ".loom/redis").mkdir(parents=True)
    (place / ".loom/redis/redis.conf").write_text("requirepass secret")
    (place / "link").symlink_to(place / ".loom/redis/redis.conf")
    for tool, arguments in (
        ("read_file", {"path": ".loom/redis/redis.conf"}),
        ("read_file", {"path": "link"}),
        ("write_file", {"path": ".loom/x", "content": "x"}),
        ("list_dir", {"path": ".loom"}),
    ):
        with pytest.raises(ToolValidationError, match="Loom's own state"):
            await call(tool, place, **arguments)


async def test_a_text_that_is_there_once_is_replaced(place: Path) -> None:
    (place / "a.txt").write_text("one\ntwo\nthree\n")
    text = await call("edit_file", place, path="a.txt", old_string="two", new_string="2")
    assert text == "edited a.txt: 1 replacement(s) at line 2\n     1\tone\n     2\t2\n     3\tthree"
    assert (place / "a.txt").read_text() == "one\n2\nthree\n"


async def test_a_text_that_is_there_often_is_replaced_only_on_request(place: Path) -> None:
    (place / "a.txt").write_text("x\ny\nx\n")
    with pytest.raises(ToolValidationError, match=r"2 times in \S+ \(lines 1, 3\): include more lines around it"):
        await call("edit_file", place, path="a.txt", old_string="x", new_string="z")
    await call("edit_file", place, path="a.txt", old_string="x", new_string="z", replace_all=True)
    assert (place / "a.txt").read_text() == "z\ny\nz\n"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("absent", "x", "nothing like it is there: read the file again"),
        ("  two\n  wrong", "x", "nearest lines differ"),
        ("", "x", "`old_string` is empty"),
        ("one", "one", "nothing would change"),
    ],
)
async def test_an_edit_that_cannot_be_made_says_why(place: Path, old: str, new: str, complaint: str) -> None:
    (place / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(ToolValidationError, match=complaint):
        await call("edit_file", place, path="a.txt", old_string=old, new_string=new)
    assert (place / "a.txt").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("old", "answer"),
    [
        ("     2\t    if x:\n     3\t\t\treturn 1", "it has line numbers, which aren't part of the file"),
        (
            "  if x:\n    return 1",
            "only the indentation or spaces at the ends of lines differ. The file has:\n     2\t    if x:",
        ),
        ("    if  x:", "only spaces or tabs differ. The file has:\n     2\t    if x:"),
        ("    IF x:", "only upper and lower case, or spaces, differ"),
        ("def f(x):\\n    if x:", "escaped twice"),
        ("def f(x):\n    if y:\n\t\treturn 1", "The first different line is 2:\n     1\tdef f(x):\n     2\t    if x:"),
        ("import everything\n", "nothing like it is there"),
        ("retrun 2 # the  end", "The first different line is 4:\n     4\treturn 2 # the end"),
        ("return 1\nreturn 3", "nearest lines differ"),
    ],
)
async def test_a_miss_says_the_reason_and_shows_the_nearest_lines(place: Path, old: str, answer: str) -> None:
    (place / "a.py").write_text("def f(x):\n    if x:\n\t\treturn 1\nreturn 2 # the end\n")
    with pytest.raises(ToolValidationError) as caught:
        await call("edit_file", place, path="a.py", old_string=old, new_string="something else")
    assert answer in caught.value.message


async def test_an_edit_that_was_made_already_is_recognised(place: Path) -> None:
    (place / "a.txt").write_text("one\nthree\n")
    with pytest.raises(ToolValidationError, match="`new_string` is there already, at line 2"):
        await call("edit_file", place, path="a.txt", old_string="two", new_string="three")


async def test_the_changed_lines_of_every_place_are_shown(place: Path) -> None:
    (place / "a.txt").write_text("".join(f"{number}\n" for number in range(1, 41)).replace("0\n", "0 x\n"))
    text = await call("edit_file", place, path="a.txt", old_string=" x", new_string="\ny", replace_all=True)
    assert text.startswith(
        "edited a.txt: 4 replacement(s) at lines 10, 20, 30, 40\n     8\t8\n     9\t9\n    10\t10\n    11\ty\n"
    )
    assert "\n…\n    19\t18\n    20\t19\n    21\t20\n    22\ty\n" in text
    assert text.endswith("(1 more places)")
    (place / "b.txt").write_text("gone")
    assert (await call("edit_file", place, path="b.txt", old_string="gone", new_string="")).endswith("empty now)")


@pytest.mark.parametrize(
    ("name", "before", "edit", "answer"),
    [
        ("a.py", "x = (1)\n", (")", ""), "The file no longer parses as Python: '(' was never closed, line 1"),
        ("a.py", "x = (1\n", ("1", "2"), "The file does not parse as Python, as before the edit"),
        ("a.json", '{"a": 1}', ("}", ",}"), "The file no longer parses as JSON"),
        ("a.toml", "a = 1\n", ("1", ""), "The file no longer parses as TOML"),
        ("a.yml", "a: [1]\n", ("]", ""), "The file no longer parses as YAML"),
        ("a.yaml", "a: !x 1\n", ("1", "2"), ""),
        ("a.py", "x = 1\n", ("1", "2"), ""),
        ("a.txt", "x = (1)\n", (")", ""), ""),
    ],
)
async def test_an_edit_says_when_the_file_no_longer_parses(
    place: Path, name: str, before: str, edit: tuple[str, str], answer: str
) -> None:
    (place / name).write_text(before)
    text = await call("edit_file", place, path=name, old_string=edit[0], new_string=edit[1])
    assert answer in text
    assert bool(answer) == ("parse" in text)


async def test_a_miss_in_a_long_file_is_answered_at_once(place: Path) -> None:
    (place / "a.txt").write_text("".join(f"line {number} of many lines\n" for number in range(200_000)))
    begun = time.process_time()
    with pytest.raises(ToolValidationError, match="is not in"):
        await call("edit_file", place, path="a.txt", old_string="lime of\n" * 100, new_string="x")
    assert time.process_time() - begun < 60  # were each place compared with all others, it would be hours


async def test_a_file_is_deleted_and_a_folder_is_not(place: Path) -> None:
    (place / "sub").mkdir()
    (place / "sub/a.txt").write_text("x")
    (place / "link").symlink_to("sub/a.txt")
    assert await call("delete_file", place, path="link") == "deleted link"
    assert await call("delete_file", place, path="sub/a.txt") == "deleted sub/a.txt"
    assert [path.name for path in place.rglob("*")] == ["sub"]
    for path, complaint in (
        ("sub", "is a folder"),
        ("sub/b", "does not exist"),
        (".", "workspace itself"),
        ("../x", "outside"),
    ):
        with pytest.raises(ToolValidationError, match=complaint):
            await call("delete_file", place, path=path)


async def test_a_file_that_others_obey_is_not_deleted(place: Path) -> None:
    (place / ".git").mkdir()
    (place / ".git/config").write_text("x")
    (place / "git").symlink_to(".git")
    for path in (".git/config", "git/config", ".git"):
        with pytest.raises(ToolValidationError, match=r"\.git"):
            await call("delete_file", place, path=path)
    assert (place / ".git/config").exists()


async def test_an_edit_keeps_windows_line_ends(place: Path) -> None:
    (place / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await call("edit_file", place, path="a.txt", old_string="one\ntwo", new_string="1\n2")
    assert (place / "a.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one\r\ntwo\r\nthree\r\n", "two", "two\ntwo and a half", b"one\r\ntwo\r\ntwo and a half\r\nthree\r\n"),
        (b"a\nb\r\nc\n", "a\nb\nc", "A\nB\nC", b"A\nB\r\nC\n"),
        (b"a\rb\r", "b", "b\nc", b"a\rb\rc\r"),
        (b"\xef\xbb\xbfx = 1\r\n", "\ufeffx = 1", "\ufeffx = 2\ny = 3", b"\xef\xbb\xbfx = 2\r\ny = 3\r\n"),
        ("\ufeffone \u20ac\r\n".encode("utf-16-le"), "one €", "ä\n€", "\ufeffä\r\n€\r\n".encode("utf-16-le")),
        (b"caf\xe9\r\none\r\n", "one", "two\nmore", b"caf\xe9\r\ntwo\r\nmore\r\n"),
    ],
)
async def test_an_edit_keeps_encoding_mark_and_line_ends_and_shows_what_it_changed(
    place: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    (place / "a.txt").write_bytes(before)
    call_of = {"path": "a.txt", "old_string": old, "new_string": new}
    preview = change_of("edit_file", call_of, str(place))
    said = await call("edit_file", place, **call_of)
    assert (place / "a.txt").read_bytes() == after
    for line in new.removeprefix("\ufeff").split("\n"):
        assert f"\t{line}" in said
        assert line in (preview or "")


async def test_a_byte_order_mark_is_no_mistake_in_python(place: Path) -> None:
    (place / "a.py").write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert "parse" not in await call("edit_file", place, path="a.py", old_string="1", new_string="2")
    assert await call("read_file", place, path="a.py") == "     1\tx = 2"


async def test_a_text_in_an_unknown_encoding_gets_no_characters_of_utf8(place: Path) -> None:
    (place / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ToolValidationError, match="is not UTF-8, and `new_string` has characters"):
        await call("edit_file", place, path="a.txt", old_string="caf", new_string="th\xe9")
    with pytest.raises(ToolValidationError, match=r"shown as \\xNN cannot be in `old_string`"):
        await call("edit_file", place, path="a.txt", old_string="caf\\xe9", new_string="tea")
    assert (place / "a.txt").read_bytes() == b"caf\xe9"


async def test_an_edit_of_line_ends_alone_says_when_they_differ(place: Path) -> None:
    (place / "a.txt").write_bytes(b"a\nb\n")
    with pytest.raises(ToolValidationError, match="only line ends differ"):
        await call("edit_file", place, path="a.txt", old_string="a\r\n", new_string="a\n")
    await call("edit_file", place, path="a.txt", old_string="a\n", new_string="a\r\n")
    assert (place / "a.txt").read_bytes() == b"a\r\nb\n"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("\ufeffone\r\ntwo".encode("utf-16-le"), "     1\tone\n     2\ttwo"),
        ("\ufeffone\ntwo".encode("utf-16-be"), "     1\tone\n     2\ttwo"),
        ("\ufeffone\ntwo".encode("utf-32-le"), "     1\tone\n     2\ttwo"),
        (b"one\rtwo\r", "     1\tone\n     2\ttwo"),
        (b"\xef\xbb\xbfone\r\ntwo", "     1\tone\n     2\ttwo"),
        (
            b"caf\xe9\n",
            "     1\tcaf\\xe9\n(not UTF-8: other bytes are shown as \\xNN, and edit_file keeps them)",
        ),
    ],
)
async def test_a_text_of_any_encoding_is_read(place: Path, data: bytes, shown: str) -> None:
    (place / "a.txt").write_bytes(data)
    assert await call("read_file", place, path="a.txt") == shown


@pytest.mark.parametrize("tool", ["read_file", "edit_file"])
async def test_a_text_that_belies_its_mark_is_refused(place: Path, tool: str) -> None:
    (place / "a.txt").write_bytes(b"\xff\xfea")
    more = {"old_string": "a", "new_string": "b"} if tool == "edit_file" else {}
    with pytest.raises(ToolValidationError, match="has the byte order mark of UTF-16-LE, but is not valid in it"):
        await call(tool, place, path="a.txt", **more)


@pytest.mark.parametrize(
    ("before", "content", "after", "told"),
    [
        (b"a\r\n", "x\ny\n", b"x\r\ny\r\n", "; as before, it has CRLF line ends"),
        (b"a\r\n", "x\r\ny\n", b"x\r\ny\n", ""),
        (b"a\rb\r", "x\ny", b"x\ry", "; as before, it has CR line ends"),
        (b"\xef\xbb\xbfa\n", "x\n", b"\xef\xbb\xbfx\n", "; as before, it has a byte order mark"),
        (b"\xef\xbb\xbfa\n", "\ufeffx\n", b"\xef\xbb\xbfx\n", "; as before, it has a byte order mark"),
        (b"\xff\xfea\0", "é", b"\xff\xfe\xe9\0", "; as before, it has the encoding UTF-16-LE"),
        (b"a\nb\r\n", "x\n", b"x\n", "; it had several kinds of line ends, and now has those of `content`"),
        (b"caf\xe9\r\n", "é\n", b"\xc3\xa9\r\n", "; it was not UTF-8, and is now; as before, it has CRLF line ends"),
        (b"\0\r\n", "x\n", b"x\n", ""),
        (b"a\n", "x\n", b"x\n", ""),
    ],
)
async def test_a_file_that_is_written_again_keeps_its_form(
    place: Path, before: bytes, content: str, after: bytes, told: str
) -> None:
    (place / "a.txt").write_bytes(before)
    said = await call("write_file", place, path="a.txt", content=content)
    assert (place / "a.txt").read_bytes() == after
    assert said.partition(" bytes)")[2] == told


async def test_a_name_that_is_not_utf8_is_shown_in_a_form_that_names_it_again(place: Path) -> None:
    folder = os.fsencode(place) + b"/d\xe9"
    os.mkdir(folder)
    os.close(os.open(folder + b"/caf\xe9.txt", os.O_CREAT))
    assert await call("list_dir", place) == "d\\xe9/"
    assert await call("list_dir", place, path=r"d\xe9") == "caf\\xe9.txt (0 bytes)"
    assert await call("write_file", place, path=r"d\xe9/caf\xe9.txt", content="one") == (
        "overwrote d\\xe9/caf\\xe9.txt (1 lines, 3 bytes)"
    )
    await call("edit_file", place, path=r"d\xe9/caf\xe9.txt", old_string="one", new_string="two")
    assert await call("read_file", place, path=r"d\xe9/caf\xe9.txt") == "     1\ttwo"
    await call("write_file", place, path=r"d\xe9/new.txt", content="new")
    with pytest.raises(ToolValidationError, match=r"did you mean d\\xe9/caf\\xe9.txt"):
        await call("read_file", place, path=r"d\xe9/cafe.txt")
    await call("delete_file", place, path=r"d\xe9/caf\xe9.txt")
    assert os.listdir(folder) == [b"new.txt"]
    tool = TOOLS["read_file"]
    named = tool.subjects(tool.parse({"path": r"d\xe9/new.txt"}), place)
    assert {each.text for each in named} == {"d\\xe9/new.txt"}


async def test_a_name_as_it_is_goes_before_one_with_other_bytes(place: Path) -> None:
    await call("write_file", place, path=r"caf\xe9.txt", content="plain")
    os.close(os.open(os.fsencode(place) + b"/caf\xe9.txt", os.O_CREAT))
    assert await call("read_file", place, path=r"caf\xe9.txt") == "     1\tplain"


async def test_a_folder_is_listed_with_kinds_and_sizes(place: Path) -> None:
    (place / "b").mkdir()
    (place / "a.txt").write_text("abc")
    (place / "c").symlink_to("/etc")
    os.mkfifo(place / "d")
    assert await call("list_dir", place) == "a.txt (3 bytes)\nb/\nc@\nd (not a file)"
    assert await call("list_dir", place, path="b") == "(the folder is empty)"


async def test_rules_see_a_path_as_named_and_as_it_is(place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    tool = TOOLS["write_file"]
    arguments = tool.parse({"path": "link/../link/a.txt", "content": ""})
    assert tool.subjects(arguments, place) == (
        Subject(text="link/a.txt", loose=str(place / "link/a.txt")),
        Subject(text="real/a.txt", loose=str(place / "real/a.txt")),
    )
    assert tool.grants(arguments) == ("write_file",)


async def test_wrong_arguments_are_explained_one_per_line() -> None:
    with pytest.raises(ToolValidationError) as raised:
        TOOLS["read_file"].parse({"pth": "a", "limit": "many", "offset": 0})
    assert raised.value.message.split("\n") == [
        "read_file was not run because its arguments are wrong:",
        "- `path` is missing: add it (string)",
        "- `offset` must be at least 1, got 0: send integer: First line",
        "- `limit` must be a whole number, got 'many': send integer: Lines",
        "- `pth` is not an argument: leave it out; did you mean `path`? read_file takes path, offset, limit",
    ]


def test_an_argument_given_as_null_counts_as_not_given() -> None:
    tool = TOOLS["read_file"]
    assert tool.parse({"path": "a", "limit": None}) == tool.parse({"path": "a"})


def test_schemas_are_small() -> None:
    assert TOOLS["list_dir"].spec.parameters == {"properties": {"path": {"type": "string"}}, "type": "object"}


async def test_without_a_workspace_files_are_unavailable() -> None:
    with pytest.raises(ToolUnavailableError, match="no workspace"):
        await call("read_file", Path(), path="a")
