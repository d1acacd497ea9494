"""Versions of workers in tests."""

from collections.abc import Sequence

from temporalio.client import WorkflowHistory


def served(histories: Sequence[WorkflowHistory]) -> list[str]:
    """The version that each execution of a run was on, from its first workflow task to its last."""
    versions = [
        {
            event.workflow_task_completed_event_attributes.deployment_version.build_id
            for event in history.events
            if event.HasField("workflow_task_completed_event_attributes")
        }
        for history in histories
    ]
    return ["+".join(sorted(each)) for each in versions]
