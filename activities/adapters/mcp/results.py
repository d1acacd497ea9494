"""Convert an MCP server's results to tool output and its failures to domain tool errors."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    REQUEST_TIMEOUT,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from loom.activities.ports import ToolOutput
from loom.activities.toolbox.mcp_tool import McpCall
from loom.activities.toolbox.truncation import clip
from loom.activities.toolbox.untrusted_text import defused
from loom.domain.core.errors import LoomError, ToolExecutionError, ToolExecutionTimeout
from loom.domain.core.media import base64_content, part_type
from loom.domain.core.messages import Part
from loom.domain.core.tool_calls import Effect
from loom.domain.tools.mcp_servers import Hints, ListedTool

TEXT_LIMIT: Final = 100_000
"""Maximum number of characters in one result. They amount to about 25,000 tokens. If a result is long, the pipeline
shows only part of it to the model and stores the full text.
"""
PARTS_LIMIT: Final = 5_000_000
"""Maximum total number of base64 characters in the images and files of one result."""

_DATA_URL = re.compile(r"data:[^,]{0,100};base64,")
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9]+/[a-z0-9.+-]+", re.IGNORECASE)
_SHORTEST_DATA: Final = 16
"""Base64 data of fewer characters may occur in ordinary text."""
_SAID: Final = 2000
"""Maximum number of characters of an error's message, and of its data, that the model reads."""
_FORGOTTEN: Final = "Session terminated"


def listed_tools(result: ListToolsResult, *, as_tasks: bool = False) -> list[ListedTool]:
    """Return the tools on one page of a server's list. With `as_tasks`, the server may run any of them as a task."""
    return [
        ListedTool(
            name=tool.name,
            description=tool.description or "",
            schema=tool.input_schema,
            as_task=as_tasks or (tool.execution is not None and tool.execution.task_support == "required"),
            hints=Hints()
            if (given := tool.annotations) is None
            else Hints(
                read_only=given.read_only_hint,
                destructive=given.destructive_hint,
                idempotent=given.idempotent_hint,
                open_world=given.open_world_hint,
            ),
        )
        for tool in result.tools
    ]


def output_of(result: CallToolResult, scrub: Callable[[str], str]) -> ToolOutput:
    """Convert the result to output for the model. Raises ToolExecutionError if the result is an error.

    Structured content is shown unless one of the texts is the same content.
    """
    collected = _Collected()
    for block in result.content:
        collected.add(block)
    texts = [text for text in collected.texts if text.strip()]
    structured = result.structured_content
    if structured is not None and not _is_repeated(structured, texts):
        texts.append(json.dumps(structured, ensure_ascii=False))
    text = clip(defused(scrub(collected.without_data("\n".join(texts)))), TEXT_LIMIT)
    if result.is_error:
        raise ToolExecutionError(text or "the tool failed and its server gave no reason: try something else")
    return ToolOutput(text=text, parts=tuple(collected.parts))


def _is_repeated(structured: Any, texts: Sequence[str]) -> bool:
    """Whether one of the texts is the structured content as JSON. Servers wrap a value that isn't an object in
    `{"result": …}`, and repeat only the value.
    """
    shown = [structured]
    if isinstance(structured, Mapping) and structured.keys() == {"result"}:
        shown.append(structured["result"])
        if structured["result"] in texts:
            return True
    forms = {_form(value) for value in shown}
    return any(_form_of_text(text) in forms for text in texts)


def _form(value: Any) -> str:
    """Return the value as JSON. Unlike the values themselves, 1 and `true` differ in it."""
    return json.dumps(value, sort_keys=True)


def _form_of_text(text: str) -> str | None:
    try:
        return _form(json.loads(text))
    except (ValueError, RecursionError):
        return None


