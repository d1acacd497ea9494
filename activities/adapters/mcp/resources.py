"""Resources and prompts of an MCP server, which models reach through three more tools of the server.

    list_resources   its resources and the templates of their addresses
    read_resource    the content of one resource
    get_prompt       one of its prompts, filled in

A server that has no resources or no prompts gets no tools for them, and a tool of the server that has one of these
names takes precedence.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import structlog
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ContentBlock, EmbeddedResource, Prompt, TextContent
from pydantic import ValidationError

from loom.activities.toolbox.mcp_tool import McpCall
from loom.domain.core.errors import ToolValidationError
from loom.domain.core.messages import JsonObject
from loom.domain.tools.mcp_servers import FeatureKind, Hints, ListedTool

_log = structlog.get_logger("loom.mcp")

_PAGES: Final = 20
"""Maximum number of pages in a list."""
_READS: Final = Hints(read_only=True)
_TEXT: Final = {"type": "string"}


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


async def feature_tools(client: Client, server: str) -> list[ListedTool]:
    """Return the tools for the server's resources and prompts. If a list can't be read, its tools are left out."""
    offered, tools = client.server_capabilities, []
    try:
        if offered.resources is not None and (known := await _resources(client)):
            tools += [_LIST_RESOURCES, _read_resource(len(known))]
        if offered.prompts is not None and (prompts := await _prompts(client)):
            tools.append(_get_prompt(prompts))
    except (MCPError, ValidationError) as error:
        _log.warning("mcp_resources_unreadable", server=server, reason=str(error)[:200])
    return tools


async def feature_result(client: Client, call: McpCall) -> CallToolResult:
    """Carry out a call of one of these tools. Raises ToolValidationError if a prompt's arguments aren't texts."""
    match call.feature:
        case "list_resources":
            lines = await _resources(client)
            return _of_texts("\n".join(lines) or "The server has no resources now.")
        case "read_resource":
            read = await client.read_resource(str(call.arguments["uri"]))
            return CallToolResult(content=[EmbeddedResource(type="resource", resource=each) for each in read.contents])
        case _:
            given = await client.get_prompt(str(call.arguments["name"]), _prompt_arguments(call.arguments))
            blocks: list[ContentBlock] = []
            for message in given.messages:
                blocks += [TextContent(type="text", text=f"{message.role}:"), message.content]
            return CallToolResult(content=blocks)


def _tool(feature: FeatureKind, description: str, properties: JsonObject, required: Sequence[str]) -> ListedTool:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return ListedTool(name=feature, description=description, schema=schema, hints=_READS, feature=feature)


_LIST_RESOURCES: Final = _tool(
    "list_resources", "List the server's resources, and the templates for the addresses of more.", {}, ()
)


def _read_resource(count: int) -> ListedTool:
    about = f"Read a resource of the server, by its address. It lists {count} with list_resources."
    return _tool("read_resource", about, {"uri": {**_TEXT, "description": "The address of the resource"}}, ("uri",))


def _get_prompt(prompts: Sequence[Prompt]) -> ListedTool:
    known = "\n".join(_described(prompt) for prompt in prompts)
    properties = {
        "name": {"type": "string", "enum": [prompt.name for prompt in prompts]},
        "arguments": {"type": "object", "additionalProperties": _TEXT},
    }
    return _tool("get_prompt", f"Get one of the server's prompts, filled in:\n{known}", properties, ("name",))


def _described(prompt: Prompt) -> str:
    names = [each.name if each.required else f"{each.name}?" for each in prompt.arguments or ()]
    return f"{prompt.name}({', '.join(names)}): {prompt.description or prompt.title or prompt.name}"[:300]


def _prompt_arguments(arguments: JsonObject) -> dict[str, str]:
    given = arguments.get("arguments") or {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ToolValidationError("the `arguments` of a prompt are texts: send an object of texts")
    return given


async def _resources(client: Client) -> list[str]:
    resources = await _all(lambda cursor: client.list_resources(cursor=cursor), lambda page: page.resources)
    templates = await _all(
        lambda cursor: client.list_resource_templates(cursor=cursor), lambda page: page.resource_templates
    )
    lines = [_line(each.uri, each) for each in resources]
    return [*lines, *(f"{_line(each.uri_template, each)} [template]" for each in templates)]


async def _prompts(client: Client) -> list[Prompt]:
    return await _all(lambda cursor: client.list_prompts(cursor=cursor), lambda page: page.prompts)


async def _all(read: Callable[[str | None], Awaitable[P]], items: Callable[[P], list[Any]]) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await read(cursor)
        found += items(page)
        if not (cursor := page.next_cursor):
            break
    return found


def _line(uri: str, described: Any) -> str:
    return f"{uri}: {'; '.join(_facts(described))}"


def _facts(described: Any) -> Iterator[str]:
    yield str(described.title or described.name)
    if described.mime_type:
        yield str(described.mime_type)
    if described.description:
        yield str(described.description)


def _of_texts(*texts: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text) for text in texts])
