"""The types of all errors that a run can raise.

    LoomError
    ├── BadRequest                the caller made a mistake: unknown field, agent, model, or workspace
    │   ├── ArtifactNotFoundError  the run has no artifact with that id
    │   └── NoSuchFileError   the run's workspace has no file or folder at that path
    ├── RunNotFoundError          no run with that id
    ├── MessageNotFoundError      the chat knows no message with that id
    ├── RunExistsError            a run with that id exists already
    ├── RefusedError              the run cannot do this in its current state, for example because it has ended
    ├── UnreachableError          the server or the workers are not responding
    ├── EncryptionKeyError        a key that encrypted data needs is missing, wrong, or was forgotten
    ├── NotAuthenticatedError     the caller has not proved who they are
    ├── AccessDeniedError         the caller may not do this
    ├── TooManyStreamsError       the caller follows too many runs at once
    ├── NotDeliveredError         a receiver did not take a notification
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
    │   ├── NoPermitError
    │   ├── NodeFailedError
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

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from loom.domain.core.messages import Usage


class LoomError(Exception):
    """Base class of all errors. `context` contains the facts, and the message says what to do."""

    recoverable: ClassVar[bool] = False

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.message = message
        self.context: dict[str, Any] = context
        self.used: Usage | None = None
        """What a model call used before it failed, if anything."""


class BadRequest(LoomError):
    """The request is invalid. `field` is the name of the invalid field."""


class ArtifactNotFoundError(BadRequest):
    """The run has stored no artifact with this id."""


class NoSuchFileError(BadRequest):
    """The run's workspace has no file or folder at this path."""


class RunNotFoundError(LoomError):
    """No run with this id exists in this namespace."""


class MessageNotFoundError(LoomError):
    """The chat knows no message with this id, or no longer."""


class RunExistsError(LoomError):
    """A run with this id has already been started. A run id can be used only once."""


class RefusedError(LoomError):
    """The run cannot carry out the request in its current state."""


class UnreachableError(LoomError):
    """A server is not responding, such as Temporal's or a repository's, or no worker is polling the task queue."""


class EncryptionKeyError(LoomError):
    """Encrypted data can't be read. `context["key"]` is the id of the key that is missing, wrong, or forgotten.
    `context["tenant"]` is the tenant whose data it is, if that is known.
    """

    @property
    def is_forgotten(self) -> bool:
        """Whether the key was deleted with its tenant, so that nobody can ever read the data again."""
        return bool(self.context.get("is_forgotten"))


class NotAuthenticatedError(LoomError):
    """The caller has not proved who they are, or the proof is no longer valid."""


class AccessDeniedError(LoomError):
    """The caller is known, but may not do this."""


class TooManyStreamsError(LoomError):
    """The caller follows or waits for as many runs at once as the HTTP service allows."""


class NotDeliveredError(LoomError):
    """A receiver did not take a notification. `context` contains `retry_after` in seconds, if the receiver named it.
    `is_final` says that no further attempt can succeed.
    """

    @property
    def is_final(self) -> bool:
        """Whether the receiver wants no further attempts."""
        return bool(self.context.get("is_final"))


class RecoverableError(LoomError):
    """The run can continue after this error."""

    recoverable = True


class ToolNotFoundError(RecoverableError):
    """No tool with that name is registered for this agent."""


class ToolUnavailableError(RecoverableError):
    """The tool is registered but is currently unavailable on this worker."""


class ToolValidationError(RecoverableError):
    """The arguments do not match the tool's schema, or cannot be executed as given."""


class ToolExecutionTimeout(RecoverableError):
    """The tool did not finish within its timeout."""


class ToolExecutionError(RecoverableError):
    """The tool ran and failed."""


class LLMRateLimitError(RecoverableError):
    """The provider has limited the request rate. `context["retry_after"]` is the delay in seconds, if known."""

    @property
    def retry_after(self) -> float | None:
        """The number of seconds that the provider asked clients to wait before the next attempt."""
        return self.context.get("retry_after")


class LLMContextLengthError(RecoverableError):
    """The conversation exceeds the model's context window. `context` contains `tokens` and `limit`, if they are
    known.
    """


class LLMUnavailableError(RecoverableError):
    """The provider failed or could not be reached, or the connection was lost during a reply. `context["retry_after"]`
    is the delay in seconds, if the provider named one.
    """


class LLMBadResponseError(RecoverableError):
    """The provider's response is not a valid model reply."""


class NoPermitError(RecoverableError):
    """The model call wasn't sent, because a rate limit leaves no room for it yet. It is sent later. `context` contains
    `retry_after`, `provider`, `model` and `because`.
    """


class NodeFailedError(RecoverableError):
    """The function of a node of code has raised an exception or returned an invalid value."""


class CompressionFailedError(RecoverableError):
    """The conversation could not be compressed."""


class TerminalError(LoomError):
    """The run ends with this error."""


class PermissionDeniedError(TerminalError):
    """A permission rule or a person denied the action."""


class LLMConfigurationError(TerminalError):
    """The API key, address, or model name is wrong, or the provider rejects the request. A retry would fail in the same
    way. `context["refused"]` is the status if the provider rejects what the request contains. `context["is_vague"]` is
    true if the provider then gives no reason.
    """


class LLMRefusedError(TerminalError):
    """The model or its provider declined to reply."""


class OutputSchemaError(TerminalError):
    """The answer does not match the output schema, even after the model was asked to repair it. `context` contains
    `problems` and `answer`.
    """


class ExecutionAbortedError(TerminalError):
    """The run was aborted."""


class BudgetExceededError(TerminalError):
    """The run's budget is exhausted."""


class ManifestChangedError(TerminalError):
    """The worker's tools differ from the tools that the run was started with, and the settings reject such runs."""


class CrewFailedError(TerminalError):
    """The crew cannot complete its task because a required member or the coordinator has failed."""


class NoMemberFitsError(TerminalError):
    """A routed crew has no suitable member for the task and no fallback."""


class HookFailedError(TerminalError):
    """A run hook raised an exception, timed out, or returned an invalid value. `hook` and `moment` identify it."""


class CircuitBreakerOpenError(TerminalError):
    """The model isn't called at present, because its latest calls failed. `context` contains `retry_after` (seconds),
    `provider`, `model` and `because`.
    """


def _tree(root: type[LoomError]) -> dict[str, type[LoomError]]:
    named = {root.__name__: root}
    for child in root.__subclasses__():
        named |= _tree(child)
    return named


BY_NAME: dict[str, type[LoomError]] = _tree(LoomError)
"""All error types, keyed by name. The name is also the `type` of the Temporal application failure."""
