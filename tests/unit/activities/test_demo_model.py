"""The demo model over a small workspace of fake tools: what it does follows from what they return."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from loom.activities.adapters.models.demo.model import DemoModel
from loom.activities.adapters.models.demo.report import examine, findings
from loom.activities.adapters.models.demo.scene import HOW_TO_GO_ON, LABEL
from loom.activities.ports import ModelAnswer, ModelCall
from loom.domain.core.messages import Message, ToolCall, reminder, user
from loom.domain.core.tool_calls import ToolSpec

ALL = ("read_file", "write_file", "edit_file", "list_dir", "glob", "grep", "bash", "done")

BAD = """import os

API_KEY = "sk-1234567890abcdef1234"


def load(path):
    try:
        return open(path).read()
    except:
        return None  # TODO say why
"""
GOOD = '"""A module."""\n\n\ndef add(a, b):\n    """Add."""\n    return a + b\n'
FILES = {"README.md": "# Shop\n\nSells things.\n", "shop.py": BAD, "lib/add.py": GOOD, "tests/test_add.py": GOOD}

Tools = Callable[[ToolCall], tuple[str, bool]]


def listed(files: Mapping[str, str]) -> str:
    return "\n".join(
        sorted({path.split("/")[0] + ("/" if "/" in path else f" ({len(files[path])} bytes)") for path in files})
    )


def written(text: str, given: Mapping[str, Any]) -> str:
    return str(given.get("content") or text.replace(given["old_string"], given["new_string"]))


def found(files: Mapping[str, str], pattern: str) -> str:
    said = re.compile(pattern, re.IGNORECASE)
    lines = ((path, n, line) for path in files for n, line in enumerate(files[path].splitlines(), 1))
    return "\n".join(f"{path}:{n}:{line}" for path, n, line in lines if said.search(line))


def workspace(files: Mapping[str, str]) -> tuple[dict[str, str], Tools]:
    """Tools over files in memory, with the outputs that the real ones have; the second value is 'failed'."""
    there = dict(files)

    def numbered(text: str) -> str:
        return "\n".join(f"{n:6}\t{line}" for n, line in enumerate(text.splitlines(), 1))

    def run(call: ToolCall) -> tuple[str, bool]:
        path = str(call.arguments.get("path", ""))
        match call.name:
            case "list_dir":
                return listed(there), False
            case "glob":
                folder = str(call.arguments["pattern"]).removesuffix("**/*.py")
                return "\n".join(p for p in sorted(there) if p.startswith(folder) and p.endswith(".py")), False
            case "grep":
                return found(there, str(call.arguments["pattern"])), False
            case "read_file" if path in there:
                return numbered(there[path]), False
            case "write_file" | "edit_file":
                there[path] = written(there.get(path, ""), call.arguments)
                return f"wrote {path}", False
            case _:
                return f"no such file: {path}", True

    return there, run


class Talk:
    """A conversation with the demo model that carries its calls out."""

    def __init__(self, task: str, tools: Tools, offered: tuple[str, ...] = ALL) -> None:
        self.messages = [user(task)]
        self.heard: list[str] = []
        self.turns: list[list[str]] = []
        self.answers: list[ModelAnswer] = []
        self._tools = tools
        self._specs = tuple(ToolSpec(name=name, description=name, parameters={}) for name in offered)

    async def turn(self) -> ModelAnswer:
        call = ModelCall(model="demo", system="Be good.", messages=tuple(self.messages), tools=self._specs)
        answer = await DemoModel(pause=0).answer(call, self.heard.append)
        self.answers.append(answer)
        self.turns.append([made.name for made in answer.message.tool_calls])
        self.messages.append(answer.message)
        for made in answer.message.tool_calls:
            if made.name != "done":
                text, failed = self._tools(made)
                self.messages.append(
                    Message(role="tool", tool_call_id=made.id, name=made.name, content=text, is_error=failed)
                )
        return answer

    async def run(self) -> str:
        """Turn after turn to the end; the final answer."""
        for _ in range(10):
            answer = await self.turn()
            done = [made for made in answer.message.tool_calls if made.name == "done"]
            if done:
                return str(done[0].arguments["result"])
            if not answer.message.tool_calls:
                return answer.message.text
        raise AssertionError("no end")


async def test_an_audit_reads_writes_checks_and_ends() -> None:
    there, tools = workspace(FILES)
    talk = Talk("Audit this project and write a report.", tools)
    result = await talk.run()
    assert talk.turns == [
        ["list_dir", "glob"],
        ["read_file", "read_file", "read_file", "grep"],
        ["write_file"],
        ["read_file"],
        ["done"],
    ]
    assert [made.arguments["path"] for made in talk.answers[1].message.tool_calls[:3]] == [
        "lib/add.py",
        "shop.py",
        "tests/test_add.py",
    ]
    assert result.startswith(LABEL)
    assert "report.md (read back and complete)" in result
    report = there["report.md"]
    assert "| shop.py | 10 | 1 | load (5) |" in report
    assert "**high** shop.py:3: looks like a hard-coded secret" in report
    assert "**medium** shop.py:9: bare `except:`" in report
    assert "**low** shop.py:10: unfinished" in report
    assert "**low** shop.py: no docstring: `load`" in report
    assert "sk-1234567890abcdef1234" not in report
    assert "demo model" in report


async def test_other_files_give_another_report() -> None:
    there, tools = workspace({"a.py": GOOD})
    await Talk("review it", tools).run()
    assert "Nothing stands out." in there["report.md"]


@pytest.mark.parametrize(
    ("task", "path"),
    [
        ("audit, write it to docs/audit.md please", "docs/audit.md"),
        ("Report on report.py into `out.txt`.", "out.txt"),
        ("审查代码，把意见写进 review.md。", "review.md"),
    ],
)
async def test_the_report_goes_where_the_task_says(task: str, path: str) -> None:
    there, tools = workspace(FILES)
    assert path in await Talk(task, tools).run()
    assert there[path].startswith("# Audit of 3 files")


@pytest.mark.parametrize(
    ("task", "read"),
    [
        ("Read lib/ and write a review to review.md", ["lib/add.py"]),
        ("Review the code in lib/, write it to docs/", ["lib/add.py"]),
        ("阅读 lib/，把评审意见写进 review.md", ["lib/add.py"]),
        ("Review lib/*.py", ["lib/add.py", "shop.py", "tests/test_add.py"]),
        ("Review and report to docs/", ["lib/add.py", "shop.py", "tests/test_add.py"]),
    ],
)
async def test_only_the_folder_that_the_task_names_is_read(task: str, read: list[str]) -> None:
    _, tools = workspace(FILES)
    talk = Talk(task, tools)
    await talk.run()
    assert [made.arguments["path"] for made in talk.answers[1].message.tool_calls if made.name == "read_file"] == read


@pytest.mark.parametrize("shown", [(3, 9), (10, 10)])
async def test_of_a_file_that_was_read_in_part_only_its_lines_are_judged(shown: tuple[int, int]) -> None:
    there, tools = workspace(FILES)
    until, since = shown

    def cut(call: ToolCall) -> tuple[str, bool]:
        text, failed = tools(call)
        lines = text.splitlines()
        if call.arguments.get("path") != "shop.py":
            return text, failed
        return "\n".join([*lines[:until], *lines[since:], "(the file goes on)"]), failed

    await Talk("audit", cut).run()
    assert "| shop.py | 10, read in part | 0 | – |" in there["report.md"]
    assert "shop.py:10: unfinished" in there["report.md"]
    assert "not valid Python" not in there["report.md"]


async def test_text_streams_in_small_pieces_and_says_what_it_is() -> None:
    talk = Talk("audit", workspace(FILES)[1])
    answer = await talk.turn()
    assert "".join(talk.heard) == answer.message.text
    assert answer.message.text.startswith(LABEL)
    assert len(talk.heard) > 5


async def test_call_ids_differ_through_the_conversation_and_tokens_are_counted() -> None:
    talk = Talk("audit", workspace(FILES)[1])
    await talk.run()
    ids = [made.id for answer in talk.answers for made in answer.message.tool_calls]
    assert len(set(ids)) == len(ids)
    inputs = [answer.usage.input_tokens for answer in talk.answers]
    assert inputs == sorted(inputs)
    assert inputs[0] > 0
    assert all(answer.usage.output_tokens > 0 and answer.usage.model_calls == 1 for answer in talk.answers)


async def test_a_denied_write_is_explained_and_ends_the_task() -> None:
    there, tools = workspace(FILES)
    denying: Tools = lambda call: ("Not permitted: no writing.", True) if call.name == "write_file" else tools(call)  # noqa: E731
    talk = Talk("audit", denying)
    result = await talk.run()
    assert "The report was not written: Not permitted: no writing." in result
    assert talk.turns[-2:] == [["write_file"], ["done"]]
    assert "report.md" not in there


async def test_files_that_cannot_be_read_are_named() -> None:
    there, tools = workspace(FILES)
    failing: Tools = lambda call: ("disk error", True) if call.arguments.get("path") == "shop.py" else tools(call)  # noqa: E731
    await Talk("audit", failing).run()
    assert "- shop.py: disk error" in there["report.md"]
    assert "- shop.py:10:" in there["report.md"], "grep still knows of the unread file"


async def test_when_nothing_can_be_looked_at_it_says_why() -> None:
    talk = Talk("audit", lambda _: ("the workspace is gone", True))
    result = await talk.run()
    assert "the workspace is gone" in result
    assert talk.turns == [["list_dir", "glob"], ["done"]]


async def test_a_report_that_is_not_there_afterwards_is_not_claimed() -> None:
    _, tools = workspace(FILES)
    losing: Tools = lambda call: ("wrote report.md", False) if call.name == "write_file" else tools(call)  # noqa: E731
    assert "could not confirm" in await Talk("audit", losing).run()


async def test_what_people_say_meanwhile_reaches_report_and_answer() -> None:
    there, tools = workspace(FILES)
    talk = Talk("audit", tools)
    await talk.turn()
    talk.messages += [user("look at errors first, and write to found.md"), reminder("nearly spent")]
    result = await talk.run()
    assert "- look at errors first" in there["found.md"]
    assert "Meanwhile you said: look at errors first" in result
    assert "nearly spent" not in there["found.md"] + result


@pytest.mark.parametrize(
    ("offered", "turns"),
    [
        (("list_dir", "read_file"), [["list_dir"], ["read_file"], []]),
        (("glob", "read_file", "write_file"), [["glob"], ["read_file"] * 3, [*["write_file"]], ["read_file"], []]),
        (("bash",), [[]]),
        ((), [[]]),
    ],
)
async def test_it_uses_only_what_is_offered(offered: tuple[str, ...], turns: list[list[str]]) -> None:
    talk = Talk("audit", workspace(FILES)[1], offered)
    result = await talk.run()
    assert talk.turns == turns
    assert result.startswith(LABEL)


NOTES = {"notes.txt": "The quik fox.\nIt lands.\nTODO: a title\n", "sub/fruit.md": "Apples and pears.\n"}


MENDED = NOTES["notes.txt"].replace("quik", "quick")


@pytest.mark.parametrize(
    ("task", "said", "changed"),
    [
        ("How many words has notes.txt?", "notes.txt has 3 lines and 8 words.", {}),
        ("Show me sub/fruit.md", "    Apples and pears.", {}),
        ("Summarise notes.txt in one sentence", "I can't do more for 'Summarise notes.txt in one sentence'", {}),
        ("把 notes.txt 翻译成中文", "    The quik fox.", {}),
        ("List the files here", "- notes.txt\n- sub/", {}),
        ("List all TODOs", "- notes.txt:3:TODO: a title", {}),
        ("Which file mentions apples?", "- sub/fruit.md:1:Apples and pears.", {}),
        ("Which file mentions plums?", "I found no 'plums' in the files here.", {}),
        ("What does missing.txt say?", "What failed: read_file: no such file: missing.txt", {}),
        ("Replace quik with quick in notes.txt", "I replaced", {"notes.txt": MENDED}),
        ("Replace plum with pear in notes.txt", "Nothing was changed: I found no 'plum'", {}),
        ("Create a file hello.txt with the text Hello", "I wrote hello.txt.", {"hello.txt": "Hello\n"}),
    ],
)  # fmt: skip
async def test_small_tasks_on_text_files_are_done_by_rules(task: str, said: str, changed: dict[str, str]) -> None:
    there, tools = workspace(NOTES)
    answer = await Talk(task, tools).run()
    assert answer.startswith(LABEL)
    assert said in answer
    assert there == {**NOTES, **changed}


@pytest.mark.parametrize(
    ("task", "call", "said"),
    [
        ("Rename notes.txt to report.md", "mv -n -- notes.txt report.md && test ! -e notes.txt", "I renamed notes.txt"),
        ("Sort the lines of notes.txt.", "sort -o notes.txt -- notes.txt", "I sorted the lines of notes.txt."),
        ("Append the line 'TODO; ls' to notes.txt", "printf '%s\\n' 'TODO; ls' >>notes.txt", "I appended 'TODO; ls'"),
        ("Please delete notes.txt", "notes.txt", "I deleted notes.txt."),
        ("What is the largest file?", ".", "The largest file here is notes.txt with 38 bytes."),
        ("Delete the word fox from notes.txt", "notes.txt", "I can't do more for 'Delete the word fox"),
        ("Sort notes.txt by length", "notes.txt", "I can't do more for 'Sort notes.txt by length'"),
    ],
)
async def test_whole_files_are_changed_by_one_call_or_not_at_all(task: str, call: str, said: str) -> None:
    _, tools = workspace(NOTES)
    changes = ("bash", "delete_file")
    done: Tools = lambda call: ("", False) if call.name in changes else tools(call)  # noqa: E731
    talk = Talk(task, done, (*ALL, "delete_file"))
    assert said in await talk.run()
    (made,) = talk.answers[0].message.tool_calls
    assert next(iter(made.arguments.values())).endswith(call)

    failing: Tools = lambda call: ("denied", True) if call.name in changes else tools(call)  # noqa: E731
    answer = await Talk(task, failing, (*ALL, "delete_file")).run()
    assert (said in answer) != ("denied" in answer)


async def test_what_is_no_text_is_said_and_not_counted() -> None:
    answer = await Talk("How many lines has a.png?", lambda _: ("a.png: image/png, 9 bytes", False)).run()
    assert answer == f"{LABEL}a.png has no text that I can show: image/png, 9 bytes"


async def test_a_refused_change_is_not_claimed() -> None:
    there, tools = workspace(NOTES)
    refused: Tools = lambda call: ("denied", True) if call.name in ("write_file", "edit_file") else tools(call)  # noqa: E731
    for task in ("Replace quik with quick in notes.txt", "Create hello.txt with the text Hello"):
        answer = await Talk(task, refused).run()
        assert "denied" in answer
        assert "not written" in answer or "Nothing was changed" in answer
    assert there == NOTES


async def test_another_task_gets_an_honest_answer_with_a_way_out() -> None:
    talk = Talk("Translate the shop into French.", workspace(FILES)[1])
    result = await talk.run()
    assert talk.turns == [["list_dir"], ["read_file"], []]
    assert "stand-in" in result
    assert "README.md begins: # Shop" in result
    assert HOW_TO_GO_ON in result


async def test_asked_for_done_it_calls_done_with_what_it_said() -> None:
    talk = Talk("Translate.", workspace(FILES)[1])
    said = await talk.run()
    talk.messages.append(reminder("Call the `done` tool."))
    assert await talk.run() == said


async def test_a_new_question_after_the_end_is_a_new_task() -> None:
    there, tools = workspace(FILES)
    talk = Talk("Translate.", tools)
    await talk.run()
    talk.messages.append(user("Then audit it."))
    await talk.run()
    assert "Then audit it." in there["report.md"]


def test_what_is_no_python_is_counted_all_the_same() -> None:
    broken = examine("x.py", "def broken(:\n    pass  # TODO\n")
    assert (broken.unparsed, broken.lines, broken.todos) == (True, 2, (2,))
    long = examine("y.py", "def long():\n" + "    pass\n" * 60 + 'x = "\\d"\n')
    assert [(f.severity, re.sub(r"\d+", "N", f.what)) for f in findings([long])] == [
        ("medium", "function `long` has N lines"),
        ("low", "no docstring: `long`"),
    ]
    assert replace(examine("z.js", "// FIXME\n"), path="z.py").todos == (1,)
