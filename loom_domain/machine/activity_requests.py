"""Derive each activity's request from the run's state."""

from datetime import datetime
from typing import Any, Final

from loom.domain.agents.branches_pattern import has_branches
from loom.domain.agents.hook_steps import HookPoint
from loom.domain.context.compression import KnownFacts
from loom.domain.context.model_context import Measures
from loom.domain.core.messages import ResultRef, ToolCall, arguments_digest, canonical, message_digest, short_digest
from loom.domain.core.repositories import Checkout, GitWorkspace, Repository
from loom.domain.core.tasks import Origin, correlation_of
from loom.domain.core.tool_calls import Effect, OpenCall, PreparedCall, ToolSpec, Verdict, describe
from loom.domain.core.tool_input import Exchange
from loom.domain.core.tool_names import PYTHON
from loom.domain.machine.compression_step import MAX_FRUITLESS
from loom.domain.machine.limits import allowance
from loom.domain.machine.tool_results import is_accounted, may_read_quickly
from loom.domain.run.activity_payloads import (
    ChangeRequest,
    CompressRequest,
    EvaluateRequest,
    HookRequest,
    ModelRequest,
    PrepareCallsRequest,
    PrepareRequest,
    PushRequest,
    RunWorkspace,
    SampleRequest,
    StorePartsRequest,
    ToolRequest,
    WorkspaceRequest,
)
from loom.domain.run.retry_policy import NOT_TRIED
from loom.domain.run.state import RunState, result_of
from loom.domain.skills.active import active_in
from loom.domain.skills.catalog import LOAD_SKILL, SkillUse, goes_along, is_skill_tool, use_of

MAX_ID: Final = 100
"""The maximum length of an activity id. A longer id is truncated, and a digest is appended."""

LONGEST_SUMMARY: Final = 60
"""Maximum length of the part of a summary that names calls. The server accepts summaries of at most 400 bytes."""
INLINE_ARGUMENTS = 512
"""The maximum length of arguments that are sent inline. Longer arguments aren't sent again, because history already
contains them in the model's answer.
"""
_NO_PLAN: Final = PreparedCall()
_TITLE: Final = 72
"""The maximum length of the first line of a commit's message."""


def origin_of(state: RunState) -> Origin:
    """Return the origin for the run's events and requests."""
    return Origin(
        run_id=state.run_id,
        root_run_id=state.tree.lineage.root_run_id if state.tree.lineage else "",
        session_id=state.request.session_id or "",
        agent=state.request.agent,
        correlation_id=correlation_of(state.request.metadata),
        execution=state.environment.execution,
        root_execution=state.tree.lineage.root_execution if state.tree.lineage else "",
        tenant=state.request.tenant or "",
        user_id=state.request.user_id or "",
        reset_at=state.signature_checks.asks_renewed_at,
    )


def workspace_of(state: RunState) -> RunWorkspace | None:
    """Return where the run works, and the rules for its files. None if it isn't prepared yet."""
    is_folder = state.request.workspace is None or isinstance(state.request.workspace, str)
    if state.spec is None or (state.checkout is None and not is_folder):
        return None
    return RunWorkspace(
        origin=origin_of(state),
        spec=state.spec,
        checkout=state.checkout,
        steering_key=state.signature_checks.key,
        is_returning=state.returning is not None,
    )


def prepare_request(state: RunState) -> PrepareRequest:
    """Return the request to resolve the run's agent."""
    return PrepareRequest(origin=origin_of(state), request=state.request, lineage=state.tree.lineage)


def workspace_request(state: RunState) -> WorkspaceRequest:
    """Return the request to clone the run's repository."""
    return WorkspaceRequest(origin=origin_of(state), workspace=_repository(state), folder=state.agent.workspace)


def change_request(state: RunState) -> ChangeRequest:
    """Return the request to store the change to the run's repository."""
    return ChangeRequest(origin=origin_of(state), checkout=_checkout(state))


def push_request(state: RunState, at: datetime) -> PushRequest:
    """Return the request to push the stored change to the run's repository."""
    change = state.change
    if change is None:
        raise ValueError("the change isn't stored; there is nothing to push")
    return PushRequest(
        origin=origin_of(state),
        checkout=_checkout(state),
        tree=change.tree,
        branch=_branch(state),
        title=next(iter(state.request.task.splitlines()), "")[:_TITLE],
        at=at,
    )


def _checkout(state: RunState) -> Checkout:
    if state.checkout is None:
        raise ValueError("the repository isn't cloned; there is no change to return")
    return state.checkout


def _repository(state: RunState) -> Repository:
    workspace = state.request.workspace
    assert isinstance(workspace, Repository)  # noqa: S101 - `is_clone_due` has checked it
    return workspace


