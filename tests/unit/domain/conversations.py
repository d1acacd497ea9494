"""Conversations for tests about contexts: well formed ones of any shape, and long ones by the turn."""

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from loom.domain.context.model_context import Outline
from loom.domain.core.messages import Message, ToolCall, reminder, user

TOOLS = ("read_file", "bash", "look")


def turn(number: int, result: str = "x" * 1000, *, tool: str = "read_file", calls: int = 1) -> tuple[Message, ...]:
    """An answer with calls, and their results."""
    made = tuple(ToolCall(id=f"t{number}c{n}", name=tool, arguments={"path": f"src/{number}.py"}) for n in range(calls))
    return (
        Message(role="assistant", content=f"step {number}", tool_calls=made),
        *(Message(role="tool", name=tool, tool_call_id=call.id, content=result) for call in made),
    )


def talk(turns: int, *, result: str = "x" * 1000, every: int = 10) -> tuple[Message, ...]:
    """A task and so many turns, with a word from a person every so often."""
    messages = [user("Do the task.", by="ann")]
    for number in range(1, turns + 1):
        messages += turn(number, result)
        if number % every == 0:
            messages.append(user(f"remember fact {number}", by="ann"))
    return tuple(messages)


@st.composite
def conversations(draw: st.DrawFn, longest: int = 400) -> tuple[Message, ...]:
    """A task, turns of every shape, words of people in between; sometimes the last calls have no results yet."""
    words = st.text(st.characters(codec="utf-8"), max_size=longest)
    messages = [user(draw(words) or "task")]
    for number in range(draw(st.integers(0, 8))):
        match draw(st.integers(0, 3)):
            case 0:
                messages.append(user(draw(words), by="ann"))
            case 1:
                messages.append(reminder(draw(words)))
            case _:
                tool, count = draw(st.sampled_from(TOOLS)), draw(st.integers(1, 3))
                messages += turn(number, draw(words), tool=tool, calls=count)
    if draw(st.booleans()):
        messages.append(turn(99, calls=2)[0])
    return tuple(messages)


def split_calls(messages: Sequence[Message]) -> Iterator[str]:
    """Results whose call is not there, and calls whose result is not there although a later answer is."""
    called = {call.id for message in messages for call in message.tool_calls}
    answered = {message.tool_call_id for message in messages if message.role == "tool"}
    yield from (f"result of {name}" for name in answered - called if name)
    answers = [message for message in messages if message.role == "assistant"]
    yield from (f"call {call.id}" for answer in answers[:-1] for call in answer.tool_calls if call.id not in answered)


def collapsed(messages: Sequence[Message], until: int) -> tuple[Message, ...]:
    """The messages, with those before this position as they are when they are collapsed."""
    return (*Outline().add(messages).shorter[:until], *messages[until:])
