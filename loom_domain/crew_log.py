"""What a crew has done so far, read from its own conversation: who was given what, and what came of it.

A crew's turn is an assistant's message with a `delegate_task` call for each member that gets work; the results are
those calls' results. What the message is about stands in its metadata, so that nothing has to be worked out twice.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from loom_domain.grouping import is_from_person
from loom_domain.messages import AGENT, JsonObject, Message, ToolCall
from loom_domain.tool_calls import DELEGATE

CREW: Final = "crew"
"""Where a message's metadata say what it is about."""
SHOWN: Final = 2000
"""Characters of a step's text that the stream shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A piece of work for somebody; its key is its name within the crew's run."""

    key: str
    member: str
    """Who does it: a member, or the crew's coordinator, router or editor."""
    agent: str
    prompt: str
    model: str | None = None
    tools: tuple[str, ...] = ()
    attempt: int = 1
    form: JsonObject | None = None
    """JSON Schema of what it answers, where that is the crew's answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Why the task went to a member."""

    member: str
    by: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """One attempt at a job that is over."""

    key: str
    member: str
    attempt: int
    call_id: str
    status: str
    """Of the member's run."""
    output: str
    error: str = ""

    @property
    def is_done(self) -> bool:
        """It came to an answer."""
        return self.status == "completed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """Everything that a crew has done, and what people and agents said meanwhile."""

    task: str
    tried: tuple[Tried, ...] = ()
    choice: Choice | None = None
    words: tuple[str, ...] = ()
    keeps: bool = True
    """Answers that are too long to be passed on are kept whole."""
    form: JsonObject | None = None
    """JSON Schema of the crew's answer."""

    @property
    def ended_by_budget(self) -> bool:
        """Whether whoever worked last had to stop because a budget was spent."""
        return bool(self.tried) and self.tried[-1].status == "budget_exhausted"

    def of(self, key: str) -> tuple[Tried, ...]:
        """Every attempt at a job."""
        return tuple(tried for tried in self.tried if tried.key == key)

    def answer_to(self, key: str) -> Tried | None:
        """The attempt at a job that came to an answer."""
        return next((tried for tried in self.of(key) if tried.is_done), None)


def handing_out(jobs: Sequence[Job], text: str, choice: Choice | None = None) -> Message:
    """The turn in which these jobs are given out."""
    said: dict[str, Any] = {"jobs": [{"key": job.key, "member": job.member, "attempt": job.attempt} for job in jobs]}
    if choice is not None:
        said["choice"] = asdict(choice)
    calls = tuple(ToolCall(id=_call_id(job), name=DELEGATE, arguments=_arguments(job)) for job in jobs)
    return Message(role="assistant", content=text, tool_calls=calls, metadata={CREW: said})


def plan_view(message: Message, turn: int) -> dict[str, Any]:
    """What the stream is told of such a turn."""
    said = message.metadata.get(CREW, {})
    shown = {name: said[name] for name in ("jobs", "choice") if name in said}
    return {"turn": turn, "text": message.text[:SHOWN], **shown}


def read_log(messages: Sequence[Message]) -> Log:
    """The log of a crew whose conversation this is."""
    results = {message.tool_call_id: message for message in messages if message.role == "tool"}
    people = [m.text for m in messages if is_from_person(m) or m.metadata.get("kind") == AGENT]
    choices = [said["choice"] for said in _said(messages) if "choice" in said]
    return Log(
        task=people[0] if people else "",
        tried=tuple(_tried(messages, results)),
        choice=Choice(**choices[-1]) if choices else None,
        words=tuple(people[1:]),
    )


def _said(messages: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    yield from (message.metadata[CREW] for message in messages if CREW in message.metadata)


def _tried(messages: Sequence[Message], results: Mapping[str | None, Message]) -> Iterator[Tried]:
    for message in messages:
        for call, job in zip(message.tool_calls, message.metadata.get(CREW, {}).get("jobs", ()), strict=False):
            if (result := results.get(call.id)) is not None:
                status, output, error = _outcome(result)
                yield Tried(**job, call_id=call.id, status=status, output=output, error=error)


def _outcome(result: Message) -> tuple[str, str, str]:
    """Status, output and error of a member's run; one that was never started has failed."""
    try:
        told = json.loads(result.text)
    except ValueError:
        return "failed", "", result.text
    if not isinstance(told, Mapping) or "status" not in told:
        return "failed", "", result.text
    return str(told["status"]), str(told.get("result") or ""), str(told.get("error") or "")


def _call_id(job: Job) -> str:
    return f"{job.key}-{job.member}-{job.attempt}"


def _arguments(job: Job) -> dict[str, Any]:
    again = f", attempt {job.attempt}" if job.attempt > 1 else ""
    given = {
        "description": f"{job.member}{again}"[:200],
        "prompt": job.prompt,
        "agent": job.agent,
        "model": job.model,
        "tools": list(job.tools),
        "output_schema": job.form,
    }
    return {name: value for name, value in given.items() if value}