class _Collected:
    """The texts and parts of a result, within the limits."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.parts: list[Part] = []
        self._room = PARTS_LIMIT
        self._data: dict[str, str] = {}

    def add(self, block: Any) -> None:
        """Add one block of content."""
        match block:
            case TextContent(text=text):
                self.texts.append(text)
            case ImageContent(data=data, mime_type=media_type):
                self._add_part(Part(type="image", media_type=media_type, data=_plain_base64(data)))
            case AudioContent(data=data, mime_type=media_type):
                self._add_part(Part(type="audio", media_type=media_type, data=_plain_base64(data)))
            case EmbeddedResource(resource=BlobResourceContents() as blob):
                media_type = blob.mime_type or "application/octet-stream"
                kind = part_type(media_type)
                self._add_part(Part(type=kind, media_type=media_type, data=_plain_base64(blob.blob), name=blob.uri))
            case EmbeddedResource(resource=TextResourceContents() as resource):
                self.texts.append(f"{resource.uri}:\n{resource.text}")
            case ResourceLink():
                about = "; ".join(str(part) for part in (block.mime_type, block.description) if part)
                self.texts.append(f"{block.name}: {block.uri}{f' ({about})' if about else ''}")

    def without_data(self, text: str) -> str:
        """Replace the base64 data of the result's images and files in its text. Servers repeat structured content as
        text, and the model would pay for the data twice.
        """
        for data, what in self._data.items():
            text = text.replace(data, f"[{what}]")
        return text

    def _add_part(self, part: Part) -> None:
        what = f"{part.type} {part.media_type}"[:100]
        if len(part.data) >= _SHORTEST_DATA:
            self._data[part.data] = what
        if len(part.data) > self._room:
            self.texts.append(f"[{what} of {len(part.data) * 3 // 4} bytes was left out: ask for a smaller one]")
        elif _MEDIA_TYPE.fullmatch(part.media_type) is None or base64_content(part.data) is None:
            self.texts.append(f"[{what} was left out: its data does not match its type]")
        else:
            self._room -= len(part.data)
            self.parts.append(part)


def _plain_base64(data: str) -> str:
    """Return base64 data without the start of a data URL, and with its padding."""
    plain = _DATA_URL.sub("", data.strip())
    return plain if len(plain) % 4 in (0, 1) else plain + "=" * (4 - len(plain) % 4)


def forgotten(code: int, message: str) -> bool:
    """Whether the error means that the server no longer recognizes the session and therefore didn't process the
    request.
    """
    return code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT) and message == _FORGOTTEN


def data_text(data: Any) -> str:
    """Return the data of an error as text."""
    if data in (None, "", [], {}):
        return ""
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)


def refusal(server: str, call: McpCall, code: int, message: str, data: str = "") -> LoomError:
    """Convert a failed request to a domain tool error. The error's data may say how to correct the call."""
    if code == REQUEST_TIMEOUT:
        return ToolExecutionTimeout(
            f"{call.tool} was stopped after {call.timeout:g} s without a response from the MCP server {server}:"
            f" {repeatable(call)}"
        )
    if code == CONNECTION_CLOSED:
        return ToolExecutionError(
            f"the connection to the MCP server {server} was lost during the call to {call.tool}: {repeatable(call)}"
        )
    if forgotten(code, message):
        return ToolExecutionError(
            f"the MCP server {server} was restarted and did not run {call.tool}: call it again in a moment"
        )
    if call.state and code == INVALID_PARAMS:
        return ToolExecutionError(
            f"the MCP server {server} no longer accepts its own state of the call to {call.tool}, perhaps because the"
            f" answer came too late ({defused(message[:200])}): call it again, and the server asks again"
        )
    said = message[:_SAID]
    if data and data not in said:
        said += f" ({data[:_SAID]})"
    outcome = f"; {repeatable(call)}" if code == INTERNAL_ERROR else ""
    return ToolExecutionError(f"the MCP server {server} rejected the call to {call.tool}: {defused(said)}{outcome}")


def repeatable(call: McpCall) -> str:
    """Return advice for the model on whether to repeat a call whose outcome is unknown."""
    if call.effect is Effect.ONCE:
        return "the outcome is unknown, and it may have run; find out what happened before you call it again"
    return "you may call it again"
