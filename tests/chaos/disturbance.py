"""People who query runs all the time, and who send them messages, pauses and resumes at any moment."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Final, TypeAlias

from temporalio.client import (
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError

from loom.client import LoomClient

Request: TypeAlias = tuple[str, dict[str, object]]

MESSAGE: Final[Request] = ("send_message", {"text": "hurry up"})
PAUSE: Final[Request] = ("pause", {})
RESUME: Final[Request] = ("resume", {})
UNANSWERED: Final = (
    RPCError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
"""What a query or a request may meet while workers or servers are away. It mustn't harm the run."""
PATIENCE: Final = timedelta(seconds=3)


@dataclass
class Disturbance:
    """Queries and requests, until it is over."""

    client: LoomClient
    random: Random
    counted: Counter[str]
    ended: set[str] = field(default_factory=set)
    """Runs that nobody needs to disturb any more."""
    is_over: bool = False

    async def watch(self, run_ids: Sequence[str]) -> None:
        """Query one of the runs after the other."""
        while not self.is_over and (going := [run_id for run_id in run_ids if run_id not in self.ended]):
            handle = self.client.temporal.get_workflow_handle(self.random.choice(going))
            with suppress(*UNANSWERED):
                await handle.query("status", rpc_timeout=PATIENCE)
                self.counted["queries answered"] += 1
            await asyncio.sleep(self.random.uniform(0.0, 0.3))

    async def steer(self, run_id: str, requests: Iterable[Request], pauses: tuple[float, float] = (0.1, 0.8)) -> None:
        """Send a run these requests, half of them as signals, with pauses of that many seconds, from and to."""
        handle = self.client.temporal.get_workflow_handle(run_id)
        for name, payload in requests:
            if self.is_over or run_id in self.ended:
                return
            with suppress(*UNANSWERED):
                if self.random.random() < 0.5:
                    await handle.signal(name, payload, rpc_timeout=PATIENCE)
                else:
                    await handle.execute_update(name, payload, rpc_timeout=PATIENCE)
                self.counted["requests"] += 1
            await asyncio.sleep(self.random.uniform(*pauses))
