"""Names that runs can be listed by, and what kind of value each holds; never content, they are not encrypted."""

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
        "LoomCostUsd": "Double",
    }
)
