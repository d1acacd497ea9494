"""Fork a run: start a new run after a past turn of another run. The new run has the conversation up to that turn, and
no work is repeated.

A fork starts between two turns, when every call of the preceding turn has its result. The conversation is the input of
the next model call. If there is no next call, the conversation is assembled from the turn's own reply and results. The
agent continues with the spec that was pinned at that point. Budget, approvals and open calls are not copied, because
they belong to the other run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from loom.domain.agents.request_options import FIELD, KEY
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject, Message, ToolCall, user
from loom.domain.core.repositories import Repository
from loom.domain.core.requests import ForkedFrom, RunRequest
from loom.domain.core.tool_calls import Effect, PreparedCall, ToolResult, kept_artifact, made_tool, tool_message
from loom.domain.core.tool_names import CREATE_TOOL, DONE, HANDED_ON, TODO
from loom.domain.history.past_turns import ChildRun, PastTurn, Record, ToolAttempt, turns_of
from loom.domain.machine.tool_results import intercepted, ruled_out
from loom.domain.run.activity_payloads import Earlier, Prepared
from loom.domain.run.state import Environment, RunState, Work
from loom.domain.tools.todos import Todos, read_todos

_TASK: Final = 1
"""The number of messages at the start of a run that isn't a fork."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkPoint:
    """A run at the end of one of its turns."""

    request: RunRequest
    """The run's request."""
    spec: AgentSpec
    earlier: Earlier
    later_effects: int = 0
    """The number of calls in later turns that may have had side effects. A fork doesn't undo these effects."""


def fork_point(records: Sequence[Record], turn: int) -> ForkPoint:
    """Return the run's state at the end of `turn`, where 0 is the run's start. Raises BadRequest if no run can start at
    that point.
    """
    turns = {past.number: past for past in turns_of(records)}
    request = request_in(records)
    if request is None or not turns:
        raise BadRequest("the run has not begun its first turn: there is nothing to fork from yet", field="turn")
    if turn not in {min(turns) - 1, *turns}:
        raise BadRequest(
            f"the run has no turn {turn}: it has turns {min(turns)} to {max(turns)}, and turn {min(turns) - 1} means"
            " before the first of them",
            field="turn",
        )
    earlier = Earlier(
        messages=_conversation(turns, turn, _beginning(records), _brought(records)),
        todos=_todos(records, turns, turn),
        artifacts=_artifacts(records, turn),
        execution=_execution(records),
    )
    later = [past for past in turns.values() if past.number > turn]
    return ForkPoint(request=request, spec=_spec(turns, turn), earlier=earlier, later_effects=_effects(later))


def fork_request(point: ForkPoint, forked: ForkedFrom) -> dict[str, Any]:
    """Return the new run's request, with the other run's task and limits. The agent, the rules and the folder are taken
    from the other run's state.
    """
    request = point.request
    limits = {name: value for name, value in asdict(request.budget).items() if value is not None}
    asked = {
        "task": request.task,
        ("agent" if request.crew is None else "crew"): point.spec.name,
        "session_id": request.session_id,
        "max_turns": request.max_turns,
        "patience": request.patience,
        "budget": limits or None,
        "output_schema": request.output_schema,
        "metadata": dict(request.metadata) or None,
        "priority": request.priority,
        "tenant": request.tenant,
        "user_id": request.user_id,
        "forked_from": {name: value for name, value in asdict(forked).items() if value is not None},
    }
    return {name: value for name, value in asked.items() if value is not None}


def refuse_other_owner(was: RunRequest, request: RunRequest) -> None:
    """Raise BadRequest if a fork would work for another tenant or user than the run with the request `was`. A fork
    continues the other run's conversation, which belongs to them. The error doesn't name them.
    """
    for field, before, named in (("tenant", was.tenant, request.tenant), ("user_id", was.user_id, request.user_id)):
        if (before or None) != (named or None):
            raise BadRequest(
                f"{field}: a fork works for the same tenant and user as the other run: give `{field}` the value that"
                " the other run's request has, or leave it out if that request has none",
                field=field,
            )


