"""Everything that can go wrong in a run, by type.

    LoomError
    ├── BadRequest                the caller's fault: unknown field, agent, model, workspace
    ├── RunNotFoundError          no run of that id
    ├── RunExistsError            there is a run of that id already
    ├── RefusedError              the run cannot do that now: it has ended, nothing waits, the digest is another
    ├── UnreachableError          no server, or no worker, answers
    ├── RecoverableError          the run can go on: retry, other model, or tell the model
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

A tool's error becomes a tool result that the model reads; a provider's error crosses the activity boundary as an
application failure of the same type name and `context` (`activities/failures.py` is that border).
"""

from typing import Any, ClassVar


class LoomError(Exception):
    """Root of the tree; `context` carries the facts, the message says what to do."""

    recoverable: ClassVar[bool] = False

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context: dict[str, Any] = context


class BadRequest(LoomError):
    """The caller asked for something that cannot be: `field` names it."""


class RunNotFoundError(LoomError):
    """There is no run of that id in this namespace."""


class RunExistsError(LoomError):
    """A run of that id was started before; ids are never used twice."""


class RefusedError(LoomError):
    """The run cannot do that in the state it is in."""


class UnreachableError(LoomError):
    """The Temporal server, or a worker behind it, does not answer."""


class RecoverableError(LoomError):
    """The run can go on after this."""

    recoverable = True


class ToolNotFoundError(RecoverableError):
    """No tool of that name is registered for this agent."""


class ToolUnavailableError(RecoverableError):
    """The tool is registered but cannot work here and now."""


class ToolValidationError(RecoverableError):
    """The arguments do not fit the tool's schema, or cannot be carried out as given."""


class ToolExecutionTimeout(RecoverableError):
    """The tool did not finish within its time limit."""


class ToolExecutionError(RecoverableError):
    """The tool ran and failed."""


class LLMRateLimitError(RecoverableError):
    """The provider asks to slow down; `context["retry_after"]` in seconds when it said so."""

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before the next try, as the provider asked."""
        return self.context.get("retry_after")


class LLMContextLengthError(RecoverableError):
    """The conversation is longer than the model takes; `context` has `tokens` and `limit` where known."""


class LLMUnavailableError(RecoverableError):
    """The provider could not be reached, failed, or broke off in the middle of an answer."""


class LLMBadResponseError(RecoverableError):
    """The provider answered with something that is not a model's answer."""


class CompressionFailedError(RecoverableError):
    """The conversation could not be made shorter."""


class TerminalError(LoomError):
    """The run ends with this."""


class PermissionDeniedError(TerminalError):
    """The rules or a person said no."""


class LLMConfigurationError(TerminalError):
    """Key, address or model name are wrong; trying again cannot help."""


class LLMRefusedError(TerminalError):
    """The model or its provider declined to answer."""


class OutputSchemaError(TerminalError):
    """The answer does not fit the output schema, also after repairs; `context` has `problems` and the last `answer`."""


class ExecutionAbortedError(TerminalError):
    """Somebody stopped the run."""


class BudgetExceededError(TerminalError):
    """The run has spent what it was given."""


class ManifestChangedError(TerminalError):
    """The worker's tools are no longer those that the run was started with, and the settings say to refuse."""


class CrewFailedError(TerminalError):
    """A crew cannot do its task: a member that it cannot do without has failed, or whoever leads it."""


class NoMemberFitsError(TerminalError):
    """A routed crew has no member for the task, and no fallback."""


class HookFailedError(TerminalError):
    """A hook around the run raised, took too long or answered what means nothing; `hook` and `moment` name it."""


class CircuitBreakerOpenError(TerminalError):
    """The provider has failed too often, and every fallback is spent."""


def _tree(root: type[LoomError]) -> dict[str, type[LoomError]]:
    named = {root.__name__: root}
    for child in root.__subclasses__():
        named |= _tree(child)
    return named


BY_NAME: dict[str, type[LoomError]] = _tree(LoomError)
"""Every type of the tree by its name, which is also its name in Temporal's failures."""
