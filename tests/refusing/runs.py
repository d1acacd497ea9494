"""The conversations as runs of a real worker, and what became of them."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from loom._worker import worker
from loom.client import LoomClient
from loom.domain.core.requests import RunResult, RunStatus
from loom.testing.harness import Addresses, Harness, settings_for
from tests.refusing.conversations import Conversation, conversation
from tests.refusing.outside import Outside
from tests.refusing.provider import Heard, RefusingProvider
from tests.refusing.rules import SOMETIMES

LONGEST: Final = 120.0
"""Seconds after which a run counts as one that never ends."""
AT_ONCE: Final = 12
SETTINGS: Final = {
    "patience": 0,  # a run that would wait for an operator fails with the error that it would wait with
    "first_retry_delay": 0.01,
    "longest_retry_delay": 0.05,
    "breaker_failures": "off",  # one conversation's refusals say nothing about another's
    "sandbox": "off",
}
"""The settings of a worker for these runs."""


def conversations(runs: int, seed: str) -> list[Conversation]:
    """So many conversations, in which each rule comes equally often."""
    rules = Random(seed).sample(SOMETIMES, len(SOMETIMES))
    return [conversation(f"{seed}/{number}", rules[number % len(rules)]) for number in range(runs)]


@asynccontextmanager
async def meeting(
    addresses: Addresses, folder: Path, talks: Sequence[Conversation]
) -> AsyncIterator[tuple[Harness, RefusingProvider, Outside]]:
    """A worker whose models are these conversations'."""
    outside = Outside()
    async with RefusingProvider(talks) as server:
        settings = settings_for(addresses, folder, server, **SETTINGS)
        async with worker(settings, app=outside.app()), LoomClient.connected(settings) as client:
            yield Harness(client=client, settings=settings, workspace=folder), server, outside


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What became of a run."""

    talk: Conversation
    run_id: str
    result: RunResult | None
    """None: it has not ended."""
    heard: Heard
    faults: tuple[str, ...]
    """What is wrong, in words. Empty if nothing is."""

    @property
    def stuck_at(self) -> str:
        """The rule at which the run has ended without an answer, or an empty string."""
        if self.result is not None and self.result.status is RunStatus.COMPLETED:
            return ""
        return self.heard.refusals[-1].rule if self.heard.refusals else "no refusal"

    def __str__(self) -> str:
        turns = [said.kind for said in self.talk.said]
        refused = [
            f"{each.request}: {each.rule} ({each.words.status} {each.words.body[:80]!r})"
            for each in self.heard.refusals
        ]
        return "\n".join(
            [
                f"{self.talk.name} {self.talk.api}, agent {self.talk.agent}, {self.run_id}: {'; '.join(self.faults)}",
                f"    rules {[(each.rule.name, each.since) for each in self.talk.enabled]}, turns {turns}",
                f"    {len(self.heard.bodies)} requests, refused {refused[:6]}",
            ]
        )


async def run_all(
    loom: Harness, server: RefusingProvider, outside: Outside, talks: Sequence[Conversation]
) -> list[Ended]:
    """Run all conversations, some at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(talk: Conversation) -> Ended:
        async with places:
            return await _run(loom, server, outside, talk)

    return list(await asyncio.gather(*map(one, talks)))


async def _run(loom: Harness, server: RefusingProvider, outside: Outside, talk: Conversation) -> Ended:
    task, model = "Look around, then say that you are done.", f"{talk.api}:{talk.name}"
    run_id = await loom.start(task, agent=talk.agent, model=model, mode="bypass")
    result: RunResult | None
    try:
        async with asyncio.timeout(LONGEST):
            result = await loom.client.result(run_id)
    except TimeoutError:
        result = None
        await loom.client.temporal.get_workflow_handle(run_id).terminate()
    heard = server.heard[talk.name]
    return Ended(
        talk=talk, run_id=run_id, result=result, heard=heard, faults=tuple(_faults(talk, result, heard, outside.ran))
    )


def _faults(talk: Conversation, result: RunResult | None, heard: Heard, ran: Counter[str]) -> Iterable[str]:
    if result is None:
        yield f"not ended after {LONGEST:g} s"
    elif result.status is not RunStatus.COMPLETED:
        yield f"{result.status}: {result.error.type}: {result.error.message[:160]}" if result.error else result.status
    elif len(heard.said) < len(talk.said) and not heard.summaries:
        yield f"ended after {len(heard.said)} of {len(talk.said)} replies with {result.output[:80]!r}"
    if heard.repeated:
        yield f"requests {heard.repeated} had been refused before, unchanged"
    has_answered = result is not None and result.status is RunStatus.COMPLETED
    for said in heard.said:
        for key in said.runs:
            if ran[key] > 1 or (ran[key] == 0 and has_answered):
                yield f"{said.kind}: call {key} ran {ran[key]} times"
        yield from (f"{said.kind}: call {key} ran {ran[key]} times" for key in said.may_run if ran[key] > 1)


COLUMNS: Final = ("runs", "refused", "at first", "stuck", "sent again")
"""Of each rule: the runs that have it, those that it has refused, those whose first request it has refused, those that
have ended without an answer at it, and those that have sent a refused request again.
"""


def report(ended: Sequence[Ended]) -> str:
    """What became of the runs, rule by rule."""
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in ended:
        for rule in {*each.talk.rules, *(refusal.rule for refusal in each.heard.refusals)}:
            seen[rule] += Counter(_counted(each, rule))
    lines = [f"{'rule':<44}{''.join(f'{name:>12}' for name in COLUMNS)}"]
    for rule, counts in sorted(seen.items(), key=lambda item: (-item[1]["stuck"], item[0])):
        lines.append(f"{rule:<44}{''.join(f'{counts[name]:>12}' for name in COLUMNS)}")
    done = Counter("not ended" if each.result is None else each.result.status.value for each in ended)
    errors = Counter(each.result.error.type for each in ended if each.result is not None and each.result.error)
    lines.append(
        f"{len(ended)} runs, {sum(bool(each.heard.refusals) for each in ended)} of them refused at least once:"
        f" {dict(done)}; errors {dict(errors)}; {sum(bool(each.faults) for each in ended)} with faults"
    )
    return "\n".join(lines)


def _counted(each: Ended, rule: str) -> dict[str, int]:
    requests = [refusal.request for refusal in each.heard.refusals if refusal.rule == rule]
    values = (
        True,
        bool(requests),
        0 in requests,
        rule == each.stuck_at,
        bool(set(requests) & set(each.heard.repeated)),
    )
    return dict(zip(COLUMNS, map(int, values), strict=True))


def sample(ended: Sequence[Ended], number: int, seed: str) -> list[Ended]:
    """Some of those with faults, of as many rules as possible."""
    wrong = [each for each in ended if each.faults]
    Random(seed).shuffle(wrong)
    by_rule = {each.stuck_at: each for each in wrong}
    return [*by_rule.values(), *(each for each in wrong if each not in by_rule.values())][:number]