def refuse_changes(point: ForkPoint, request: RunRequest) -> None:
    """Raise BadRequest if the request makes a change that a fork would ignore. A fork uses the pinned agent or crew."""
    was, options = point.request, request.metadata.get(KEY)
    refuse_other_owner(was, request)
    if isinstance(was.workspace, Repository) and request.workspace is None:
        raise BadRequest(
            f"the other run worked in its own clone of {was.workspace.named}, whose state after that turn isn't stored:"
            " name a folder for the fork in `workspace`",
            field="workspace",
        )
    changed = {
        "skills": request.skills not in ((), was.skills),
        "output_schema": request.output_schema not in (None, was.output_schema, point.spec.output_schema),
        FIELD: bool(options) and options != was.metadata.get(KEY),
        "crew": not isinstance(request.crew, str | None) and request.crew != was.crew,
    }
    if field := next((field for field, is_changed in changed.items() if is_changed), None):
        raise BadRequest(
            f"a fork continues with the settings that the other run had at that turn, so `{field}` cannot be changed:"
            " leave it out, describe the change in `message`, or start a new run",
            field=field,
        )


def request_in(records: Sequence[Record]) -> RunRequest | None:
    """Return the request of the run with this history, or None if the history doesn't contain it."""
    return next((asked for record in records if (asked := _asked_for(record)) is not None), None)


def _asked_for(record: Record) -> RunRequest | None:
    return record.request if isinstance(record, RunState) else record if isinstance(record, RunRequest) else None


def begun_at(point: ForkPoint, forked: ForkedFrom) -> ForkPoint:
    """Return the same fork point with the fork's own message. Raises BadRequest if the model would have nothing to
    reply to.
    """
    earlier = point.earlier
    if forked.message is not None:
        messages = (*earlier.messages, user(forked.message))
        return replace(point, earlier=replace(earlier, messages=messages))
    if earlier.messages[-1].role == "assistant":
        raise BadRequest(
            f"turn {forked.turn} ended with an answer: add a message that says how to continue, or fork from an earlier"
            " turn",
            field="message",
        )
    return point


def _effects(turns: Sequence[PastTurn]) -> int:
    """Return the number of calls that may have had side effects. Calls by sub-agents aren't counted, because they
    aren't part of this history.
    """
    asked = (tool.request for turn in turns for tool in turn.tools)
    changed = {request.call_id for request in asked if request.effect is not Effect.READ}
    replies = (call.attempt.reply.message for turn in turns for call in turn.calls if call.attempt.reply)
    handed = {c.id for message in replies if message for c in message.tool_calls if c.name in HANDED_ON}
    return len(changed | handed)


def _conversation(
    turns: dict[int, PastTurn], turn: int, beginning: int, brought: Mapping[str, ToolResult]
) -> tuple[Message, ...]:
    following = turns.get(turn + 1)
    if following is None or not following.calls:
        return _put_together(turns[turn], brought)
    sent = following.calls[0].messages
    if sent is None:
        raise BadRequest(
            f"the history does not go back far enough to restore the conversation after turn {turn}", field="turn"
        )
    # Reminders, and messages that people sent after the turn, don't belong to the turn.
    ends = (number for number, message in enumerate(sent, 1) if message.role in ("assistant", "tool"))
    return sent[: max(ends, default=beginning) if turn > 0 else beginning]


def _brought(records: Sequence[Record]) -> dict[str, ToolResult]:
    """Return the answers of child runs, keyed by the calls that started them."""
    return {record.call_id: record.answer for record in records if isinstance(record, ChildRun)}


def _put_together(turn: PastTurn, brought: Mapping[str, ToolResult]) -> tuple[Message, ...]:
    """Return the conversation after a run's last turn, with results from the turn's records or from child runs."""
    asked = next((call for call in reversed(turn.calls) if call.attempt.reply and call.attempt.reply.message), None)
    reply = asked.attempt.reply if asked else None
    if asked is None or reply is None or reply.message is None or asked.messages is None:
        raise _not_over(turn.number)
    results = {tool.request.call_id: tool.result for tool in turn.tools if tool.result and tool.result.is_final}
    answers = []
    for call, plan in zip(reply.message.tool_calls, reply.plans, strict=True):
        result = results.get(call.id) or brought.get(call.id) or _without_running(call, plan)
        if result is None:
            raise _not_over(turn.number)
        answers.append(tool_message(call, result))
    return (*asked.messages, reply.message, *answers)


