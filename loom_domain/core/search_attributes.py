"""Search attributes for lists of runs, with their types. They contain names, never content, since they are not
encrypted.
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
        "LoomCostUsd": "Double",
    }
)
