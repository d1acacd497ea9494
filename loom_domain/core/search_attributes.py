"""The search attributes for listing runs, and their types.

Search attributes aren't encrypted, so they contain only names and never content.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

SEARCH_ATTRIBUTES: Mapping[str, Literal["Keyword", "Double"]] = MappingProxyType(
    {
        "LoomAgent": "Keyword",
        "LoomSession": "Keyword",
        "LoomStatus": "Keyword",
        "LoomModel": "Keyword",
        "LoomWaitingOn": "Keyword",
        "LoomRootRun": "Keyword",
        "LoomTenant": "Keyword",
        "LoomCostUsd": "Double",
    }
)
