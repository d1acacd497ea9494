"""The `run_node` activity: make one attempt at a node of code, which calls the user's function instead of a model."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter

import structlog
from temporalio import activity

from loom.activities.call_model import load_conversation
from loom.activities.failures import to_application_error
from loom.activities.fence import Fence
from loom.activities.leases import Leases, outlasting
from loom.activities.manifest import Manifests
from loom.activities.output_schema import checked
from loom.activities.ports import Claim, EventStream, TranscriptStore
from loom.activities.publish import StreamWriter, heartbeating, stream_writer
from loom.activities.toolbox.hooks import answer_of
from loom.domain.agents.code_node import CodeNode, NodeFunction, input_of
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import HookFailedError, LoomError, NodeFailedError
from loom.domain.core.messages import Message, Transcript
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import Effect
from loom.domain.machine.activity_requests import model_key
from loom.domain.machine.delegation import ALONE
from loom.domain.run.activity_payloads import ModelReply, ModelRequest
from loom.domain.run.stream_events import milliseconds, model_segment, node_called, node_returned, turn_began

_log = structlog.get_logger("loom.node")

UNKNOWN_OUTCOME = (
    "its worker died while it ran, so its outcome is unknown, and its effect `once` forbids another attempt: check what"
    " it has done, and retry the run if it should run again"
)
LIMIT_REACHED = "(not run: the run reached its limit first)"


class NodeRunner:
    """Runs the functions of nodes."""

    def __init__(
        self,
        *,
        nodes: Mapping[str, NodeFunction],
        transcripts: TranscriptStore,
        stream: EventStream,
        redact: Callable[[str], str],
        manifests: Manifests,
        leases: Leases[ModelReply | NodeFailedError] | None,
    ) -> None:
        """`leases` records results, so that no lost heartbeat repeats an effect or hides a failure. None if the worker
        has no database.
        """
        self._nodes = nodes
        self._transcripts = transcripts
        self._stream = stream
        self._redact = redact
        self._manifests = manifests
        self._leases = leases

    @activity.defn(name="run_node")
    async def run_node(self, request: ModelRequest) -> ModelReply:
        """Call the function, and return its answer as a message. Raises NodeFailedError as an application failure."""
        with structlog.contextvars.bound_contextvars(**request.origin.log_ids, turn=request.turn):
            segment = model_segment(request.turn, request.attempt)
            async with heartbeating(), stream_writer(self._stream, request.origin, request.turn, segment) as writer:
                known = await load_conversation(self._transcripts, request)
                # The ledger says whether this attempt calls the function. Before it knows, nothing is written, because
                # the stream would then refuse what an earlier attempt that is still alive writes.
                earlier = None if known is None else await self._earlier(request, known[0])
                writer.notices(request.notices)
                return ModelReply() if known is None else await self._told(request, *known, earlier, writer)

    async def _told(
        self,
        request: ModelRequest,
        spec: AgentSpec,
        transcript: Transcript,
        earlier: ModelReply | NodeFailedError | None,
        writer: StreamWriter,
    ) -> ModelReply:
        """Return the node's answer, and write how it came about."""
        started = perf_counter()
        try:
            if isinstance(earlier, ModelReply):
                reply = earlier
            else:
                writer.emit(turn_began(request.origin, request.turn))
                reply = await self._called(request, spec, transcript, earlier, writer)
        except LoomError as error:
            told, took = self._redact(error.message), milliseconds(perf_counter() - started)
            writer.emit(node_returned(request, spec.name, told, ms=took, failed=True))
            _log.warning("node_failed", node=spec.name, attempt=request.attempt, error=told)
            raise to_application_error(error, self._redact) from None
        text = reply.message.text if reply.message is not None else ""
        writer.emit(node_returned(request, spec.name, text, ms=milliseconds(perf_counter() - started)))
        await self._transcripts.save(
            request.origin.run_id, request.tail, transcript.extended([reply.message] if reply.message else [])
        )
        return reply

    async def _earlier(self, request: ModelRequest, spec: AgentSpec) -> ModelReply | NodeFailedError | None:
        """Claim the call in the ledger if its result must be recorded. Return the result of an earlier attempt whose
        worker was wrongly considered dead, or the reason not to call the function, or None.

        A failure that the run already knows isn't in the way of another call: a person has retried the run.

        If the ledger is away, the workflow waits: the function must not start without its claim.
        """
        is_once = _node(spec).effect is Effect.ONCE
        if self._leases is not None and (is_once or request.begun):
            claim = _claim(request)
            if request.begun:
                await self._leases.earlier_ended(claim)
            found = await self._leases.found(claim)
            if isinstance(found, NodeFailedError) and not request.begun:
                found = await self._leases.claimed_anew(claim)
            if found is not None:
                return found
        return NodeFailedError(f"node {spec.name!r}: {UNKNOWN_OUTCOME}") if is_once and request.begun else None

    async def _called(
        self,
        request: ModelRequest,
        spec: AgentSpec,
        transcript: Transcript,
        refusal: NodeFailedError | None,
        writer: StreamWriter,
    ) -> ModelReply:
        """Call the function. If the call is claimed, the ledger has its result afterwards."""
        if refusal is not None:
            raise refusal
        self._manifests.check(spec, request.origin.run_id, writer)
        writer.emit(node_called(request, spec.name))
        if self._leases is None:
            return await self._reply(request, spec, transcript)
        is_once = _node(spec).effect is Effect.ONCE
        work = partial(
            self._leases.recorded,
            _claim(request),
            lambda: self._outcome(request, spec, transcript),
            is_final=lambda outcome: is_once or not isinstance(outcome, NodeFailedError),
            is_recorded=is_once or request.begun,
        )
        with Fence(self._leases.is_wanted) as fence:
            outcome = await outlasting(fence.held_back(work))
        if isinstance(outcome, NodeFailedError):
            raise outcome
        return outcome

    async def _outcome(
        self, request: ModelRequest, spec: AgentSpec, transcript: Transcript
    ) -> ModelReply | NodeFailedError:
        """Return the function's answer, or its failure without secrets."""
        try:
            return await self._reply(request, spec, transcript)
        except NodeFailedError as error:
            return NodeFailedError(self._redact(error.message))

    async def _reply(self, request: ModelRequest, spec: AgentSpec, transcript: Transcript) -> ModelReply:
        if request.wrap_up:
            return ModelReply(message=Message(role="assistant", content=LIMIT_REACHED), cost_micros=0)
        message = await self._answer(request.origin, spec, transcript, key=model_key(request))
        fits = checked(spec, transcript.messages, message, (), stop="end", pieces=0)
        return ModelReply(message=message, cost_micros=0, checked=fits)

    async def _answer(self, origin: Origin, spec: AgentSpec, transcript: Transcript, *, key: str) -> Message:
        if (found := self._nodes.get(spec.name)) is None:
            raise NodeFailedError(f"this worker has no node {spec.name!r}, unlike the worker that prepared the run")
        given = replace(input_of(transcript.messages, ALONE), metadata=_about(origin, key))
        try:
            answer = await answer_of(spec.name, found.function, given, patience=_node(spec).timeout)
        except HookFailedError as error:
            raise NodeFailedError(f"node {spec.name!r}: {error.message}") from None
        return Message(role="assistant", content=self._redact(_text_of(answer, spec.name)))


def _node(spec: AgentSpec) -> CodeNode:
    return spec.node or CodeNode()


def _claim(request: ModelRequest) -> Claim:
    return Claim(key=model_key(request), run_id=request.origin.run_id, attempt=request.attempt)


def _about(origin: Origin, key: str) -> dict[str, str]:
    """Return the metadata that a function can read about its run."""
    about = {
        "run_id": origin.run_id,
        "root_run_id": origin.root_run_id or origin.run_id,
        "session_id": origin.session_id,
        "user_id": origin.user_id,
        "tenant": origin.tenant,
        "idempotency_key": key,
    }
    return {name: value for name, value in about.items() if value}


def _text_of(answer: object, name: str) -> str:
    """Return the answer's text. Raises NodeFailedError if the function didn't return a text."""
    text = answer.text if isinstance(answer, Message) else answer
    if isinstance(answer, Message) and (not isinstance(answer.content, str) or answer.tool_calls):
        raise NodeFailedError(f"node {name!r} returned a message with parts or tool calls: return only text")
    if not isinstance(text, str):
        raise NodeFailedError(f"node {name!r} returned a {type(answer).__name__}: return a Message or a text")
    return text if text.strip() else "(no text)"
