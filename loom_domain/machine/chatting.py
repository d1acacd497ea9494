"""Answer the messages of a chat one after the other, in one run.

    MessageReceived ──▶ queue ──▶ the agent works ──▶ an outcome ──MessageAnswered──▶ the next message, or a wait

For each message, a chat's run comes to an outcome, as any other run does. `MessageAnswered` turns this outcome into the
answer to the message, and the run goes on with the conversation that it has. The limits for turns and time apply to
each message. The budget applies to the whole chat. Only an abort, or a run that could not begin, ends the chat.
"""

from datetime import datetime
from typing import Final

from loom.domain.agents.reflection import Reflection
from loom.domain.core.frozen import replace
from loom.domain.core.messages import Message, last_text, reminder, user
from loom.domain.core.messages import Usage as Tokens
from loom.domain.core.requests import RunError, RunStatus
from loom.domain.core.tasks import Action, Notice
from loom.domain.core.tool_calls import ToolResult
from loom.domain.machine.tool_results import with_calls_ended
from loom.domain.run.chat import INTERRUPTED, MOST_IDS, Chat, ChatAnswer, ChatMessage, Handling, Spent, answer_view
from loom.domain.run.events import MessageAnswered, MessageReceived
from loom.domain.run.retry_policy import Tries
from loom.domain.run.state import (
    AnswerDraft,
    Outcome,
    Phase,
    RunState,
    cost_of,
    noticed,
    total_tool_calls,
    total_usage,
    with_calls,
)
from loom.domain.tools.loop_detection import Repetition

STOPPED: Final = "The person has interrupted this answer with the next message."
CUT_SHORT: Final = "not finished: the answer ended before. If this had begun, it may have taken effect in part."


def message_id_of(chat: Chat, event: MessageReceived) -> str:
    """Return the message's id: the sender's, or else its number."""
    return event.message_id or f"m{chat.received + 1}"


def handling(state: RunState, chat: Chat, event: MessageReceived) -> Handling:
    """Return what the chat does with a message in its current state."""
    known = chat.handling_of(message_id_of(chat, event))
    if known is not None:
        return known
    if chat.is_waiting:
        return "answering"
    if event.when_busy == "own_run":
        return "own_run"
    if state.question is not None and state.outcome is None:
        return "replies"
    return "interrupts" if event.when_busy == "interrupt" and state.phase is not Phase.STARTING else "queued"


def message_heard(state: RunState, chat: Chat, event: MessageReceived) -> RunState:
    """Return the next state of a chat that has received a message. A message that it knows has no effect."""
    message = ChatMessage(id=message_id_of(chat, event), text=event.text, by=event.by, at=event.at, parts=event.parts)
    if chat.handling_of(message.id) is not None:
        return state
    how = handling(state, chat, event)
    chat = replace(chat, received=chat.received + 1)
    match how:
        case "answering":
            return _begun(state, replace(chat, queue=(message, *chat.queue)), event.at)
        case "own_run":
            return replace(state, chat=replace(chat, own_runs=(*chat.own_runs, message.id)[-MOST_IDS:]))
        case "replies":
            return _replied(state, replace(chat, answering=(*chat.answering, message)), message)
        case "interrupts":
            return _interrupted(replace(state, chat=replace(chat, queue=(message, *chat.queue))), message)
        case _:
            return replace(state, chat=replace(chat, queue=(*chat.queue, message)))


def message_answered(state: RunState, event: MessageAnswered) -> RunState:
    """Return the next state of a chat whose current message has an outcome: the next message, or a wait for one."""
    chat, outcome = state.chat, state.outcome
    if chat is None or outcome is None:
        return state
    answer = _answer(state, chat, outcome, event.at)
    state = with_calls_ended(state, event.at, CUT_SHORT)
    if outcome.error is not None and outcome.error.type == INTERRUPTED:
        state = _with_unfinished_answer(state, outcome)
    chat = chat.with_answer(answer)
    state = noticed(_ready_for_message(state), _told(answer, chat.answered))
    return _begun(state, chat, event.at) if chat.queue else replace(state, chat=chat)


