"""Build the prompts for a crew's members, and parse the replies of a coordinator or router."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loom.domain.crews.crew import Crew, Member
from loom.domain.crews.log import Choice, JobAttempt, Log

INLINE: Final = 6000
"""The maximum length, in characters, of an answer that a prompt shows to other members. They can read the full answer
as an artifact.
"""

CREW_TASK: Final = "The crew's task: "
HEARD: Final = "People have said since:"
BROUGHT: Final = "What members have brought:"
"""The section headings of a member's prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assigned:
    """Work that a coordinator assigns to a member."""

    member: str
    task: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """A coordinator's decision to assign work or to answer."""

    work: tuple[Assigned, ...] = ()
    answer: str | None = None


class Unreadable(ValueError):
    """A reply that isn't in the required form. The message tells the model how to fix it."""


def artifact_of(key: str) -> str:
    """Return the id of the artifact that stores a job's full answer."""
    return f"crew-{key}"


def part_prompt(crew: Crew, log: Log, before: Sequence[JobAttempt], member: Member) -> str:
    """Return the prompt for a member's share of the crew's task."""
    return _joined(
        f"You are {member.name!r} in the crew {crew.name!r}. {member.description}".strip(),
        f"Your part: {member.task}" if member.task else "",
        f"{CREW_TASK}{log.task}",
        _heard(log),
        _brought(log, before),
    )


def branch_prompt(crew: Crew, log: Log, place: str, best: tuple[Choice, JobAttempt] | None, member: Member) -> str:
    """Return the prompt for a branch: the whole task, the branch's approach and, from the second round on, the answer
    to improve.
    """
    improve = ""
    if best is not None:
        choice, tried = best
        improve = (
            f"The best answer so far ({choice.by}: {choice.reason}) stands below. Improve on it in your own way: keep"
            " what is right, mend what is wrong or missing, and give the whole answer again.\n\n" + _answer(log, tried)
        )
    return _joined(
        f"You are {place}. {member.description}".strip(),
        "All branches work on the same task at once, each alone, and only the best answer is kept. Take a way of your"
        " own, other than the one that comes to mind first: another approach, order, source or form.",
        f"Your part: {member.task}" if member.task else "",
        f"The task: {log.task}",
        _heard(log),
        improve,
    )


def plan_report(steps: Iterable[tuple[str, JobAttempt | None]]) -> str:
    """Return a report for the agent that created the plan. It describes the outcome of each step. The outcome is None
    for a step that didn't start.
    """
    told = []
    for name, tried in steps:
        if tried is None:
            told.append(f"## {name}: not begun, since a step that it waits for failed")
        elif tried.is_done:
            told.append(f"## {name}: done\n\n{tried.output}")
        else:
            told.append(f"## {name}: {tried.status}\n\n{tried.error or 'no reason was given'}{_part(tried)}")
    return "\n\n".join(told)


def assigned_prompt(crew: Crew, log: Log, task: str, member: Member) -> str:
    """Return the prompt for work that the coordinator assigns to a member."""
    return _joined(
        f"You are {member.name!r} in the crew {crew.name!r}. {member.description}".strip(),
        f"Your part: {member.task}" if member.task else "",
        f"Do this: {task}",
        f"It is a part of the crew's task, which others work on, too: {log.task}",
    )


def lead_prompt(crew: Crew, log: Log, came: Iterable[JobAttempt], *, is_last: bool) -> str:
    """Return the prompt for the coordinator's decision, with all results so far."""
    form = (
        'Answer now, with JSON and nothing else: {"answer": "…"}. There is no more time to give out work.'
        if is_last
        else "Answer with JSON and nothing else. To give out work, to several at once where that helps:\n"
        '{"assignments": [{"member": "…", "task": "…"}]}\n'
        'When you have what you need, your answer to the whole task: {"answer": "…"}'
    )
    return _joined(
        f"You coordinate the crew {crew.name!r}: split the task, give its parts to members, and put together what comes"
        " back. You do none of the parts yourself.",
        f"The task: {log.task}",
        _members(crew),
        _heard(log),
        _brought(log, came),
        form,
    )


def merge_prompt(crew: Crew, log: Log, came: Iterable[JobAttempt]) -> str:
    """Return the prompt for an agent that merges several answers into one."""
    return _joined(
        crew.aggregate.task or "Make one answer of what the members of a crew have brought. Say where they disagree.",
        f"The task was: {log.task}",
        _heard(log),
        _brought(log, came),
    )


