"""Decide a crew's next action, based only on its log: assign work, choose a member, answer, or give up.

`next_crew_action` is called once per turn. A failed job is retried as often as the member's definition allows and is
then assigned to the member's substitute. If the substitute fails too, the crew continues without the job or stops.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from loom.domain.crews.actions import Answer, AssignJobs, CompareDescriptions, GiveUp, Step, assignees, no_answer
from loom.domain.crews.branches_mode import tree_step
from loom.domain.crews.crew import Crew, CrewMode
from loom.domain.crews.log import Choice, Job, JobAttempt, Log
from loom.domain.crews.prompts import (
    Decided,
    assigned_prompt,
    lead_prompt,
    merge_prompt,
    part_prompt,
    plan_report,
    read_choice,
    read_decision,
    route_prompt,
)
from loom.domain.crews.recovery import JobTemplate, NextQuestion, Unrecoverable, answer_of, progress_of
from loom.domain.crews.routing import by_rules, no_match

LEAD: Final = "coordinator"
ROUTER: Final = "router"
EDITOR: Final = "editor"


def next_crew_action(crew: Crew, log: Log) -> Step:
    """Return the crew's next action."""
    match crew.mode:
        case CrewMode.SEQUENTIAL:
            return _sequential(crew, log)
        case CrewMode.PARALLEL:
            return _parallel(crew, log)
        case CrewMode.COORDINATED:
            return _coordinated(crew, log)
        case CrewMode.ROUTED:
            return _routed(crew, log)
        case CrewMode.PLANNED:
            return _planned(crew, log)
        case CrewMode.TREE:
            return tree_step(crew, log)


def so_far(log: Log) -> str:
    """Return a crew's results so far. They are used if the crew must stop early."""
    best = None if log.choice is None else log.answer_to(log.choice.key)
    tried = log.brought if best is None else [best]
    brought = [f"## {each.member}{'' if each.is_done else ' (not done)'}\n\n{each.output}" for each in tried]
    return "\n\n".join(["The crew had to end before it was done. What its members have brought:", *brought])


def chosen(crew: Crew, log: Log, choice: Choice | None, tried: str = "") -> Step:
    """Return the action that follows the search for a member. If no member is suitable, the action assigns the task to
    the fallback or gives up.
    """
    if choice is None and crew.router.fallback:
        choice = Choice(member=crew.router.fallback, by="fallback", reason=f"nobody fits{tried}")
    if choice is None:
        return GiveUp(error=no_match(crew, tried), no_match=True)
    return _routed(crew, replace(log, choices=(choice,)), is_new=True)


def _sequential(crew: Crew, log: Log) -> Step:
    before: list[JobAttempt] = []
    for number, member in enumerate(crew.members, 1):
        prompt = partial(part_prompt, crew, log, tuple(before))
        form = log.form if member is crew.members[-1] else None
        state = progress_of(crew, log, [JobTemplate(key=f"s{number}", member=member, prompt=prompt, form=form)])
        if isinstance(state, Unrecoverable):
            return GiveUp(error=state.why)
        if state.open:
            return AssignJobs(jobs=state.open, text=f"Step {number} of {len(crew.members)}: {assignees(state.open)}")
        before += state.over
    done = [tried for tried in before if tried.is_done]
    return Answer(text=done[-1].output) if done else no_answer(before)


def _parallel(crew: Crew, log: Log) -> Step:
    prompt = partial(part_prompt, crew, log, ())
    work = [
        JobTemplate(key=f"p{number}", member=member, prompt=prompt) for number, member in enumerate(crew.members, 1)
    ]
    state = progress_of(crew, log, work)
    if isinstance(state, Unrecoverable):
        return GiveUp(error=state.why)
    if state.open:
        return AssignJobs(jobs=state.open, text=f"At once: {assignees(state.open)}")
    done = [tried for tried in state.over if tried.is_done]
    if not done:
        return no_answer(state.over)
    match crew.aggregate.by:
        case "concat":
            return Answer(text="\n\n".join(f"## {tried.member}\n\n{tried.output}" for tried in done))
        case "structured":
            return Answer(text=json.dumps({tried.member: _value(tried.output) for tried in done}, ensure_ascii=False))
        case "merge":
            return _merged(crew, log, state.over)


