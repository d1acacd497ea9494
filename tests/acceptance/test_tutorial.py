"""The tutorial, from `mkdir reviews` to `loom replay --all`: one reader, one terminal, and every line of every page.

The pages are the script. Nothing of them is repeated here: only which keys the reader presses, what a page promises
beside what it prints, and the words that differ from reader to reader.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any, Final

import psutil
import pytest
import yaml

from loom.stack import up_down
from loom.testing.model_server import Reply, SeenRequest, ThreadedModelServer, ToolUse, calls, text
from tests import package_index
from tests.docs_pages import ROOT, Block, blocks
from tests.processes import command_of
from tests.terminal import Terminal, terminal

KINDS: Final = ("console", "text", "python", "yaml", "toml")
PAGES: Final = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
BLOCKS: Final = tuple(block for block in blocks(*KINDS) if block.page.startswith("docs/tutorial/"))
SLOW: Final = 120.0
"""Seconds that the slowest lines may take: `pip install` and `pytest`."""
STYLING: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[=>]|\r")
PROMPT: Final = re.compile(rb"\x1b\]133;D;(\d+)\x07")
"""What bash writes before each prompt, as terminals with shell integration have it: the last command's exit code."""
FIRST_LINE: Final = re.compile(r"# (\S+\.(?:py|yaml|toml))\n")

# ---- what the reader does besides typing ----------------------------------------------------------------------------

KEYS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    'loom run "Read src/ and write a review to review.md"': (("[y] once", "y"),),
    "loom inbox": (("[y] once", "y"),),
    "loom worker --app review_tools:app": (("worker_ready", "\x03"),),
}
"""What a command shows, and the key that is pressed then. A pager gets its keys as the first page says."""
OWN_WORDS: Final[Mapping[str, str]] = {
    "9701": "{pid}",  # "`loom doctor` shows the worker's process id in brackets"
    # "For a server of your own …, also set `OPENAI_BASE_URL`", and "if the server's calls are free, …"
    "OPENAI_API_KEY=…": "OPENAI_API_KEY=sk-own OPENAI_BASE_URL={model} LOOM_UNKNOWN_PRICE=free",
    # "If `loom doctor` shows another address, pass it with `--address`"
    "temporal workflow start": "temporal workflow start --address {temporal}",
    # The servers of production are those of `loom up`, which have Temporal's default Namespace.
    "temporal.internal:7233": "{temporal}",
    "TEMPORAL_NAMESPACE=agents": "TEMPORAL_NAMESPACE=default",
    "postgresql://loom:…@db.internal/loom": "{postgres}",
    "redis://cache.internal:6379/0": "{redis}",
}
"""The words that differ from reader to reader. All else is typed as it is printed."""
WAITS: Final = "loom status @last"
"""`loom status` shows when the run waits: the reader types it until it does."""
CALLED: Final = {"async def review()": "\nimport asyncio\n\nprint(asyncio.run(review()))\n"}
"""A page that shows only a function leaves calling it to the reader."""

# ---- the model of page 4 and the following --------------------------------------------------------------------------

AGENT: Final = next(yaml.safe_load(block.text) for block in BLOCKS if block.kind == "yaml")
REVIEW: Final = "src/calc.py:1: add() has no docstring.\n"
FINDING: Final = {"file": "src/calc.py", "line": 1, "text": "add() has no docstring."}
ANSWER: Final = "One finding, which is in review.md."
STEPS: Final = (
    calls(ToolUse("list_dir", {"path": "src"}), ToolUse("read_file", {"path": "src/calc.py"})),
    calls(ToolUse("long_lines", {"path": "src/calc.py", "limit": 10})),
    calls(ToolUse("write_file", {"path": "review.md", "content": REVIEW})),
)


def reviewer(request: SeenRequest) -> Reply:
    """Plays the agent of page 4. Without an agent's prompt, it only answers."""
    told = str(request.messages[0]["content"])
    if AGENT["system_prompt"].strip() not in told:
        return text("I have seen src/.")
    if request.turn < len(STEPS):
        return STEPS[request.turn]
    return text(json.dumps({"findings": [FINDING]}) if '"findings"' in told else ANSWER)  # a schema is in the prompt


# ---- the reader -----------------------------------------------------------------------------------------------------


