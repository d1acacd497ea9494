"""Cache the last known tools of each MCP server. The cache consists of files in Loom's home directory. The cached tools
stay listed while the server is unavailable.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from loom.domain.core.messages import short_digest
from loom.domain.tools.mcp_servers import ListedTool, McpServer

_log = structlog.get_logger("loom.mcp")


class _CacheFile(BaseModel):
    """The content of a cache file."""

    model_config = ConfigDict(extra="forbid")

    address: str
    """Digest of the server's configuration. The cache is invalid if the configuration has changed."""
    tools: list[ListedTool]
    instructions: str = ""


class ToolCache:
    """Reads and writes the cache files in one home directory."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "mcp"

    def load(self, server: McpServer) -> tuple[Sequence[ListedTool], str]:
        """Return the server's last known tools, if any, and its instructions."""
        path = self._path(server)
        try:
            page = _CacheFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return (), ""
        except (OSError, ValidationError) as error:
            _log.warning("mcp_memory_unreadable", server=server.name, path=str(path), reason=str(error)[:200])
            return (), ""
        return (page.tools, page.instructions) if page.address == short_digest(server.address) else ((), "")

    def save(self, server: McpServer, tools: Sequence[ListedTool], instructions: str) -> None:
        """Save the tools. Write errors are ignored, so that a full disk doesn't make the server unavailable."""
        page = {
            "address": short_digest(server.address),
            "tools": [asdict(tool) for tool in tools],
            "instructions": instructions,
        }
        path = self._path(server)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(page), encoding="utf-8")
            new.replace(path)
        except OSError as error:
            _log.warning("mcp_memory_unwritable", server=server.name, path=str(path), reason=str(error))

    def _path(self, server: McpServer) -> Path:
        return self._folder / f"{server.name}.json"
