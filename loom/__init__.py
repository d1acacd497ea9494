"""Durable agents on Temporal: every run is a workflow, every model call and every tool call an activity.

    from loom import LoomApp, LoomClient

`LoomApp` collects your agents and tools, `LoomClient` starts, steers and watches runs, `LoomPlugin` serves runs in a
worker of your own. Names are imported when they are first used, so `import loom` itself stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from loom._worker import LoomPlugin
    from loom.app.loom_app import LoomApp
    from loom.client import LoomClient
    from loom.domain.core import errors

_HOMES: Final = {
    "LoomApp": "loom.app.loom_app",
    "LoomClient": "loom.client",
    "LoomPlugin": "loom._worker",
}

__all__ = ["LoomApp", "LoomClient", "LoomPlugin", "errors"]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("loom.domain.core.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'loom' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
