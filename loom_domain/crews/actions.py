"""What a crew can do next: assign work, compare, answer, give up."""

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
    """Why they were assigned to these members, if this was just decided."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareDescriptions:
    """Find the member whose description is most similar to the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The crew's answer."""

    text: str
    choice: Choice | None = None
    """Why this answer was chosen, if this was just decided."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """The crew cannot do the task."""

    error: str
    no_match: bool = False
    """Whether this is because no member fits."""


Step: TypeAlias = AssignJobs | CompareDescriptions | Answer | GiveUp


def no_answer(over: Sequence[JobAttempt]) -> GiveUp:
    """No member has produced anything, and why."""
    said = "; ".join(f"{tried.member}: {tried.error or tried.status}" for tried in over)
    return GiveUp(error=f"no member came to an answer: {said}")


def assignees(jobs: Sequence[Job]) -> str:
    """The members that get these jobs."""
    return ", ".join(_names(jobs))


def _names(jobs: Sequence[Job]) -> Iterator[str]:
    for job in jobs:
        yield f"{job.member} (attempt {job.attempt})" if job.attempt > 1 else job.member
