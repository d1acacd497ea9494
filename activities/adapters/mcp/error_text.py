"""What is said of an MCP server's trouble: one readable line, without the secrets that the server was given."""

from collections.abc import Mapping
from typing import Final

from mcp.shared.exceptions import MCPError

from loom.domain.tools.mcp_servers import McpServer, variables, visible

_SHORTEST_SECRET: Final = 6
"""Shorter values are no secrets, and replacing them would garble every text."""


class Scrubber:
    """Takes the values that `${NAME}` gave a server out of whatever comes back from it."""

    def __init__(self, server: McpServer, environment: Mapping[str, str]) -> None:
        names = dict.fromkeys((*variables(server.env), *variables(server.headers)))
        values = {environment.get(name, "") for name in names}
        # The longest first: one may be the beginning of another.
        self._secrets = sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text with each of the values replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "[REDACTED]")
        return text


def readable(error: BaseException) -> str:
    """An error as one line; of a group of them the first, which is the cause of the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(visible(str(error)).split())[:300]
    if isinstance(error, MCPError | ConnectionError | TimeoutError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
