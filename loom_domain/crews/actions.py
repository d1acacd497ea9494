"""What a crew can do next: assign jobs, compare descriptions, answer, or give up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loom.domain.crews.log import Choice, Job, JobAttempt


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignJobs:
    """Assign these jobs, all at once."""

    jobs: tuple[Job, ...]
    text: str
    choice: Choice | None = None
    """Why these members were chosen, if this step chose them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareDescriptions:
    """Find the member whose description is most similar to the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The crew's answer."""

    text: str
    choice: Choice | None = None
    """Why this answer was chosen, if this step chose it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """The crew cannot do the task."""

    error: str
    no_match: bool = False
    """Whether the reason is that no member matches the task."""


Step: TypeAlias = AssignJobs | CompareDescriptions | Answer | GiveUp


def no_answer(over: Sequence[JobAttempt]) -> GiveUp:
    """Give up because no job was answered, with the reasons."""
    said = "; ".join(f"{tried.member}: {tried.error or tried.status}" for tried in over)
    return GiveUp(error=f"no member came to an answer: {said}")


def assignees(jobs: Sequence[Job]) -> str:
    """The members that these jobs are assigned to, for people."""
    return ", ".join(_names(jobs))


def _names(jobs: Sequence[Job]) -> Iterator[str]:
    for job in jobs:
        yield f"{job.member} (attempt {job.attempt})" if job.attempt > 1 else job.member