def _branch(state: RunState) -> str:
    workspace = state.request.workspace
    assert isinstance(workspace, GitWorkspace)  # noqa: S101 - nothing else can be pushed
    return workspace.branch(state.run_id)


def hook_request(state: RunState, step: HookPoint) -> HookRequest:
    """Return the request to run a hook."""
    return HookRequest(
        origin=origin_of(state),
        turn=state.turn,
        step=step,
        spec_digest=state.conversation.spec_digest,
        task=state.request.task,
        metadata=state.request.metadata,
        result=None if state.outcome is None else result_of(state, state.outcome),
        notices=state.notices.pending,
    )


def model_request(state: RunState, execution: str = "") -> ModelRequest:
    """Return the request for the next model call. `execution` identifies the chain of executions that the run consists
    of.
    """
    return ModelRequest(
        origin=origin_of(state),
        turn=state.turn,
        attempt=(1 if state.tries == NOT_TRIED else state.tries.attempt) + state.window.put_off,
        spec_digest=state.conversation.spec_digest,
        spec=state.agent if state.conversation.send_spec else None,
        tail=state.conversation.tail,
        grants=state.calls.grants,
        notices=state.notices.pending,
        measures=_measures(state),
        compresses=state.window.fruitless < MAX_FRUITLESS,
        allowance=allowance(state),
        wrap_up=state.answer.wrap_up is not None,
        refused=state.window.refused,
        pieces=state.answer.nudges if state.answer.partial and state.agent.output_schema is not None else 0,
        stage=state.answer.reflection.stage,
        insists=_insists(state),
        begun=state.tries.lost > 0,
        quick_read_execution=execution if may_read_quickly(state) else "",
        checkout=state.checkout,
    )


def compress_request(state: RunState) -> CompressRequest:
    """Return the request for the next compression."""
    due = state.window.due
    if due is None:
        raise ValueError("no compression is due; ask `next_action` first")
    return CompressRequest(
        origin=origin_of(state),
        turn=state.turn,
        attempt=state.window.attempts + 1,
        trigger=due.trigger,
        tokens=due.tokens,
        spec_digest=state.conversation.spec_digest,
        spec=state.agent if state.conversation.send_spec else None,
        tail=state.conversation.tail,
        measures=_measures(state),
        facts=_facts(state),
        plain=due.plain,
        allowance=allowance(state),
        notices=state.notices.pending,
        insists=_insists(state),
    )


def _insists(state: RunState) -> bool:
    return state.parked is not None and state.parked.insists


def _measures(state: RunState) -> Measures:
    return Measures(size=state.window.size, ratio=state.window.ratio, collapsed=state.window.collapsed)


def _facts(state: RunState) -> KnownFacts:
    """Return the facts that are known from the run's state, so that the model doesn't have to summarize them."""
    spent = f"turn {state.turn} of {state.max_turns}, {state.spending.usage.total_tokens} tokens"
    return KnownFacts(
        todos=state.work.todos.items,
        artifacts=state.work.artifacts,
        approvals=tuple(describe(call.call) for call in state.asks),
        budget=f"{spent}, {state.spending.tool_calls} tool calls so far",
    )


def evaluate_request(state: RunState) -> EvaluateRequest:
    """Return the request for the next evaluation."""
    if state.answer.held is None:
        raise ValueError("there is no answer to evaluate; ask `next_action` first")
    return EvaluateRequest(
        origin=origin_of(state),
        turn=state.turn,
        attempt=1 + state.conversation.is_sent_whole,
        spec_digest=state.conversation.spec_digest,
        spec=state.agent if state.conversation.send_spec else None,
        tail=state.conversation.tail,
        answer=state.answer.held.output,
        ratio=state.window.ratio,
        allowance=allowance(state),
        notices=state.notices.pending,
    )


def store_parts_request(state: RunState) -> StorePartsRequest:
    """Return the request to store the parts that are due."""
    parts = state.incoming.due
    reads = any(part.path or part.url for part in parts)
    return StorePartsRequest(origin=origin_of(state), parts=parts, spec=state.agent if reads else None)


def summary_of(state: RunState) -> str:
    """Return the Web UI's summary of the next model call."""
    if state.agent.crew is not None:
        kind = "tree" if has_branches(state.agent) else "crew"
        return f"t{state.turn} · {kind} {state.agent.name}: what comes next"
    if state.agent.node is not None:
        return f"t{state.turn} · node {state.agent.name}"
    seen = f": {results}" if (results := _results_read(state)) else ""
    reflection = state.answer.reflection
    counted = f" {reflection.round} of {state.agent.rounds}" if reflection.stage in ("critique", "revision") else ""
    stage = f"{reflection.stage}{counted} · " if reflection.stage else ""
    return f"t{state.turn} · {stage}model {state.agent.model}{seen}"


