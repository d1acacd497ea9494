"""Delegation to sub-agents: start a child run for a call to `delegate_task`, and return the child's outcome as the
call's result.

A child receives the task and the hints, but not the conversation. The parent's model always receives a result,
regardless of how the child ends. A failed child never causes its parent to fail.
"""

import json
from dataclasses import dataclass
from typing import Final

from loom.domain.agents.branches_pattern import for_branch, has_branches
from loom.domain.agents.sub_agent import default_child_tools
from loom.domain.core.frozen import replace
from loom.domain.core.media import MOST_PARTS
from loom.domain.core.messages import JsonObject, Part, ToolCall
from loom.domain.core.requests import RunError, RunRequest, RunStatus
from loom.domain.core.tasks import CORRELATION, Action, Notice, correlation_of, task_id
from loom.domain.core.tool_calls import OpenCall, ToolResult, failed
from loom.domain.core.tool_names import CREATE_PLAN, DELEGATE
from loom.domain.machine.limits import last_call, own_spend, remaining
from loom.domain.machine.parking import has_work_to_lose
from loom.domain.machine.tool_results import not_run, settled
from loom.domain.machine.tree_sync import levels
from loom.domain.machine.wrap_up import requesting_budget
from loom.domain.run.state import RunState, noticed, with_calls
from loom.domain.skills.catalog import goes_along
from loom.domain.tree.budget import Share, Spend
from loom.domain.tree.budget_shares import share_for_each, without_requests_of
from loom.domain.tree.events import (
    ChildEnded,
    ChildrenBegan,
)
from loom.domain.tree.lineage import Lineage
from loom.domain.tree.plans import NAME, crew_of
from loom.domain.tree.signals import digest_of
from loom.domain.tree.tree import Child, child_of, ended_with, root_of, with_child

LONGEST_RESULT: Final = 30_000
"""The maximum length of a child's answer in its parent's conversation. The full answer is in the child's result."""
PREVIEW: Final = 2000
"""The maximum length of the answer in a stream task."""

