"""How workflows are run: in Temporal's sandbox, which forbids what is not deterministic."""

from typing import Final

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

WORKFLOW_RUNNER: Final = SandboxedWorkflowRunner(
    # No module is imported anew for each run: none has state, import-linter keeps the impure ones away, and a library's
    # finaliser that imports something may run in the middle of a workflow, whenever memory is collected.
    restrictions=SandboxRestrictions.default.with_passthrough_all_modules()
)
