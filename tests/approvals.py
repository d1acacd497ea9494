"""What the approvals in a run's history name."""

import json
from collections.abc import Iterable

from temporalio.client import WorkflowHistory

from loom.domain.core.messages import JsonObject


def decisions(histories: Iterable[WorkflowHistory]) -> list[JsonObject]:
    """The payloads of the accepted updates `approve` and `deny`, in order, as the caller has sent them."""
    inputs = (
        event.workflow_execution_update_accepted_event_attributes.accepted_request.input
        for history in histories
        for event in history.events
    )
    return [json.loads(each.args.payloads[0].data) for each in inputs if each.name in ("approve", "deny")]