def _begun(state: RunState, chat: Chat, at: datetime) -> RunState:
    """Return the chat at work on the first message of its queue."""
    message, *others = chat.queue
    before = Spent(turns=state.turns, usage=total_usage(state), cost=cost_of(state), tool_calls=total_tool_calls(state))
    chat = replace(chat, answering=(message,), queue=tuple(others), since=at, before=before)
    inbox = (*state.inbox, said_in_chat(message))
    return replace(state, chat=chat, inbox=inbox, incoming=state.incoming.added(message.parts))


def said_in_chat(message: ChatMessage) -> Message:
    """Return the message as the model receives it."""
    return user(message.text, by=message.by, id=message.id, at=message.at.isoformat())


def _replied(state: RunState, chat: Chat, message: ChatMessage) -> RunState:
    question = state.question
    by = f"{message.by} answers" if message.by else "The answer"
    answer = ToolResult(content=f"{by}: {message.text}")
    state = with_calls(state, lambda c: replace(c, result=answer) if question and c.call.id == question.call.id else c)
    return replace(state, chat=chat, incoming=state.incoming.added(message.parts))


def _interrupted(state: RunState, message: ChatMessage) -> RunState:
    if state.outcome is not None:
        return state
    by = f" by {message.by}" if message.by else ""
    error = RunError(type=INTERRUPTED, message=f"interrupted{by}", context={"message_id": message.id})
    return replace(state, outcome=Outcome(status=RunStatus.ABORTED, error=error))


def _with_unfinished_answer(state: RunState, outcome: Outcome) -> RunState:
    """Return the chat with what the model had written when it was interrupted, so that it knows what was read."""
    unfinished = outcome.output.removeprefix(state.answer.partial)
    if unfinished.strip():
        words = Message(role="assistant", content=unfinished)
        state = replace(state, conversation=state.conversation.extended([words]))
    return replace(state, inbox=(*state.inbox, reminder(STOPPED)))


def _ready_for_message(state: RunState) -> RunState:
    wrap_up = state.answer.wrap_up
    is_reflecting = state.spec is not None and state.spec.pattern == "reflect"
    return replace(
        state,
        outcome=None,
        phase=Phase.READY,
        tries=Tries(),
        retry_at=None,
        parked=None,
        window=replace(state.window, due=None, refused=False, put_off=0, attempts=0),
        answer=AnswerDraft(reflection=Reflection(stage="draft" if is_reflecting else "")),
        work=replace(state.work, repetition=Repetition()),
        spending=replace(state.spending, warned=False),
        last_answers=state.last_answers + (wrap_up is not None and wrap_up.turn == state.turn),
    )


def _answer(state: RunState, chat: Chat, outcome: Outcome, at: datetime) -> ChatAnswer:
    before, cost = chat.before, cost_of(state)
    return ChatAnswer(
        message_ids=tuple(message.id for message in chat.answering),
        status=outcome.status,
        output=outcome.output or ("" if outcome.is_final else _best_text(state, chat)),
        at=at,
        structured_output=outcome.structured,
        error=outcome.error,
        turn=state.turn,
        turns=state.turns - before.turns,
        usage=_less(total_usage(state), before.usage),
        cost=None if cost is None or before.cost is None else round(cost - before.cost, 6),
        tool_calls=total_tool_calls(state) - before.tool_calls,
    )


def _best_text(state: RunState, chat: Chat) -> str:
    held = state.answer.held or state.answer.draft
    return (held.output if held else "") or state.answer.partial or last_text(_since_message(state, chat))


def _since_message(state: RunState, chat: Chat) -> tuple[Message, ...]:
    """Return what was said after the current message. If it was compressed, so was everything before it."""
    messages = state.transcript.messages
    begins = (n for n, message in enumerate(messages) if message.metadata.get("id") == chat.answering[0].id)
    return messages[next(begins, 0) :]


def _less(usage: Tokens, before: Tokens) -> Tokens:
    fields = Tokens.__dataclass_fields__
    return Tokens(**{name: getattr(usage, name) - getattr(before, name) for name in fields})


def _told(answer: ChatAnswer, number: int) -> Notice:
    return Notice(
        action=Action.ANSWER,
        key=f"answer-{number}",
        at=answer.at,
        status=answer.status,
        parameters={"message_ids": list(answer.message_ids)},
        result=answer_view(answer),
    )
