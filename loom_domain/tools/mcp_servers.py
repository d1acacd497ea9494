"""MCP servers: their configuration, the names of their tools, and how far their hints are trusted.

Annotations count only if the server's configuration sets `trust`. Then they decide the effect of a tool and whether a
person is asked. The annotations of an untrusted server appear in the tools' descriptions and have no other effect.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject, short_digest
from loom.domain.core.suggestions import nearest
from loom.domain.core.tool_calls import Effect, Verdict
from loom.domain.core.tool_names import MCP

NAME_LIMIT: Final = 64
"""Longest tool name, in characters, that every provider accepts."""
DESCRIPTION_LIMIT: Final = 2048
"""Longest description, in characters, that is sent to the model with every turn."""

READING_NAME: Final = re.compile(r"read_|get_|list_|ls|grep|find|search|query|fetch|view", re.IGNORECASE)
"""Names that suggest a tool that only reads. They decide about parallelism only, never about permissions or effects."""

_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9-](?:_?[A-Za-z0-9-])*")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class McpServer:
    """One MCP server: a program to start, or a URL to connect to."""

    name: str
    """Letters, digits, `-` and single `_`: it is part of the names of its tools."""
    command: tuple[str, ...] = ()
    """Program and arguments; the server speaks over its standard input and output."""
    url: str = ""
    """Streamable HTTP endpoint."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the program; `${NAME}` stands for the worker's own variable NAME."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """HTTP headers; `${NAME}` as in `env`."""
    trust: bool = False
    """Trust the server's annotations: which tools only read, which destroy, which may be repeated."""
    timeout: float = 60.0
    """Seconds for one call."""
    connect_timeout: float = 30.0
    """Seconds from connecting until the server has listed its tools."""
    enabled_tools: tuple[str, ...] = ()
    """Only these tools, by the server's own names; empty: all."""
    disabled_tools: tuple[str, ...] = ()
    """Not these tools, by the server's own names."""

    def __post_init__(self) -> None:
        if complaint := _complaint(self):
            raise BadRequest(f"mcp.{self.name}: {complaint}", field=f"mcp.{self.name}")

    @property
    def address(self) -> str:
        """Identifies the server's program or URL, to detect that it has changed."""
        return self.url or "\0".join(self.command)

    def offers(self, tool: str) -> bool:
        """Whether the configuration enables this tool."""
        return tool not in self.disabled_tools and (not self.enabled_tools or tool in self.enabled_tools)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """A server's annotations of a tool; None if it does not give one."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedTool:
    """A tool as its server lists it."""

    name: str
    description: str = ""
    schema: JsonObject = field(default_factory=dict)
    hints: Hints = field(default_factory=Hints)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolTraits:
    """What Loom derives from a tool's hints."""

    effect: Effect = Effect.ONCE
    parallel: bool = False
    declared: Verdict = Verdict.ASK


def traits_of(tool: ListedTool, *, trust: bool) -> ToolTraits:
    """Effect, parallelism and default verdict of a tool: from its hints if trusted, else the worst case."""
    hints = tool.hints if trust else Hints()
    if hints.read_only:
        return ToolTraits(effect=Effect.READ, parallel=True, declared=Verdict.ALLOW)
    silent = hints.read_only is None and not hints.destructive
    return ToolTraits(
        effect=Effect.IDEMPOTENT if hints.idempotent else Effect.ONCE,
        parallel=silent and READING_NAME.match(tool.name) is not None,
    )


def tool_name(server: str, tool: str) -> str:
    """`mcp__server__tool`, in characters that every provider accepts.

    A name that has to be changed ends in a digest of the original, whether or not another tool would get the same
    name. Otherwise a tool that the server adds later could take over the name that a run is pinned to.
    """
    plain = f"{MCP}{server}__{tool}"
    name = re.sub(r"[^A-Za-z0-9_-]", "_", plain)
    if name == plain and len(name) <= NAME_LIMIT:
        return name
    digest = short_digest(plain)
    return f"{name[: NAME_LIMIT - len(digest) - 1]}_{digest}"


