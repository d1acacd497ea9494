"""The `conduct_crew` activity: decide a crew's next step instead of asking a model for a reply.

The activity records each decision with its reason. A later version of Loom therefore never changes the past decisions
of a running crew.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog
from temporalio import activity

from loom.activities.call_model import load_conversation
from loom.activities.failures import to_application_error
from loom.activities.manifest import Manifests
from loom.activities.memory.ports import Embedder, EmbedderUnavailable
from loom.activities.output_schema import checked
from loom.activities.plan_calls import CallPreparer
from loom.activities.ports import ArtifactStore, EventStream, TranscriptStore
from loom.activities.publish import heartbeating, stream_writer
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import CrewFailedError, LLMUnavailableError, LoomError, NoMemberFitsError
from loom.domain.core.messages import Message
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import stored_artifact
from loom.domain.crews.actions import Answer, AssignJobs, CompareDescriptions, GiveUp, Step
from loom.domain.crews.crew import Crew
from loom.domain.crews.log import Log, answer_message, assignment_message, plan_view, read_log
from loom.domain.crews.next_action import chosen, next_crew_action, so_far
from loom.domain.crews.prompts import INLINE, artifact_of
from loom.domain.crews.routing import by_similarity, descriptions
from loom.domain.run.activity_payloads import ModelReply, ModelRequest, StopReason
from loom.domain.run.stream_events import crew_planned, model_segment, turn_began
from loom.domain.tree.budget import Spend, more_than

_log = structlog.get_logger("loom.crew")

NO_EMBEDDER = (
    "the crew's router selects by embedding, but this worker has no embedder: set LOOM_EMBEDDER, or let the router"
    " select by rules or by model"
)


class CrewConductor:
    """Decides the next steps of crews."""

    def __init__(
        self,
        *,
        transcripts: TranscriptStore,
        stream: EventStream,
        artifacts: ArtifactStore | None,
        embedder: Embedder | None,
        planner: CallPreparer,
        redact: Callable[[str], str],
        manifests: Manifests,
    ) -> None:
        self._transcripts = transcripts
        self._stream = stream
        self._artifacts = artifacts
        self._embedder = embedder
        self._planner = planner
        self._redact = redact
        self._manifests = manifests

    @activity.defn(name="conduct_crew")
    async def conduct_crew(self, request: ModelRequest) -> ModelReply:
        """Return the crew's next assignments as an assistant message. Raises an application failure if the crew can't
        continue.
        """
        async with heartbeating():
            reply = await self._conducted(request)
            await self._planner.tell_not_run(self._stream, request, reply)
            return reply

    async def _conducted(self, request: ModelRequest) -> ModelReply:
        run_id, segment = request.origin.run_id, model_segment(request.turn, request.attempt)
        async with stream_writer(self._stream, request.origin, request.turn, segment) as writer:
            writer.notices(request.notices)
            if (known := await load_conversation(self._transcripts, request)) is None:
                return ModelReply()
            spec, transcript = known
            writer.emit(turn_began(request.origin, request.turn))
            try:
                self._manifests.check(spec, run_id, writer)
                message = await self._next(request, spec, transcript.messages)
            except _Spent as spent:
                return ModelReply(uncovered=spent.need)
            except LoomError as error:
                raise to_application_error(error, self._redact) from None
            writer.emit(crew_planned(plan_view(message, request.turn)))
            _log.info("crew_conducted", **request.origin.log_ids, turn=request.turn)
            await self._transcripts.save(run_id, request.tail, transcript.extended([message]))
            plans = await self._planner.handed_out(message.tool_calls, spec, origin=request.origin, turn=request.turn)
            self._planner.tell_asks(writer, message.tool_calls, plans, spec, turn=request.turn)
            stop: StopReason = "tools" if plans else "end"
            fits = None if request.wrap_up else checked(spec, transcript.messages, message, plans, stop=stop, pieces=0)
            return ModelReply(message=message, plans=plans, stop=stop, cost_micros=0, checked=fits)

    async def _next(self, request: ModelRequest, spec: AgentSpec, messages: tuple[Message, ...]) -> Message:
        origin, crew = request.origin, _crew_of(spec)
        log = replace(read_log(messages), keeps=self._artifacts is not None, form=spec.output_schema)
        await self._keep(origin, log)
        if request.wrap_up:
            return Message(role="assistant", content=so_far(log))
        step = next_crew_action(crew, log)
        if isinstance(step, CompareDescriptions):
            step = await self._compared(crew, log)
        match step:
            case AssignJobs(jobs=jobs, text=text, choice=choice):
                return assignment_message(jobs, text, choice)
            case Answer(text=text, choice=choice):
                return answer_message(text.strip() or "(the crew's answer is empty)", choice)
            case GiveUp(error=error, no_match=no_match):
                if log.ended_by_budget and request.allowance is not None:
                    raise _Spent(more_than(request.allowance))
                raise (NoMemberFitsError if no_match else CrewFailedError)(error)
            case CompareDescriptions():
                raise CrewFailedError("the router compared the descriptions but made no choice")

    async def _keep(self, origin: Origin, log: Log) -> None:
        """Store long answers in full, so that every member can read them."""
        if self._artifacts is None:
            return
        root, execution = origin.run_id, origin.execution
        if origin.root_run_id:
            root, execution = origin.root_run_id, origin.root_execution
        for tried in log.tried:
            if tried.is_done and len(tried.output) > INLINE:
                await self._artifacts.save(root, stored_artifact(artifact_of(tried.key), execution), tried.output)

    async def _compared(self, crew: Crew, log: Log) -> Step:
        if self._embedder is None:
            raise CrewFailedError(NO_EMBEDDER)
        try:
            (task,) = await self._embedder.embed([log.task], query=True)
            members = await self._embedder.embed(descriptions(crew))
        except EmbedderUnavailable as error:
            raise LLMUnavailableError(f"the embedder does not answer: {error}") from error
        choice, told = by_similarity(crew, task, members, self._embedder.model)
        return chosen(crew, log, choice, f": {told}")


class _Spent(Exception):
    """Raised if a member ended because its budget was exhausted. The crew can't continue without that member, so the
    crew ends for the same reason.
    """

    def __init__(self, need: Spend) -> None:
        super().__init__(need)
        self.need = need


def _crew_of(spec: AgentSpec) -> Crew:
    if spec.crew is None:
        raise CrewFailedError(f"{spec.name!r} is not a crew")
    return spec.crew
