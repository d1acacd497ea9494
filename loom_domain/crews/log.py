"""What a crew has done so far, read from its own conversation: who was given what, and what came of it.

A crew's turn is an assistant's message with a `delegate_task` call for each member that gets work; the results are
those calls' results. What the message is about stands in its metadata, so that nothing has to be worked out twice.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from loom.domain.core.messages import AGENT, JsonObject, Message, ToolCall, is_from_person
from loom.domain.core.tool_names import DELEGATE

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
    about: str = ""
    """It in a few words, for people; empty: the member's name."""
    form: JsonObject | None = None
    """JSON Schema that the answer has to fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How good an answer is, from 0 to 1."""

    key: str
    """The job whose answer it is."""
    member: str
    score: float
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Why the task went to a member, or why a member's answer goes on."""

    member: str
    by: str
    reason: str
    key: str = ""
    """The job whose answer goes on."""
    scores: tuple[Score, ...] = ()
    """Of all that could have been chosen."""

    @property
    def view(self) -> JsonObject:
        """As it is recorded and shown."""
        scored = [asdict(score) for score in self.scores]
        said = {"member": self.member, "by": self.by, "reason": self.reason, "key": self.key, "scores": scored}
        return {name: value for name, value in said.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobAttempt:
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

    @property
    def is_part(self) -> bool:
        """It came to no answer, and has brought something all the same."""
        return not self.is_done and bool(self.output.strip())


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """Everything that a crew has done, and what people and agents said meanwhile."""

    task: str
    tried: tuple[JobAttempt, ...] = ()
    choices: tuple[Choice, ...] = ()
    """What was chosen, in its order: in a tree once a level."""
    words: tuple[str, ...] = ()
    keeps: bool = True
    """Answers that are too long to be passed on are kept whole."""
    form: JsonObject | None = None
    """JSON Schema of the crew's answer."""

    @property
    def choice(self) -> Choice | None:
        """What was chosen last."""
        return self.choices[-1] if self.choices else None

    @property
    def ended_by_budget(self) -> bool:
        """Whether whoever worked last had to stop because a budget was spent."""
        return bool(self.tried) and self.tried[-1].status == "budget_exhausted"

    def of(self, key: str) -> tuple[JobAttempt, ...]:
        """Every attempt at a job."""
        return tuple(tried for tried in self.tried if tried.key == key)

    @property
    def brought(self) -> tuple[JobAttempt, ...]:
        """What there is of each job: its answer, else what the last attempt at it has brought until it had to end."""
        keys = dict.fromkeys(tried.key for tried in self.tried)
        parts = {tried.key: tried for tried in self.tried if tried.is_part}
        return tuple(best for key in keys if (best := self.answer_to(key) or parts.get(key)) is not None)

    def answer_to(self, key: str) -> JobAttempt | None:
        """The attempt at a job that came to an answer."""
        return next((tried for tried in self.of(key) if tried.is_done), None)


def assignment_message(jobs: Sequence[Job], text: str, choice: Choice | None = None) -> Message:
    """The turn in which these jobs are given out."""
    said: dict[str, Any] = {"jobs": [{"key": job.key, "member": job.member, "attempt": job.attempt} for job in jobs]}
    if choice is not None:
        said["choice"] = choice.view
    calls = tuple(ToolCall(id=_call_id(job), name=DELEGATE, arguments=_arguments(job)) for job in jobs)
    return Message(role="assistant", content=text, tool_calls=calls, metadata={CREW: said})


def answer_message(text: str, choice: Choice | None = None) -> Message:
    """The turn in which the crew answers."""
    answer = Message(role="assistant", content=text)
    return answer if choice is None else replace(answer, metadata={CREW: {"choice": choice.view}})


def choice_in(message: Message) -> JsonObject | None:
    """What was chosen in this turn of a crew."""
    chosen: JsonObject | None = message.metadata.get(CREW, {}).get("choice")
    return chosen


def last_choice(messages: Sequence[Message]) -> JsonObject | None:
    """What a crew whose conversation this is has chosen last."""
    return next((chosen for message in reversed(messages) if (chosen := choice_in(message)) is not None), None)


def plan_view(message: Message, turn: int) -> dict[str, Any]:
    """What the stream is told of such a turn."""
    said = message.metadata.get(CREW, {})
    shown = {name: said[name] for name in ("jobs", "choice") if name in said}
    return {"turn": turn, "text": message.text[:SHOWN], **shown}


def read_log(messages: Sequence[Message]) -> Log:
    """The log of a crew whose conversation this is."""
    results = {message.tool_call_id: message for message in messages if message.role == "tool"}
    people = [m.text for m in messages if is_from_person(m) or m.metadata.get("kind") == AGENT]
    return Log(
        task=people[0] if people else "",
        tried=tuple(_tried(messages, results)),
        choices=tuple(_choice(chosen) for message in messages if (chosen := choice_in(message)) is not None),
        words=tuple(people[1:]),
    )


def _choice(said: Mapping[str, Any]) -> Choice:
    return Choice(**{**said, "scores": tuple(Score(**score) for score in said.get("scores", ()))})


def _tried(messages: Sequence[Message], results: Mapping[str | None, Message]) -> Iterator[JobAttempt]:
    for message in messages:
        for call, job in zip(message.tool_calls, message.metadata.get(CREW, {}).get("jobs", ()), strict=False):
            if (result := results.get(call.id)) is not None:
                status, output, error = _outcome(result)
                yield JobAttempt(**job, call_id=call.id, status=status, output=output, error=error)


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
        "description": f"{job.about or job.member}{again}"[:200],
        "prompt": job.prompt,
        "agent": job.agent,
        "model": job.model,
        "tools": list(job.tools),
        "output_schema": job.form,
    }
    return {name: value for name, value in given.items() if value}
