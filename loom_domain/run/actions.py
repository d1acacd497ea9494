"""Actions: the possible next steps of a run. The domain chooses an action, and the workflow performs it."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from loom.domain.agents.hook_steps import HookPoint
from loom.domain.core.tool_calls import OpenCall
from loom.domain.run.state import Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepare:
    """Resolve and pin the agent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareWorkspace:
    """Clone the run's repository."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AwaitAdmission:
    """Wait until the run's tenant has room for another run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHook:
    """Run a user-defined hook before the first turn."""

    step: HookPoint


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginTurn:
    """Read new messages, check the limits, and start the next turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreParts:
    """Read and store the images, recordings and files of the messages that the model reads next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallModel:
    """Call the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressContext:
    """Compress the conversation before the next model call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateAnswer:
    """Rate the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Wait before the next attempt."""

    until: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareCalls:
    """Check these calls again, because rules or arguments have changed."""

    calls: tuple[OpenCall, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AskPerson:
    """Wait until a person has answered these asks or until they expire."""

    calls: tuple[OpenCall, ...]
    until: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AwaitPerson:
    """Wait until a person has answered the model's question."""

    call_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTools:
    """Run these calls in parallel."""

    calls: tuple[OpenCall, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleModel:
    """Call the model for the MCP server of this call."""

    call_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunChildren:
    """Start a child run for each of these calls and wait until all child runs have ended."""

    calls: tuple[OpenCall, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AwaitBudget:
    """Wait for the parent to answer a budget request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AwaitResume:
    """Wait until the run is resumed or aborted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AwaitMessage:
    """Wait until a chat receives its next message."""

    since: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """End the run."""

    outcome: Outcome


Action: TypeAlias = (
    Prepare
    | PrepareWorkspace
    | RunHook
    | BeginTurn
    | StoreParts
    | CallModel
    | CompressContext
    | EvaluateAnswer
    | Backoff
    | PrepareCalls
    | AskPerson
    | AwaitPerson
    | RunTools
    | SampleModel
    | RunChildren
    | AwaitBudget
    | AwaitAdmission
    | AwaitResume
    | AwaitMessage
    | Finish
)
