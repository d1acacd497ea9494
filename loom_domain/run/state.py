"""The one value that is a run: what queries answer from, what continue-as-new carries on, what tests compare."""

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from loom.domain.agents.hook_steps import HookStep
from loom.domain.agents.reflection import Reflection
from loom.domain.agents.spec import DEFAULT_MAX_TURNS, AgentSpec
from loom.domain.core.messages import JsonObject, Message, Usage, is_from_person, last_text
from loom.domain.core.requests import RunError, RunRequest, RunResult, RunStatus
from loom.domain.core.tasks import Action, Notice
from loom.domain.core.tool_calls import OpenCall, describe
from loom.domain.core.tool_names import ASK_USER
from loom.domain.core.transcript import Transcript, TranscriptRef
from loom.domain.run.retry_policy import Tries
from loom.domain.run.turn_state import TurnState
from loom.domain.run.window import Window
from loom.domain.tools.loop_detection import Repetition
from loom.domain.tools.todos import Todos
from loom.domain.tree.tree import Tree, child_view, usage_view


class Phase(StrEnum):
    """Where the loop stands; `run.py` has the table of what follows what."""

    STARTING = "starting"
    READY = "ready"
    THINKING = "thinking"
    ACTING = "acting"
    EVALUATING = "evaluating"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """Somebody paused the run."""

    by: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How the run ends."""

    status: RunStatus
    output: str = ""
    structured: Any = None
    """The answer as a value, where the run has an output schema."""
    explicit: bool = False
    """Ended by the `done` tool."""
    is_final: bool = False
    """The output is what there is to say, even if that is nothing."""
    quality: JsonObject | None = None
    """The ratings of the answer."""
    judged: bool = False
    """The answer's evaluation is over, whatever came of it."""
    error: RunError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapUp:
    """One last answer, without tools, that sums up a run which has to end."""

    outcome: Outcome
    """How the run ends after it."""
    turn: int = 0
    """The turn in which it is given; 0: not yet begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """Everything a run is, between two events."""

    run_id: str
    request: RunRequest
    started_at: datetime
    phase: Phase = Phase.STARTING
    spec: AgentSpec | None = None
    """Set once the run is prepared."""
    spec_digest: str = ""
    send_spec: bool = False
    """The next model call carries the spec inline."""
    search_attributes: tuple[str, ...] = ()
    ledger: bool = False
    """Workers keep account of effects; recorded when the run was prepared."""
    hooks_left: tuple[HookStep, ...] = ()
    """Hooks to come before the first turn; once there is an outcome, those after it."""
    turn: int = 0
    tries: Tries = field(default_factory=Tries)
    retry_at: datetime | None = None
    transcript: Transcript = field(default_factory=Transcript)
    known: TranscriptRef = field(default_factory=TranscriptRef)
    """The part of the transcript that workers have under its name."""
    produced: frozenset[str] = frozenset()
    """Calls whose results activities have handed to workers since `known`."""
    window: Window = field(default_factory=Window)
    calls: tuple[OpenCall, ...] = ()
    inbox: tuple[Message, ...] = ()
    """Messages that people sent; taken in when the next turn begins."""
    grants: tuple[str, ...] = ()
    """Allow rules from approvals for the rest of the run."""
    partial: str = ""
    """Text of answers that were cut, waiting for their continuation."""
    answer: Outcome | None = None
    """A final answer held back: somebody holds the run, or has written something that the answer cannot know."""
    nudges: int = 0
    """Reminders in a row that brought no progress."""
    repairs: int = 0
    """Answers that did not fit the output schema."""
    repetition: Repetition = field(default_factory=Repetition)
    reflection: Reflection = field(default_factory=Reflection)
    draft: Outcome | None = None
    """The answer that is being criticised or revised."""
    warned: bool = False
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0
    tool_calls: int = 0
    todos: Todos = field(default_factory=Todos)
    artifacts: tuple[JsonObject, ...] = ()
    """Outputs that are kept whole, as the result names them."""
    tree: Tree = field(default_factory=Tree)
    """Its relatives, and what it may spend with those below it."""
    hold: Hold | None = None
    outcome: Outcome | None = None
    wrap_up: WrapUp | None = None
    """Something is used up: the run ends after one more answer."""
    rules_changed: bool = False
    """Rules changed while the model was thinking: its calls have to be judged again."""
    notices: tuple[Notice, ...] = ()
    noticed: int = 0
    """Notices made so far; numbers them."""

    @property
    def agent(self) -> AgentSpec:
        """The pinned spec of a prepared run."""
        if self.spec is None:
            raise ValueError("the run is not prepared yet")
        return self.spec

    @property
    def max_turns(self) -> int:
        """Turns that the run may take."""
        default = self.spec.max_turns if self.spec else DEFAULT_MAX_TURNS
        return self.request.max_turns or default

    @property
    def turn_state(self) -> TurnState:
        """Where the run stands between two turns."""
        return TurnState(run_id=self.run_id, turn=self.turn, limit=self.max_turns)

    @property
    def turns(self) -> int:
        """Turns taken; the last answer of a run that sums up is none."""
        return self.turn - (self.wrap_up is not None and self.wrap_up.turn == self.turn)

    @property
    def asks(self) -> tuple[OpenCall, ...]:
        """The calls that wait for a person."""
        return tuple(call for call in self.calls if call.awaits_person)

    @property
    def question(self) -> OpenCall | None:
        """The question to a person that the run has come to: nothing before it is left to do."""
        waiting = next((call for call in self.calls if call.result is None), None)
        if self.phase is not Phase.ACTING or self.asks or waiting is None or waiting.stale:
            return None
        return waiting if waiting.call.name == ASK_USER else None


def ended(state: RunState, outcome: Outcome) -> RunState:
    """The run with its outcome; the first one stays."""
    return state if state.outcome is not None else replace(state, outcome=outcome)


def question_of(call: OpenCall) -> str:
    """What a call of `ask_user` asks."""
    return str(call.call.arguments.get("question", "")).strip()


def status_of(state: RunState) -> RunStatus:
    """The run's status in the words of the public contract."""
    if state.outcome is not None:
        return state.outcome.status
    if state.hold is not None:
        return RunStatus.PAUSED
    if state.asks or state.tree.asks:
        return RunStatus.WAITING_FOR_APPROVAL
    return RunStatus.WAITING_FOR_INPUT if state.question else RunStatus.RUNNING


