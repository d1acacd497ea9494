"""Recover from failed jobs in a crew. A job is first retried by the same member and then assigned to the member's
substitute. If the substitute also fails, the job is skipped or the crew gives up.

If the reply of a coordinator, router or merging agent isn't in the required form, the crew asks the agent again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from loom.domain.core.messages import JsonObject
from loom.domain.crews.crew import Crew, Member
from loom.domain.crews.log import Job, JobAttempt, Log
from loom.domain.crews.prompts import Unreadable, again

T = TypeVar("T")

MAX_FORMAT_ATTEMPTS: Final = 3
"""The maximum number of attempts to obtain a reply in the required form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unrecoverable:
    """The crew cannot continue without the failed job."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NextQuestion:
    """A job that asks an agent for a reply, for the first time or again."""

    job: Job
    because: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobProgress:
    """The progress of a set of jobs."""

    open: tuple[Job, ...]
    """The jobs to assign next."""
    over: tuple[JobAttempt, ...]
    """The outcomes of the jobs that need no further attempt, in job order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTemplate:
    """A template for a job that a member or its substitute can do."""

    key: str
    member: Member
    prompt: Callable[[Member], str]
    about: str = ""
    form: JsonObject | None = None

    def job(self, member: Member, attempt: int = 1, before: JobAttempt | None = None) -> Job:
        """Return the job, assigned to this member."""
        prompt = self.prompt(member)
        return Job(
            key=self.key,
            member=member.name,
            agent=member.agent,
            model=member.model,
            tools=member.tools,
            prompt=prompt if before is None else again(prompt, before),
            attempt=attempt,
            about=self.about,
            form=self.form,
        )


def progress_of(crew: Crew, log: Log, work: Sequence[JobTemplate]) -> JobProgress | Unrecoverable:
    """Return the jobs' progress after all attempts so far. Returns Unrecoverable if a job has failed and the crew can't
    continue without it.
    """
    open_ones: list[Job] = []
    over: list[JobAttempt] = []
    for one in work:
        tried = log.of(one.key)
        if (answer := log.answer_to(one.key)) is not None:
            over.append(answer)
        elif (following := _next_attempt(crew, one, tried)) is not None:
            open_ones.append(following)
        else:
            over.append(tried[-1])
    for failed in [attempt for attempt in over if not attempt.is_done]:
        member = crew.member(failed.member)
        if member is not None and not crew.carries_on_without(member):
            why = failed.error or f"its run ended as {failed.status}"
            return Unrecoverable(why=f"the member {failed.member!r} failed {_times(len(log.of(failed.key)))}: {why}")
    return JobProgress(open=tuple(open_ones), over=tuple(over))


def answer_of(log: Log, job: Job, read: Callable[[str], T]) -> T | NextQuestion | Unrecoverable:
    """Return the reply of a coordinator, router or merging agent, parsed with `read`. Returns NextQuestion if the agent
    must be asked, for the first time or again. Returns Unrecoverable if the reply remains invalid.
    """
    tried, wrong = log.of(job.key), ""
    for attempt in tried:
        try:
            if attempt.is_done:
                return read(attempt.output)
            wrong = attempt.error or f"its run ended as {attempt.status}"
        except Unreadable as error:
            wrong = str(error)
    counted = [attempt for attempt in tried if not attempt.was_before_retry]
    if len(counted) >= MAX_FORMAT_ATTEMPTS or any(attempt.status == "aborted" for attempt in counted):
        return Unrecoverable(why=f"the crew's {job.member} failed {_times(len(tried))}: {wrong}")
    if not tried:
        return NextQuestion(job=job)
    prompt = again(job.prompt, replace(tried[-1], error=wrong))
    return NextQuestion(job=replace(job, prompt=prompt, attempt=len(tried) + 1), because=wrong)


def _next_attempt(crew: Crew, work: JobTemplate, tried: Sequence[JobAttempt]) -> Job | None:
    """Return the next attempt at the job, or None if no attempts are left. The job's member tries first, and then the
    substitute.
    """
    if not tried:
        return work.job(work.member)
    last, tried = tried[-1], [each for each in tried if not each.was_before_retry]
    if not tried:
        return work.job(work.member, last.attempt + 1, last)
    member = crew.member(last.member)
    if member is None:
        return None
    own = [each for each in tried if each.member == member.name]
    # A member that a person aborted or that has exhausted its budget doesn't retry the job.
    if last.status not in ("aborted", "budget_exhausted") and len(own) <= member.retries:
        return work.job(member, last.attempt + 1, last)
    substitute = crew.member(member.substitute)
    if substitute is None or any(each.member == substitute.name for each in tried):
        return None
    return work.job(substitute, last.attempt + 1, last)


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"
