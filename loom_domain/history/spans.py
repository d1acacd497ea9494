"""The spans of a run's trace, built from the tasks in its stream, with the names of OpenTelemetry's GenAI conventions.

    invoke_agent AGENT                     one for each run; the runs of a tree share one trace
    ├── chat MODEL                         one attempt at a model call
    ├── execute_tool TOOL                  one attempt at a tool call, without the wait for a person
    │   └── invoke_agent AGENT             the run to which `delegate_task` or a crew has given the work
    ├── wait_for_approval TOOL             a person's decision
    ├── wait_for_provider, wait_for_operator   the run was parked
    ├── search_memory                      what a model call was given of other runs
    └── compress_context

A task that ends something completes its span. The task that began it is its opening. All ids follow from the ids of
tasks, so that it doesn't matter which worker publishes a task, or whether a span is exported twice.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.metrics import model_labels
from loom.domain.core.tasks import Action, Origin, Task, span_id, task_id
from loom.domain.machine.delegation import execute_task_id

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
CONVERSATION: Final = "gen_ai.conversation.id"
COMPACTED: Final = "gen_ai.conversation.compacted"
AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_ID: Final = "gen_ai.agent.id"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
ERROR_TYPE: Final = "error.type"
RUN_ID: Final = "loom.run.id"
TURN: Final = "loom.turn"
ATTEMPT: Final = "loom.attempt"
PURPOSE: Final = "loom.purpose"
MEMORY_SOURCE: Final = "loom.memory.source"
STATUS: Final = "loom.run.status"
COST: Final = "loom.cost.usd"
DECISION: Final = "loom.approval.decision"

_PROVIDERS: Final = {"openai-responses": "openai"}
"""Providers whose models Loom names by the API."""

OPENINGS: Final = frozenset({Action.TURN, Action.TOOL_CALL, Action.EXECUTE, Action.APPROVAL_REQUESTED, Action.RETRIED})
"""The actions of the tasks that `opening_of` looks for."""

Value: TypeAlias = str | int | float | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One span. Ids are in hexadecimal."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: Literal["internal", "client"] = "internal"
    begun: datetime
    ended: datetime
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    """The type of the error, if the span's operation failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The run of a task, in its trace."""

    trace_id: str
    execution: str
    """Tells the run apart from others with the same id."""
    start: Task | None
    """The run's first task, if it is still in the stream."""


def execution_of(start: Task) -> str:
    """Return what tells a run apart from others with the same id. `start` is the run's first task."""
    first = start.task_id.removeprefix(f"{start.run_id}/").split("/")[0]
    return "" if start.task_id == task_id(start.run_id, "", *start.task_id.split("/")[-3:]) else first


def ends_span(task: Task) -> bool:
    """Whether this task completes a span."""
    return task.action in _SPANS


def opening_of(task: Task, place: Place) -> Callable[[Task], bool] | None:
    """Return how to recognize the task that began what this task ends, or None if it needs none."""
    run, said = task.run_id, task.parameters
    match task.action:
        case Action.MODEL_CALL if "ms" not in said:
            wanted = f"{_scope(task)}/turn/{Action.TURN}"
        case Action.TOOL_RESULT if "child_run_id" in said:
            wanted = execute_task_id(run, place.execution, str(said["call_id"]))
        case Action.TOOL_RESULT:
            wanted = f"{_scope(task)}/call/{Action.TOOL_CALL}"
        case Action.APPROVAL_DECIDED:
            call_id = said.get("call_id")
            return lambda t: (
                t.action is Action.APPROVAL_REQUESTED and t.run_id == run and t.parameters.get("call_id") == call_id
            )
        case Action.COMPLETE | Action.ERROR if _retries(task):
            return lambda t: t.action is Action.RETRIED and t.run_id == run
        case _:
            return None
    return lambda t: t.task_id == wanted


def knows_duration(task: Task) -> bool:
    """Whether this task says how long its span took, so that its opening tells only the arguments. No activity measures
    the duration of a sub-agent's work.
    """
    return "child_run_id" not in task.parameters and "execution_time" in ((task.result or {}).get("metadata") or {})


