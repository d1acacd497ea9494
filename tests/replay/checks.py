"""All that this folder compares with what was recorded or reviewed, by name."""

import asyncio
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from temporalio.client import WorkflowHistory

from tests.replay.contents import DIFFERENCES, HISTORIES, differences

OTHERS: Final = ("defaults", "keys", "attempts")
"""The checks that replay nothing: each is the name of a module."""


def failed(first: str = "") -> Iterator[str]:
    """Yield the names of the checks that fail. Begin with the check `first`, and with the newest histories."""
    for name in dict.fromkeys((first, *reversed([path.stem for path in HISTORIES]), *OTHERS)):
        try:
            has_failed = bool(name) and not _holds(name)
        except Exception:  # noqa: BLE001 - a replay that fails, or code that can't even run it
            has_failed = True
        if has_failed:
            yield name


def _holds(name: str) -> bool:
    if name not in OTHERS:
        (path,) = (path for path in HISTORIES if path.stem == name)
        expected = json.loads(DIFFERENCES.read_text()).get(name, [])
        found: Any = asyncio.run(differences(WorkflowHistory.from_json(name, path.read_text())))
        return bool(found == expected)
    check = import_module(f"tests.replay.{name}")  # what a replay doesn't need is only imported for this
    if name == "attempts":
        return bool(asyncio.run(check.outcomes()) == check.OUTCOMES)
    return bool(getattr(check, name)() == json.loads(getattr(check, name.upper()).read_text()))
