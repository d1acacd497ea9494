"""The log of a crew, read from its own conversation: its assignments so far and their results.

A crew's turn is an assistant message with a `delegate_task` call for each assignment. The results of these calls are
the results of the assignments. The message's metadata describes the turn, so that decisions don't have to be derived
again from the conversation.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from loom.domain.core.messages import AGENT, RETRIED, JsonObject, Message, ToolCall, is_from_person
from loom.domain.core.tool_names import DELEGATE

CREW: Final = "crew"
"""The keys in a message's metadata that describe a crew's turn."""
SHOWN: Final = 2000
"""The stream shows at most this many characters of a turn's text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A piece of work for a member. Its key identifies it within the crew's run."""

    key: str
    member: str
    """The assignee: a member, or the crew's coordinator, router or merging agent."""
    agent: str
    prompt: str
    model: str | None = None
    tools: tuple[str, ...] = ()
    attempt: int = 1
    about: str = ""
    """A short description for display. If empty, the member's name is shown."""
    form: JsonObject | None = None
    """The JSON Schema that the answer must match."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """An answer's score, from 0 to 1."""

    key: str
    """The job that produced the answer."""
    member: str
    score: float
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The reason why the task was assigned to a member, or why a member's answer was chosen."""

    member: str
    by: str
    reason: str
    key: str = ""
    """The job that produced the chosen answer."""
    scores: tuple[Score, ...] = ()
    """The scores of all candidates."""

    @property
    def view(self) -> JsonObject:
        """Return the choice in its recorded form."""
        scored = [asdict(score) for score in self.scores]
        said = {"member": self.member, "by": self.by, "reason": self.reason, "key": self.key, "scores": scored}
        return {name: value for name, value in said.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobAttempt:
    """One finished attempt at a job."""

    key: str
    member: str
    attempt: int
    call_id: str
    status: str
    """The status of the member's run."""
    output: str
    error: str = ""
    was_before_retry: bool = False
    """Whether a person has retried the crew since then. A failure before a retry doesn't count."""

    @property
    def is_done(self) -> bool:
        """Whether the attempt produced an answer."""
        return self.status == "completed"

    @property
    def is_part(self) -> bool:
        """Whether the attempt produced a useful partial result but no answer."""
        return not self.is_done and bool(self.output.strip())


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """A crew's assignments and results so far, and the messages that people and agents have sent to the crew."""

    task: str
    tried: tuple[JobAttempt, ...] = ()
    choices: tuple[Choice, ...] = ()
    """The choices so far, in order, with one choice for each round of branches."""
    words: tuple[str, ...] = ()
    keeps: bool = True
    """Whether long answers are stored in full."""
    form: JsonObject | None = None
    """The JSON Schema for the crew's answer."""

    @property
    def choice(self) -> Choice | None:
        """The latest choice."""
        return self.choices[-1] if self.choices else None

    @property
    def ended_by_budget(self) -> bool:
        """Whether the last member stopped because a budget was exhausted."""
        last = self.tried[-1] if self.tried else None
        return last is not None and last.status == "budget_exhausted" and not last.was_before_retry

    def of(self, key: str) -> tuple[JobAttempt, ...]:
        """Return all attempts at a job."""
        return tuple(tried for tried in self.tried if tried.key == key)

    @property
    def brought(self) -> tuple[JobAttempt, ...]:
        """Return each job's result, which is its answer or, failing that, the findings of its last attempt."""
        keys = dict.fromkeys(tried.key for tried in self.tried)
        parts = {tried.key: tried for tried in self.tried if tried.is_part}
        return tuple(best for key in keys if (best := self.answer_to(key) or parts.get(key)) is not None)

    def answer_to(self, key: str) -> JobAttempt | None:
        """Return the attempt at a job that produced an answer."""
        return next((tried for tried in self.of(key) if tried.is_done), None)


def assignment_message(jobs: Sequence[Job], text: str, choice: Choice | None = None) -> Message:
    """Return the message that assigns these jobs."""
    said: dict[str, Any] = {"jobs": [{"key": job.key, "member": job.member, "attempt": job.attempt} for job in jobs]}
    if choice is not None:
        said["choice"] = choice.view
    calls = tuple(ToolCall(id=_call_id(job), name=DELEGATE, arguments=_arguments(job)) for job in jobs)
    return Message(role="assistant", content=text, tool_calls=calls, metadata={CREW: said})


def answer_message(text: str, choice: Choice | None = None) -> Message:
    """Return the message that contains the crew's answer to the task."""
    answer = Message(role="assistant", content=text)
    return answer if choice is None else replace(answer, metadata={CREW: {"choice": choice.view}})


def choice_in(message: Message) -> JsonObject | None:
    """Return the choice that was made in this crew turn."""
    chosen: JsonObject | None = message.metadata.get(CREW, {}).get("choice")
    return chosen


def last_choice(messages: Sequence[Message]) -> JsonObject | None:
    """Return the latest choice that a crew has made in its conversation."""
    return next((chosen for message in reversed(messages) if (chosen := choice_in(message)) is not None), None)


def plan_view(message: Message, turn: int) -> dict[str, Any]:
    """Return a crew's turn in the form that the stream shows."""
    said = message.metadata.get(CREW, {})
    shown = {name: said[name] for name in ("jobs", "choice") if name in said}
    return {"turn": turn, "text": message.text[:SHOWN], **shown}


def read_log(messages: Sequence[Message]) -> Log:
    """Read a crew's log from its conversation."""
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
    retried_at = max((number for number, message in enumerate(messages) if RETRIED in message.metadata), default=-1)
    for number, message in enumerate(messages):
        for call, job in zip(message.tool_calls, message.metadata.get(CREW, {}).get("jobs", ()), strict=False):
            if (result := results.get(call.id)) is not None:
                status, output, error = _outcome(result)
                yield JobAttempt(
                    **job,
                    call_id=call.id,
                    status=status,
                    output=output,
                    error=error,
                    was_before_retry=number < retried_at,
                )


def _outcome(result: Message) -> tuple[str, str, str]:
    """Return the status, output and error of a member's run. A run that never started counts as failed."""
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
