"""What a model call sees of tool results that are no longer new. The conversation itself keeps them whole.

ephemeral   of a tool marked so, only the results of its last uses stay
collapsed   before a point, results and long arguments are cut to their beginning; not instructions of skills
limited     one turn's results never take more than a share of the window
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from loom.domain.core.message_groups import Group
from loom.domain.core.messages import JsonObject, Message, ToolCall
from loom.domain.core.tokens import MESSAGE, conversation_tokens, text_tokens, within
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.skills.active import skill_in

SHORT: Final = 400
"""Characters of a result or an argument that is left as it is: a note instead would hardly be shorter."""
BEGINNING: Final = 200
"""Characters that stay of what is collapsed."""


def without_ephemeral(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
    """The messages with the large results of ephemeral tools only where they are of the last uses."""
    stay = {tool.name: tool.ephemeral for tool in tools if tool.ephemeral}
    if not stay:
        return tuple(messages)
    uses: Counter[str] = Counter()
    shown = list(messages)
    for place in reversed(range(len(shown))):
        message = shown[place]
        if message.role == "tool" and message.name in stay:
            uses[message.name] += 1
            if uses[message.name] > stay[message.name] and _is_large(message):
                why = f"only the results of its last {stay[message.name]} uses are shown"
                shown[place] = replace(message, content=f"[{message.name}: left out, {why}{_pointer(message)}]")
    return tuple(shown)


def collapsed(messages: Sequence[Message], until: int) -> tuple[Message, ...]:
    """The messages with results and long arguments before position `until` cut to their beginning."""
    return tuple(map(_collapsed, messages[:until])) + tuple(messages[until:])


def limited(messages: Sequence[Message], groups: Sequence[Group], most: int) -> tuple[Message, ...]:
    """The messages with the results of each group cut evenly, where a group has more than `most` tokens."""
    shown = list(messages)
    for start, stop in groups:
        results = [place for place in range(start, stop) if messages[place].role == "tool"]
        # A text has no more tokens than characters, and counting those is nothing.
        if sum(len(messages[place].text) for place in results) <= most // 2:
            continue
        if conversation_tokens(messages[start:stop]) <= most:
            continue
        around = conversation_tokens(m for m in messages[start:stop] if m.role != "tool")
        share = max(50, (most - around) // len(results) - MESSAGE)
        for place in results:
            shown[place] = _limited(messages[place], share)
    return tuple(shown)


def _is_large(message: Message) -> bool:
    return len(message.text) > SHORT or not isinstance(message.content, str)


def _pointer(message: Message) -> str:
    """How the model can get at the whole."""
    artifact = message.metadata.get("artifact")
    return f"; read_artifact shows it: artifact {artifact}" if artifact else "; call it again if you need it"


def _collapsed(message: Message) -> Message:
    if message.role == "tool":
        return _short_result(message) if _is_large(message) and not skill_in(message) else message
    calls = tuple(map(_short_call, message.tool_calls))
    return message if calls == message.tool_calls else replace(message, tool_calls=calls)


def _short_result(message: Message) -> Message:
    dropped = max(0, len(message.text) - BEGINNING)
    beginning = message.text[:BEGINNING].rstrip()
    return replace(message, content=f"{beginning}\n[{dropped} characters left out as it is old{_pointer(message)}]")


def _short_call(call: ToolCall) -> ToolCall:
    if not any(isinstance(value, str) and len(value) > SHORT for value in call.arguments.values()):
        return call
    return replace(call, arguments=_short_arguments(call.arguments))


def _short_arguments(arguments: JsonObject) -> JsonObject:
    return {
        name: f"{value[:BEGINNING]} [{len(value) - BEGINNING} characters left out]"
        if isinstance(value, str) and len(value) > SHORT
        else value
        for name, value in arguments.items()
    }


def _limited(message: Message, most: int) -> Message:
    if text_tokens(message.text) <= most and isinstance(message.content, str):
        return message
    return replace(message, content=within(message.text, most, f"\n[cut to fit the window{_pointer(message)}]"))
