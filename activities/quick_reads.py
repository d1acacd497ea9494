"""Run quick reads in the activity that called the model, so that a turn with them needs no other activity.

    the model answers ┬▶ its calls are prepared ─▶ the ledger has the answer ┐
                      └▶ nothing has reached the run ────────────────────────┴▶ the reads run

The run learns of the answer and the results at the same time.

A read that takes too long is repeated in an activity of its own. If somebody paused or aborted the run during the model
call, sent a message, or changed its rules, the run decides about the calls, and activities make all of them. If the
worker dies during a read, the ledger has the answer, and the model isn't called again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.service import RPCError

from loom.activities.leases import Leases, is_stopped
from loom.activities.ports import Claim
from loom.activities.publish import StreamWriter
from loom.activities.run_tool import ToolRunner
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_calls import Effect, PreparedCall
from loom.domain.machine.activity_requests import model_key, quick_attempt
from loom.domain.machine.tool_results import quick_calls
from loom.domain.run.activity_payloads import ModelReply, ModelRequest

_log = structlog.get_logger("loom.tool")

_WITHIN: Final = timedelta(seconds=1)
"""How long the ledger and the server may take. Otherwise, activities make the calls."""
_PAUSE: Final = 10.0
"""Seconds without quick reads after the ledger or the server was unavailable."""
_FRESH: Final = 0.1
"""Seconds for which the answer about new events counts. A quick read may take as long."""
_MAX_RUNS: Final = 2_000
"""The maximum number of runs whose last answer a worker remembers."""


class QuickReads:
    """Runs the quick reads that models ask for."""

    def __init__(self, runner: ToolRunner, leases: Leases[ModelReply]) -> None:
        self._runner = runner
        self._leases = leases
        self._unavailable_until = 0.0
        self._last_answers: dict[str, str] = {}
        """The ledger key of each run's last answer. Once the run calls the model again, history has the answer."""

    def of_turn(self, request: ModelRequest, spec: AgentSpec, writer: StreamWriter) -> "TurnReads":
        """Return what runs the quick reads of one turn. Their events come after those of `writer`."""
        return TurnReads(self, request, spec, writer)

    def may_include(self, calls: Sequence[ToolCall]) -> bool:
        """Whether one of these calls may be a quick read. They aren't prepared yet."""
        return self._is_available and any(self._runner.is_quick(call.name) for call in calls)

    async def may_run(self, request: ModelRequest, reply: ModelReply, is_unchanged: asyncio.Task[bool] | None) -> bool:
        """Whether the ledger has the answer, and nothing has reached the run. Asks the server now if `is_unchanged` is
        None.
        """
        if not self._is_available:
            return False
        try:
            async with asyncio.timeout(_WITHIN.total_seconds()):
                stored = self._stored(request, reply)
                return all(await asyncio.gather(is_unchanged or _has_no_new_events(), stored))
        except Exception as error:  # noqa: BLE001 - whatever it is, activities can make the calls
            _log.warning("quick_reads_left_to_activities", error=repr(error))
            self._unavailable_until = asyncio.get_running_loop().time() + _PAUSE
            return False

    async def with_result(
        self, request: ModelRequest, call: ToolCall, plan: PreparedCall, spec: AgentSpec
    ) -> PreparedCall:
        """Return the prepared call with its result, if it is a quick read that ended in time."""
        if not plan.is_quick:
            return plan
        attempt = quick_attempt(request, call, plan, spec.workspace)
        return replace(plan, result=await self._runner.read_quickly(attempt))

    @property
    def _is_available(self) -> bool:
        return asyncio.get_running_loop().time() >= self._unavailable_until

    async def _stored(self, request: ModelRequest, reply: ModelReply) -> bool:
        claim = Claim(key=model_key(request), run_id=request.origin.run_id, attempt=request.attempt)
        before = self._last_answers.get(claim.run_id)
        if not await self._leases.store(claim, reply, replaces=before if before != claim.key else None):
            return False
        self._last_answers.pop(claim.run_id, None)
        self._last_answers[claim.run_id] = claim.key
        if len(self._last_answers) > _MAX_RUNS:
            del self._last_answers[next(iter(self._last_answers))]
        return True


class TurnReads:
    """The quick reads of one turn."""

    def __init__(self, reads: QuickReads, request: ModelRequest, spec: AgentSpec, writer: StreamWriter) -> None:
        self._reads = reads
        self._request = request
        self._spec = spec
        self._writer = writer
        self._is_unchanged: asyncio.Task[bool] | None = None
        """Asks the server. None if it hasn't been asked yet."""
        self._asked_at = 0.0

    async def expect(self, calls: Sequence[ToolCall]) -> None:
        """Ask the server for new events if one of these calls may be a quick read. It answers while the calls are
        prepared.
        """
        if not self._reads.may_include(calls):
            return
        self._is_unchanged, self._asked_at = (
            asyncio.create_task(_has_no_new_events()),
            asyncio.get_running_loop().time(),
        )
        try:
            await asyncio.sleep(0)  # the task sends the question
        except asyncio.CancelledError:
            if not is_stopped():
                raise
            # The run has ended, but it has to account for the answer.

    async def with_results(self, reply: ModelReply) -> ModelReply:
        """Return the answer with the results of its quick reads."""
        if reply.message is None or not any(plan.is_quick for plan in reply.plans):
            return reply
        calls = reply.message.tool_calls
        wanted = quick_calls(calls, reply.plans, self._spec.parallel_limit, datetime.now(UTC))
        reply = _left_to_activities(reply, but=wanted)
        if not wanted:
            return reply
        reads: list[asyncio.Task[PreparedCall]] = []
        try:
            is_fresh = asyncio.get_running_loop().time() - self._asked_at <= _FRESH
            may_run = self._reads.may_run(self._request, reply, self._is_unchanged if is_fresh else None)
            if not (await asyncio.gather(may_run, self._writer.close()))[0]:
                return _left_to_activities(reply)
            asked = zip(calls, reply.plans, strict=True)
            reads += [asyncio.create_task(self._reads.with_result(self._request, *each, self._spec)) for each in asked]
            await asyncio.gather(*reads)
        except asyncio.CancelledError:
            if not is_stopped():
                raise
            # The run has ended, but it has to account for the answer, and for the reads that are done.
            if not reads:
                return _left_to_activities(reply)
            await asyncio.wait(reads)
        plans = (plan if read.cancelled() else read.result() for plan, read in zip(reply.plans, reads, strict=True))
        return replace(reply, plans=tuple(plans))


def _left_to_activities(reply: ModelReply, *, but: frozenset[str] = frozenset()) -> ModelReply:
    calls = reply.message.tool_calls if reply.message else ()
    plans = (
        replace(plan, effect=Effect.READ) if plan.is_quick and call.id not in but else plan
        for call, plan in zip(calls, reply.plans, strict=True)
    )
    return replace(reply, plans=tuple(plans))


async def _has_no_new_events() -> bool:
    """Whether nothing has reached the run since it scheduled this activity.

    Whatever reaches a run schedules a workflow task. The server stores the events of a workflow task as a group, and
    this request returns only the newest group.
    """
    info, client = activity.info(), activity.client()
    asked = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""),
        maximum_page_size=1,
    )
    try:
        newest = await client.workflow_service.get_workflow_execution_history_reverse(asked, timeout=_WITHIN)
    except RPCError:
        return False
    for event in newest.history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
            return False
        if event.activity_task_scheduled_event_attributes.activity_id == info.activity_id:
            return True
    return False