def route_prompt(crew: Crew, log: Log) -> str:
    """Return the prompt for choosing a member."""
    return _joined(
        "Choose the one member of a crew that fits a task best. Do nothing of the task yourself.",
        f"The task: {log.task}",
        _members(crew),
        'Answer with JSON and nothing else: {"member": "…", "reason": "…"}; the member is null when nobody fits.',
    )


def again(prompt: str, tried: JobAttempt) -> str:
    """Return the same prompt with a description of the problem in the previous reply."""
    wrong = f"{tried.error or f'it ended as {tried.status}'}{_part(tried)}"
    return f"{prompt}\n\nAn earlier attempt at this ({tried.member}, attempt {tried.attempt}) failed: {wrong}"


def read_decision(crew: Crew, answer: str, *, is_last: bool) -> Decided:
    """Parse a coordinator's reply. Raises Unreadable if it isn't in the required form."""
    said = _json_in(answer)
    text = said.get("answer")
    if isinstance(text, str) and text.strip():
        return Decided(answer=text)
    work = said.get("assignments")
    if is_last or not isinstance(work, list) or not work:
        wanted = '{"answer": "…"}' + ("" if is_last else ' or {"assignments": [{"member": "…", "task": "…"}]}')
        raise Unreadable(f"the answer must be {wanted}")
    return Decided(work=tuple(_assigned(crew, each) for each in work))


def read_choice(crew: Crew, answer: str) -> tuple[str | None, str]:
    """Return the member that a router has chosen, or None, and the reason. Raises Unreadable if the answer isn't in the
    required form.
    """
    said = _json_in(answer)
    name, reason = said.get("member"), str(said.get("reason") or "no reason given")
    if name is not None and crew.member(str(name)) is None:
        raise Unreadable(f"there is no member {name!r}: {_names(crew)}")
    return (None if name is None else str(name)), reason


def _assigned(crew: Crew, each: Any) -> Assigned:
    if not isinstance(each, Mapping) or not isinstance(each.get("task"), str) or not each["task"].strip():
        raise Unreadable('each assignment must be {"member": "…", "task": "…"}')
    name = str(each.get("member"))
    if crew.member(name) is None:
        raise Unreadable(f"there is no member {name!r}: {_names(crew)}")
    return Assigned(member=name, task=each["task"])


def _json_in(answer: str) -> Mapping[str, Any]:
    """Return the JSON object in a reply. The reply may also contain other text."""
    start, end = answer.find("{"), answer.rfind("}")
    try:
        found = json.loads(answer[start : end + 1]) if 0 <= start < end else None
    except ValueError as error:
        raise Unreadable(f"the answer is not valid JSON: {error}") from None
    if not isinstance(found, Mapping):
        raise Unreadable("the answer must be a JSON object")
    return found


def _brought(log: Log, came: Iterable[JobAttempt]) -> str:
    parts = [_answer(log, tried) for tried in came]
    return "\n\n".join([BROUGHT, *parts]) if parts else ""


def _answer(log: Log, tried: JobAttempt) -> str:
    if not tried.is_done:
        return f"## {tried.member}\n(failed: {tried.error or tried.status}){_part(tried)}"
    if len(tried.output) <= INLINE:
        return f"## {tried.member}\n{tried.output}"
    rest = f"[…cut after {INLINE} of {len(tried.output)} characters"
    kept = f": read_artifact {artifact_of(tried.key)!r} has the whole]" if log.keeps else "]"
    return f"## {tried.member}\n{tried.output[:INLINE]}\n{rest}{kept}"


def _part(tried: JobAttempt) -> str:
    """Return what the member found before it stopped, or an empty string."""
    if not tried.is_part:
        return ""
    cut = tried.output if len(tried.output) <= INLINE else f"{tried.output[:INLINE]}\n[…cut after {INLINE} characters]"
    return f"\n\nUntil then it had this:\n{cut}"


def _heard(log: Log) -> str:
    return "\n".join([HEARD, *(f"- {word}" for word in log.words)]) if log.words else ""


def _members(crew: Crew) -> str:
    return "\n".join(["The members:", *(f"- {member.name}: {member.about}" for member in crew.members)])


def _names(crew: Crew) -> str:
    return f"the members are {', '.join(member.name for member in crew.members)}"


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
