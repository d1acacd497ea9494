"""End what this worker keeps for a run once the run has ended: a call that waits for an answer to an MCP server's
question, or the interpreter with a run's variables.

A run that waits, or that goes on elsewhere, doesn't occupy this worker, so nothing tells the worker that the run has
ended. The worker looks.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

_log = structlog.get_logger("loom.run")

LOOK: Final = 2.0
"""Seconds between two checks of a run that this worker keeps something for."""


@dataclass(eq=False, slots=True)
class _Kept:
    run: WorkflowHandle[object, object]
    abandon: Callable[[], None]


class KeptCalls:
    """What this worker keeps for runs. One task watches the runs."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._watching: asyncio.Task[None] | None = None

    def keep(self, call: str, abandon: Callable[[], None]) -> None:
        """Call `abandon` if the current activity's run ends before `release`."""
        run = activity.client().get_workflow_handle(activity.info().workflow_id or "")
        self._kept[call] = _Kept(run=run, abandon=abandon)
        if self._watching is None or self._watching.done():
            # In a context of its own, because the task serves all runs.
            self._watching = asyncio.create_task(self._watch(), context=Context())

    def release(self, call: str) -> None:
        """Stop watching, because the call continues, or nothing is kept any longer."""
        self._kept.pop(call, None)

    async def _watch(self) -> None:
        while self._kept:
            await asyncio.sleep(LOOK)
            for call, kept in list(self._kept.items()):
                if await _has_ended(kept.run) and self._kept.pop(call, None) is not None:
                    _log.info("kept_for_ended_run", kept=call)
                    kept.abandon()


async def _has_ended(run: WorkflowHandle[object, object]) -> bool:
    try:
        described = await run.describe(rpc_timeout=timedelta(seconds=LOOK))
    except RPCError as error:
        return error.status is RPCStatusCode.NOT_FOUND
    return described.status is not WorkflowExecutionStatus.RUNNING
