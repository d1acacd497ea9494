"""Format an MCP server's error as one readable line, without the secrets from the server's configuration."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from mcp.shared.exceptions import MCPError

from loom.activities.json_schemas import DATA
from loom.activities.toolbox.error_reasons import errors_in
from loom.domain.tools.mcp_servers import ListedTool, McpServer, variables, visible

_SHORTEST_SECRET: Final = 6
"""Minimum length of a secret. Shorter values aren't replaced, because they also occur in ordinary text."""

_TEXTS: Final = (DATA - {"dependentRequired"}) | {"title", "description"}
"""Keywords of a schema whose texts have no meaning for the schema itself."""
_ERRORS: Final = 5
"""Maximum number of errors in a group that are named."""


class SecretReplacer:
    """Replaces secrets in all text that the server returns. The secrets are the values of the `${NAME}` references in
    the server's configuration.
    """

    def __init__(self, server: McpServer, environment: Mapping[str, str]) -> None:
        secret = {"client_secret": server.oauth.client_secret} if server.oauth else {}
        names = dict.fromkeys((*variables(server.env), *variables(server.headers), *variables(secret)))
        values = {environment.get(name, "") for name in names}
        # Replace the longest values first, because one value may be a prefix of another.
        self._secrets = sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with all secret values replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "[REDACTED]")
        return text

    def tool(self, tool: ListedTool) -> ListedTool:
        """Return the listed tool with all secret values replaced in its descriptions and in the data of its schema."""
        if not self._secrets:
            return tool
        try:
            schema = self._schema(tool.schema)
        except RecursionError:
            schema = tool.schema  # no tool is made of a schema that is nested so deeply
        return replace(tool, description=self(tool.description), schema=schema)

    def _schema(self, node: Any, *, is_text: bool = False) -> Any:
        match node:
            case str():
                return self(node) if is_text else node
            case list():
                return [self._schema(each, is_text=is_text) for each in node]
            case Mapping():
                return {key: self._schema(each, is_text=is_text or key in _TEXTS) for key, each in node.items()}
            case _:
                return node


def readable(error: BaseException) -> str:
    """Format an error as one line. For an exception group, include the errors in it."""
    return "; ".join(dict.fromkeys(map(_line, islice(errors_in(error), _ERRORS))))


def _line(error: BaseException) -> str:
    text = " ".join(visible(str(error)).split())[:300]
    if isinstance(error, MCPError | ConnectionError | TimeoutError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
