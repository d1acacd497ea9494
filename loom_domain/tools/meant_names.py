"""The tool that a model means by a name that it has written.

Models add to a tool's name what their template or another system puts beside it: `list_dir<|channel|>commentary`,
`functions.list_dir`, `list_dir()`. A name is read as another one only if these additions are all that differs.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from loom.domain.core.messages import Message
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.tools.wire_names import wire_name

_MARK: Final = re.compile(r"<\||</|<[a-z_]+>|\[/?[A-Z_]+\]")
"""The start of a template's mark, such as `<|channel|>`, `</tool_call>` or `[ARGS]`."""
_INDEX: Final = re.compile(r":\d{1,6}\Z")
"""The number of a call, as in `functions.list_dir:0`."""
_PREFIX: Final = re.compile(
    r"(?:(?:functions?|tools?|default_api|mcp|multi_tool_use)(?:\.|/|::?)|to=|tool_)(?=.)", re.IGNORECASE
)
_QUOTES: Final = "\"'`\0"
_LONGEST_READ: Final = 1000
"""A longer name isn't read as another one."""


def meant(name: str, known: Sequence[str]) -> str:
    """Return the known tool that a model's name means, or the name unchanged if it doesn't mean exactly one.

    Permissions apply to the returned name.
    """
    if name in known or len(name) > _LONGEST_READ:
        return name
    sent_as = {wire_name(tool): tool for tool in known}
    for text in _readings(name):
        if text in known:
            return text
        if text in sent_as:
            return sent_as[text]
        if alike := [tool for tool in known if _folded(tool) == _folded(text)]:
            return alike[0] if len(alike) == 1 else name
    return name


def with_meant_names(message: Message, tools: Iterable[ToolSpec]) -> Message:
    """Return the reply, whose calls name the tools that they mean."""
    if not message.tool_calls:
        return message
    known = [tool.name for tool in tools]
    if all(call.name in known for call in message.tool_calls):
        return message
    calls = tuple(replace(call, name=meant(call.name, known)) for call in message.tool_calls)
    return replace(message, tool_calls=calls)


def _readings(name: str) -> Iterator[str]:
    """Yield the name with ever more of its additions removed."""
    text, longer = name, ""
    while text and text != longer:
        yield text
        longer = text
        text = text.strip().strip(_QUOTES)
        if text == longer:
            text = _without_one_addition(text)


def _without_one_addition(text: str) -> str:
    if mark := _MARK.search(text):
        # A name behind marks, as in `<|channel|>list_dir`, isn't looked for: text of any kind may follow them.
        return text[: mark.start()]
    if index := _INDEX.search(text):
        return text[: index.start()]
    if text.endswith(")") and "(" in text:
        return text[: text.index("(")]
    return _PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
