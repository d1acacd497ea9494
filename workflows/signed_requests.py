"""Signatures in a workflow: the signature of a request that the run receives, and of one that it sends.

A run decides only with the public key that its preparation recorded, so a replay decides the same. Requests to other
runs of a tree are signed with the worker's own key, if the run's start was signed. A signature that is sent has no
effect on the sending run, so a replay may omit it.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

from temporalio import workflow
from temporalio.worker import (
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    SignalExternalWorkflowInput,
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ChildWorkflowHandle

from loom.activities.signatures import KeySource, flaw_of, signature_in
from loom.domain.core.errors import BadRequest
from loom.domain.core.signatures import (
    Signature,
    SignedStart,
    Statement,
    digest_of_arguments,
    mark_of,
    microseconds,
)
from loom.domain.run.state import RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class _Heard:
    """The request that a handler is handling."""

    signature: Signature | None
    arguments: Sequence[Any]


_heard: Final[ContextVar[_Heard]] = ContextVar("heard")


def signed_start(arguments: Sequence[Any]) -> SignedStart | None:
    """Return the signature that came with the start of this run, or None. It has not been verified."""
    info = workflow.info()
    if (signature := signature_in(info.headers)) is None:
        return None
    digest = digest_of_arguments(list(arguments))
    return SignedStart(
        statement=Statement(kind="start", name=info.workflow_type, run_id=info.workflow_id, arguments=digest),
        signature=signature,
        began_at=microseconds(info.workflow_start_time),
        execution=info.original_execution_run_id,
    )


def has_signed_start() -> bool:
    """Whether a signature came with the start of this run, valid or not."""
    return signature_in(workflow.info().headers) is not None


def proof(state: RunState, kind: Literal["signal", "update"], name: str) -> str:
    """Return the mark of the signature of the request that is being handled.

    Raises BadRequest if the signature is missing, invalid, too old, or used before.
    """
    heard = _heard.get(None)
    if heard is None or heard.signature is None:
        raise _refused(name, "carries no signature")
    digest = digest_of_arguments(list(heard.arguments))
    statement = Statement(kind=kind, name=name, run_id=state.run_id, arguments=digest)
    if flaw := flaw_of(statement, heard.signature, state.speakers, began_at=state.began_at, now=workflow.now()):
        raise _refused(name, flaw)
    return mark_of(statement, heard.signature.at)


def _refused(name: str, flaw: str) -> BadRequest:
    return BadRequest(
        f"this run takes only signed requests (LOOM_REQUIRE_SIGNED), and this `{name}` {flaw}: send it with `loom` or"
        " LoomClient and the worker's key (LOOM_HOME or LOOM_SIGNING_KEY)",
        field="LOOM_REQUIRE_SIGNED",
    )


@runtime_checkable
class SigningRun(Protocol):
    """A workflow whose requests to other runs are signed, as long as its own start was."""

    @property
    def is_signed(self) -> bool:
        """Whether the start of this run was signed."""


class SignedRequests(Interceptor):
    """Lets runs read the signatures of requests, and signs the requests that signed runs send."""

    def __init__(self, key: KeySource = lambda: None) -> None:
        self._key = key

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        key = self._key

        class Inbound(_Inbound):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Outbound(outbound, key))

        return Inbound


class _Inbound(WorkflowInboundInterceptor):
    """Every handler runs in a task of its own, so the context needs no reset."""

    async def handle_signal(self, input: HandleSignalInput) -> None:  # noqa: A002
        _heard.set(_Heard(signature=signature_in(input.headers), arguments=input.args))
        await super().handle_signal(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:  # noqa: A002
        _heard.set(_Heard(signature=signature_in(input.headers), arguments=input.args))
        super().handle_update_validator(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:  # noqa: A002
        _heard.set(_Heard(signature=signature_in(input.headers), arguments=input.args))
        return await super().handle_update_handler(input)


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, following: WorkflowOutboundInterceptor, key: KeySource) -> None:
        super().__init__(following)
        self._key = key

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> ChildWorkflowHandle[Any, Any]:  # noqa: A002
        input.headers = {**input.headers, **self._header("start", input.workflow, input.id, input.args)}
        return await super().start_child_workflow(input)

    async def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:  # noqa: A002
        input.headers = {**input.headers, **self._header("signal", input.signal, input.workflow_id, input.args)}
        await super().signal_external_workflow(input)

    def _header(
        self, kind: Literal["start", "signal"], name: str, run_id: str, arguments: Sequence[Any]
    ) -> dict[str, Any]:
        run, key = workflow.instance(), self._key()
        if key is None or not isinstance(run, SigningRun) or not run.is_signed:
            return {}
        converter = workflow.payload_converter()
        plain = converter.from_payloads(converter.to_payloads(arguments))
        statement = Statement(kind=kind, name=name, run_id=run_id, arguments=digest_of_arguments(plain))
        return dict(key.header(statement, workflow.now()))
