"""Failed work of a crew: retried by the same member, then by its substitute, then skipped or given up.

A coordinator, router or merging agent is also asked again if its reply does not have the required form.
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
"""Maximum attempts at a reply with the required form."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unrecoverable:
    """The crew cannot continue without what failed."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NextQuestion:
    """An agent has to be asked, or asked again."""

    job: Job
    because: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobProgress:
    """The progress of some jobs."""

    open: tuple[Job, ...]
    """Jobs to assign now."""
    over: tuple[JobAttempt, ...]
    """In the order of the jobs, the outcomes of those that need no further attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTemplate:
    """Work for a member or its substitute."""

    key: str
    member: Member
    prompt: Callable[[Member], str]
    about: str = ""
    form: JsonObject | None = None

    def job(self, member: Member, attempt: int = 1, before: JobAttempt | None = None) -> Job:
        """The job as this member is to do it."""
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
    """The work after all attempts so far; raises GivenUp if an indispensable job has failed."""
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
    """The reply of one of the crew's own agents, parsed with `read`; or Unrecoverable if it stays invalid."""
    tried, wrong = log.of(job.key), ""
    for attempt in tried:
        try:
            if attempt.is_done:
                return read(attempt.output)
            wrong = attempt.error or f"its run ended as {attempt.status}"
        except Unreadable as error:
            wrong = str(error)
    if len(tried) >= MAX_FORMAT_ATTEMPTS or any(attempt.status == "aborted" for attempt in tried):
        return Unrecoverable(why=f"the crew's {job.member} failed {_times(len(tried))}: {wrong}")
    if not tried:
        return NextQuestion(job=job)
    prompt = again(job.prompt, replace(tried[-1], error=wrong))
    return NextQuestion(job=replace(job, prompt=prompt, attempt=len(tried) + 1), because=wrong)


def _next_attempt(crew: Crew, work: JobTemplate, tried: Sequence[JobAttempt]) -> Job | None:
    """The next attempt at the job: by its member, then by the substitute; None if there is none."""
    if not tried:
        return work.job(work.member)
    last = tried[-1]
    member = crew.member(last.member)
    if member is None:
        return None
    own = [each for each in tried if each.member == member.name]
    # A member that a person aborted is not retried, and an exhausted budget stays exhausted.
    if last.status not in ("aborted", "budget_exhausted") and len(own) <= member.retries:
        return work.job(member, last.attempt + 1, last)
    substitute = crew.member(member.substitute)
    if substitute is None or any(each.member == substitute.name for each in tried):
        return None
    return work.job(substitute, last.attempt + 1, last)


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"