def _without_running(call: ToolCall, plan: PreparedCall) -> ToolResult | None:
    return ToolResult(content="Done.") if call.name == DONE and not plan.error else intercepted(plan) or ruled_out(plan)


def _not_over(turn: int) -> BadRequest:
    return BadRequest(
        f"turn {turn} is not over: its model call or one of its tool calls has no result. Fork from turn {turn - 1}",
        field="turn",
    )


def _spec(turns: dict[int, PastTurn], turn: int) -> AgentSpec:
    """Return the spec of the agent after the turn. This is the spec that the next model call used or, if there was no
    next call, the turn's spec with the tools that the turn created.
    """
    following, own = turns.get(turn + 1), turns.get(turn)
    if following is not None and following.calls:
        spec = following.calls[0].spec
    else:
        spec = own.calls[-1].spec if own and own.calls else None
        for tool in own.tools if own and spec else ():
            if spec and tool.request.tool == CREATE_TOOL and _succeeded(tool) and own:
                made = made_tool(_arguments(own, tool))
                spec = spec if any(each.name == made.name for each in spec.tools) else spec.with_tool(made)
    if spec is None:
        raise BadRequest(
            f"the history does not go back far enough to restore the agent's settings in turn {turn}", field="turn"
        )
    return replace(spec, above=tuple(replace(level, grants=()) for level in spec.above))


def _beginning(records: Sequence[Record]) -> int:
    prepared = next((record for record in records if isinstance(record, Prepared)), None)
    return len(prepared.earlier.messages) if prepared and prepared.earlier else _TASK


def _todos(records: Sequence[Record], turns: dict[int, PastTurn], until: int) -> Todos:
    """Return the to-do list at that point. The list's age restarts at zero because the new run counts its turns from
    zero.
    """
    todos = Todos()
    for record in records:
        match record:
            case Prepared(earlier=Earlier(todos=before)):
                todos = before
            case RunState(turn=turn, work=Work(todos=before)) if turn <= until:
                todos = before
            case ToolAttempt(request=request) if request.tool == TODO and request.turn <= until and _succeeded(record):
                todos = read_todos(_arguments(turns[request.turn], record), 0)
            case _:
                pass
    return replace(todos, turn=0)


def _execution(records: Sequence[Record]) -> str:
    for record in records:
        match record:
            case Prepared(execution=execution) | RunState(environment=Environment(execution=execution)):
                return execution
            case _:
                pass
    return ""


def _artifacts(records: Sequence[Record], until: int) -> tuple[JsonObject, ...]:
    kept: dict[str, JsonObject] = {}
    for record in records:
        match record:
            case Prepared(earlier=Earlier(artifacts=before)):
                kept |= {one["id"]: one for one in before}
            case RunState(turn=turn, work=Work(artifacts=before)) if turn <= until:
                kept |= {one["id"]: one for one in before}
            case ToolAttempt(request=request, result=ToolResult() as result):
                if result.artifact and request.turn <= until:
                    kept[result.artifact] = kept_artifact(request.call_id, request.tool, result)
            case _:
                pass
    return tuple(kept.values())


def _succeeded(tool: ToolAttempt) -> bool:
    return tool.result is not None and tool.result.is_final and tool.result.status == "success"


def _arguments(turn: PastTurn, tool: ToolAttempt) -> JsonObject:
    """Return the tool's arguments, either inline or from the model's reply."""
    if tool.request.arguments is not None:
        return tool.request.arguments
    answers = (call.attempt.reply.message for call in turn.calls if call.attempt.reply and call.attempt.reply.message)
    calls = (call for message in answers for call in message.tool_calls)
    return next(call.arguments for call in calls if call.id == tool.request.call_id)
