"""Error messages about an MCP server: one readable line, without the secrets that the server was given."""

from collections.abc import Mapping
from typing import Final

from mcp.shared.exceptions import MCPError

from loom.domain.tools.mcp_servers import McpServer, variables, visible

_SHORTEST_SECRET: Final = 6
"""Shorter values are not secrets, and replacing them would garble every text."""


class SecretReplacer:
    """Replaces the values that the server was given through `${NAME}` in everything that it returns."""

    def __init__(self, server: McpServer, environment: Mapping[str, str]) -> None:
        names = dict.fromkeys((*variables(server.env), *variables(server.headers)))
        values = {environment.get(name, "") for name in names}
        # Longest first, since one value may be a prefix of another.
        self._secrets = sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with each of the values replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "[REDACTED]")
        return text


def readable(error: BaseException) -> str:
    """Format an error as one line. Of an exception group, use the first one, which caused the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(visible(str(error)).split())[:300]
    if isinstance(error, MCPError | ConnectionError | TimeoutError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
