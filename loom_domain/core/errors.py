"""Every error of a run, by type.

    LoomError
    ├── BadRequest                the caller's fault: unknown field, agent, model, workspace
    ├── RunNotFoundError          no run with that id
    ├── RunExistsError            a run with that id exists already
    ├── RefusedError              the run cannot do that now: it has ended, nothing waits, the digest differs
    ├── UnreachableError          no server, or no worker, responds
    ├── RecoverableError          the run can continue: retry, use another model, or inform the model
    │   ├── ToolNotFoundError
    │   ├── ToolUnavailableError
    │   ├── ToolValidationError
    │   ├── ToolExecutionTimeout
    │   ├── ToolExecutionError
    │   ├── LLMRateLimitError
    │   ├── LLMContextLengthError
    │   ├── LLMUnavailableError
    │   ├── LLMBadResponseError
    │   └── CompressionFailedError
    └── TerminalError             the run ends
        ├── PermissionDeniedError
        ├── LLMConfigurationError
        ├── LLMRefusedError
        ├── OutputSchemaError
        ├── ExecutionAbortedError
        ├── BudgetExceededError
        ├── ManifestChangedError
        ├── CrewFailedError
        ├── NoMemberFitsError
        ├── HookFailedError
        └── CircuitBreakerOpenError

A tool's error becomes a tool result that the model reads. A provider's error crosses the activity boundary as an
application failure with the same type name and `context` (see `activities/failures.py`).
"""

from typing import Any, ClassVar


class LoomError(Exception):
    """Base class of all errors. `context` contains the facts, and the message says what to do."""

    recoverable: ClassVar[bool] = False

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context: dict[str, Any] = context


class BadRequest(LoomError):
    """The request is invalid; `field` names the reason."""


class RunNotFoundError(LoomError):
    """There is no run with that id in this namespace."""


class RunExistsError(LoomError):
    """A run with that id was started before. Ids are used only once."""


class RefusedError(LoomError):
    """The run cannot do that in its current state."""


class UnreachableError(LoomError):
    """The Temporal server, or a worker behind it, does not respond."""


class RecoverableError(LoomError):
    """The run can continue after this error."""

    recoverable = True


class ToolNotFoundError(RecoverableError):
    """No tool with that name is registered for this agent."""


class ToolUnavailableError(RecoverableError):
    """The tool is registered but cannot work on this worker now."""


class ToolValidationError(RecoverableError):
    """The arguments do not match the tool's schema, or cannot be executed as given."""


class ToolExecutionTimeout(RecoverableError):
    """The tool did not finish within its timeout."""


class ToolExecutionError(RecoverableError):
    """The tool ran and failed."""


class LLMRateLimitError(RecoverableError):
    """The provider limits the request rate; `context["retry_after"]` is in seconds if it is known."""

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before the next attempt, as the provider requested."""
        return self.context.get("retry_after")


class LLMContextLengthError(RecoverableError):
    """The conversation is longer than the model accepts; `context` has `tokens` and `limit` if known."""


class LLMUnavailableError(RecoverableError):
    """The provider could not be reached, failed, or the connection was lost during a reply."""


class LLMBadResponseError(RecoverableError):
    """The provider returned something that is not a model's reply."""


class CompressionFailedError(RecoverableError):
    """The conversation could not be compressed."""


class TerminalError(LoomError):
    """The run ends with this error."""


class PermissionDeniedError(TerminalError):
    """The rules or a person denied it."""


class LLMConfigurationError(TerminalError):
    """The key, address or model name is wrong. A retry cannot help."""


class LLMRefusedError(TerminalError):
    """The model or its provider declined to reply."""


class OutputSchemaError(TerminalError):
    """The answer does not match the output schema, even after repairs; `context` has `problems` and `answer`."""


class ExecutionAbortedError(TerminalError):
    """The run was aborted."""


class BudgetExceededError(TerminalError):
    """The run's budget is exhausted."""


class ManifestChangedError(TerminalError):
    """The worker's tools differ from those that the run was started with, and the settings reject such runs."""


class CrewFailedError(TerminalError):
    """A crew cannot do its task: an indispensable member, or its coordinator, has failed."""


class NoMemberFitsError(TerminalError):
    """A routed crew has no member for the task, and no fallback."""


class HookFailedError(TerminalError):
    """A hook around the run raised, timed out or returned an invalid value; `hook` and `moment` name it."""


class CircuitBreakerOpenError(TerminalError):
    """The provider has failed too often, and so has every fallback."""


def _tree(root: type[LoomError]) -> dict[str, type[LoomError]]:
    named = {root.__name__: root}
    for child in root.__subclasses__():
        named |= _tree(child)
    return named


BY_NAME: dict[str, type[LoomError]] = _tree(LoomError)
"""All error types by name, which is also their type in Temporal's failures."""
