"""What a worker and a replayer share: the workflows, and the runner that executes them.

Determinism is checked before a run, not during it (see docs/decisions/0001-determinism.md).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, get_type_hints

from temporalio.worker import UnsandboxedWorkflowRunner

from loom.domain.core.requests import RunRequest, RunResult
from loom.domain.core.run_files import FilesRequest
from loom.domain.memory.backfill import UpkeepRequest
from loom.domain.run.state import RunState
from loom.domain.tree.budget import BudgetRequest
from loom.domain.tree.events import AncestryChanged, BudgetGranted
from loom.domain.tree.lineage import Lineage
from loom.domain.tree.tree import ChildReport
from loom.workflows.agent_run import AgentRun
from loom.workflows.crew_run import CrewRun
from loom.workflows.event_order import InHistoryOrder
from loom.workflows.memory_upkeep import MemoryUpkeep
from loom.workflows.moved_run import MovedRun
from loom.workflows.notify import Notify
from loom.workflows.payload_converter import adapter_of
from loom.workflows.run_files import RunFiles

WORKFLOWS: Final[Sequence[type]] = (AgentRun, CrewRun, MemoryUpkeep, MovedRun, Notify, RunFiles)
"""Loom's workflows. The current code must be able to replay the recorded histories of each workflow."""

WORKFLOW_RUNNER: Final = InHistoryOrder(UnsandboxedWorkflowRunner())
"""Temporal's sandbox would cost a tenth more of a worker's processor time in each turn."""

_OF_WORKFLOWS: Final = (
    RunState,
    RunRequest,
    RunResult,
    Lineage,
    ChildReport,
    BudgetRequest,
    BudgetGranted,
    AncestryChanged,
    UpkeepRequest,
    FilesRequest,
)
"""The types that workflows pass to other executions and runs."""


def build_adapters(activities: Iterable[Callable[..., Any]]) -> None:
    """Build the adapters that workflow tasks need. Otherwise, the first tasks build them, which can take seconds on a
    busy machine and looks like a deadlock.
    """
    of_activities = [kind for activity in activities for kind in get_type_hints(activity).values()]
    for kind in (*_OF_WORKFLOWS, *of_activities):
        adapter_of(kind)
