"""The `show` command, which reads a run's history in Temporal and shows its turns or the context of one turn."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, Final, TypeAlias

import typer

from loom.cli.arguments import Json, NoPager, RunId, new_app
from loom.cli.output import console, one_line, plain, print_json, print_notice, tokens
from loom.cli.pager import paged
from loom.cli.run_names import with_run
from loom.client import LoomClient
from loom.domain.context.assembler import ContextPart
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import Message, ToolCall
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import describe
from loom.domain.crews.log import choice_in
from loom.domain.history.past_turns import (
    CallNotRun,
    ChildRun,
    PastCall,
    PastTurn,
    ToolAttempt,
    arguments_masked,
    without_secrets,
)
from loom.domain.history.task_rebuilding import Mask
from loom.domain.run.stream_events import NOT_RUN

MAX_CHARACTERS: Final = 400
"""Maximum length of a displayed text in characters, unless `--json` is used."""


Decisions: TypeAlias = Mapping[str, Mapping[str, Any]]
"""How each call that needed an approval was decided last, by the call's id."""

app = new_app()


@app.command()
def show(
    run_id: RunId,
    turn: Annotated[int | None, typer.Option(min=1, metavar="N", help="Show only this turn.")] = None,
    context: Annotated[
        bool, typer.Option("--context", help="Show the model's context in that turn, part by part, with token counts.")
    ] = False,
    no_pager: NoPager = False,
    as_json: Json = False,
) -> None:
    """Show a run turn by turn.

    This command reads only the run's history, so it doesn't need a worker.
    """
    if context and turn is None:
        raise BadRequest("--context needs --turn N", field="turn")
    run_id, turns, decisions, mask = with_run(run_id, read_turns)
    if turn is not None and turn not in {past.number for past in turns}:
        raise BadRequest(f"--turn: the run has no turn {turn}; its last turn is {len(turns)}", field="turn")
    chosen = [past for past in turns if turn in (None, past.number)]
    if not turns and not as_json:
        print_notice("the run has no turns yet")
    if context:
        _show_context(run_id, chosen[0], mask, as_json=as_json, in_pager=not no_pager)
    elif as_json:
        print_json({"run_id": run_id, "turns": [turn_view(without_secrets(past, mask), decisions) for past in chosen]})
    else:
        lines = (line for past in chosen for line in turn_lines(without_secrets(past, mask), decisions))
        _print_lines(lines, in_pager=not no_pager)


async def read_turns(loom: LoomClient, run_id: str) -> tuple[str, tuple[PastTurn, ...], Decisions, Mask]:
    turns, recorded = await asyncio.gather(loom.turns(run_id), loom.recorded_tasks(run_id))
    made = [task.parameters for task in recorded.tasks if task.action is Action.APPROVAL_DECIDED]
    return run_id, turns, {str(each["call_id"]): each for each in made}, loom.secret_mask()


def _show_context(run_id: str, turn: PastTurn, mask: Mask, *, as_json: bool, in_pager: bool) -> None:
    call = turn.calls[-1] if turn.calls else None
    counted = call.context if call else None
    if call is None or counted is None:
        raise BadRequest("the history does not reach back far enough to show the context of this call", field="turn")
    parts = tuple(_part_without_secrets(part, mask) for part in counted)
    if as_json:
        print_json({"run_id": run_id, "turn": turn.number, **context_view(call, parts)})
    else:
        _print_lines(_context_lines(call, parts), in_pager=in_pager)


def _part_without_secrets(part: ContextPart, mask: Mask) -> ContextPart:
    messages = tuple(arguments_masked(message, mask) for message in part.component.messages)
    return replace(part, component=replace(part.component, messages=messages))


def context_view(call: PastCall, parts: tuple[ContextPart, ...]) -> dict[str, Any]:
    """Return a model call's context for `--json`."""
    reply = call.attempt.reply
    return {
        "tokens": sum(part.tokens for part in parts),
        "window": call.attempt.request.measures.window(call.spec) if call.spec else None,
        "counted_by_provider": reply.usage.input_tokens if reply else None,
        "parts": [
            {
                "name": part.component.name,
                "source": part.component.source,
                "place": part.component.place.value,
                "priority": part.component.priority.name.lower(),
                "tokens": part.tokens,
                "cut": part.cut,
                "text": part.component.text,
                "messages": part.component.messages,
            }
            for part in parts
        ],
    }


def _context_lines(call: PastCall, parts: tuple[ContextPart, ...]) -> Iterator[str]:
    view = context_view(call, parts)
    counted = view["counted_by_provider"]
    yield (
        f"{tokens(view['tokens'])} of {tokens(view['window'] or 0)} tokens by Loom's count"
        + (f", {tokens(counted)} by the provider's" if counted else "")
    )
    for part in parts:
        lost = f" (left out: {part.cut})" if part.cut else ""
        yield f"{part.tokens:>7}  {part.component.priority.name.lower():<9} {one_line(part.component.source)}{lost}"
        shown = [part.component.text] if part.component.text else map(_message_line, part.component.messages)
        yield from (f"         │ {one_line(text, MAX_CHARACTERS)}" for text in shown if text.strip())


