"""Ordinary source code: what is installed wherever these tests run."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGES: Final = """
anyio asyncio/ email/ http/ json/ logging/ unittest/ xml/ click jsonschema mcp openai/lib openai/_client.py psycopg
pygments/formatters pytest_asyncio redis/_parsers requests rich starlette structlog temporalio/worker typer urllib3
"""
"""Packages of ours, and where a slash is last of the standard library: clients, servers, and no tests."""


def ordinary_files() -> Iterator[Path]:
    """Python files in a fixed order."""
    paths = sysconfig.get_paths()
    for package in PACKAGES.split():
        root = Path(paths["stdlib" if package.endswith("/") else "purelib"], package)
        yield from sorted(root.rglob("*.py")) if root.is_dir() else [root]


def ordinary_code(characters: int) -> str:
    """So much source code, always the same in the same environment."""
    pieces: list[str] = []
    for path in ordinary_files():
        if characters <= 0:
            break
        pieces.append(path.read_text(encoding="utf-8")[:characters])
        characters -= len(pieces[-1])
    return "".join(pieces)
