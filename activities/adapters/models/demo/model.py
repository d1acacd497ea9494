"""The `demo` model follows rules based on tool results, and states in its text that it isn't a real model."""

import asyncio
import json
import re

from loom.activities.adapters.models.demo.audit import audit
from loom.activities.adapters.models.demo.delegation import delegate
from loom.activities.adapters.models.demo.lookup import look_up
from loom.activities.adapters.models.demo.scene import (
    HOW_TO_GO_ON,
    LABEL,
    Decision,
    Scene,
    answering,
    asking,
    scene_of,
    short,
)
from loom.activities.adapters.models.demo.text_files import text_task
from loom.activities.adapters.models.demo.whole_files import whole_file_task
from loom.activities.ports import ModelAnswer, ModelCall, OnDelta
from loom.domain.core.messages import Message, ToolCall, Usage
from loom.domain.core.tool_names import DELEGATE

_AUDIT = re.compile(r"\b(?:audit|review|report)|审查|评审|审计|报告", re.IGNORECASE)
_DELEGATE = re.compile(r"\bdelegate", re.IGNORECASE)
_LOOK_UP = re.compile(r"\blook up\b", re.IGNORECASE)


class DemoModel:
    """Follows rules and streams its text like a real model, so that you can try a viewer without a key."""

    def __init__(self, *, pause: float = 0.002) -> None:
        self._pause = pause

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Choose the next turn, stream its text in small chunks, and return the text with the calls."""
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


def decide(scene: Scene) -> Decision:
    """Return the text and calls of the next turn."""
    if scene.said:
        return answering(scene, scene.said, must_be_done=True)
    if _DELEGATE.search(scene.task) and DELEGATE in scene.offered:
        return delegate(scene)
    # Check for a lookup first, because the request for a lookup may also mention a report.
    if _LOOK_UP.search(scene.task):
        return look_up(scene)
    if decision := whole_file_task(scene):
        return decision
    return audit(scene) if _AUDIT.search(scene.task) else text_task(scene) or _look_around(scene)


def _look_around(scene: Scene) -> Decision:
    if "list_dir" in scene.offered and not scene.of("list_dir"):
        return asking(scene, "I look at what is there.", ("list_dir", {"path": "."}))
    entries = scene.entries
    readme = next((entry for entry in entries if entry.lower().startswith("readme")), "")
    if readme and "read_file" in scene.offered and not scene.of("read_file"):
        return asking(scene, f"I'll read {readme}.", ("read_file", {"path": readme}))
    saw = f"I saw {len(entries)} entries: {', '.join(entries[:10])}." if entries else "I saw no files."
    opening = next((line.strip() for page in scene.pages for line in page.text.splitlines() if line.strip()), "")
    about = f" {readme} begins: {opening}." if opening else ""
    text = (
        f"I am a stand-in that follows rules, so I cannot do this: {short(scene.request)}. {saw}{about} "
        f"{scene.failures}{HOW_TO_GO_ON} A task with the word audit or report shows what Loom does with tools."
    )
    return answering(scene, text, answer_in_text=True)


def _pieces(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text)


def _usage(call: ModelCall, message: Message) -> Usage:
    """Estimate the usage at about four characters per token, so that budgets also work with the demo model."""
    asked = len(call.system) + sum(len(m.text) + sum(_size(c) for c in m.tool_calls) for m in call.messages)
    asked += sum(len(tool.description) + len(json.dumps(tool.parameters, default=str)) for tool in call.tools)
    said = len(message.text) + sum(_size(c) for c in message.tool_calls)
    return Usage(input_tokens=asked // 4 + 1, output_tokens=said // 4 + 1, model_calls=1)


def _size(call: ToolCall) -> int:
    return len(call.name) + sum(len(str(value)) for value in call.arguments.values())