def _results_read(state: RunState) -> str:
    """Describe the tool results that the next model call reads. Quick reads have no activity of their own, so this is
    the only summary in the Web UI that names them.
    """
    count = state.conversation.known.count
    read = [message.tool_call_id for message in state.transcript.messages[count:] if message.role == "tool"]
    if not read or not state.environment.quick_reads:
        return f"{len(read)} tool result{'s' * (len(read) != 1)}" if read else ""
    asked = next((m.tool_calls for m in reversed(state.transcript.messages[:count]) if m.tool_calls), ())
    named = ", ".join(describe(call, 20) for call in asked if call.id in read)
    return named if len(named) <= LONGEST_SUMMARY else f"{named[: LONGEST_SUMMARY - 1]}…"


def summary_of_evaluation(state: RunState) -> str:
    """Return the Web UI's summary of the next evaluation."""
    return f"t{state.turn} · evaluate the answer"


def summary_of_compression(state: RunState) -> str:
    """Return the Web UI's summary of the next compression."""
    tokens = state.window.due.tokens if state.window.due else 0
    target = int(tokens * state.agent.compress_target)
    return f"t{state.turn} · compress {_thousands(tokens)} → at most {_thousands(target)} tokens"


def _thousands(tokens: int) -> str:
    return str(tokens) if tokens < 10_000 else f"{tokens / 1000:.0f}k"


def prepare_calls_request(state: RunState, calls: tuple[OpenCall, ...]) -> PrepareCallsRequest:
    """Return the request to check `calls` against the current rules."""
    return PrepareCallsRequest(
        origin=origin_of(state),
        turn=state.turn,
        spec=state.agent,
        calls=tuple(call.call for call in calls),
        checkout=state.checkout,
        grants=state.calls.grants,
        notices=state.notices.pending,
    )


def numbered(name: str, attempt: int) -> str:
    """Return the id of an activity's attempt. Providers' call ids can have any length, but the server accepts at most
    1,000 bytes.
    """
    short = name if len(name) <= MAX_ID else f"{name[:MAX_ID]}~{short_digest(name)}"
    return short if attempt == 1 else f"{short}-{attempt}"


def tool_activity_id(turn: int, call_id: str, attempt: int) -> str:
    """Return the id of the activity that makes this attempt at a tool call."""
    return numbered(f"t{turn}-{call_id}", attempt)


def tool_request(
    state: RunState, open_call: OpenCall, execution: str, *, with_notices: bool, local: bool = False
) -> ToolRequest:
    """Return the request for one attempt at a tool call. `execution` identifies the chain of executions that the run
    consists of. The request of a local attempt isn't recorded in history (see `quick_attempt`).
    """
    call, plan = open_call.call, open_call.plan
    edited = open_call.decision is not None and open_call.decision.edited
    proofs = _proofs(state, open_call) if state.signature_checks.proofs else {}
    by_value = (
        edited
        or plan.arguments is not None
        or open_call.inline
        or local
        or len(canonical(call.arguments)) <= INLINE_ARGUMENTS
    )
    return ToolRequest(
        origin=origin_of(state),
        turn=state.turn,
        attempt=open_call.attempt,
        call_id=call.id,
        tool=call.name,
        spec_digest=state.conversation.spec_digest,
        arguments=call.arguments if by_value else None,
        arguments_digest="" if by_value else arguments_digest(call.arguments),
        made=_tool_of_the_run(state, call),
        skill=_skill_of(state, call),
        effect=open_call.effect,
        begun=open_call.begun,
        failures=open_call.failures,
        accounted=state.environment.ledger and is_accounted(open_call) and not local,
        quick=local,
        timeout=plan.timeout,
        workspace=state.agent.workspace,
        checkout=state.checkout,
        note=_note(open_call),
        execution=execution,
        notices=state.notices.pending if with_notices else (),
        sampling=plan.sampling,
        found=plan.found,
        session=state.work.session if call.name == PYTHON else "",
        **({} if open_call.exchange is None else _continued(open_call.exchange)),
        **proofs,
    )


def _proofs(state: RunState, open_call: OpenCall) -> dict[str, Any]:
    """Return the fields of a request that show that a person has approved the call, or others like it."""
    decision = open_call.decision
    return {
        "asked": open_call.plan.verdict is Verdict.ASK,
        "proof": decision.proof if decision is not None else "",
        "grant_proofs": state.calls.grant_proofs,
    }


