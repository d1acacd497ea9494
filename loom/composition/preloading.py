"""Do in advance what a worker does when it first needs something: import slow modules and build adapters."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

from loom.workflows.runner import build_adapters

IMPORTED_LATER: Final = (
    "cryptography.hazmat.primitives.serialization",
    "genai_prices.data",
    "httpcore2",
    "pgvector.psycopg",
    "psycopg_pool",
    "redis.asyncio",
)
"""Modules that every worker imports when it starts, or when its first run needs them."""
OF_PROVIDERS: Final = {"openai": ("openai.resources.chat.completions",), "anthropic": ("anthropic",)}
"""Modules that a worker imports at the first call of a provider."""


def preload(model: str | None) -> None:
    """Import what a worker needs, and what its first call of this model needs."""
    for module in (*IMPORTED_LATER, *OF_PROVIDERS.get((model or "").partition(":")[0], ())):
        import_module(module)
    build_adapters(imported_activities())


def imported_activities() -> Iterator[Callable[..., Any]]:
    """Yield the activities of all modules that have been imported."""
    loaded = [module for name, module in sys.modules.items() if name.startswith("loom.activities.")]
    for kind in {value for module in loaded for value in vars(module).values() if isinstance(value, type)}:
        yield from (each for each in vars(kind).values() if hasattr(each, "__temporal_activity_definition"))