def description(server: McpServer, tool: ListedTool) -> str:
    """The description that the model reads: the server's text, truncated and cleaned, with a note of its source."""
    words = visible(tool.description).strip()
    words = words if len(words) <= DESCRIPTION_LIMIT else words[: DESCRIPTION_LIMIT - 1] + "…"
    said = "" if server.trust else _hint_text(tool.hints)
    return "\n".join(part for part in (words or tool.name, f"(From the MCP server {server.name}.{said})") if part)


def visible(text: str) -> str:
    """The text without control and format characters, which can hide instructions to the model from people."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Co", "Cs"))


def expand(values: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Replace `${NAME}` by the environment's value. Raises BadRequest for a variable that is not set."""
    return {key: _VARIABLE.sub(lambda found: _value(found[1], environment), text) for key, text in values.items()}


def variables(values: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the variables that these values refer to as `${NAME}`."""
    return tuple(dict.fromkeys(name for text in values.values() for name in _VARIABLE.findall(text)))


def read_servers(tables: Mapping[str, Any]) -> tuple[McpServer, ...]:
    """The servers in a configuration's `[mcp.NAME]` tables. Raises BadRequest, which names table and key."""
    return tuple(_read(name, table) for name, table in sorted(tables.items()))


def _read(name: str, table: object) -> McpServer:
    if not isinstance(table, Mapping):
        raise BadRequest(f"mcp.{name} must be a table with `command` or `url`", field=f"mcp.{name}")
    known = [*(f.name for f in fields(McpServer) if f.name != "name"), "args"]
    for key in table:
        if key not in known:
            hint = nearest(str(key), known, f"known: {', '.join(known)}")
            raise BadRequest(f"mcp.{name}: unknown key {key!r}; {hint}", field=f"mcp.{name}.{key}")
    given = {key: _converted(name, key, value) for key, value in table.items() if key != "args"}
    arguments = _converted(name, "args", table.get("args", []))
    return McpServer(name=name, **{**given, "command": (*given.get("command", ()), *arguments)})


def _converted(server: str, key: str, value: object) -> Any:
    """Convert a value to the field's type. Raises BadRequest, which says what is expected."""
    match key, value:
        case "command", str():
            return (value,)
        case (("command" | "args" | "enabled_tools" | "disabled_tools"), list()) if _all_text(value):
            return tuple(value)
        case (("env" | "headers"), dict()) if _all_text(value.values()):
            return dict(value)
        case "url", str():
            return value
        case "trust", bool():
            return value
        case (("timeout" | "connect_timeout"), int() | float()) if not isinstance(value, bool):
            return float(value)
    raise BadRequest(f"mcp.{server}.{key} must be {_WANTED[key]}", field=f"mcp.{server}.{key}")


_WANTED: Final = {
    **dict.fromkeys(("args", "enabled_tools", "disabled_tools"), "a list of texts"),
    **dict.fromkeys(("env", "headers"), "a table of texts"),
    **dict.fromkeys(("timeout", "connect_timeout"), "a number of seconds"),
    "command": "a text or a list of texts",
    "url": "a text",
    "trust": "true or false",
}


def _all_text(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _complaint(server: McpServer) -> str:
    if _SERVER_NAME.fullmatch(server.name) is None or len(server.name) > 32:
        return "a server's name is up to 32 letters, digits, `-` and single `_` between them"
    if bool(server.command) == bool(server.url):
        return "give either `command` (a program to start) or `url` (an address to speak to)"
    if server.url and not server.url.startswith(("http://", "https://")):
        return "`url` must begin with http:// or https://"
    if server.url and server.env:
        return "`env` is for servers with `command`; one with `url` takes `headers`"
    if server.command and server.headers:
        return "`headers` are for servers with `url`; one with `command` takes `env`"
    if not (0 < server.timeout <= 3600 and 0 < server.connect_timeout <= 600):
        return "`timeout` must be within 3600 seconds and `connect_timeout` within 600, both over 0"
    return ""


def _value(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise BadRequest(f"the variable {name} is not set in the worker's environment: set it", field=name)
    return environment[name]


def _hint_text(hints: Hints) -> str:
    words = {
        "read-only": hints.read_only,
        "destructive": hints.destructive,
        "idempotent": hints.idempotent,
        "open-world": hints.open_world,
    }
    said = [word if value else f"not {word}" for word, value in words.items() if value is not None]
    return f" It says of the tool, unverified: {', '.join(said)}." if said else ""