_SELF: Final = "do it yourself"
ALONE: Final = (
    "You are a sub-agent and work on this task alone. Whoever gave it to you sees nothing but your final answer: put"
    " everything into it that they need, and say plainly what you could not do."
)
"""The text that Loom appends to a sub-agent's task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildStart:
    """The input of a child run."""

    run_id: str
    request: RunRequest
    lineage: Lineage


def children_began(state: RunState, event: ChildrenBegan) -> RunState:
    """Return the run with a new child for each call that may start one. Every other call receives a result that
    explains why it can't start one.
    """
    waiting = [c for c in state.calls.open if c.call.id in event.names and c.result is None]
    may, why = _may_delegate(state)
    if may and (asking := requesting_budget(state, Spend(children=len(waiting)))) is not None:
        return asking  # these calls are retried once the budget request is answered
    there = remaining(state).children
    room = 0 if not may else len(waiting) if there is None else max(0, there)
    share = share_for_each(state.tree, own_spend(state), min(room, len(waiting)))
    for number, call in enumerate(waiting):
        if number < room:
            state = _with_new_child(state, call, event, share)
        else:
            refused = failed(why, "unavailable")
            state = _answered(state, call.call.id, refused)
            state = not_run(state, [replace(call, result=refused)], event.at) if event.told else state
    return settled(state)


def child_ended(state: RunState, event: ChildEnded) -> RunState:
    """Return the next state of a run whose child has ended."""
    child = child_of(state.tree, event.run_id)
    if child is None:
        return state
    result, error = event.result, event.error
    ended = (
        ended_with(child, result)
        if result
        else replace(child, status=RunStatus.FAILED, ended=True, spend_unknown=child.started)
    )
    output, wrong = (result.output, result.error) if result else ("", error)
    answer = child_answer(ended.description, child.run_id, status=ended.status, output=output, error=wrong)
    tree = without_requests_of(with_child(state.tree, child.run_id, lambda _: ended), child.run_id)
    spending = replace(state.spending, tool_calls=state.spending.tool_calls + 1)
    state = replace(state, tree=tree, spending=spending)
    told = Notice(
        action=Action.TOOL_RESULT,
        key="",
        at=event.at,
        status=answer.status,
        parameters={
            "turn": state.turn,
            "call_id": child.call_id,
            "tool": _tool_of(state, child),
            "child_run_id": child.run_id,
        },
        result={"content": answer.content[:PREVIEW], "length": len(answer.content), "metadata": answer.metadata},
    )
    state = noticed(state, told)
    return settled(_answered(state, child.call_id, answer))


def child_start(state: RunState, child: Child) -> ChildStart:
    """Return the input of a child run."""
    call = next(c.call for c in state.calls.open if c.call.id == child.call_id)
    given = call.arguments if call.name == DELEGATE else {}
    limits = state.tree.limits
    if limits is None:
        raise ValueError("this run was prepared without limits for a tree; it has no children")
    named = bool(given.get("agent"))
    request = RunRequest(
        task="",
        session_id=state.request.session_id or root_of(state.tree, state.run_id),
        model=given.get("model") or (None if named else state.agent.model),
        workspace=state.agent.workspace,
        skills=tuple(dict.fromkeys(given.get("add_skills") or ())),
        patience=state.request.patience,
        metadata={CORRELATION: known} if (known := correlation_of(state.request.metadata)) else {},
        priority=state.request.priority,
        tenant=state.request.tenant,
        user_id=state.request.user_id,
    )
    if call.name == DELEGATE:
        # Only a crew can require an output schema. A model's call with a schema is rejected.
        request = replace(request, task=_task(call), agent=child.agent, output_schema=given.get("output_schema"))
        request = replace(request, parts=_named_parts(state, request.task))
        request = for_branch(request, state.request, state.agent)
    else:
        request = replace(request, task=str(call.arguments["goal"]), crew=_crew(state, call))
    lineage = Lineage(
        parent_run_id=state.run_id,
        root_run_id=root_of(state.tree, state.run_id),
        depth=state.tree.depth + 1,
        limits=limits,
        description=child.description,
        named=named,
        tools=_tools_for(state, given, named=named),
        model=state.agent.model,
        above=levels(state),
        share=child.share,
        deadline=last_call(state),
        priority=None if state.request.priority else state.agent.priority,
        branch=has_branches(state.agent) or (state.tree.lineage is not None and state.tree.lineage.branch),
        has_work_to_lose=bool(state.agent.patience) and (state.agent.crew is None or has_work_to_lose(state)),
        task_id=execute_task_id(state.run_id, state.environment.execution, child.call_id),
        detached=child.detached,
        root_execution=state.tree.lineage.root_execution if state.tree.lineage else state.environment.execution,
        steering_key=state.signature_checks.key if state.signature_checks.widened else "",
        checkout=state.checkout,
    )
    return ChildStart(run_id=child.run_id, request=request, lineage=lineage)


def _tools_for(state: RunState, given: JsonObject, *, named: bool) -> tuple[str, ...]:
    """Return a child's tools. A child that is a copy of this agent has at most this agent's tools. A child with another
    agent has that agent's tools.
    """
    if given.get("tools"):
        return tuple(given["tools"])
    return () if named or not given or state.agent.crew else default_child_tools(state.agent.tools)


def _named_parts(state: RunState, task: str) -> tuple[Part, ...]:
    """Return the stored parts of the conversation whose ids the task names. The child gets them, too."""
    messages = (message.content for message in state.transcript.messages if not isinstance(message.content, str))
    stored = {part.digest: part for content in messages for part in content if part.digest and part.id in task}
    given = list(stored.values())[:MOST_PARTS]
    return tuple(Part(type=part.type, digest=part.digest, name=part.name) for part in given)


def _crew(state: RunState, call: ToolCall) -> JsonObject:
    tools = [tool.name for tool in state.agent.tools if not goes_along(tool)]
    return crew_of(str(call.arguments["goal"]), call.arguments["steps"], agent=state.request.agent, tools=tools)


def execute_task_id(run_id: str, execution: str, call_id: str) -> str:
    """Return the id of the stream task that assigns a call's work."""
    return task_id(run_id, execution, _key(call_id), Action.EXECUTE)


