"""The one value that is a run: what queries answer from, what continue-as-new carries on, what tests compare."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from loom.domain.agents.hook_steps import HookPoint
from loom.domain.agents.reflection import Reflection
from loom.domain.agents.spec import DEFAULT_MAX_TURNS, AgentSpec
from loom.domain.core.messages import JsonObject, Message, Transcript, Usage, is_from_person, last_text, usage_view
from loom.domain.core.requests import RunError, RunRequest, RunResult, RunStatus
from loom.domain.core.tasks import Action, Notice
from loom.domain.core.tool_calls import OpenCall, describe
from loom.domain.core.tool_names import ASK_USER
from loom.domain.run.conversation import Conversation, Window
from loom.domain.run.retry_policy import Tries
from loom.domain.tools.loop_detection import Repetition
from loom.domain.tools.todos import Todos
from loom.domain.tree.tree import Tree, TreeAsk, child_view


class Phase(StrEnum):
    """Where the loop stands; the table in `machine.transitions` says which event leads from one to another."""

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
class Environment:
    """What the server and its workers offer, recorded when the run was prepared."""

    search_attributes: tuple[str, ...] = ()
    """Those that the server knows."""
    ledger: bool = False
    """Workers keep account of effects."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCalls:
    """The tool calls of the current turn, and what people have allowed for the rest of the run."""

    open: tuple[OpenCall, ...] = ()
    grants: tuple[str, ...] = ()
    """Allow rules from approvals for the rest of the run."""
    rules_changed: bool = False
    """Rules changed while the model was thinking: its calls have to be judged again."""

    def changed(self, change: Callable[[OpenCall], OpenCall]) -> "OpenCalls":
        """With each call changed."""
        return replace(self, open=tuple(change(call) for call in self.open))


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What finished tool calls leave beside their results."""

    todos: Todos = field(default_factory=Todos)
    artifacts: tuple[JsonObject, ...] = ()
    """Outputs that are kept whole, as the result names them."""
    repetition: Repetition = field(default_factory=Repetition)
    """How often the same calls came in a row, for loop detection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerDraft:
    """The final answer while it is being made."""

    partial: str = ""
    """Text of answers that were cut, waiting for their continuation."""
    nudges: int = 0
    """Reminders in a row that brought no progress."""
    repairs: int = 0
    """Answers that did not fit the output schema."""
    held: Outcome | None = None
    """A final answer held back: the run is paused, has an unread message, or evaluates the answer."""
    draft: Outcome | None = None
    """The answer that is being criticised or revised."""
    reflection: Reflection = field(default_factory=Reflection)
    wrap_up: WrapUp | None = None
    """Something is used up: the run ends after one more answer."""

    @property
    def progressed(self) -> "AnswerDraft":
        """After a turn that brought progress."""
        return replace(self, partial="", nudges=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """What the run itself has used; its sub-agents' use is in the tree."""

    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0
    """Millionths of a US dollar; None once a call had no known price."""
    tool_calls: int = 0
    warned: bool = False
    """The model was told that something is nearly used up."""

    def charged(self, usage: Usage, cost_micros: int | None) -> "Spending":
        """With one more model call."""
        known = self.cost_micros is not None and cost_micros is not None
        cost = (self.cost_micros or 0) + (cost_micros or 0) if known else None
        return replace(self, usage=self.usage + usage, cost_micros=cost)


@dataclass(frozen=True, kw_only=True, slots=True)
class Notices:
    """What the stream has to be told."""

    pending: tuple[Notice, ...] = ()
    """Those that no activity has published yet."""
    numbered: int = 0
    """Notices made so far."""

    def added(self, notice: Notice) -> "Notices":
        """With one more, under a number of its own unless it brings a key."""
        number = self.numbered + 1
        return Notices(pending=(*self.pending, replace(notice, key=notice.key or f"n{number}")), numbered=number)

    def published(self, count: int) -> "Notices":
        """Without the first `count`, which are on the stream."""
        return replace(self, pending=self.pending[count:])


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnState:
    """A run's turns so far: each turn is a step from one such state to the next."""

    run_id: str
    turn: int
    """Turns that have begun; 0 before the first."""
    limit: int
    """Turns that the run may take."""

    @classmethod
    def initial(cls, run_id: str, limit: int) -> "TurnState":
        """Before the first turn."""
        return cls(run_id=run_id, turn=0, limit=limit)

    def next(self) -> "TurnState":
        """With one turn more; a last answer may be one beyond the limit."""
        return replace(self, turn=self.turn + 1)

    @property
    def is_final(self) -> bool:
        """No turn may follow."""
        return self.turn >= self.limit

    @property
    def turn_id(self) -> str | None:
        """The turn that began last; None before the first."""
        return turn_id(self.run_id, self.turn)

    @property
    def parent_turn_id(self) -> str | None:
        """The turn before that."""
        return turn_id(self.run_id, self.turn - 1)


def turn_id(run_id: str, turn: int) -> str | None:
    """Names a turn in all runs, `RUN/tN`; what it does has ids that begin so."""
    return f"{run_id}/t{turn}" if turn > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """Everything a run is, between two events.

    Continue-as-new carries it on as JSON, so a field, once released, is part of the format: `carried_state` reads the
    formats of earlier releases.
    """

    run_id: str
    request: RunRequest
    began_at: datetime
    phase: Phase = Phase.STARTING
    spec: AgentSpec | None = None
    """Set once the run is prepared."""
    environment: Environment = field(default_factory=Environment)
    hooks_left: tuple[HookPoint, ...] = ()
    """Hooks to come before the first turn; once there is an outcome, those after it."""
    turn: int = 0
    conversation: Conversation = field(default_factory=Conversation)
    window: Window = field(default_factory=Window)
    tries: Tries = field(default_factory=Tries)
    """Attempts at the model call that is due."""
    retry_at: datetime | None = None
    """When the model call, or the tool calls, are tried again."""
    calls: OpenCalls = field(default_factory=OpenCalls)
    work: Work = field(default_factory=Work)
    answer: AnswerDraft = field(default_factory=AnswerDraft)
    spending: Spending = field(default_factory=Spending)
    tree: Tree = field(default_factory=Tree)
    """Its relatives, and what it may spend with those below it."""
    inbox: tuple[Message, ...] = ()
    """Messages that the model has not read; they are added to the conversation when the next turn begins."""
    hold: Hold | None = None
    outcome: Outcome | None = None
    notices: Notices = field(default_factory=Notices)

    @property
    def agent(self) -> AgentSpec:
        """The pinned spec of a prepared run."""
        if self.spec is None:
            raise ValueError("the run is not prepared yet")
        return self.spec

    @property
    def transcript(self) -> Transcript:
        """The messages of the current window."""
        return self.conversation.transcript

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
        wrap_up = self.answer.wrap_up
        return self.turn - (wrap_up is not None and wrap_up.turn == self.turn)

    @property
    def asks(self) -> tuple[OpenCall, ...]:
        """The calls that wait for a person."""
        return tuple(call for call in self.calls.open if call.awaits_person)

    @property
    def asks_below(self) -> tuple[TreeAsk, ...]:
        """The calls of sub-agents that wait for a person."""
        return self.tree.asks if self.tree.children else ()

    @property
    def question(self) -> OpenCall | None:
        """The question to a person that the run has come to: nothing before it is left to do."""
        waiting = next((call for call in self.calls.open if call.result is None), None)
        if self.phase is not Phase.ACTING or self.asks or waiting is None or waiting.stale:
            return None
        return waiting if waiting.call.name == ASK_USER else None


def noticed(state: RunState, notice: Notice) -> RunState:
    """The run with this notice for the stream, under a number of its own unless it brings a key."""
    return replace(state, notices=state.notices.added(notice))


def note(
    state: RunState, action: Action, at: datetime, *, target_agent: str | None = None, **parameters: Any
) -> RunState:
    """The run with one more notice for the stream; parameters that say nothing are left out."""
    said = {name: value for name, value in parameters.items() if value not in ("", None)}
    return noticed(state, Notice(action=action, key="", at=at, target_agent=target_agent, parameters=said))


def with_calls(state: RunState, change: Callable[[OpenCall], OpenCall]) -> RunState:
    """The run with each open call changed."""
    return replace(state, calls=state.calls.changed(change))


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
    if state.asks or state.asks_below:
        return RunStatus.WAITING_FOR_APPROVAL
    return RunStatus.WAITING_FOR_INPUT if state.question else RunStatus.RUNNING


def waiting_on(state: RunState) -> str | None:
    """What has to happen for the run to go on, in a few words."""
    if state.outcome is not None:
        return None
    if state.hold is not None:
        return "resume"
    if state.asks or state.asks_below:
        counted = Counter(f"{ask.tool} of sub-agent {ask.agent}" for ask in state.asks_below)
        below = (what if number == 1 else f"{what} ({number} times)" for what, number in counted.items())
        return "approval: " + "; ".join((*(describe(open_call.call) for open_call in state.asks), *below))
    if state.question is not None:
        return f"answer: {question_of(state.question)}"
    if state.phase is Phase.THINKING:
        what = "compression" if state.window.due else "model"
        return what if state.retry_at is None else f"{what}, next try at {state.retry_at.isoformat()}"
    if state.phase is Phase.EVALUATING:
        return "evaluation"
    if state.tree.children and state.tree.running:
        return "sub-agents: " + "; ".join(f"{child.agent}: {child.description}" for child in state.tree.running)
    running = [describe(open_call.call) for open_call in state.calls.open if open_call.result is None]
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
        artifacts=state.work.artifacts,
        children=tuple(child_view(child) for child in state.tree.children),
        own=_own(state) if state.tree.children else None,
        error=_with_unread(outcome.error, state),
    )


