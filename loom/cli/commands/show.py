"""show: a run turn by turn, and what the model saw in one of them, out of Temporal's history alone."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loom.cli.output import one_line, plain, print_json, tokens
from loom.domain.core.errors import BadRequest

if TYPE_CHECKING:
    from loom.domain.context.assembler import ContextPart
    from loom.domain.core.messages import Message
    from loom.domain.history.past_turns import PastCall, PastTurn

MOST: Final = 400
"""Characters of a text that are shown without `--json`."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(show)


def show(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    turn: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only this turn.")] = None,
    context: Annotated[
        bool, typer.Option("--context", help="What the model saw in that turn, part by part, with its tokens.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """A run turn by turn, from its history: no worker has to be there."""
    from loom.cli.connection import with_client  # noqa: PLC0415 - `loom --help` is fast without

    if context and turn is None:
        raise BadRequest("--context needs the turn: add --turn N", field="turn")
    turns = with_client(lambda loom: loom.turns(run_id))
    if turn is not None and turn not in {past.number for past in turns}:
        raise BadRequest(f"--turn: the run has no turn {turn}; its last is {len(turns)}", field="turn")
    chosen = [past for past in turns if turn in (None, past.number)]
    if context:
        _show_context(run_id, chosen[0], as_json=as_json)
    elif as_json:
        print_json({"run_id": run_id, "turns": [_turn_view(past) for past in chosen]})
    else:
        _print_lines(line for past in chosen for line in _turn_lines(past))


def _show_context(run_id: str, turn: "PastTurn", *, as_json: bool) -> None:
    call = turn.calls[-1] if turn.calls else None
    parts = call.context if call else None
    if call is None or parts is None:
        raise BadRequest("the history does not go back far enough to say what this call saw", field="turn")
    if as_json:
        print_json({"run_id": run_id, "turn": turn.number, **context_view(call, parts)})
    else:
        _print_lines(_context_lines(call, parts))


def context_view(call: "PastCall", parts: "tuple[ContextPart, ...]") -> dict[str, Any]:
    """What a model call saw, for programs."""
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


def _context_lines(call: "PastCall", parts: "tuple[ContextPart, ...]") -> Iterator[str]:
    view = context_view(call, parts)
    counted = view["counted_by_provider"]
    yield (
        f"{tokens(view['tokens'])} of {tokens(view['window'] or 0)} tokens by Loom's count"
        + (f", {tokens(counted)} by the provider's" if counted else "")
    )
    for part in parts:
        lost = f" (left out: {part.cut})" if part.cut else ""
        yield f"{part.tokens:>7}  {part.component.priority.name.lower():<9} {one_line(part.component.source)}{lost}"
        shown = [part.component.text] if part.component.text else map(_said, part.component.messages)
        yield from (f"         │ {one_line(text, MOST)}" for text in shown if text.strip())


def _turn_lines(turn: "PastTurn") -> Iterator[str]:
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
            yield f"  {_said(reply.message)[:MOST]}"
            yield from _chosen(reply.message)
    for tool in turn.tools:
        result = tool.result.content if tool.result else tool.error or "still running"
        mark = "✓" if tool.result and tool.result.status != "error" else "✗"
        yield f"  {mark} {tool.request.tool}: {one_line(result, MOST)}"
    for child in turn.children:
        mark = "✗" if child.answer.status == "error" else "✓"
        yield f"  {mark} {one_line(child.run_id)}: {one_line(child.answer.content, MOST)}"


def _turn_view(turn: "PastTurn") -> dict[str, Any]:
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
            {
                "call_id": tool.request.call_id,
                "tool": tool.request.tool,
                "attempt": tool.request.attempt,
                "status": tool.result.status if tool.result else None,
                "content": tool.result.content if tool.result else None,
                "artifact": (tool.result.artifact or None) if tool.result else None,
                "error": tool.error or None,
            }
            for tool in turn.tools
        ],
        "children": [
            {
                "call_id": child.call_id,
                "run_id": child.run_id,
                "status": child.result.status,
                "content": child.answer.content,
            }
            for child in turn.children
        ],
    }


def _said(message: "Message") -> str:
    calls = [f"→ {call.name}({one_line(str(dict(call.arguments)))})" for call in message.tool_calls]
    return " ".join([f"{message.role}: {plain(message.text).strip()}", *calls])


def _chosen(message: "Message") -> Iterator[str]:
    """What a crew has chosen in this turn, and how the others were scored."""
    from loom.domain.crews.log import choice_in  # noqa: PLC0415

    chosen = choice_in(message)
    if chosen is None:
        return
    why = f"{chosen['member']} ({chosen['by']}: {chosen['reason']})"
    yield f"  ⇒ {one_line(why, MOST)}"
    for each in chosen.get("scores", ()):
        told = f"{each['score']:.2f} {each['member']}: {each['reason']}"
        yield f"    {one_line(told, MOST)}"


def _print_lines(lines: Iterator[str]) -> None:
    from loom.cli.output import console  # noqa: PLC0415

    out = console()
    for line in lines:
        out.print(line, soft_wrap=not out.is_terminal)
