"""A round's runs and those who deal with them: who approves, watches, sends messages, pauses and resumes."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

from loom import errors
from loom.domain.core.requests import RunResult
from loom.testing.harness import Harness
from tests.chaos.chats import Talk
from tests.chaos.disturbance import MESSAGE, PAUSE, RESUME, Disturbance, Request
from tests.chaos.outside import set_up
from tests.chaos.stories import kind_of, task_of
from tests.chaos.storm import Storm

ALLOWED: Final = {
    "credit": "allow",
    "read_file": "allow",
    "bash(echo:*)": "allow",
    "bash(>> effects)": "allow",
    "delegate_task": "allow",
}
CREW: Final = {"name": "team", "mode": "coordinated", "members": [{"name": "finder"}, {"name": "checker"}]}
STUCK: Final = 400.0
"""Seconds after the storm after which a run that has not ended counts as stuck."""
QUERIES: Final = 3
"""How many queries each of the two watchers makes at once."""
STEERED: Final = 0.5
"""Which share of the runs is sent messages, pauses and resumes."""


@dataclass(kw_only=True)
class Scene:
    """Everything that happens in a round."""

    loom: Harness
    root: Path
    storm: Storm
    people: Disturbance
    runs: dict[int, str] = field(default_factory=dict)
    """The runs that end by themselves, by number."""
    talks: list[Talk] = field(default_factory=list)
    """The chats."""
    faults_of_chats: dict[str, list[str]] = field(default_factory=dict)
    """What is wrong with each chat, by run."""

    @property
    def run_ids(self) -> list[str]:
        """All runs that people have started."""
        return [*self.runs.values(), *(talk.run_id for talk in self.talks)]

    async def start(self, number: int) -> None:
        """Start a run in a folder of its own."""
        place = self.root / str(number)
        place.mkdir()
        set_up(place)
        task, kind = task_of(number), kind_of(number)
        if kind == "chat":
            random = Random(self.people.random.random())
            talk = Talk(loom=self.loom, number=number, folder=place, random=random, counted=self.people.counted)
            await talk.begin()
            self.talks.append(talk)
        elif kind == "crew":
            self.runs[number] = await self.loom.client.start_crew(CREW, task, workspace=str(place))
        else:
            self.runs[number] = await self.loom.start(task, workspace=str(place), permissions=ALLOWED)

    async def live(self, kills: int) -> dict[int, RunResult | None]:
        """Let things fail until so many processes have been killed, and return the results; None of a stuck run."""
        async with asyncio.TaskGroup() as tasks:
            raging = tasks.create_task(self.storm.rage(kills))
            talking = [tasks.create_task(talk.go_on(self.storm)) for talk in self.talks]
            for each in self._others():
                tasks.create_task(each)
            try:
                results = await asyncio.gather(*map(self._result, self.runs.values()))
                self.storm.end()
                await asyncio.wait([raging, *talking])
                faults = await asyncio.gather(*(talk.faults() for talk in self.talks))  # they may still need a resume
                self.faults_of_chats = {talk.run_id: each for talk, each in zip(self.talks, faults, strict=True)}
            finally:  # no task is cancelled: an update that is cancelled says that nobody has answered
                self.storm.end()
                self.people.is_over = True
        return dict(zip(self.runs, results, strict=True))

    def _others(self) -> Iterator[Coroutine[Any, Any, None]]:
        random, chats = self.people.random, [talk.run_id for talk in self.talks]
        yield self._approve()
        yield from (self.people.watch([*self.runs.values(), *chats]) for _ in range(2 * QUERIES))
        for number, run_id in self.runs.items():
            if random.random() < STEERED:
                yield self.people.steer(run_id, self._requests(5, kind_of(number)), (0.2, 4.0))
        for run_id in chats:
            yield self.people.steer(run_id, self._requests(40, "chat"), (0.5, 6.0))
        yield self._let_go_on([*self.runs.values(), *chats])

    def _requests(self, times: int, kind: str) -> Iterator[Request]:
        """Yield some requests. What is paused is resumed."""
        series = (
            [(PAUSE, RESUME)] if kind in ("chat", "crew") else [(PAUSE, RESUME), (PAUSE, MESSAGE, RESUME), (MESSAGE,)]
        )
        for _ in range(times):
            if self.storm.is_over:
                break
            yield from self.people.random.choice(series)
        yield RESUME

    async def _let_go_on(self, run_ids: Sequence[str]) -> None:
        """Resume runs, once nothing fails any more: a pause may arrive late, and a resume never."""
        while not self.people.is_over:
            await asyncio.sleep(2)
            for run_id in run_ids if self.storm.is_over else ():
                if run_id not in self.people.ended:
                    with suppress(errors.LoomError):
                        await self.loom.client.resume(run_id)

    async def _approve(self) -> None:
        """Approve what runs ask for, as a person does who tries again when nobody answers."""
        asking = [run_id for number, run_id in self.runs.items() if kind_of(number) in ("asks", "tree")]
        while not self.people.is_over:
            for run_id in asking:
                if run_id not in self.people.ended:
                    with suppress(errors.LoomError):
                        for ask in (await self.loom.client.status(run_id))["pending_approvals"]:
                            await self.loom.client.approve(run_id, ask["call_id"], digest=ask["digest"], by="ann")
            await asyncio.sleep(0.5)

    async def _result(self, run_id: str) -> RunResult | None:
        """Return the run's result, however often the server goes away meanwhile; None if the run is stuck."""
        while self.storm.ended is None or monotonic() < self.storm.ended + STUCK:
            with suppress(errors.LoomError, TimeoutError):
                async with asyncio.timeout(20):
                    result = await self.loom.client.result(run_id)
                    self.people.ended.add(run_id)
                    return result
            await asyncio.sleep(0.5)
        return None