def call_of(lineage: Lineage) -> str:
    """Return the id of the call that assigned the run its work."""
    key = lineage.task_id.removeprefix(f"{lineage.parent_run_id}/").removesuffix(f"/{Action.EXECUTE}")
    return key.partition(_key(""))[2]


def _tool_of(state: RunState, child: Child) -> str:
    return next((c.call.name for c in state.calls.open if c.call.id == child.call_id), DELEGATE)


def _key(call_id: str) -> str:
    return f"delegate-{call_id}"


def _may_delegate(state: RunState) -> tuple[bool, str]:
    """Return whether the run can have children, and the message for a call that can't start one."""
    limits = state.tree.limits
    if limits is None:
        return False, f"this run cannot delegate; {_SELF}"
    if state.tree.depth >= limits.depth:
        why = f"not delegated: {limits.depth} levels of sub-agents are allowed, and you are on the last; {_SELF}"
        return False, why
    return True, f"not delegated: all sub-agents that this tree may have are used up; {_SELF}"


def _with_new_child(state: RunState, call: OpenCall, event: ChildrenBegan, share: Share) -> RunState:
    given = call.call.arguments
    run_id = f"{state.run_id}/{event.names[call.call.id]}"
    is_plan = call.call.name == CREATE_PLAN
    agent = NAME if is_plan else str(given.get("agent") or state.request.agent)
    child = Child(
        run_id=run_id,
        call_id=call.call.id,
        agent=agent,
        description=f"plan: {given['goal']}"[:200] if is_plan else str(given["description"]),
        levels=digest_of(levels(state)),
        share=share,
        detached=event.detached,
    )
    state = replace(state, tree=replace(state.tree, children=(*state.tree.children, child)))
    told = Notice(
        action=Action.EXECUTE,
        target_agent=agent,
        key=_key(child.call_id),
        at=event.at,
        status="running",
        parameters={
            "turn": state.turn,
            "call_id": child.call_id,
            "agent": agent,
            "description": child.description,
            "child_run_id": run_id,
        },
    )
    return noticed(state, told)


def _answered(state: RunState, call_id: str, result: ToolResult) -> RunState:
    return with_calls(state, lambda c: replace(c, result=result) if c.call.id == call_id and c.result is None else c)


def _task(call: ToolCall) -> str:
    hints = [f"- {hint}" for hint in call.arguments.get("context_hints") or ()]
    told = "\n".join(["What is known already:", *hints]) if hints else ""
    return "\n\n".join(part for part in (str(call.arguments["prompt"]), told, ALONE) if part)


def child_answer(
    description: str, run_id: str, *, status: RunStatus, output: str, error: RunError | None
) -> ToolResult:
    """Return the result of the call that delegated work, after the child run has ended."""
    answer = {"task": description, "result": _clipped(output, run_id), "status": status.value}
    if error is not None:
        answer["error"] = f"{error.type}: {error.message}"
    content = json.dumps(answer, ensure_ascii=False)
    match status:
        case RunStatus.COMPLETED:
            return ToolResult(content=content)
        case RunStatus.LIMIT_REACHED | RunStatus.BUDGET_EXHAUSTED:
            return ToolResult(content=content, status="warning")
        case RunStatus.ABORTED:
            return failed(content, "aborted")
        case _:
            return failed(content, "execution")


def _clipped(output: str, run_id: str) -> str:
    if len(output) <= LONGEST_RESULT:
        return output
    return f"{output[:LONGEST_RESULT]}\n[{len(output) - LONGEST_RESULT} more characters are in the result of {run_id}]"