def _planned(crew: Crew, log: Log) -> Step:
    """Return the action that assigns work to all members whose dependencies are done. The crew's answer contains the
    outcome of each step.
    """
    done = {member.name: answer for member in crew.members if (answer := log.answer_to(_step(member.name))) is not None}
    work = [
        JobTemplate(
            key=_step(member.name),
            member=member,
            prompt=partial(part_prompt, crew, log, tuple(done[name] for name in member.after)),
        )
        for member in crew.members
        if all(name in done for name in member.after)
    ]
    state = progress_of(crew, log, work)
    if isinstance(state, Unrecoverable):
        return GiveUp(error=state.why)
    if state.open:
        return AssignJobs(
            jobs=state.open, text=f"{len(done)} of {len(crew.members)} steps done; now {assignees(state.open)}"
        )
    if not done:
        return no_answer(state.over)
    over = {tried.key: tried for tried in state.over}
    return Answer(text=plan_report([(member.name, over.get(_step(member.name))) for member in crew.members]))


def _step(name: str) -> str:
    return f"step-{name}"


def _merged(crew: Crew, log: Log, came: Sequence[JobAttempt]) -> Step:
    ask = crew.aggregate
    prompt = merge_prompt(crew, log, came)
    job = Job(key="merge", member=EDITOR, agent=ask.agent, model=ask.model, prompt=prompt, form=log.form)
    merged = answer_of(log, job, str)
    return Answer(text=merged) if isinstance(merged, str) else _ask(merged, "Merge what they brought")


def _coordinated(crew: Crew, log: Log) -> Step:
    came: list[JobAttempt] = []
    rounds = crew.coordinator.max_rounds
    for number in range(1, rounds + 2):
        is_last = number > rounds
        prompt = lead_prompt(crew, log, came, is_last=is_last)
        lead = crew.coordinator
        job = Job(key=f"lead{number}", member=LEAD, agent=lead.agent, model=lead.model, prompt=prompt)
        decided = answer_of(log, job, partial(read_decision, crew, is_last=is_last))
        if not isinstance(decided, Decided):
            return _ask(decided, f"Round {number}: the coordinator")
        if decided.answer is not None:
            return Answer(text=decided.answer)
        work = [
            JobTemplate(key=f"w{number}.{place}", member=member, prompt=partial(assigned_prompt, crew, log, part.task))
            for place, part in enumerate(decided.work, 1)
            if (member := crew.member(part.member)) is not None
        ]
        state = progress_of(crew, log, work)
        if isinstance(state, Unrecoverable):
            return GiveUp(error=state.why)
        if state.open:
            return AssignJobs(jobs=state.open, text=f"Round {number}: {assignees(state.open)}")
        came += state.over
    return GiveUp(error=f"the coordinator produced no answer in {rounds} rounds")


def _routed(crew: Crew, log: Log, *, is_new: bool = False) -> Step:
    if log.choice is None:
        return _choose(crew, log)
    member = crew.member(log.choice.member)
    if member is None:
        return GiveUp(error=f"the crew has no member {log.choice.member!r}")
    work = JobTemplate(key="routed", member=member, prompt=partial(part_prompt, crew, log, ()), form=log.form)
    state = progress_of(crew, log, [work])
    if isinstance(state, Unrecoverable):
        return GiveUp(error=state.why)
    if state.open:
        why = f"{log.choice.by}: {log.choice.reason}"
        return AssignJobs(
            jobs=state.open, text=f"To {assignees(state.open)} ({why})", choice=log.choice if is_new else None
        )
    done = [tried for tried in state.over if tried.is_done]
    return Answer(text=done[-1].output) if done else no_answer(state.over)


def _choose(crew: Crew, log: Log) -> Step:
    router = crew.router
    match router.by:
        case "rules":
            return chosen(crew, log, by_rules(crew, log.task))
        case "embedding":
            return CompareDescriptions()
        case "model":
            job = Job(
                key="route", member=ROUTER, agent=router.agent, model=router.model, prompt=route_prompt(crew, log)
            )
            found = answer_of(log, job, partial(read_choice, crew))
            if not isinstance(found, tuple):
                return _ask(found, "Choose a member")
            name, reason = found
            choice = None if name is None else Choice(member=name, by="model", reason=reason)
            return chosen(crew, log, choice, f" ({reason})")


def _ask(unanswered: NextQuestion | Unrecoverable, text: str) -> Step:
    if isinstance(unanswered, Unrecoverable):
        return GiveUp(error=unanswered.why)
    because = f" (again: {unanswered.because})" if unanswered.because else ""
    return AssignJobs(jobs=(unanswered.job,), text=f"{text}{because}")


def _value(output: str) -> Any:
    """Return a member's answer, parsed as JSON if possible."""
    try:
        return json.loads(output)
    except ValueError:
        return output