def quick_attempt(
    request: ModelRequest, call: ToolCall, plan: PreparedCall = _NO_PLAN, workspace: str = ""
) -> ToolRequest:
    """Return the request of a quick attempt at a call, from the model call that asked for it. History doesn't contain
    this request. Readers of a history recreate it without the plan and the workspace.
    """
    return ToolRequest(
        origin=request.origin,
        turn=request.turn,
        call_id=call.id,
        tool=call.name,
        spec_digest=request.spec_digest,
        arguments=call.arguments,
        effect=Effect.READ,
        accounted=False,
        quick=True,
        workspace=workspace,
        checkout=request.checkout,
        execution=request.quick_read_execution,
        found=plan.found,
        timeout=plan.timeout,
    )


def _continued(exchange: Exchange) -> dict[str, Any]:
    """Return the fields of a request that continues a call with the answers that its MCP server asked for."""
    return {
        "round": exchange.round,
        "answers": exchange.answers,
        "earlier_answers": exchange.earlier,
        "server_state": exchange.needed.state,
        "server_task": exchange.needed.task,
    }


def sample_request(state: RunState, call_id: str) -> SampleRequest:
    """Return the request to call the run's model for the MCP server of a call."""
    call = next(each for each in state.calls.open if each.call.id == call_id)
    if call.exchange is None or (request := call.exchange.open) is None:
        raise ValueError("no model call is due; ask `next_action` first")
    spec = state.agent
    return SampleRequest(
        origin=origin_of(state),
        turn=state.turn,
        call_id=call_id,
        attempt=1 + len(call.exchange.answers) + len(call.exchange.earlier),
        tool=call.call.name,
        model=spec.model,
        call=request.sampling,
        max_output_tokens=spec.max_output_tokens,
        options=spec.model_options,
        rpm=spec.rpm,
        tpm=spec.tpm,
        timeout=spec.model_timeout,
        ratio=state.window.ratio,
        allowance=allowance(state),
        notices=state.notices.pending,
    )


def idempotency_key(request: ToolRequest) -> str:
    """Return the call's idempotency key. The key is unique to this call with these arguments and is the same for every
    attempt.
    """
    named = request.arguments_digest or arguments_digest(request.arguments or {})
    # A round of a call that asks for input has a result of its own: the input that it needs next.
    return f"{key_without_arguments(request)}/{named}{f'/r{request.round}' if request.round else ''}"


def key_without_arguments(request: ToolRequest) -> str:
    """Return the call's idempotency key as releases before 0.3 wrote it. A call that began on one keeps this key."""
    return f"{request.origin.run_id}/{request.execution}/t{request.turn}/{request.call_id}"


def model_key(request: ModelRequest) -> str:
    """Return the key of a model call in the ledger. It is the same for every attempt with the same conversation."""
    digest = request.tail.base.digest
    for item in request.tail.items:
        digest = short_digest(digest + (item.digest if isinstance(item, ResultRef) else message_digest(item)))
    origin, asked = request.origin, f"{request.spec_digest}/{digest}/{request.stage}/{request.wrap_up}"
    return f"{origin.run_id}/{origin.execution}/t{request.turn}/model/{short_digest(asked)}"


def _note(open_call: OpenCall) -> str:
    """Return the note that informs the model about changes to its call."""
    by = "A person" if open_call.decision is not None and open_call.decision.edited else ""
    if not by and open_call.plan.arguments is not None:
        by = f"The interceptor {open_call.plan.interceptor}"
    return f"{by} changed the arguments to {canonical(open_call.call.arguments)}." if by else ""


def _tool_of_the_run(state: RunState, call: ToolCall) -> ToolSpec | None:
    """Return the tool's definition if workers don't have it. They don't have it if the agent created the tool or if the
    tool is a skill's script.
    """
    named = (tool for tool in state.agent.tools if tool.name == call.name)
    return next((tool for tool in named if tool.source or (state.agent.skills and goes_along(tool))), None)


def _skill_of(state: RunState, call: ToolCall) -> SkillUse | None:
    """Return the pinned skill that a call uses. A skill is active if it was loaded in this turn or an earlier turn."""
    if not state.agent.skills or not is_skill_tool(call.name):
        return None
    before = [
        c.call for c in state.calls.open[: next(n for n, c in enumerate(state.calls.open) if c.call.id == call.id)]
    ]
    loading = [str(each.arguments.get("name")) for each in before if each.name == LOAD_SKILL]
    active = {*active_in(state.transcript.messages), *loading} if call.name == LOAD_SKILL else set()
    return use_of(state.agent.skills, call.name, call.arguments, active=active)
