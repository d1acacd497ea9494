"""A crew's run told as a transcript: its steps, and what came of the work that it gave out."""

import json
from dataclasses import replace
from typing import Any

from loom.domain.core.messages import RETRIED, Message, reminder, user
from loom.domain.crews.actions import Answer, AssignJobs, GiveUp, Step
from loom.domain.crews.crew import Crew, CrewMode, Member
from loom.domain.crews.log import assignment_message, read_log
from loom.domain.crews.next_action import next_crew_action
from loom.domain.machine.reopening import GOES_ON


def crew(mode: str, *members: Member | str, **given: Any) -> Crew:
    """A crew; members by name alone are as they are by default."""
    made = tuple(Member(name=member) if isinstance(member, str) else member for member in members)
    return Crew(name="team", mode=CrewMode(mode), members=made, **given)


class Told:
    """A crew at work; what comes of each job is said by the test."""

    def __init__(self, crew: Crew, task: str = "The task.") -> None:
        self.crew = crew
        self.messages: list[Message] = [user(task)]

    @property
    def step(self) -> Step:
        """What the crew does next."""
        return next_crew_action(self.crew, read_log(self.messages))

    @property
    def jobs(self) -> list[tuple[str, int]]:
        """Who is given work next, and in which attempt."""
        step = self.step
        assert isinstance(step, AssignJobs), step
        return [(job.member, job.attempt) for job in step.jobs]

    @property
    def prompt(self) -> str:
        """What the first of them is told."""
        step = self.step
        assert isinstance(step, AssignJobs), step
        return step.jobs[0].prompt

    @property
    def answer(self) -> str:
        """What the crew answers."""
        assert isinstance(self.step, Answer), self.step
        return self.step.text

    @property
    def error(self) -> str:
        """Why the crew gives up."""
        assert isinstance(self.step, GiveUp), self.step
        return self.step.error

    def retried(self) -> "Told":
        """A person lets the crew go on after its end."""
        told = reminder(GOES_ON)
        self.messages.append(replace(told, metadata={**told.metadata, RETRIED: 1}))
        return self

    def came(self, *outcomes: str | tuple[str, ...]) -> "Told":
        """The jobs that are given out now end like this: with an answer, or with status, error and what there is."""
        step = self.step
        assert isinstance(step, AssignJobs), step
        asked = assignment_message(step.jobs, step.text, step.choice)
        self.messages.append(asked)
        for call, outcome in zip(asked.tool_calls, outcomes, strict=True):
            told = {"task": "t", "result": outcome, "status": "completed"}
            if isinstance(outcome, tuple):
                told = {"task": "t", "result": "".join(outcome[2:]), "status": outcome[0], "error": outcome[1]}
            self.messages.append(Message(role="tool", tool_call_id=call.id, content=json.dumps(told)))
        return self

    def heard(self, text: str) -> "Told":
        """Somebody says something to the crew."""
        self.messages.append(user(text, by="ann"))
        return self


FAILED = ("failed", "LLMUnavailableError: no answer")