def span_of(task: Task, place: Place, opening: Task | None, *, with_content: bool = False) -> Span | None:
    """Return the span that this task completes, or None. Without its opening, what has no known duration has none.

    `with_content` adds the attributes with texts from people, models and tools.
    """
    if (make := _SPANS.get(task.action)) is None:
        return None
    span = make(task, place, opening)
    return replace(span, attributes={**span.attributes, **_content(task, opening)}) if with_content else span


def run_span_id(place: Place, run_id: str) -> str:
    """Return the id of a run's `invoke_agent` span."""
    return span_id(place.trace_id, task_id(run_id, place.execution))


def memory_search(origin: Origin, *, begun: datetime, ended: datetime, source: str) -> Span:
    """Return the span for a search in memory. No task stands for it, so its id depends on the time."""
    trace = origin.trace_id
    return Span(
        trace_id=trace,
        span_id=span_id(trace, f"{origin.run_id}/search_memory/{source}/{begun.isoformat()}"),
        parent_id=span_id(trace, task_id(origin.run_id, origin.execution)),
        name="search_memory",
        begun=begun,
        ended=ended,
        attributes=_known(
            {
                OPERATION: "search_memory",
                MEMORY_SOURCE: source,
                AGENT_NAME: origin.agent,
                CONVERSATION: origin.session_id,
                RUN_ID: origin.run_id,
            }
        ),
    )


def _chat(task: Task, place: Place, opening: Task | None) -> Span:
    said, (provider, model) = task.parameters, _called(task.parameters)
    begun = task.created_at - timedelta(milliseconds=float(said.get("ms", 0)))
    return _in_run(
        task,
        place,
        key=_scope(task),
        name=f"chat {model}",
        kind="client",
        begun=opening.created_at if opening is not None else begun,
        error=str(said.get("error", "")),
        attributes={
            OPERATION: "chat",
            PROVIDER: provider,
            REQUEST_MODEL: model,
            INPUT_TOKENS: said.get("input_tokens"),
            OUTPUT_TOKENS: said.get("output_tokens"),
            CACHE_READ_TOKENS: said.get("cached_tokens"),
            CACHE_WRITE_TOKENS: said.get("cache_write_tokens"),
            COST: said.get("cost"),
            PURPOSE: said.get("purpose"),
        },
    )


def _tool(task: Task, place: Place, opening: Task | None) -> Span:
    said, result = task.parameters, task.result or {}
    told = result.get("metadata") or {}
    name = str(said.get("tool", ""))
    is_delegated = "child_run_id" in said
    begun = task.created_at - timedelta(seconds=float(told.get("execution_time", 0)))
    failed = str(told.get("error_type") or "execution") if task.status == "error" else ""
    return _in_run(
        task,
        place,
        key=execute_task_id(task.run_id, place.execution, str(said["call_id"])) if is_delegated else _scope(task),
        name=f"execute_tool {name}",
        begun=opening.created_at if opening is not None else begun,
        error=failed,
        attributes={
            OPERATION: "execute_tool",
            TOOL_NAME: name,
            TOOL_CALL_ID: said.get("call_id"),
        },
    )


def _approval(task: Task, place: Place, opening: Task | None) -> Span:
    said = task.parameters
    return _in_run(
        task,
        place,
        key=task.task_id,
        name=f"wait_for_approval {said.get('tool', '')}",
        begun=opening.created_at if opening is not None else task.created_at,
        attributes={
            TOOL_NAME: said.get("tool"),
            TOOL_CALL_ID: said.get("call_id"),
            DECISION: "approved" if said.get("approved") else "denied",
        },
    )


def _parked(task: Task, place: Place, _opening: Task | None) -> Span:
    said = task.parameters
    return _in_run(
        task,
        place,
        key=task.task_id,
        name=f"wait_for_{said.get('waited_on', 'provider')}",
        begun=task.created_at - timedelta(seconds=float(said.get("seconds", 0))),
    )


def _compression(task: Task, place: Place, _opening: Task | None) -> Span:
    said = task.parameters
    return _in_run(
        task,
        place,
        key=task.task_id,
        name="compress_context",
        begun=task.created_at - timedelta(milliseconds=float(said.get("duration_ms", 0))),
        error="" if said.get("success") else "compression",
        attributes={COMPACTED: True if said.get("success") else None},
    )