def turn_lines(turn: PastTurn, decisions: Decisions) -> Iterator[str]:
    yield f"── turn {turn.number} ──"
    for compression in turn.compressions:
        done = compression.done
        after = f"{tokens(done.tokens)} tokens" if done else f"failed: {one_line(compression.error)}"
        yield f"  compressed {tokens(compression.request.tokens)} → {after}"
    for call in turn.calls:
        reply = call.attempt.reply
        if reply is None:
            yield f"  ✗ attempt {call.attempt.request.attempt}: {one_line(call.attempt.error or 'still running')}"
        elif reply.message is not None:
            yield f"  {_message_line(reply.message)[:MAX_CHARACTERS]}"
            yield from _chosen(reply.message)
    for call_id, outcomes in groupby(turn.outcomes, key=lambda each: each.call_id):
        yield from _call_lines([*outcomes], decisions.get(call_id))


def _call_lines(
    outcomes: Sequence[ToolAttempt | CallNotRun | ChildRun], decision: Mapping[str, Any] | None
) -> Iterator[str]:
    """Return the line of a call, and below it a line for each earlier attempt."""
    *earlier, last = outcomes
    match last:
        case ToolAttempt(request=request, result=result, error=error):
            name = request.tool + (f" (attempt {request.attempt})" if earlier else "")
        case CallNotRun(call=call, result=result):
            name, error = describe(call), ""
        case ChildRun(run_id=run_id, answer=result):
            name, error = run_id, ""
    mark = "✓" if result and result.status != "error" else "✗"
    content = result.content if result else error or "still running"
    yield f"  {mark} {one_line(name)}{_decided(decision)}: {one_line(content, MAX_CHARACTERS)}"
    for each in earlier:
        if isinstance(each, ToolAttempt):
            ended = f"failed: {each.result.content}" if each.result else f"gave no result: {each.error}"
            yield f"    attempt {each.request.attempt} {one_line(ended, MAX_CHARACTERS)}"


def _decided(decision: Mapping[str, Any] | None) -> str:
    if decision is None:
        return ""
    extent = " for the rest of the run" if decision.get("scope") == "run" else ""
    edited = " with edited arguments" if decision.get("edited") else ""
    by = f" by {one_line(str(decision['by']), 80)}" if decision.get("by") else ""
    return f" ({'approved' if decision.get('approved') else 'denied'}{extent}{edited}{by})"


def _decision_view(decision: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if decision is None:
        return None
    return {name: decision.get(name) for name in ("approved", "by", "scope", "edited", "reason")}


def turn_view(turn: PastTurn, decisions: Decisions) -> dict[str, Any]:
    return {
        "turn": turn.number,
        "model_calls": [
            {
                "attempt": call.attempt.request.attempt,
                "model": call.spec.model if call.spec else None,
                "message": call.attempt.reply.message if call.attempt.reply else None,
                "usage": call.attempt.reply.usage if call.attempt.reply else None,
                "too_long": call.attempt.reply.too_long if call.attempt.reply else None,
                "error": call.attempt.error or None,
            }
            for call in turn.calls
        ],
        "compressions": [
            {
                "trigger": one.request.trigger,
                "pre_tokens": one.request.tokens,
                "post_tokens": one.done.tokens if one.done else None,
                "error": one.error or None,
            }
            for one in turn.compressions
        ],
        "tool_calls": [
            {**_call_view(each), "decision": _decision_view(decisions.get(each.call_id))}
            for each in turn.outcomes
            if not isinstance(each, ChildRun)
        ],
        "children": [
            {
                "call_id": child.call_id,
                "run_id": child.run_id,
                "status": child.result.status,
                "content": child.answer.content,
                "decision": _decision_view(decisions.get(child.call_id)),
            }
            for child in turn.children
        ],
    }


def _call_view(made: ToolAttempt | CallNotRun) -> dict[str, Any]:
    match made:
        case ToolAttempt(request=request, result=result):
            tool, attempt, error = request.tool, request.attempt, made.error or None
        case CallNotRun(call=call, result=result):
            tool, attempt, error = call.name, NOT_RUN, None
    return {
        "call_id": made.call_id,
        "tool": tool,
        "attempt": attempt,
        "status": result.status if result else None,
        "content": result.content if result else None,
        "artifact": (result.artifact or None) if result else None,
        "error": error,
    }


def _message_line(message: Message) -> str:
    calls = [f"→ {one_line(call.name)}({one_line(_arguments(call))})" for call in message.tool_calls]
    return " ".join([f"{message.role}: {plain(message.text).strip()}", *calls])


def _arguments(call: ToolCall) -> str:
    return str(dict(call.arguments)) if call.malformed is None else call.malformed


def _chosen(message: Message) -> Iterator[str]:
    """Return lines that show a crew's choice in this turn and the scores of all candidates."""
    chosen = choice_in(message)
    if chosen is None:
        return
    why = f"{chosen['member']} ({chosen['by']}: {chosen['reason']})"
    yield f"  ⇒ {one_line(why, MAX_CHARACTERS)}"
    for each in chosen.get("scores", ()):
        score = f"{each['score']:.2f} {each['member']}: {each['reason']}"
        yield f"    {one_line(score, MAX_CHARACTERS)}"


def _print_lines(lines: Iterator[str], *, in_pager: bool) -> None:
    out = console()
    with paged(out, wanted=in_pager):
        for line in lines:
            out.print(line, soft_wrap=not out.is_terminal)
