"""Everything that one run was, as records: `loom export` writes one line of JSON for each.

run         the run, its place in its tree, and where its events come from
request     the run's input
spec        each agent spec that the run was pinned to
message     each message of the conversation, except tool results
tool_call   each call with its arguments, verdict, attempts and whole result
approval    each ask, with who decided it and how
child       each run that received work
event       each event of the stream, except fragments of text
artifact    each stored output
result      the run's result, if it has ended
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject, Message, Part, message_digest
from loom.domain.core.repositories import Archive, ArchiveWorkspace
from loom.domain.core.requests import RunRequest
from loom.domain.core.tasks import FINAL_ACTIONS, SHOWN_ONLY, Action, Task
from loom.domain.core.tool_calls import ToolResult
from loom.domain.history.past_turns import CompressionAttempt, ModelAttempt, PastTurn, Record, ToolAttempt, turns_of
from loom.domain.history.task_rebuilding import Mask
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.state import RunState

Source = Literal["stream", "history"]


def exported(records: Sequence[Record], tasks: Sequence[Task], *, source: Source, mask: Mask) -> Iterator[JsonObject]:
    """Yield the records of one run, except its artifacts. `tasks` are the run's own, in the order of its events."""
    yield {"record": "run", **_place(tasks), "events_from": source}
    requests = [record for record in records if isinstance(record, RunRequest)]
    yield from ({"record": "request", **asdict(request)} for request in requests[:1])
    for spec in _specs(records):
        yield {"record": "spec", "digest": spec.digest, **asdict(spec)}
    turns = turns_of(records)
    yield from _messages(turns)
    for turn in turns:
        yield from _tool_calls(turn, mask)
    yield from _approvals(tasks)
    yield from _children(tasks)
    yield from ({"record": "event", **asdict(task)} for task in tasks if task.action not in SHOWN_ONLY)
    last = tasks[-1] if tasks and tasks[-1].action in FINAL_ACTIONS else None
    if last is not None and last.result is not None:
        yield {"record": "result", **last.result}


def artifacts_in(records: Iterable[Record]) -> dict[str, JsonObject]:
    """Return the calls whose output is stored, by the artifact's id."""
    return {
        record.result.artifact: {"call_id": record.request.call_id, "tool": record.request.tool}
        for record in records
        if isinstance(record, ToolAttempt) and record.result is not None and record.result.artifact
    }


def execution_in(records: Iterable[Record]) -> str:
    """Return what tells the run apart from others with the same id."""
    found = ""
    for record in records:
        match record:
            case Prepared(execution=execution):
                found = execution
            case RunState(environment=environment):
                found = environment.execution
            case _:
                pass
    return found


def archive_in(records: Iterable[Record]) -> Archive | None:
    """Return the archive that the run works on, with the digest under which it is stored. None if it works on something
    else.
    """
    digest = name = ""
    for record in records:
        match record:
            case RunRequest(workspace=ArchiveWorkspace(archive=archive)):
                name = archive.name
            case Prepared(archive=str() as stored) if stored:
                digest = stored
            case _:
                pass
    return Archive(digest=digest, name=name) if digest else None


def contents_in(records: Iterable[Record]) -> dict[str, Part]:
    """Return the stored images, recordings and files in the run's messages and results, by their digest."""
    found: dict[str, Part] = {}
    for record in records:
        parts = (
            part
            for message in _all_messages(record)
            if not isinstance(message.content, str)
            for part in message.content
        )
        results = record.result.parts if isinstance(record, ToolAttempt) and record.result is not None else ()
        for part in (*parts, *results):
            if part.digest:
                found[part.digest] = part
    return found


def _all_messages(record: Record) -> Iterator[Message]:
    if isinstance(record, ModelAttempt):
        yield from (item for item in record.request.tail.items if isinstance(item, Message))
        if record.reply is not None and record.reply.message is not None:
            yield record.reply.message


def _place(tasks: Sequence[Task]) -> JsonObject:
    if not tasks:
        return {}
    first = tasks[0]
    started = next((task for task in tasks if task.action is Action.START), first)
    return {
        "run_id": first.run_id,
        "root_run_id": first.root_run_id,
        "parent_run_id": started.parameters.get("parent_run_id"),
        "session_id": first.session_id,
        "agent": first.source_agent,
    }


def _specs(records: Iterable[Record]) -> Iterator[AgentSpec]:
    seen: set[str] = set()
    for record in records:
        match record:
            case Prepared(spec=AgentSpec() as spec) | RunState(spec=AgentSpec() as spec):
                found: AgentSpec | None = spec
            case ModelAttempt(request=request) | CompressionAttempt(request=request):
                found = request.spec
            case _:
                found = None
        if found is not None and found.digest not in seen:
            seen.add(found.digest)
            yield found