def waiting_on(state: RunState) -> str | None:
    """What has to happen for the run to go on, in a few words."""
    if state.outcome is not None:
        return None
    if state.hold is not None:
        return "resume"
    if state.asks or state.tree.asks:
        counted = Counter(f"{ask.tool} of sub-agent {ask.agent}" for ask in state.tree.asks)
        below = (what if number == 1 else f"{what} ({number} times)" for what, number in counted.items())
        return "approval: " + "; ".join((*(describe(open_call.call) for open_call in state.asks), *below))
    if state.question is not None:
        return f"answer: {question_of(state.question)}"
    if state.phase is Phase.THINKING:
        what = "compression" if state.window.due else "model"
        return what if state.retry_at is None else f"{what}, next try at {state.retry_at.isoformat()}"
    if state.phase is Phase.EVALUATING:
        return "evaluation"
    if state.tree.running:
        return "sub-agents: " + "; ".join(f"{child.agent}: {child.description}" for child in state.tree.running)
    running = [describe(open_call.call) for open_call in state.calls if open_call.result is None]
    return "tools: " + "; ".join(running) if running else None


def expires_at(state: RunState, call: OpenCall) -> datetime | None:
    """When an ask counts as denied; never while the run is paused, and its time begins anew when it goes on."""
    if call.asked_at is None or state.hold is not None:
        return None
    return call.asked_at + timedelta(seconds=state.agent.approval_timeout)


def result_of(state: RunState, outcome: Outcome) -> RunResult:
    """The result of a run that ends with `outcome`."""
    return RunResult(
        status=outcome.status,
        output=outcome.output if outcome.output or outcome.is_final else _best_text(state),
        structured_output=outcome.structured,
        completed_explicitly=outcome.explicit,
        turns=state.turns,
        usage=usage_view(total_usage(state)),
        cost=cost_of(state),
        quality_metrics=outcome.quality,
        tool_calls=total_tool_calls(state),
        artifacts=state.artifacts,
        children=tuple(child_view(child) for child in state.tree.children),
        own=_own(state) if state.tree.children else None,
        error=_with_unread(outcome.error, state),
    )


def _own(state: RunState) -> JsonObject:
    micros = state.cost_micros
    return {
        "usage": usage_view(state.usage),
        "cost": None if micros is None else micros / 1_000_000,
        "tool_calls": state.tool_calls,
    }


def _best_text(state: RunState) -> str:
    held = state.answer or state.draft
    return (held.output if held else "") or state.partial or last_text(state.transcript.messages)


def _with_unread(error: RunError | None, state: RunState) -> RunError | None:
    """The error with the messages that people sent and the model never saw."""
    unread = [message.text for message in state.inbox if is_from_person(message)]
    if error is None or not unread:
        return error
    told = f"{error.message} Not read: {len(unread)} message{'s' * (len(unread) != 1)} sent to the run."
    return replace(error, message=told, context={**error.context, "unread": unread})


def told_end(state: RunState, result: RunResult, at: datetime) -> RunState:
    """The run with the notice that ends its stream."""
    action = Action.ERROR if result.status is RunStatus.FAILED else Action.COMPLETE
    notice = Notice(action=action, key="end", at=at, status=result.status, result=asdict(result))
    return replace(state, notices=(*state.notices, notice))


def total_usage(state: RunState) -> Usage:
    """Tokens of the run and of everything that it delegated."""
    return state.usage + state.tree.usage


def total_micros(state: RunState) -> int | None:
    """Millionths of a US dollar of the same; None once a call had no known price."""
    below = state.tree.cost_micros
    return None if state.cost_micros is None or below is None else state.cost_micros + below


def total_tool_calls(state: RunState) -> int:
    """Tool calls of the same."""
    return state.tool_calls + sum(child.tool_calls for child in state.tree.children)


def cost_of(state: RunState) -> float | None:
    """US dollars of the same."""
    micros = total_micros(state)
    return None if micros is None else micros / 1_000_000
