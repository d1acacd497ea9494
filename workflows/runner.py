"""The workflow runner. Determinism is checked before a run, not during it (see docs/decisions/0001-determinism.md)."""

from typing import Final

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

WORKFLOW_RUNNER: Final = SandboxedWorkflowRunner(
    # Importing the workflows and the domain again for each run would take 0.7 s and create second copies of their
    # classes. Passing all modules through also avoids errors from library finalizers that run during a workflow.
    restrictions=SandboxRestrictions.default.with_passthrough_all_modules()
)
