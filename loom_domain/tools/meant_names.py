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
_FIRST_MARK: Final = re.compile(
    r"(?:<\|[a-z_]{1,40}\|>\s*(?:(?:assistant|analysis|commentary|final|json)(?![\w-]))?|<[a-z_]+>|\[[A-Z_]+\])\s*"
)
"""A mark before the name, as in `<|channel|>list_dir`, with the words that belong to a mark."""
_ELEMENT: Final = re.compile(r"<(?:function|tool|invoke)(?:=|\s+name=)([^<>\n]+)")
"""An XML element with the name, as in `<function=list_dir>`."""
_INDEX: Final = re.compile(r":\d{1,6}\Z")
"""The number of a call, as in `functions.list_dir:0`."""
_PREFIX: Final = re.compile(
    r"(?:(?:functions?|tools?|default_api|multi_tool_use)(?:\.|/|::?)|call::?|function="
    r"|(?:(?:assistant|analysis|commentary)\s+)?to=)(?=.)",
    re.IGNORECASE,
)
_OF_A_SERVER: Final = re.compile(r"mcp(?:\.|/|::?)(?=.)", re.IGNORECASE)
"""What stands before the name of a tool that an MCP server has, as in `mcp.list_issues`."""
_MCP: Final = "mcp__"
_QUOTES: Final = "\"'`\0"
_ENDS: Final = ".,;:"
_LONGEST_READ: Final = 1000
"""A longer name isn't read as another one."""


def tool_meant_by(name: str, known: Sequence[str]) -> str:
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
        if alike := [tool for tool in known if _folded(tool) == _folded(text)] or _of_servers(text, known):
            return alike[0] if len(alike) == 1 else name
    return name


def _of_servers(text: str, known: Sequence[str]) -> Sequence[str]:
    """Return the tools of MCP servers that a name such as `mcp.list_issues` or `mcp.github.list_issues` can mean."""
    prefix = _OF_A_SERVER.match(text)
    if prefix is None:
        return ()
    wanted = _folded(text[prefix.end() :]).replace(".", "__")
    inside = {tool: _folded(tool).removeprefix(_MCP) for tool in known if tool.startswith(_MCP)}
    return [tool for tool, path in inside.items() if wanted in (path, path.partition("__")[2])]


def with_meant_names(message: Message, tools: Iterable[ToolSpec]) -> Message:
    """Return the reply, whose calls name the tools that they mean."""
    if not message.tool_calls:
        return message
    known = [tool.name for tool in tools]
    if all(call.name in known for call in message.tool_calls):
        return message
    calls = tuple(replace(call, name=tool_meant_by(call.name, known)) for call in message.tool_calls)
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
    if element := _ELEMENT.match(text):
        return element[1]
    if first := _FIRST_MARK.match(text):
        return text[first.end() :]
    if mark := _MARK.search(text):
        return text[: mark.start()]
    if index := _INDEX.search(text):
        return text[: index.start()]
    if text.endswith(")") and "(" in text:
        return text[: text.index("(")]
    if prefix := _PREFIX.match(text):
        return text[prefix.end() :]
    return text.rstrip(_ENDS)


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
