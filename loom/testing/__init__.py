"""Test agents against real servers, with a model whose replies you script.

    from loom.testing import ToolUse, calls, text

    async def test_a_refund_waits_for_a_person(loom_worker):
        script = [calls(ToolUse("refund", {"order": 7})), text("Refunded.")]
        async with loom_worker(script, app=app) as (loom, model):
            run_id = await loom.start("Refund order 7", permissions={"refund": "ask"})
            await loom.asked(run_id)
            ...

The fixtures are in `loom.testing.plugin`, which pytest loads automatically. Only the model is scripted: Temporal,
Postgres, Redis, the worker and the tools are real. `pip install 'loom-agents[testing]'` installs what it needs. Each
name is imported on first use, so that pytest starts as fast as without Loom.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from loom.domain.history.recorded_calls import RecordedCall
    from loom.testing.cassettes import Cassette
    from loom.testing.fixtures import LoomProcesses, LoomTimeSkipping, LoomWorker
    from loom.testing.harness import Addresses, Harness, harness, settings_for
    from loom.testing.histories import assert_replays, save_histories
    from loom.testing.model_replies import (
        Reply,
        Script,
        SeenRequest,
        ToolUse,
        calls,
        context_length,
        cut_after,
        cut_length,
        empty,
        garbage,
        hang,
        malformed_call,
        refusal,
        status,
        text,
    )
    from loom.testing.model_server import ModelServer, ThreadedModelServer, conversation, script, turns
    from loom.testing.recorded_run import RecordedRun
    from loom.testing.scripted_provider import ScriptedProvider
    from loom.testing.time_skipping import time_skipping
    from loom.testing.waiting import eventually
    from loom.testing.worker_processes import Workers, mortal

__all__ = [
    "Addresses",
    "Cassette",
    "Harness",
    "LoomProcesses",
    "LoomTimeSkipping",
    "LoomWorker",
    "ModelServer",
    "RecordedCall",
    "RecordedRun",
    "Reply",
    "Script",
    "ScriptedProvider",
    "SeenRequest",
    "ThreadedModelServer",
    "ToolUse",
    "Workers",
    "assert_replays",
    "calls",
    "context_length",
    "conversation",
    "cut_after",
    "cut_length",
    "empty",
    "eventually",
    "garbage",
    "hang",
    "harness",
    "malformed_call",
    "mortal",
    "refusal",
    "save_histories",
    "script",
    "settings_for",
    "status",
    "text",
    "time_skipping",
    "turns",
]

_NAMES_BY_MODULE: Final = {
    "cassettes": ("Cassette",),
    "fixtures": ("LoomProcesses", "LoomTimeSkipping", "LoomWorker"),
    "harness": ("Addresses", "Harness", "harness", "settings_for"),
    "histories": ("assert_replays", "save_histories"),
    "model_replies": (
        "Reply",
        "Script",
        "SeenRequest",
        "ToolUse",
        "calls",
        "context_length",
        "cut_after",
        "cut_length",
        "empty",
        "garbage",
        "hang",
        "malformed_call",
        "refusal",
        "status",
        "text",
    ),
    "model_server": ("ModelServer", "ThreadedModelServer", "conversation", "script", "turns"),
    "recorded_run": ("RecordedCall", "RecordedRun"),
    "scripted_provider": ("ScriptedProvider",),
    "time_skipping": ("time_skipping",),
    "waiting": ("eventually",),
    "worker_processes": ("Workers", "mortal"),
}
_MODULES: Final = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        from loom.extras import explained  # noqa: PLC0415 - pytest starts as fast as without Loom

        if (missing := explained(error, f"{__name__}.{name}", "testing")) is None:
            raise
        raise ImportError(missing, name=name) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
