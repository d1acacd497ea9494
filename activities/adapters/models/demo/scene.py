"""The demo model's view of a conversation, and the tool calls or the answer that a rule returns."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from loom.activities.ports import ModelCall
from loom.domain.core.messages import Message, ToolCall, is_from_person
from loom.domain.core.tool_names import DONE
from loom.domain.crews.prompts import BROUGHT, CREW_TASK, HEARD
from loom.domain.machine.delegation import ALONE

LABEL: Final = "demo model: "
MOST_FILES: Final = 8

HOW_TO_GO_ON: Final = (
    "For a real model set OPENAI_API_KEY or ANTHROPIC_API_KEY (or OPENAI_BASE_URL for a local server) and choose a "
    "model such as `openai:<name>` or `anthropic:<name>`."
)

_SIZE = re.compile(r"\s+\([^()]*\)$|@$")
"""Matches the size after a name in a listing."""
_NUMBERED = re.compile(r"\s*(\d+)\t(.*)")

Wish: TypeAlias = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The text and the calls of one turn."""

    text: str
    wishes: tuple[Wish, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PastCall:
    """A call for the current task, with its result."""

    tool: str
    arguments: Mapping[str, Any]
    output: str
    failed: bool

    @property
    def path(self) -> str:
        """The path of the file that the call refers to."""
        return str(self.arguments.get("path", ""))


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The part of a file that was read. Omitted lines are empty."""

    path: str
    text: str
    is_whole: bool
    note: str = ""
    """The tool's words, if it has returned no lines, such as of an image or of an empty file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """The rules' view of a conversation: the current task and the calls made for it."""

    task: str
    notes: tuple[str, ...]
    """Messages from people after the task."""
    tried: tuple[PastCall, ...]
    said: str
    """The answer that the model has already given, if only reminders follow it."""
    offered: frozenset[str]

    @property
    def request(self) -> str:
        """The request without the text that a crew or a delegating agent adds to it."""
        wanted = self.task.partition(CREW_TASK)[2] or self.task
        for ending in (ALONE, HEARD, BROUGHT):
            wanted = wanted.partition(f"\n\n{ending}")[0]
        return wanted.strip()

    @property
    def brought(self) -> str:
        """The findings of other crew members."""
        return self.task.partition(f"\n\n{BROUGHT}")[2].strip()

    @property
    def entries(self) -> list[str]:
        """The entries of all listed folders."""
        return [_SIZE.sub("", line.strip()) for line in self.lines("list_dir") if line.strip()]

    @property
    def pages(self) -> Iterator[Page]:
        """Yield the pages that were read successfully, without the line numbers that the tool adds."""
        for tried in self.of("read_file"):
            if not tried.failed:
                matches = [_NUMBERED.fullmatch(line) for line in tried.output.splitlines()]
                lines = {int(match[1]): match[2] for match in matches if match}
                last = max(lines, default=0)
                text = "\n".join(lines.get(number, "") for number in range(1, last + 1))
                is_whole = all(matches) and len(lines) == last
                note = "" if lines else short(tried.output.removeprefix(f"{tried.path}: "))
                yield Page(path=tried.path, text=text, is_whole=is_whole, note=note)

    @property
    def failures(self) -> str:
        """A sentence about failed calls, or an empty string if no call failed."""
        failed = [f"{tried.tool}: {short(tried.output).rstrip('.?')}" for tried in self.tried if tried.failed]
        return f"What failed: {'; '.join(failed)}. " if failed else ""

    def of(self, tool: str) -> list[PastCall]:
        """Return all calls of one tool."""
        return [tried for tried in self.tried if tried.tool == tool]

    def lines(self, tool: str) -> list[str]:
        """Return the lines of all successful results of one tool."""
        return [line for tried in self.of(tool) if not tried.failed for line in tried.output.splitlines()]


def scene_of(call: ModelCall) -> Scene:
    """Convert a conversation to a scene."""
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


def asking(scene: Scene, text: str, *wishes: Wish) -> Decision:
    """Return a decision to make these calls, if their tools are available."""
    can = tuple(wish for wish in wishes if wish[0] in scene.offered)
    if can:
        return Decision(text=text, wishes=can)
    wanted = ", ".join(dict.fromkeys(tool for tool, _ in wishes))
    return answering(scene, f"I need one of these tools, but none is available: {wanted}. {HOW_TO_GO_ON}")


def answering(scene: Scene, text: str, *, must_be_done: bool = False, answer_in_text: bool = False) -> Decision:
    """Return a decision to give the answer, with the `done` tool if it is available."""
    if scene.notes and not must_be_done:
        text += f" Meanwhile you said: {'; '.join(short(note) for note in scene.notes)}."
    if DONE in scene.offered and not answer_in_text:
        return Decision(text="I am finished.", wishes=((DONE, {"result": LABEL + text}),))
    return Decision(text=text)


def short(text: str) -> str:
    """Return the text shortened to one line."""
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:159]}…"


def _begin(messages: Sequence[Message]) -> int:
    """Return the index of the current task: the first message from a person after the last answer."""
    begin, answered = 0, True
    for index, message in enumerate(messages):
        if message.role == "assistant":
            answered = not message.tool_calls or any(call.name == DONE for call in message.tool_calls)
        elif answered and is_from_person(message):
            begin, answered = index, False
    return begin


def _tried(call: ToolCall, result: Message) -> PastCall:
    return PastCall(tool=call.name, arguments=call.arguments, output=result.text, failed=result.is_error)
