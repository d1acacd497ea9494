"""Format an MCP server's error as one readable line, without the secrets from the server's configuration."""

from collections.abc import Mapping
from typing import Final

from mcp.shared.exceptions import MCPError

from loom.domain.tools.mcp_servers import McpServer, variables, visible

_SHORTEST_SECRET: Final = 6
"""Minimum length of a secret. Shorter values aren't replaced, because they also occur in ordinary text."""


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


def readable(error: BaseException) -> str:
    """Format an error as one line. For an exception group, use only its first exception, which caused the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(visible(str(error)).split())[:300]
    if isinstance(error, MCPError | ConnectionError | TimeoutError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
