"""Decide the next action of a crew in `tree` mode: run the branches, have their answers judged, or start the next
round.

    round 1: all members ──▶ the judge ──▶ the best answer ──▶ round 2: all members improve on it … ──▶ the best answer

A failed branch is dropped. If only one branch answers, its answer isn't judged. If the judge provides no scores, the
first answer is used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from loom.domain.core.tool_names import DONE
from loom.domain.crews.actions import Answer, AssignJobs, GiveUp, Step, assignees, no_answer
from loom.domain.crews.crew import Crew, branch_name
from loom.domain.crews.log import Choice, Job, JobAttempt, Log
from loom.domain.crews.prompts import branch_prompt
from loom.domain.crews.recovery import JobTemplate, Unrecoverable, progress_of
from loom.domain.crews.scoring import chosen_by, form_of, score_prompt

JUDGE: Final = "judge"


def tree_step(crew: Crew, log: Log) -> Step:
    """Return the next action: run all branches of a round concurrently, and then the judge. Later rounds improve the
    best answer so far, and the best answer of the last round is the crew's answer.
    """
    best: Choice | None = None
    for level in range(1, crew.judge.rounds + 1):
        told = best if len(log.choices) < level - 1 else None
        state = progress_of(crew, log, [*_branches(crew, log, level, best)])
        if isinstance(state, Unrecoverable):
            return GiveUp(error=state.why)
        if state.open:
            return AssignJobs(jobs=state.open, text=f"{_level(crew, level)}{assignees(state.open)}", choice=told)
        done = [tried for tried in state.over if tried.is_done]
        if not done and (best is None or log.ended_by_budget):
            return no_answer(state.over)
        step = log.choices[level - 1] if len(log.choices) >= level else _best(crew, log, level, done, best)
        if not isinstance(step, Choice):
            return step
        best = step
    if best is None or (answer := log.answer_to(best.key)) is None:
        return GiveUp(error="the crew has chosen an answer that is not there")
    return Answer(text=answer.output, choice=best if len(log.choices) < crew.judge.rounds else None)


def _branches(crew: Crew, log: Log, level: int, best: Choice | None) -> Iterator[JobTemplate]:
    """Return each member's work for a round."""
    tried = None if best is None else log.answer_to(best.key)
    before = None if best is None or tried is None else (best, tried)
    for number, member in enumerate(crew.members, 1):
        named = f"branch {number} of {len(crew.members)}"
        about = named if member.name == branch_name(number) else f"{member.name}, {named}"
        place = about if crew.judge.rounds == 1 else f"{about}, level {level} of {crew.judge.rounds}"
        prompt = partial(branch_prompt, crew, log, place, before)
        yield JobTemplate(key=f"b{level}.{number}", member=member, prompt=prompt, about=place)


def _best(crew: Crew, log: Log, level: int, done: Sequence[JobAttempt], before: Choice | None) -> Choice | Step:
    """Return a round's best answer, or the action that is needed to find it. If several answers are equally good, the
    first of them is used.
    """
    if not done and before is not None:
        reason = f"no branch of level {level} came to an answer: the one before stays"
        return replace(before, by="fallback", reason=reason, scores=())
    if len(done) == 1:
        return Choice(member=done[0].member, by="only", reason="no other branch came to an answer", key=done[0].key)
    key, judge = f"judge{level}", crew.judge
    tried = [attempt for attempt in log.of(key) if not attempt.was_before_retry]
    if tried and tried[-1].status == "budget_exhausted":
        return GiveUp(error=f"the answers could not be scored: {tried[-1].error or tried[-1].status}")
    if tried:
        return chosen_by(done, tried[-1])
    text = f"score {len(done)} answers"
    job = Job(
        key=key,
        member=JUDGE,
        agent=judge.agent,
        model=judge.model,
        tools=(DONE,),
        prompt=score_prompt(log, done),
        attempt=len(log.of(key)) + 1,
        about=text,
        form=form_of(done),
    )
    return AssignJobs(jobs=(job,), text=f"{_level(crew, level)}{text}")


def _level(crew: Crew, level: int) -> str:
    return f"Level {level} of {crew.judge.rounds}: "
