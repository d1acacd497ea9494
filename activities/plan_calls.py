"""Prepare tool calls with the registry, hooks and rules. The `plan_calls` activity repeats this step."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog
from temporalio import activity

from loom.activities.ports import EventStream, ToolSet
from loom.activities.publish import StreamWriter, heartbeating, stream_writer
from loom.activities.run_workspaces import RunWorkspaces
from loom.activities.toolbox.hooks import gates_of, objection_to
from loom.activities.toolbox.interceptors import Intercepted, after_call, before_call, changes_results
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.pipeline import plan
from loom.activities.toolbox.tool_sets import RunTools
from loom.domain.agents.hooks import Objection, Registered, stricter_of
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import ToolCall, ask_digest
from loom.domain.core.repositories import IN_CLONE, Checkout
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import Effect, PreparedCall, Scope, ToolResult, Verdict, describe
from loom.domain.machine.tool_results import settled_by_plan
from loom.domain.permissions.judge import Judgement
from loom.domain.permissions.obeyed import NO_FILES, WorkerFiles
from loom.domain.run.activity_payloads import ModelReply, ModelRequest, PrepareCallsRequest, PreparedCalls
from loom.domain.run.stream_events import approval_requested, asked_arguments, call_not_run, waits_for_person

_log = structlog.get_logger("loom.tool")

_HANDED_OUT: Final = Judgement(verdict=Verdict.ALLOW, rule="crew", reason="the crew assigns its own work")


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesHere:
    """Whether a run's files are here, so that rules can look at them."""

    note: str = ""
    """What the next result of a call has to tell the agent about them."""
    missing: str = ""
    """Why they aren't here, and can't be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnContext:
    """The turn that made the calls, and the run that it belongs to."""

    spec: AgentSpec
    grants: Sequence[str]
    origin: Origin
    turn: int
    missing: str = ""
    """Why the run's files aren't here. Calls that need them then can't run."""


class CallPreparer:
    """Decides whether and how calls may run. Interceptors are applied first, then the user's hooks, then the rules."""

    def __init__(
        self,
        *,
        tools: ToolSet,
        own: RunTools,
        sanitizer: OutputSanitizer,
        registered: Callable[..., Sequence[Registered]] | None,
        agents: Sequence[str] = (),
        obeyed: Callable[[str], WorkerFiles] | None = None,
        own_rules: Callable[[str], AgentSpec] | None = None,
        workspaces: RunWorkspaces | None = None,
    ) -> None:
        self._tools = tools
        self._own = own
        self._hygiene = sanitizer
        self._registered = registered
        self._agents = agents
        self._obeyed = obeyed  # the files that this worker reads, for a workspace
        self._workspaces = workspaces
        self._own_rules = own_rules  # an agent as this worker defines it, if more than its rules allow must be proven

    async def plans(
        self, calls: Sequence[ToolCall], context: TurnContext, *, may_be_quick: bool = False
    ) -> tuple[PreparedCall, ...]:
        """Return a prepared call for each new call from the model, in order. `may_be_quick` says whether quick reads
        may run in the activity that called the model. If the agent has hooks or interceptors for tool calls, even for
        results only, no call is quick.
        """
        spec = context.spec
        registered = self._of(spec)
        if not registered:
            return await self.plans_again(calls, context, may_be_quick=may_be_quick)
        met = await asyncio.gather(*(before_call(call, context.origin.run_id, spec.name, registered) for call in calls))
        plans = await self.plans_again([each.call for each in met], context)
        return tuple(each.laid_on(plan, call) for each, plan, call in zip(met, plans, calls, strict=True))

    async def plans_again(
        self, calls: Sequence[ToolCall], context: TurnContext, *, may_be_quick: bool = False
    ) -> tuple[PreparedCall, ...]:
        """Prepare calls that interceptors have already processed. If the rules or a person's grants have changed,
        pending calls are prepared this way again.
        """
        spec = context.spec
        of_the_run = spec.skills or any(tool.source for tool in spec.tools)
        box = self._own.added_to(self._tools, spec.tools) if of_the_run else self._tools
        objections = await self._objections(calls, spec, context.origin.run_id)
        planned = partial(
            plan,
            box=box,
            spec=spec,
            grants=context.grants,
            origin=context.origin,
            turn=context.turn,
            agents=self._agents,
            may_be_quick=may_be_quick,
            obeyed=self._obeyed(spec.workspace) if self._obeyed else NO_FILES,
            own=self._own_rules(spec.name) if self._own_rules else None,
        )
        plans = tuple(planned(call, objection=objection) for call, objection in zip(calls, objections, strict=True))
        if not context.missing:
            return plans
        return tuple(_without_files(call, made, box, context.missing) for call, made in zip(calls, plans, strict=True))

    async def files_here(self, origin: Origin, checkout: Checkout | None) -> FilesHere:
        """Have the run's files here before calls are prepared, because rules look at the links in them.

        Raises UnreachableError or StoreUnavailable if that isn't possible now.
        """
        if self._workspaces is None or checkout is None:
            return FilesHere()
        try:
            return FilesHere(note=await self._workspaces.ensure_clone(origin, checkout))
        except BadRequest as error:
            return FilesHere(missing=error.message)

    async def handed_out(
        self, calls: Sequence[ToolCall], spec: AgentSpec, *, origin: Origin, turn: int
    ) -> tuple[PreparedCall, ...]:
        """Return a prepared call for each assignment of a crew. Hooks apply to assignments, but rules and interceptors
        don't.

        Rules apply to the members' own tool calls. Assigning work to members is the purpose of a crew.
        """
        objections = await self._objections(calls, spec, origin.run_id)
        return tuple(
            _with_objection(call, origin, turn, objection) for call, objection in zip(calls, objections, strict=True)
        )

    def is_hooked(self, spec: AgentSpec) -> bool:
        """Whether the agent has hooks or interceptors."""
        return bool(self._of(spec))

    def changes_results(self, spec: AgentSpec) -> str:
        """Return the name of an interceptor that may change the results of the agent's tools, or an empty string."""
        return changes_results(self._of(spec))

    async def met(self, call: ToolCall, spec: AgentSpec, *, run_id: str) -> tuple[Intercepted, Objection | None]:
        """Apply the agent's interceptors and hooks to a call that isn't the model's. Rules aren't applied."""
        met = await before_call(call, run_id, spec.name, self._of(spec))
        (objection,) = await self._objections([met.call], spec, run_id)
        return met, objection

    async def answered(self, call: ToolCall, result: ToolResult, spec: AgentSpec, *, run_id: str) -> ToolResult:
        """Apply the agent's interceptors to the result of such a call."""
        return await after_call(call, result, run_id, spec.name, self._of(spec))

    async def _objections(self, calls: Sequence[ToolCall], spec: AgentSpec, run_id: str) -> Sequence[Objection | None]:
        registered = self._of(spec)
        if not registered:
            return [None] * len(calls)
        hooks = gates_of(registered)
        return await asyncio.gather(*(objection_to(call, run_id, hooks) for call in calls))

    def _of(self, spec: AgentSpec) -> Sequence[Registered]:
        """Return the agent's current hooks and interceptors, together with those pinned to the run."""
        if self._registered is None:
            return ()
        return self._registered(spec.name, {step.name for step in spec.hooks})

    def tell_asks(
        self,
        writer: StreamWriter,
        calls: Sequence[ToolCall],
        plans: Sequence[PreparedCall],
        spec: AgentSpec,
        *,
        turn: int,
    ) -> None:
        """Report the calls that need approval on the live stream."""
        for call, made in zip(calls, plans, strict=True):
            if waits_for_person(made):
                arguments = self._hygiene.clean_arguments(asked_arguments(call, made))
                expires_in = spec.approval_timeout
                writer.emit(approval_requested(call, made, turn=turn, arguments=arguments, expires_in=expires_in))

    async def tell_not_run(self, stream: EventStream, request: ModelRequest, reply: ModelReply) -> None:
        """Report an answer's calls that don't run, and why. Each is reported once, whichever attempt has the answer."""
        calls = zip(reply.message.tool_calls if reply.message else (), reply.plans, strict=True)
        settled = [(call, made, result) for call, made in calls if (result := settled_by_plan(made)) is not None]
        if not settled:
            return
        async with stream_writer(stream, request.origin, request.turn) as writer:
            for call, made, result in settled:
                for event in call_not_run(
                    call,
                    made,
                    replace(result, content=self._hygiene.clean(result.content)),
                    turn=request.turn,
                    arguments=self._hygiene.clean_arguments(asked_arguments(call, made)),
                    summary=self._hygiene.clean(describe(call)),
                ):
                    writer.emit(event)


