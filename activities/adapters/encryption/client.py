"""Find the tenant of a run before a client sends it something, so that the run's own key encrypts it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    CreateScheduleInput,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    ScheduleActionStartWorkflow,
    ScheduleHandle,
    SignalWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    StartWorkflowUpdateWithStartInput,
    WorkflowHandle,
    WorkflowHistoryEventFilterType,
    WorkflowUpdateHandle,
)
from temporalio.service import RPCError

from loom.activities.adapters.encryption.codec import key_of, tenant_in
from loom.activities.adapters.encryption.data_keys import DataKeys
from loom.activities.adapters.encryption.run_tenants import RunTenants


class TenantOfRun(Interceptor):
    """Learns the tenants of the runs that this client starts or talks to."""

    def __init__(self, keys: DataKeys, runs: RunTenants) -> None:
        self._keys = keys
        self._runs = runs

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        """See base class."""
        return _Outbound(next, self)

    def started(self, run_id: str, arguments: Any) -> None:
        """Learn the tenant that a request names."""
        request = arguments[0] if arguments else None
        tenant = request.get("tenant") if isinstance(request, Mapping) else getattr(request, "tenant", None)
        self._runs.learn(run_id, tenant if isinstance(tenant, str) else "")

    def is_unknown(self, run_id: str) -> bool:
        """Whether the run may have a tenant that this process hasn't seen."""
        return self._keys.has_tenants and not self._runs.knows(run_id)

    async def began(self, run_id: str, payloads: Sequence[Payload]) -> None:
        """Learn a run's tenant from its input. Raises StoreUnavailable and EncryptionKeyError."""
        tenant = ""
        for payload in payloads:
            name = key_of(payload)
            tenant = tenant or (
                tenant_in(payload.data) if name is None else (await self._keys.find(name, run_id)).tenant
            )
        self._runs.learn(run_id, tenant)


class _Outbound(OutboundInterceptor):
    def __init__(self, following: OutboundInterceptor, tenants: TenantOfRun) -> None:
        super().__init__(following)
        self._tenants = tenants

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
        self._tenants.started(input.id, input.args)
        return await super().start_workflow(input)

    async def create_schedule(self, input: CreateScheduleInput) -> ScheduleHandle:  # noqa: A002
        action = input.schedule.action
        if isinstance(action, ScheduleActionStartWorkflow):
            self._tenants.started(action.id, action.args)
        return await super().create_schedule(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:  # noqa: A002
        await self._look_up(input.id)
        await super().signal_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002
        if input.args:
            await self._look_up(input.id)
        return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002
        await self._look_up(input.id)
        return await super().start_workflow_update(input)

    async def start_update_with_start_workflow(
        self,
        input: StartWorkflowUpdateWithStartInput,  # noqa: A002
    ) -> WorkflowUpdateHandle[Any]:
        start = input.start_workflow_input
        self._tenants.started(start.id, start.args)
        return await super().start_update_with_start_workflow(input)

    async def _look_up(self, run_id: str) -> None:
        if not self._tenants.is_unknown(run_id):
            return
        events = self.next.fetch_workflow_history_events(
            FetchWorkflowHistoryEventsInput(
                id=run_id,
                run_id=None,
                page_size=1,
                next_page_token=None,
                wait_new_event=False,
                event_filter_type=WorkflowHistoryEventFilterType.ALL_EVENT,
                skip_archival=True,
                rpc_metadata={},
                rpc_timeout=None,
            )
        )
        with suppress(RPCError):  # the call that follows meets the same error, and reports it
            await events.fetch_next_page()
            first = (events.current_page or [HistoryEvent()])[0]
            await self._tenants.began(run_id, first.workflow_execution_started_event_attributes.input.payloads)
