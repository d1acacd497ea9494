"""What a worker and a replayer share: the workflows, and the runner that executes them.

Determinism is checked before a run, not during it (see docs/decisions/0001-determinism.md).
"""

from collections.abc import Sequence
from typing import Final

from temporalio.worker import UnsandboxedWorkflowRunner

from loom.workflows.agent_run import AgentRun
from loom.workflows.crew_run import CrewRun
from loom.workflows.memory_upkeep import MemoryUpkeep

WORKFLOWS: Final[Sequence[type]] = (AgentRun, CrewRun, MemoryUpkeep)
"""Loom's workflows. The current code must be able to replay the recorded histories of each workflow."""

WORKFLOW_RUNNER: Final = UnsandboxedWorkflowRunner()
"""Temporal's sandbox would cost a tenth more of a worker's processor time in each turn."""