def _own(state: RunState) -> JsonObject:
    micros = state.spending.cost_micros
    return {
        "usage": usage_view(state.spending.usage),
        "cost": None if micros is None else micros / 1_000_000,
        "tool_calls": state.spending.tool_calls,
    }


def _best_text(state: RunState) -> str:
    held = state.answer.held or state.answer.draft
    return (held.output if held else "") or state.answer.partial or last_text(state.transcript.messages)


def _with_unread(error: RunError | None, state: RunState) -> RunError | None:
    """The error with the messages that people sent and the model never saw."""
    unread = [message.text for message in state.inbox if is_from_person(message)]
    if error is None or not unread:
        return error
    told = f"{error.message} Not read: {len(unread)} message{'s' * (len(unread) != 1)} sent to the run."
    return replace(error, message=told, context={**error.context, "unread": unread})


def with_end_notice(state: RunState, result: RunResult, at: datetime) -> RunState:
    """The run with the notice that ends its stream."""
    action = Action.ERROR if result.status is RunStatus.FAILED else Action.COMPLETE
    notice = Notice(action=action, key="end", at=at, status=result.status, result=asdict(result))
    return replace(state, notices=replace(state.notices, pending=(*state.notices.pending, notice)))


def total_usage(state: RunState) -> Usage:
    """Tokens of the run and of everything that it delegated."""
    own = state.spending.usage
    return own + state.tree.usage if state.tree.children else own


def total_micros(state: RunState) -> int | None:
    """Millionths of a US dollar of the same; None once a call had no known price."""
    below = state.tree.cost_micros if state.tree.children else 0
    return None if state.spending.cost_micros is None or below is None else state.spending.cost_micros + below


def total_tool_calls(state: RunState) -> int:
    """Tool calls of the same."""
    return state.spending.tool_calls + sum(child.tool_calls for child in state.tree.children)


def cost_of(state: RunState) -> float | None:
    """US dollars of the same."""
    micros = total_micros(state)
    return None if micros is None else micros / 1_000_000