def _messages(turns: Iterable[PastTurn]) -> Iterator[JsonObject]:
    """Yield each message once, in the turn in which a model first saw it or wrote it."""
    known: Counter[str] = Counter()
    for turn in turns:
        for call in turn.calls:
            if call.messages is None:
                continue
            reply = call.attempt.reply
            said = () if reply is None else (*reply.recalled, *([reply.message] if reply.message else []))
            new = [*_beyond(call.messages, known), *said]
            yield from (_message(turn.number, message) for message in new if message.role != "tool")
            # A compression drops messages, so that the same message may come again.
            known = Counter(map(message_digest, (*call.messages, *said)))


def _beyond(messages: Iterable[Message], known: Counter[str]) -> Iterator[Message]:
    """Yield the messages that are more often here than known."""
    left = known.copy()
    for message in messages:
        digest = message_digest(message)
        if left[digest]:
            left[digest] -= 1
        else:
            yield message


def _message(turn: int, message: Message) -> JsonObject:
    content: Any = message.content
    return {
        "record": "message",
        "turn": turn,
        "role": message.role,
        "content": content if isinstance(content, str) else [asdict(part) for part in content],
        "tool_calls": [call.id for call in message.tool_calls],
        "metadata": dict(message.metadata),
    }


def _tool_calls(turn: PastTurn, mask: Mask) -> Iterator[JsonObject]:
    for call in turn.calls:
        reply = call.attempt.reply
        if reply is None or reply.message is None:
            continue
        plans = {asked.id: plan for asked, plan in zip(reply.message.tool_calls, reply.plans, strict=False)}
        for asked in reply.message.tool_calls:
            attempts = [tool for tool in turn.tools if tool.request.call_id == asked.id]
            plan = plans.get(asked.id)
            child = next((each for each in turn.children if each.call_id == asked.id), None)
            final = next((each.result for each in reversed(attempts) if each.result and each.result.is_final), None)
            left = next((each for each in turn.not_run if each.call.id == asked.id), None)
            result = child.answer if child else left.result if left else final
            yield {
                "record": "tool_call",
                "turn": turn.number,
                "call_id": asked.id,
                "tool": asked.name,
                "arguments": mask.clean_arguments(asked.arguments),
                "verdict": plan.verdict if plan else None,
                "rule": plan.rule if plan else None,
                "reason": (plan.error or plan.stopped or plan.reason) if plan else None,
                "effect": plan.effect_of_tool if plan else None,
                "attempts": [{"attempt": each.request.attempt, "error": each.error or None} for each in attempts],
                "child_run_id": child.run_id if child else None,
                "result": _result(result) if result else None,
            }


def _result(result: ToolResult) -> JsonObject:
    return {
        "status": result.status,
        "content": result.content,
        "artifact": result.artifact or None,
        "characters": result.length or len(result.content),
        "parts": [asdict(part) for part in result.parts],
        "metadata": result.metadata,
    }


def _approvals(tasks: Sequence[Task]) -> Iterator[JsonObject]:
    decided = [task for task in tasks if task.action is Action.APPROVAL_DECIDED]
    for task in tasks:
        if task.action is not Action.APPROVAL_REQUESTED:
            continue
        asked = task.parameters
        made = next(
            (
                each
                for each in decided
                if each.parameters.get("call_id") == asked.get("call_id") and each.created_at >= task.created_at
            ),
            None,
        )
        decision = made.parameters if made else {}
        yield {
            "record": "approval",
            "turn": asked.get("turn"),
            "call_id": asked.get("call_id"),
            "tool": asked.get("tool"),
            "arguments": asked.get("arguments"),
            "risk": asked.get("risk"),
            "rule": asked.get("rule"),
            "asked_at": task.created_at,
            "decided_at": made.created_at if made else None,
            **{name: decision.get(name) for name in ("approved", "scope", "edited", "by", "reason")},
        }


def _children(tasks: Sequence[Task]) -> Iterator[JsonObject]:
    ends = {task.parameters.get("child_run_id"): task.status for task in tasks if task.action is Action.TOOL_RESULT}
    for task in tasks:
        if task.action is Action.EXECUTE:
            said = task.parameters
            yield {
                "record": "child",
                "turn": said.get("turn"),
                "call_id": said.get("call_id"),
                "child_run_id": said.get("child_run_id"),
                "agent": said.get("agent"),
                "description": said.get("description"),
                "status": ends.get(said.get("child_run_id"), "running"),
            }
