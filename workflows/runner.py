"""The one list of modules that workflows share with the worker instead of importing them anew per run."""

from typing import Final

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

PASSED_THROUGH: Final = (
    "loom_domain",
    "activities",
    "workflows.border",
    "workflows.children",
    "workflows.converter",
    "workflows.details",
    "workflows.ends",
    "workflows.options",
    "workflows.outside",
    "workflows.projection",
    "workflows.scheduling",
    "workflows.steering",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_inspection",
)

WORKFLOW_RUNNER: Final = SandboxedWorkflowRunner(
    restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
)