def _without_files(call: ToolCall, made: PreparedCall, box: ToolSet, missing: str) -> PreparedCall:
    """Return a prepared call for a worker that doesn't have the run's files."""
    if made.error or (call.name in box and box[call.name].spec.scope is Scope.CONTEXT):
        return made
    return PreparedCall(
        error=f"Not run: {missing}", error_type="unavailable", effect=made.effect_of_tool, parallel=made.parallel
    )


def _with_objection(call: ToolCall, origin: Origin, turn: int, objection: Objection | None) -> PreparedCall:
    judged = stricter_of(_HANDED_OUT, objection)
    made = PreparedCall(
        verdict=judged.verdict, rule=judged.rule, reason=judged.reason, effect=Effect.READ, parallel=True
    )
    if judged.verdict is not Verdict.ASK:
        return made
    return replace(made, digest=ask_digest(origin.run_id, origin.execution, turn, call, reset_at=origin.reset_at))


class CallReviewer:
    """Prepares tool calls outside a model call."""

    def __init__(self, *, planner: CallPreparer, stream: EventStream) -> None:
        self._planner = planner
        self._stream = stream

    @activity.defn(name="plan_calls")
    async def plan_calls(self, request: PrepareCallsRequest) -> PreparedCalls:
        """Return a prepared call for each call in the request, in order."""
        async with heartbeating(), stream_writer(self._stream, request.origin, request.turn) as writer:
            writer.notices(request.notices)
            plans = await self._again(request)
            self._planner.tell_asks(writer, request.calls, plans, request.spec, turn=request.turn)
        return PreparedCalls(plans=plans)

    @activity.defn(name=f"plan_calls{IN_CLONE}")
    async def plan_calls_in_clone(self, request: PrepareCallsRequest) -> PreparedCalls:
        """The same for a run that works in a clone."""
        return await self.plan_calls(request)

    async def _again(self, request: PrepareCallsRequest) -> tuple[PreparedCall, ...]:
        origin, turn, spec = request.origin, request.turn, request.spec
        if spec.crew is not None:
            return await self._planner.handed_out(request.calls, spec, origin=origin, turn=turn)
        here = await self._planner.files_here(origin, request.checkout)
        context = TurnContext(spec=spec, grants=request.grants, origin=origin, turn=turn, missing=here.missing)
        return await self._planner.plans_again(request.calls, context)