@dataclass
class Reader:
    """A person who types what the pages say, and bash at a terminal."""

    shown: Terminal
    folder: Path
    env: Mapping[str, str]
    model_url: str
    typed: list[str] = field(default_factory=list)
    """The lines of pages, as printed."""
    printed: str = ""
    """What the last of them has printed."""
    replaced: set[str] = field(default_factory=set)
    """The words that were replaced."""
    pids: list[str] = field(default_factory=list)
    """The worker's processes, as `loom doctor` has shown them."""
    kept: set[tuple[int, str]] = field(default_factory=set)
    """The promises that were checked."""
    _from: int = 0
    """Where the output of the last command begins."""

    def read(self, block: Block) -> None:
        """Do what a block is for."""
        name = FIRST_LINE.match(block.text)
        if block.kind == "console":
            for line, expected in lines_of(block):
                self.follow(block, line, expected)
        elif block.kind == "text":
            assert_printed(block.text, self.printed, str(block))
        elif name:
            self.save(name[1], block.text)
        else:
            assert block.kind == "python", f"{block}: a file without a name"
            added = next((call for opening, call in CALLED.items() if opening in block.text), "")
            program = re.findall(r"async def (\w+)", block.text)[0] + ".py"
            self.save(program, block.text + added)
            self.keep_promise(block, f"python {program}", self.type(f"python {program}"))

    def save(self, name: str, content: str) -> None:
        """Save a file in the project's folder."""
        path = self.project / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    def follow(self, block: Block, line: str, expected: str) -> None:
        """Type a line of a page, and compare what is printed with what the page shows."""
        printed = self.type(self.own_words(line), KEYS.get(line, ()))
        deadline = monotonic() + SLOW
        while line == WAITS and "loom approve" not in printed:
            assert monotonic() < deadline, f"{block}: the run doesn't ask\n{printed}"
            printed = self.type(line)
        assert_printed(expected, printed, f"{block}: {line}")
        self.typed.append(line)
        self.printed = printed
        if line == "loom doctor":
            self.pids += re.findall(r"worker .*\[(\d+)]", printed)
        self.keep_promise(block, line, printed)

    def keep_promise(self, block: Block, line: str, printed: str) -> None:
        """Check what the page says about a line beside what it prints."""
        for (page, opening), promise in PROMISES.items():
            if page == page_number(block) and line.startswith(opening):
                promise(self, printed)
                self.kept.add((page, opening))

    def own_words(self, line: str) -> str:
        """The line with this reader's own words."""
        for word, own in OWN_WORDS.items():
            if word in line:
                values = {"model": self.model_url, "pid": self.pids[-1], **self.addresses}
                line = line.replace(word, own.format(**values))
                self.replaced.add(word)
        return line

    @property
    def project(self) -> Path:
        """The folder that the first page creates."""
        return self.folder / "reviews"

    def ask(self, *words: str) -> Any:
        """What `loom … --json` prints; the reader doesn't see it."""
        program = self.project / ".venv" / "bin" / "loom"
        ran = subprocess.run(
            [program, *words, "--json"], cwd=self.project, env=self.env, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    @cached_property
    def addresses(self) -> dict[str, str]:
        """Where the servers of this reader's stack listen."""
        return {name: part["address"] for name, part in self.ask("doctor")["parts"].items() if "address" in part}

    def type(self, line: str, keys: tuple[tuple[str, str], ...] = ()) -> str:
        """Type a line, press the keys, wait for the next prompt and return what was printed."""
        self.shown.until(lambda: self._prompt() is not None)
        self._from = len(self.shown.received)
        self.shown.press(f"{line}\n")
        print(f"{monotonic():.0f} $ {line}")  # which pytest shows if the test fails
        for words, key in keys:
            self.shown.until(partial(self._has_printed, words))
            assert words in self._printed(), f"{line}: no {words!r} in\n{self._printed()}"
            self.shown.press(key)
        self._page_through()
        code = self._prompt()
        assert code == 0, f"{line}: exit code {code}\n{self._printed()}"
        return self._printed()

    def _has_printed(self, words: str) -> bool:
        return words in self._printed() or self._prompt() is not None

    def _page_through(self) -> None:
        """Wait for the next prompt. In a pager, press the space bar until its end, and `q` there."""
        answered = self._from  # how much had been received when a key was last pressed

        def stops() -> bool:
            return self._prompt() is not None or (len(self.shown.received) > answered and bool(self._pager()))

        self.shown.until(stops, SLOW)
        while self._prompt() is None:
            answered = len(self.shown.received)
            self.shown.press("q" if self._pager() == "(END)" else " ")
            self.shown.until(stops)

    def _pager(self) -> str:
        """The prompt of `less`, if it is the last that was written."""
        if not re.search(rb":|\(END\)", self.shown.received[-24:]):  # which is cheaper than the screen
            return ""
        line = self.shown.lines[self.shown.screen.cursor.y]
        return line if line in (":", "(END)") else ""

    def _prompt(self) -> int | None:
        """The exit code before the prompt that has appeared since the last command was typed."""
        found = PROMPT.search(self.shown.received, self._from)
        return int(found[1]) if found else None

    def _printed(self) -> str:
        """What has appeared since the last command was typed, without the command itself."""
        received = bytes(self.shown.received[self._from :])
        _, _, rest = PROMPT.split(received)[0].decode(errors="replace").partition("\n")
        return STYLING.sub("", rest)


def lines_of(block: Block) -> Iterator[tuple[str, str]]:
    """The lines of a console block that are typed, each with what it prints."""
    opening, *parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    assert not opening, f"{block}: {opening!r} was printed by nothing"
    yield from zip(parts[::2], parts[1::2], strict=True)


def assert_printed(expected: str, printed: str, where: str) -> None:
    """Each line that a page shows was printed. `…` stands for anything, and process ids and versions are others."""
    own = {"…": ".*", re.escape("[9701]"): r"\[\d+]", re.escape("0.4.0"): re.escape(version("loom-agents"))}
    for line in map(flowing, expected.splitlines()):
        pattern = re.escape(line)
        for word, stands_for in own.items():
            pattern = pattern.replace(word, stands_for)
        assert re.search(pattern, flowing(printed)), f"{where}: {line!r} isn't in\n{printed}"


def flowing(shown: str) -> str:
    """The words of a text, however it was aligned, wrapped or put into a box."""
    return " ".join(shown.replace("│", " ").split())


# ---- what the pages promise -----------------------------------------------------------------------------------------


def page_number(block: Block) -> int:
    """The step of the tutorial that the block is in."""
    return int(Path(block.page).name[0])


def run_in(printed: str) -> str:
    """The run that `@last` was."""
    (run_id,) = re.findall(r"@last is (\S+)", printed)
    return str(run_id)


def written_after_asking(reader: Reader, printed: str) -> None:
    """The run asks before it writes."""
    assert "approve write_file?" in printed
    assert (reader.project / "review.md").exists()


def turn_by_turn(_: Reader, printed: str) -> None:
    """`loom show` shows what the model said, which tools it called and what they returned."""
    assert re.findall(r"turn (\d)", printed) == ["1", "2", "3", "4", "5"]
    for word in ("demo model: Worth reading", "list_dir", "read_file", "write_file", "return a + b"):
        assert word in printed


def no_step_repeated(reader: Reader, printed: str) -> None:
    """Another worker has continued the run."""
    assert reader.ask("doctor")["parts"]["worker"]["pids"] != [int(reader.pids[-1])]
    assert (reader.project / "second.md").exists()
    turns = reader.ask("show", run_in(printed))["turns"]
    calls = [call for turn in turns for call in turn["model_calls"] + turn["tool_calls"]]
    done = [call for call in calls if call.get("tool") != "done"]  # which ends the run, and is never attempted
    assert {call["attempt"] for call in done} == {1}
    assert [call["call_id"] for call in done if "call_id" in call] == [f"demo_{number}" for number in range(6)]


def reason_repeated(reader: Reader, printed: str) -> None:
    """The model reads why its call was denied."""
    assert "Write it to docs/ instead" in flowing(printed)
    assert not (reader.project / "two.md").exists()


def unasked(_: Reader, printed: str) -> None:
    """The rules allow the call."""
    assert "write_file: report.md" in printed
    assert "approve write_file?" not in printed
    assert "completed" in printed


def reviewed_unasked(reader: Reader, printed: str) -> None:
    """The agent may write review.md, and calls the tool of the page before."""
    assert "approve" not in printed
    assert "long_lines" in printed
    assert ANSWER in flowing(printed)
    assert (reader.project / "review.md").read_text() == REVIEW


def watched_from_code(_: Reader, printed: str) -> None:
    """The program prints the events and the result."""
    assert "write_file" in printed
    assert f"completed {ANSWER}" in printed


def started_without_python(reader: Reader, _: str) -> None:
    """The run of another client is like all others."""
    assert reader.ask("result", "review-1")["output"] == "I have seen src/."


def all_runs_can_be_replayed(reader: Reader, printed: str) -> None:
    """No run is in progress any more, so those that have ended are replayed, too."""
    assert "replayed without an error" in printed
    programs = sum(block.kind == "python" and not FIRST_LINE.match(block.text) for block in BLOCKS)
    started = programs + sum(line.startswith(("loom run ", "temporal workflow start ")) for line in reader.typed)
    ended = Counter(run["status"] for run in reader.ask("list"))
    assert ended == {"completed": started - 1, "aborted": 1}
    replayed = reader.ask("replay", "--query", "WorkflowType = 'AgentRun'")
    assert (replayed["replayed"], replayed["failed"]) == (started, 0)
    assert [name for name in ("one.md", "two.md", "three.md") if (reader.project / name).exists()] == ["one.md"]


def says(*words: str) -> Callable[[Reader, str], None]:
    """A promise of which words appear."""

    def promise(_: Reader, printed: str) -> None:
        assert [word for word in words if word not in flowing(printed)] == [], printed

    return promise


PROMISES: Final[Mapping[tuple[int, str], Callable[[Reader, str], None]]] = {
    (1, 'loom run "Read src/ and write a review to review.md"'): written_after_asking,
    (1, "loom list"): says("completed", "Read src/ and write a review"),
    (1, "loom show @last"): turn_by_turn,
    (1, "loom doctor"): says("http://127.0.0.1:"),
    (1, "loom result @last"): no_step_repeated,
    (2, "loom result @last"): reason_repeated,
    (2, 'loom run "Review src/" --permissions'): unasked,
    (2, "loom permissions check bash"): says("ask:"),
    (3, "loom tools list"): says("long_lines"),
    (4, 'loom run "Review src/" --agent reviewer'): reviewed_unasked,
    (5, "pytest"): says("1 passed"),
    (6, "python main.py"): watched_from_code,
    (6, "python review.py"): says("findings=[Finding(file='src/calc.py', line=1, text='add() has no docstring.')]"),
    (6, "temporal workflow start"): started_without_python,
    (7, "loom replay --all"): all_runs_can_be_replayed,
}
"""What a page says about a line, beside what it shows. A key is the page's number, and how the line begins."""


# ---- the walk -------------------------------------------------------------------------------------------------------


@contextmanager
def reading(folder: Path, wheel: Path) -> Iterator[Reader]:
    """A reader in an empty folder, with nothing but Python; what the reader starts is ended."""
    index, programs, home, temporary = (folder / name for name in ("index", "bin", "home", "tmp"))
    for each in (index, programs, home, temporary):
        each.mkdir()
    package_index.fill(index, wheel)
    base = Path(sys._base_executable)  # type: ignore[attr-defined] # the Python that has made this environment
    (programs / "python3").write_text(f'#!/bin/sh\nexec "{base}" "$@"\n')
    (programs / "python3").chmod(0o755)
    tests_own = str(Path(sys.prefix) / "bin")
    path = [part for part in os.environ["PATH"].split(os.pathsep) if part != tests_own]
    env = {
        "PATH": os.pathsep.join([str(programs), *path]),
        "HOME": str(home),
        "TMPDIR": str(temporary),  # where `pytest` on page 5 has its own stack
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        "PS1": r"\[\e]133;D;$?\a\]$ ",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",  # `pip install loom-agents` finds the wheel of this checkout
        "PIP_FIND_LINKS": str(index),
    }
    bash = ["bash", "--norc", "--noprofile", "-i"]
    with ThreadedModelServer(reviewer) as model:
        try:
            with terminal(bash, env, columns=100, folder=str(folder)) as shown:
                yield Reader(shown=shown, folder=folder, env=env, model_url=model.openai_url)
        finally:
            for stack in folder.rglob(".loom"):
                up_down.down(stack)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_reader_types_every_line_of_the_tutorial(tmp_path: Path, wheel: Path) -> None:
    printed = [line for page in PAGES for line in re.findall(r"^ *\$ (.*)$", page.read_text(), re.MULTILINE)]
    assert sum(page.read_text().count("```") for page in PAGES) == 2 * len(BLOCKS), "a block of another kind isn't read"
    with reading(tmp_path, wheel) as reader:
        for block in BLOCKS:
            reader.read(block)
    assert reader.typed == printed
    assert reader.kept == {*PROMISES}
    assert reader.replaced == {*OWN_WORDS}
    assert {*KEYS, WAITS} <= {*printed}
    assert [command for each in psutil.process_iter() if str(tmp_path) in " ".join(command := command_of(each))] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_chinese_tutorial_has_lines_of_the_english_one(kind: str) -> None:
    """It is shorter: a reader of it types some of the lines above, in the same order. Only texts are translated.
    Its programs, which are shorter, too, run in `tests/integration/docs/test_docs_pages.py`.
    """
    english = iter([line for block in BLOCKS if block.kind == kind for line in block.text.splitlines()])
    found = [block for block in blocks(kind) if block.page == "docs/zh/tutorial.md"]
    files = [block for block in found if kind != "python" or FIRST_LINE.match(block.text)]
    chinese = [line for block in files for line in block.text.splitlines()]
    others = [line for line in chinese if not any(is_translation(line, each) for each in english)]
    assert others[:1] == []


def is_translation(chinese: str, english: str) -> bool:
    """Whether the lines are the same where the Chinese one has no Chinese."""
    return re.fullmatch(re.sub(r"[^\x00-\x7f]+", ".+", re.escape(chinese)), english) is not None