def _run(task: Task, place: Place, opening: Task | None) -> Span:
    """Return the span of a run that has ended. What follows a retry of an ended run is a span below the first one."""
    result, retries, start = task.result or {}, _retries(task), place.start
    own = run_span_id(place, task.run_id)
    above = start.parent_task_id if start is not None else None
    parent = span_id(place.trace_id, above) if above else None
    began = opening or start
    usage = (result.get("own") or result).get("usage") or {}
    provider, model = _called(start.parameters if start is not None else {})
    failed = task.action is Action.ERROR
    return Span(
        trace_id=place.trace_id,
        span_id=span_id(place.trace_id, f"{own}/{retries}") if retries else own,
        parent_id=own if retries else parent,
        name=f"invoke_agent {task.source_agent}",
        begun=began.created_at if began is not None else task.created_at,
        ended=task.created_at,
        error=str((result.get("error") or {}).get("type") or "failed") if failed else "",
        attributes=_known(
            {
                OPERATION: "invoke_agent",
                AGENT_NAME: task.source_agent,
                AGENT_ID: task.source_agent,
                CONVERSATION: task.session_id,
                RUN_ID: task.run_id,
                PROVIDER: provider,
                REQUEST_MODEL: model,
                INPUT_TOKENS: usage.get("input_tokens"),
                OUTPUT_TOKENS: usage.get("output_tokens"),
                CACHE_READ_TOKENS: usage.get("cached_tokens"),
                CACHE_WRITE_TOKENS: usage.get("cache_write_tokens"),
                COST: result.get("cost"),
                STATUS: task.status,
            }
        ),
    )


def _content(task: Task, opening: Task | None) -> dict[str, Value]:
    """Return the texts from people, models and tools in a span."""
    result = task.result or {}
    match task.action:
        case Action.MODEL_CALL:
            return _known({OUTPUT_MESSAGES: _message(result.get("content"))})
        case Action.TOOL_RESULT:
            arguments = opening.parameters.get("arguments") if opening is not None else None
            return _known({TOOL_ARGUMENTS: _json(arguments), TOOL_CALL_RESULT: result.get("content")})
        case Action.COMPLETE | Action.ERROR:
            return _known({OUTPUT_MESSAGES: _message(result.get("output") or None)})
        case _:
            return {}


_SPANS: Final[Mapping[Action, Callable[[Task, Place, Task | None], Span]]] = {
    Action.MODEL_CALL: _chat,
    Action.TOOL_RESULT: _tool,
    Action.APPROVAL_DECIDED: _approval,
    Action.UNPARKED: _parked,
    Action.COMPRESSION: _compression,
    Action.COMPLETE: _run,
    Action.ERROR: _run,
}


def _in_run(
    task: Task,
    place: Place,
    *,
    key: str,
    name: str,
    begun: datetime,
    kind: Literal["internal", "client"] = "internal",
    attributes: Mapping[str, Any] | None = None,
    error: str = "",
) -> Span:
    said = task.parameters
    everywhere = {
        AGENT_NAME: task.source_agent,
        CONVERSATION: task.session_id,
        RUN_ID: task.run_id,
        TURN: said.get("turn"),
        ATTEMPT: said.get("attempt"),
    }
    return Span(
        trace_id=place.trace_id,
        span_id=span_id(place.trace_id, key),
        parent_id=run_span_id(place, task.run_id),
        name=name,
        kind=kind,
        begun=min(begun, task.created_at),
        ended=task.created_at,
        attributes=_known({**everywhere, **(attributes or {})}),
        error=error,
    )


def _called(said: Mapping[str, Any]) -> tuple[str, str]:
    """Return the provider and the model, as the conventions name them: an API isn't a provider of its own."""
    provider, model = model_labels(str(said.get("model") or ""))
    return _PROVIDERS.get(provider, provider), model


def _scope(task: Task) -> str:
    """Return the task's id without its key and action. It is the key of `Origin.span_id`."""
    return task.task_id.rpartition("/")[0].rpartition("/")[0]


def _retries(task: Task) -> int:
    return int((task.result or {}).get("retries") or 0)


def _known(attributes: Mapping[str, Any]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value not in (None, "")}


def _message(text: object) -> str | None:
    if text is None:
        return None
    return _json([{"role": "assistant", "parts": [{"type": "text", "content": str(text)}]}])


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
