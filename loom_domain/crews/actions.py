"""A crew's possible next actions: assign work, compare descriptions, answer, or give up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loom.domain.crews.log import Choice, Job, JobAttempt


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignJobs:
    """Assign these jobs concurrently."""

    jobs: tuple[Job, ...]
    text: str
    choice: Choice | None = None
    """The reason for assigning the jobs to these members, if the choice has just been made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareDescriptions:
    """Find the member whose description is most similar to the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The crew's answer."""

    text: str
    choice: Choice | None = None
    """The reason for choosing this answer, if the choice has just been made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """The crew cannot complete the task and gives up."""

    error: str
    no_match: bool = False
    """Whether the crew gave up because no member fits the task."""


Step: TypeAlias = AssignJobs | CompareDescriptions | Answer | GiveUp


def no_answer(over: Sequence[JobAttempt]) -> GiveUp:
    """Return the action to give up, with the reason why the members produced no answer."""
    said = "; ".join(f"{tried.member}: {tried.error or tried.status}" for tried in over)
    return GiveUp(error=f"no member produced an answer: {said}")


def assignees(jobs: Sequence[Job]) -> str:
    """Return the members that these jobs are assigned to."""
    return ", ".join(_names(jobs))


def _names(jobs: Sequence[Job]) -> Iterator[str]:
    for job in jobs:
        yield f"{job.member} (attempt {job.attempt})" if job.attempt > 1 else job.member
