"""What the runs of a round do, and a provider that serves all of them, in good and bad weather."""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Final

from loom.testing.model_server import (
    ModelServer,
    Reply,
    SeenRequest,
    ToolUse,
    calls,
    cut_after,
    garbage,
    hang,
    status,
    text,
)
from tests.trees import delegate

ANSWER: Final = "all of it has been done, and this is said slowly"
KINDS: Final = ("tools", "chat", "asks", "tree", "tools", "crew")
"""What runs do, in turn."""
OFTEN: Final = 0.1
"""How often the provider fails a request in good weather."""
ATTEMPTS_WITHOUT_ANSWER: Final = 3
"""A run that no provider has ever answered fails at this attempt."""
_NAMED: Final = re.compile(r"run (\d+): (\w+)")
_FAULTS: Final[Mapping[str, Reply]] = {
    "error": status(503),
    "overloaded": status(529, error_code="overloaded_error"),
    "rate limit": status(429, retry_after=2),
    "cut": cut_after(2),
    "cut clean": cut_after(2, clean=True),
    "garbled": garbage("sse"),
    "silent": hang(1),
}


def kind_of(number: int) -> str:
    """What kind of run a run is."""
    return KINDS[number % len(KINDS)]


def task_of(number: int) -> str:
    """What a run is asked to do."""
    return f"run {number}: {kind_of(number)}"


def effects_of(number: int) -> Mapping[str, str]:
    """The calls of a run that have an effect, and their tools."""
    match kind_of(number):
        case "tools":
            return {f"{number}-a": "credit", f"{number}-b": "bash", f"{number}-c": "credit"}
        case "asks":
            return {f"{number}-b": "bash", f"{number}-c": "credit"}
        case "tree":
            return {f"{number}-p1": "credit", f"{number}-p2": "bash"}
        case _:
            return {}


class Weather:
    """How the provider behaves at the moment."""

    KINDS: Final = ("away", "slow", *_FAULTS)

    def __init__(self, seed: int) -> None:
        self._kind = ""
        self._random = Random(seed)
        self._failed: Counter[str] = Counter()
        """How often the provider has failed each conversation that it hasn't answered yet."""
        self.is_good = False
        """Whether the provider doesn't fail any more."""

    async def turn(self, kind: str, seconds: float, model: ModelServer) -> None:
        """Let the weather be bad for so long."""
        if kind == "away":
            async with model.unavailable():
                await asyncio.sleep(seconds)
            return
        self._kind = kind
        try:
            await asyncio.sleep(seconds)
        finally:
            self._kind = ""

    def reply(self, request: SeenRequest) -> Reply:
        """Answer as the weather lets the provider answer; bad weather doesn't hit every request, and good some."""
        fault = self._fault()
        if fault is not None and self._may_fail(request):
            return fault
        return reply_to(request, delay=0.5 if self._kind == "slow" else 0.02)

    def _fault(self) -> Reply | None:
        if not self.is_good and self._random.random() < OFTEN:
            return _FAULTS["error"]
        if self._kind in _FAULTS and self._random.random() < 0.8:
            return _FAULTS[self._kind]
        return None

    def _may_fail(self, request: SeenRequest) -> bool:
        """Whether a run waits out one more failure. Without any answer, it fails at its third attempt."""
        if any(message["role"] == "assistant" for message in request.messages):
            return True
        self._failed[conversation_of(request)] += 1
        return self._failed[conversation_of(request)] < ATTEMPTS_WITHOUT_ANSWER


def reply_to(request: SeenRequest, *, delay: float) -> Reply:
    """Answer by what the conversation is about."""
    task = _task(request)
    if "You coordinate" in (told := str(request.messages)):
        return _coordinator(told)
    named = _NAMED.search(task)
    assert named is not None, task
    number, kind, turn = int(named[1]), named[2], request.turn
    if kind == "part":
        return _part(number, turn, is_first="part one" in task)
    if kind == "chat":
        return text(heard(_last_words(request)), chunks=4, delay=delay)
    script = {"tools": _tools, "asks": _asks, "tree": _tree}.get(kind)
    asked = script(number, turn) if script is not None else None
    return asked or text(ANSWER, chunks=8, delay=delay)


def heard(message: str) -> str:
    """Return the answer to a message of a chat."""
    return f"heard {message}"


def _last_words(request: SeenRequest) -> str:
    """Return the newest message of a person."""
    contents = [message["content"] for message in request.messages if message["role"] == "user"]
    said = [each if isinstance(each, str) else str(each[0]["text"]) for each in contents]
    return next(each for each in reversed(said) if not each.startswith("<system-reminder>"))


def conversation_of(request: SeenRequest) -> str:
    """The name of the conversation that a request belongs to."""
    return _task(request)


def _task(request: SeenRequest) -> str:
    return next(str(message["content"]) for message in request.messages if message["role"] == "user")


def _tools(number: int, turn: int) -> Reply | None:
    return {
        0: calls(_credit(f"{number}-a")),
        1: calls(_echo(f"{number}-b")),
        2: calls(ToolUse("read_file", {"path": "data.txt"}, f"{number}-r"), _credit(f"{number}-c")),
    }.get(turn)


def _asks(number: int, turn: int) -> Reply | None:
    asked = ToolUse("bash", {"command": f"printf '%s\\n' {number}-b >> effects"}, f"{number}-b")
    return {0: calls(asked), 1: calls(_credit(f"{number}-c"))}.get(turn)


def _tree(number: int, turn: int) -> Reply | None:
    tools = {"part one": "credit", "part two": "bash"}
    parts = [
        delegate(name, f"{name} of run {number}: part", f"{number}-{name[5:]}", tools=[tool])
        for name, tool in tools.items()
    ]
    return calls(*parts) if turn == 0 else None


def _part(number: int, turn: int, *, is_first: bool) -> Reply:
    if turn:
        return text("the part is done")
    return calls(_credit(f"{number}-p1") if is_first else _echo(f"{number}-p2"))


def _coordinator(told: str) -> Reply:
    if "have brought" in told:
        return text(f'{{"answer": "{ANSWER}"}}')
    return text('{"assignments": [{"member": "finder", "task": "find"}, {"member": "checker", "task": "check"}]}')


def _credit(call: str) -> ToolUse:
    return ToolUse("credit", {"call": call, "before": 0.1, "after": 0.05}, call)


def _echo(call: str) -> ToolUse:
    return ToolUse("bash", {"command": f"echo {call} >> effects"}, call)
