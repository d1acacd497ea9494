"""How workflows are run. What keeps them deterministic is checked before: docs/decisions/0001-determinism.md."""

from typing import Final

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

WORKFLOW_RUNNER: Final = SandboxedWorkflowRunner(
    # Importing workflows and domain again for each run would cost it 0.7 s, and give it second copies of its own
    # classes. Passing all modules through also spares a library's finalizer, which may run in the middle of a workflow.
    restrictions=SandboxRestrictions.default.with_passthrough_all_modules()
)
