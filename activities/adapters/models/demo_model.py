"""`demo`: a stand-in for a model. Rules decide, from what the tools returned; all it says is labelled as its own."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from activities.adapters.models.demo_report import SourceFile, examine, report, summary
from activities.ports import ModelAnswer, ModelCall, OnDelta
from loom_domain.grouping import is_from_person
from loom_domain.messages import Message, ToolCall, Usage
from loom_domain.tool_names import DELEGATE, DONE

LABEL: Final = "demo model: "
MOST_FILES: Final = 8
SUFFIXES: Final = (".py", ".js", ".ts", ".go", ".rs", ".java", ".rb", ".c", ".sh")

HOW_TO_GO_ON: Final = (
    "For a real model set OPENAI_API_KEY or ANTHROPIC_API_KEY (or OPENAI_BASE_URL for a local server) and choose a "
    "model such as `openai:<name>` or `anthropic:<name>`."
)

_AUDIT = re.compile(r"\b(?:audit|review|report)", re.IGNORECASE)
_DELEGATE = re.compile(r"\bdelegate", re.IGNORECASE)
_FOLDER = re.compile(r"\bin the folder ([\w-]+)", re.IGNORECASE)
_TARGET = re.compile(r"\b(?:to|into|in|as|at)\s+[`'\"]?([\w./-]+\.(?:md|markdown|txt))\b", re.IGNORECASE)
_SIZE = re.compile(r"\s+\([^()]*\)$|@$")
"""What a listing puts behind a name."""
_NUMBERED = re.compile(r"\s*\d+\t(.*)")

Wish: TypeAlias = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What to say and what to call."""

    text: str
    wishes: tuple[Wish, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A call of the current task with its result."""

    tool: str
    arguments: Mapping[str, Any]
    output: str
    failed: bool

    @property
    def path(self) -> str:
        """The file that it was about."""
        return str(self.arguments.get("path", ""))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """The conversation as the rules see it: the task that runs now, and what has been tried for it."""

    task: str
    notes: tuple[str, ...]
    """What people said after the task."""
    tried: tuple[Tried, ...]
    said: str
    """The answer that was already given; what follows it are only reminders."""
    offered: frozenset[str]

    def of(self, tool: str) -> list[Tried]:
        """The calls of one tool."""
        return [tried for tried in self.tried if tried.tool == tool]

    def lines(self, tool: str) -> list[str]:
        """The lines that a tool gave, all its good results together."""
        return [line for tried in self.of(tool) if not tried.failed for line in tried.output.splitlines()]


class DemoModel:
    """Decides by rules; streams like a model, so that a viewer can be tried without one."""

    def __init__(self, *, pause: float = 0.002) -> None:
        self._pause = pause

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Decide, stream the text in small pieces, and return it with the calls."""
        step = decide(scene_of(call))
        text = LABEL + step.text
        for piece in _pieces(text):
            on_delta(piece)
            await asyncio.sleep(self._pause)
        earlier = sum(len(message.tool_calls) for message in call.messages)
        calls = tuple(
            ToolCall(id=f"demo_{earlier + index}", name=tool, arguments=arguments)
            for index, (tool, arguments) in enumerate(step.wishes)
        )
        message = Message(role="assistant", content=text, tool_calls=calls)
        return ModelAnswer(message=message, stop="tools" if calls else "end", usage=_usage(call, message), model="demo")


def scene_of(call: ModelCall) -> Scene:
    """Read a conversation."""
    messages = call.messages[_begin(call.messages) :]
    results = {message.tool_call_id: message for message in messages if message.role == "tool"}
    asked = [c for message in messages for c in message.tool_calls]
    people = [message.text for message in messages if is_from_person(message)]
    answers = [message.text for message in messages if message.role == "assistant" and not message.tool_calls]
    return Scene(
        task=people[0] if people else "",
        notes=tuple(people[1:]),
        tried=tuple(_tried(c, results[c.id]) for c in asked if c.id in results),
        said=answers[-1].removeprefix(LABEL) if answers else "",
        offered=frozenset(tool.name for tool in call.tools if call.may_call),
    )


def decide(scene: Scene) -> Step:
    """The next step."""
    if scene.said:
        return _finish(scene, scene.said, must_be_done=True)
    if _DELEGATE.search(scene.task) and DELEGATE in scene.offered:
        return _delegate(scene)
    return _audit(scene) if _AUDIT.search(scene.task) else _look_around(scene)


def _delegate(scene: Scene) -> Step:
    """Each folder is reviewed by a sub-agent of its own; what they say is the answer."""
    if not scene.of("list_dir"):
        return _call(scene, "I look at what is there.", ("list_dir", {"path": "."}))
    folders = [
        entry.rstrip("/") for entry in _entries(scene) if entry.endswith("/") and not entry.startswith((".", "_"))
    ]
    if not folders:
        return _finish(scene, f"there is no folder to hand on. {_failures(scene)}")
    if not scene.of(DELEGATE):
        tools = ["list_dir", "glob", "read_file", "grep"]
        wishes = tuple(
            (
                DELEGATE,
                {"description": f"review {name}", "prompt": f"Review the code in the folder {name}.", "tools": tools},
            )
            for name in folders[:MOST_FILES]
        )
        return _call(scene, f"I hand on {len(wishes)} reviews: {', '.join(folders[:MOST_FILES])}.", *wishes)
    return _finish(scene, "\n\n".join(_brought(tried) for tried in scene.of(DELEGATE)))


def _brought(tried: Tried) -> str:
    try:
        told = json.loads(tried.output)
        return f"## {told['task']}: {told['status']}\n\n{told['result']}"
    except (ValueError, KeyError, TypeError):
        return f"## {tried.arguments.get('description')}: failed\n\n{tried.output}"


def _audit(scene: Scene) -> Step:
    if not scene.of("glob") and not scene.of("list_dir"):
        folder = match[1] if (match := _FOLDER.search(scene.task)) else "."
        pattern = "**/*.py" if folder == "." else f"{folder}/**/*.py"
        return _call(scene, "I look at what is there.", ("list_dir", {"path": folder}), ("glob", {"pattern": pattern}))
    sources = _sources(scene)
    if not sources:
        return _finish(scene, f"there is no source file that I could read. {_failures(scene)}")
    if not scene.of("read_file"):
        reads = tuple(("read_file", {"path": path}) for path in sources)
        wishes = (*reads, ("grep", {"pattern": "TODO|FIXME", "path": "."}))
        return _call(scene, f"{len(sources)} files are worth reading: {', '.join(sources)}.", *wishes)
    files = [examine(tried.path, text) for tried, text in _read(scene) if tried.path in sources]
    if not files:
        return _finish(scene, f"I could read none of the files. {_failures(scene)}")
    return _hand_over(scene, files)


def _hand_over(scene: Scene, files: Sequence[SourceFile]) -> Step:
    """Write the report, read it back, and say what came of it."""
    writes = scene.of("write_file")
    if not writes:
        unread = {tried.path: tried.output for tried in scene.of("read_file") if tried.failed}
        elsewhere = _elsewhere(scene, {file.path for file in files})
        text = report(files, task=scene.task, unread=unread, elsewhere=elsewhere, notes=scene.notes)
        if "write_file" not in scene.offered:
            return _finish(scene, f"there is no tool to write a file with, so here is the report.\n\n{text}")
        path = _target(scene)
        return _call(scene, f"{summary(files)}. I write {path}.", ("write_file", {"path": path, "content": text}))
    written = writes[-1]
    if written.failed:
        return _finish(scene, f"{summary(files)}. The report was not written: {written.output}")
    path = written.path
    checks = [tried for tried in scene.of("read_file") if tried.path == path]
    if not checks and "read_file" in scene.offered:
        return _call(scene, f"I check what stands in {path}.", ("read_file", {"path": path}))
    held = bool(checks) and not checks[-1].failed and "# Audit of" in checks[-1].output
    check = "read back and complete" if held else "I could not confirm what stands in it"
    return _finish(scene, f"{summary(files)}. The report is in {path} ({check}).")


def _look_around(scene: Scene) -> Step:
    if "list_dir" in scene.offered and not scene.of("list_dir"):
        return _call(scene, "I look at what is there.", ("list_dir", {"path": "."}))
    entries = _entries(scene)
    readme = next((entry for entry in entries if entry.lower().startswith("readme")), "")
    if readme and "read_file" in scene.offered and not scene.of("read_file"):
        return _call(scene, f"I read {readme}.", ("read_file", {"path": readme}))
    saw = f"I saw {len(entries)} entries: {', '.join(entries[:10])}." if entries else "I saw no files."
    opening = next((line.strip() for _, text in _read(scene) for line in text.splitlines() if line.strip()), "")
    about = f" {readme} begins: {opening}." if opening else ""
    text = (
        f"I am a stand-in that follows rules, so I cannot do this: {_short(scene.task)}. {saw}{about} "
        f"{_failures(scene)}{HOW_TO_GO_ON} A task with the word audit or report shows what Loom does with tools."
    )
    return _finish(scene, text, answer_in_text=True)


def _call(scene: Scene, text: str, *wishes: Wish) -> Step:
    can = tuple(wish for wish in wishes if wish[0] in scene.offered)
    if can:
        return Step(text=text, wishes=can)
    wanted = ", ".join(dict.fromkeys(tool for tool, _ in wishes))
    return _finish(scene, f"I would need one of these tools, and none is offered: {wanted}. {HOW_TO_GO_ON}")


def _finish(scene: Scene, text: str, *, must_be_done: bool = False, answer_in_text: bool = False) -> Step:
    if scene.notes and not must_be_done:
        text += f" Meanwhile you said: {'; '.join(_short(note) for note in scene.notes)}."
    if DONE in scene.offered and not answer_in_text:
        return Step(text="I am finished.", wishes=((DONE, {"result": LABEL + text}),))
    return Step(text=text)


def _sources(scene: Scene) -> list[str]:
    # A line with a star is the tool saying that nothing matches.
    found = [line.strip() for line in scene.lines("glob") if line.strip().endswith(".py") and "*" not in line]
    found = found or [entry for entry in _entries(scene) if entry.endswith(SUFFIXES)]
    # Tests last: what people run comes first.
    return sorted(dict.fromkeys(found), key=lambda path: "test" in path)[:MOST_FILES]


def _entries(scene: Scene) -> list[str]:
    return [_SIZE.sub("", line.strip()) for line in scene.lines("list_dir") if line.strip()]


def _read(scene: Scene) -> Iterator[tuple[Tried, str]]:
    """The good reads, without the line numbers that the tool puts before each line."""
    for tried in scene.of("read_file"):
        if not tried.failed:
            matches = map(_NUMBERED.fullmatch, tried.output.splitlines())
            yield tried, "\n".join(match[1] for match in matches if match)


def _elsewhere(scene: Scene, read: set[str]) -> list[str]:
    return [line for line in scene.lines("grep") if ":" in line and line.split(":")[0].removeprefix("./") not in read]


def _target(scene: Scene) -> str:
    named = (match[1] for text in (*reversed(scene.notes), scene.task) if (match := _TARGET.search(text)))
    return next(named, "report.md")


def _failures(scene: Scene) -> str:
    failed = [f"{tried.tool}: {_short(tried.output).rstrip('.?')}" for tried in scene.tried if tried.failed]
    return f"What failed: {'; '.join(failed)}. " if failed else ""


def _begin(messages: Sequence[Message]) -> int:
    """Where the current task begins: with the first word of a person after the last finished answer."""
    begin, answered = 0, True
    for index, message in enumerate(messages):
        if message.role == "assistant":
            answered = not message.tool_calls or any(call.name == DONE for call in message.tool_calls)
        elif answered and is_from_person(message):
            begin, answered = index, False
    return begin


def _tried(call: ToolCall, result: Message) -> Tried:
    return Tried(tool=call.name, arguments=call.arguments, output=result.text, failed=result.is_error)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:159]}…"


def _pieces(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text)


def _usage(call: ModelCall, message: Message) -> Usage:
    """About four characters a token, so that budgets work here, too."""
    asked = len(call.system) + sum(len(m.text) + sum(_size(c) for c in m.tool_calls) for m in call.messages)
    asked += sum(len(tool.description) + len(json.dumps(tool.parameters, default=str)) for tool in call.tools)
    said = len(message.text) + sum(_size(c) for c in message.tool_calls)
    return Usage(input_tokens=asked // 4 + 1, output_tokens=said // 4 + 1, model_calls=1)


def _size(call: ToolCall) -> int:
    return len(call.name) + sum(len(str(value)) for value in call.arguments.values())
