"""The complete state of a run as one value. Queries read it, and continue-as-new passes it to the next execution."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import reduce
from typing import Any, Literal

from loom.domain.agents.hook_steps import HookPoint
from loom.domain.agents.reflection import Reflection
from loom.domain.agents.spec import DEFAULT_MAX_TURNS, AgentSpec
from loom.domain.core.frozen import replace
from loom.domain.core.messages import (
    JsonObject,
    Message,
    Part,
    Transcript,
    Usage,
    is_from_person,
    last_text,
    usage_view,
)
from loom.domain.core.notifications import NotifyPlan
from loom.domain.core.repositories import Checkout, GitWorkspace, Repository, ReturnedChange, workspace_view
from loom.domain.core.requests import ParkedOn, RunError, RunRequest, RunResult, RunStatus
from loom.domain.core.signatures import SignatureChecks
from loom.domain.core.tasks import Action, Notice
from loom.domain.core.tenants import Admission
from loom.domain.core.tool_calls import OpenCall, describe
from loom.domain.core.tool_names import ASK_USER
from loom.domain.run.carried_state import upgraded
from loom.domain.run.chat import INTERRUPTED, Chat
from loom.domain.run.conversation import Conversation, Window
from loom.domain.run.events import RetryRequested
from loom.domain.run.retry_policy import Tries
from loom.domain.tools.loop_detection import Repetition
from loom.domain.tools.todos import Todos
from loom.domain.tree.tree import Tree, TreeAsk, child_view


class Phase(StrEnum):
    """The phase of the run's loop. The table in `machine.transitions` defines how events change the phase."""

    STARTING = "starting"
    READY = "ready"
    THINKING = "thinking"
    ACTING = "acting"
    EVALUATING = "evaluating"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """A pause of the run."""

    by: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Parked:
    """The wait of a run whose model call can't succeed at present. `machine.parking` explains when a run is parked."""

    on: ParkedOn
    error: RunError
    """The error of the latest attempt."""
    since: datetime
    until: datetime
    """The time of the last attempt. If it fails, so does the run."""
    probes: int = 0
    """The number of attempts that have failed since the run was parked or a person last asked for one."""
    model: str = ""
    """The model that a person asked for during an attempt. It is used if that attempt fails."""
    by: str = ""
    """The person who last asked for an attempt."""
    insists: bool = False
    """Whether the next attempt is one that a person asked for."""

    def way_out(self, run_id: str) -> str:
        """Tell a person how the run goes on."""
        retry = f"loom retry {shlex.quote(run_id)}"
        now = (
            f"The run tries again by itself. To try now, run `{retry}`."
            if self.on is ParkedOn.PROVIDER
            else f"Correct the cause, then run `{retry}`."
        )
        return f"{now} To go on with another model, run `{retry} --model MODEL`."


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of the run."""

    status: RunStatus
    output: str = ""
    structured: Any = None
    """The answer as a JSON value, if the run has an output schema."""
    explicit: bool = False
    """Whether the run was ended by the `done` tool."""
    is_final: bool = False
    """Whether the output is final, even if it is empty."""
    quality: JsonObject | None = None
    """The ratings of the answer."""
    judged: bool = False
    """Whether the evaluation of the answer has ended, regardless of its success."""
    error: RunError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapUp:
    """The last answer of a run that must end. The model writes it as a summary, without tools."""

    outcome: Outcome
    """The run's outcome after the last answer."""
    turn: int = 0
    """The turn of the last answer, or 0 if this turn has not begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Returning:
    """A step of returning the change to the run's repository. The end of the run waits for it."""

    step: Literal["store", "push"]
    given_up: str = ""
    """Who has ended the wait, and why. Empty while the run waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The capabilities of the server and its workers, recorded when the run was prepared."""

    search_attributes: tuple[str, ...] = ()
    """The search attributes that are registered on the server."""
    ledger: bool = False
    """Whether workers record effects."""
    quick_reads: bool = False
    """Whether quick reads run in the activity that called the model. False if a release before 0.4 prepared the run."""
    execution: str = ""
    """Tells this run apart from others that use the same id."""
    first_execution: str = ""
    """The id of the run's first execution, on the server that the run was moved from. Empty if it wasn't moved."""
    notify: NotifyPlan | None = None
    """Whom the workers tell of what waits for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenCalls:
    """The tool calls of the current turn, and the permissions granted for the rest of the run."""

    open: tuple[OpenCall, ...] = ()
    grants: tuple[str, ...] = ()
    """The allow rules added by approvals for the rest of the run."""
    grant_proofs: tuple[str, ...] = ()
    """The proofs of the approvals that have added allow rules."""
    rules_changed: bool = False
    """Whether rules changed during the model call. If so, the tool calls in the model's answer must be checked again.
    """

    def changed(self, change: Callable[[OpenCall], OpenCall]) -> "OpenCalls":
        """Return the open calls with `change` applied to each call."""
        return replace(self, open=tuple(change(call) for call in self.open))


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The side results of finished tool calls."""

    todos: Todos = field(default_factory=Todos)
    artifacts: tuple[JsonObject, ...] = ()
    """The stored full outputs, in the form used in the run's result."""
    session: str = ""
    """The interpreter that has run the calls of `python`."""
    repetition: Repetition = field(default_factory=Repetition)
    """The recent calls and the number of repeated turns, for loop detection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerDraft:
    """The final answer while it is being produced."""

    partial: str = ""
    """The text of truncated answers that will be continued."""
    nudges: int = 0
    """The number of consecutive reminders without progress."""
    repairs: int = 0
    """The number of answers that did not match the output schema."""
    held: Outcome | None = None
    """A final answer that is held back because of a pause, an unread message, or a pending evaluation."""
    draft: Outcome | None = None
    """The draft that is being critiqued or revised."""
    reflection: Reflection = field(default_factory=Reflection)
    wrap_up: WrapUp | None = None
    """Set if a limit has been reached. The run then ends after one more answer."""

    @property
    def progressed(self) -> "AnswerDraft":
        """Return the draft after a turn that made progress."""
        return replace(self, partial="", nudges=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """The amounts that the run itself has used. The tree contains the amounts used by its sub-agents."""

    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0
    """The cost in millionths of a US dollar. None if the price of any call is unknown."""
    tool_calls: int = 0
    warned: bool = False
    """Whether the model was warned that a limit is close."""

    def charged(self, usage: Usage, cost_micros: int | None) -> "Spending":
        """Return the spending with one more model call added."""
        known = self.cost_micros is not None and cost_micros is not None
        cost = (self.cost_micros or 0) + (cost_micros or 0) if known else None
        return replace(self, usage=self.usage + usage, cost_micros=cost)


@dataclass(frozen=True, kw_only=True, slots=True)
class IncomingParts:
    """The images, recordings and files of messages, until they are stored."""

    unread: tuple[Part, ...] = ()
    """The parts of the messages in the inbox."""
    due: tuple[Part, ...] = ()
    """The parts of messages that are part of the conversation. They must be stored before the next model call."""

    def added(self, parts: tuple[Part, ...]) -> "IncomingParts":
        """Return the parts with those of a message that has arrived in the inbox."""
        return replace(self, unread=(*self.unread, *parts)) if parts else self

    @property
    def read(self) -> "IncomingParts":
        """Return the parts after the inbox has been read."""
        return IncomingParts(due=(*self.due, *self.unread)) if self.unread else self


@dataclass(frozen=True, kw_only=True, slots=True)
class Notices:
    """The notices to publish to the stream."""

    pending: tuple[Notice, ...] = ()
    """Notices that no activity has published."""
    numbered: int = 0
    """The number of notices created so far."""
    not_run: tuple[Notice, ...] = ()
    """Notices of calls that don't run. Earlier releases didn't publish them, so the workflow decides whether to."""

    def added(self, notice: Notice) -> "Notices":
        """Return the notices with one more added. A notice without a key receives a unique number."""
        number = self.numbered + 1
        pending = (*self.pending, replace(notice, key=notice.key or f"n{number}"))
        return replace(self, pending=pending, numbered=number)

    def published(self, count: int) -> "Notices":
        """Return the notices without the first `count`, which have been published."""
        return replace(self, pending=self.pending[count:])


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnState:
    """The number of turns that a run has begun, and their limit."""

    run_id: str
    turn: int
    """The number of turns that have begun."""
    limit: int
    """The maximum number of turns."""

    @classmethod
    def initial(cls, run_id: str, limit: int) -> "TurnState":
        """Return the state before the first turn."""
        return cls(run_id=run_id, turn=0, limit=limit)

    def next(self) -> "TurnState":
        """Return the state with one more turn. A last answer can exceed the limit by one turn."""
        return replace(self, turn=self.turn + 1)

    @property
    def is_final(self) -> bool:
        """Whether no further turn can follow."""
        return self.turn >= self.limit

    @property
    def turn_id(self) -> str | None:
        """The id of the latest turn. None before the first turn."""
        return turn_id(self.run_id, self.turn)

    @property
    def parent_turn_id(self) -> str | None:
        """The id of the turn before the latest turn."""
        return turn_id(self.run_id, self.turn - 1)


def turn_id(run_id: str, turn: int) -> str | None:
    """Return a globally unique turn id, `RUN/tN`. The ids of all tasks in the turn start with this id."""
    return f"{run_id}/t{turn}" if turn > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """The complete state of a run between two events.

    Continue-as-new serializes the state as JSON, so every released field is part of the format. `carried_state` reads
    the formats of earlier releases.
    """

    run_id: str
    request: RunRequest
    began_at: datetime
    phase: Phase = Phase.STARTING
    spec: AgentSpec | None = None
    """Set once the run is prepared."""
    environment: Environment = field(default_factory=Environment)
    hooks_left: tuple[HookPoint, ...] = ()
    """The remaining hooks before the first turn or, once the run has an outcome, after its end."""
    turn: int = 0
    conversation: Conversation = field(default_factory=Conversation)
    window: Window = field(default_factory=Window)
    tries: Tries = field(default_factory=Tries)
    """The attempts at the pending model call."""
    retry_at: datetime | None = None
    """The time of the next attempt at the model call or the tool calls."""
    parked: Parked | None = None
    """Set while the pending model call can't succeed."""
    calls: OpenCalls = field(default_factory=OpenCalls)
    work: Work = field(default_factory=Work)
    answer: AnswerDraft = field(default_factory=AnswerDraft)
    spending: Spending = field(default_factory=Spending)
    tree: Tree = field(default_factory=Tree)
    """The run's parent and children, and the budget share of the run and its descendants."""
    inbox: tuple[Message, ...] = ()
    """Messages that the model has not read. They are added to the conversation when the next turn begins."""
    incoming: IncomingParts = field(default_factory=IncomingParts)
    signature_checks: SignatureChecks = field(default_factory=SignatureChecks)
    """Who may steer the run."""
    admission: Admission = ""
    hold: Hold | None = None
    outcome: Outcome | None = None
    reopening: RetryRequested | None = None
    """A person's request to go on after the end, until it is carried out."""
    retries: int = 0
    """How often the run has gone on after its end."""
    last_answers: int = 0
    """The number of last answers after which the run has gone on. They don't count as turns."""
    notices: Notices = field(default_factory=Notices)
    chat: Chat | None = None
    """The messages that the run answers, if its request asks for a chat."""
    announced: tuple[str, ...] = ()
    """The keys of the notifications about what waits for people now."""
    checkout: Checkout | None = None
    """The clone that the run works in, if its request or that of a run above names a repository."""
    change: ReturnedChange | None = None
    """What has become of the change to the repository, once the run has ended."""
    returning: Returning | None = None
    """Set while the end of the run waits until the change is returned."""

    @staticmethod
    def upgraded(carried: Mapping[str, Any]) -> JsonObject:
        """Return the JSON of a carried state in the current format, regardless of the release that wrote it."""
        return upgraded(carried)

    @property
    def agent(self) -> AgentSpec:
        """The pinned agent spec of a prepared run."""
        if self.spec is None:
            raise ValueError("the run is not prepared yet")
        return self.spec

    @property
    def transcript(self) -> Transcript:
        """The messages in the current window."""
        return self.conversation.transcript

    @property
    def max_turns(self) -> int:
        """The maximum number of turns."""
        default = self.spec.max_turns if self.spec else DEFAULT_MAX_TURNS
        return self.request.max_turns or default

    @property
    def priority(self) -> int | None:
        """The priority of the run's activities and sub-agents. A request's priority overrides the agent's."""
        lineage = self.tree.lineage
        inherited = lineage.priority if lineage else None
        return self.request.priority or (self.spec.priority if self.spec else inherited)

    @property
    def turn_state(self) -> TurnState:
        """The run's turn state."""
        earlier = self.last_answers + (self.chat.before.turns if self.chat else 0)
        return TurnState(run_id=self.run_id, turn=self.turn, limit=self.max_turns + earlier)

    @property
    def turns(self) -> int:
        """The number of turns taken. The last answer of a run that has reached a limit does not count."""
        wrap_up = self.answer.wrap_up
        return self.turn - self.last_answers - (wrap_up is not None and wrap_up.turn == self.turn)

    @property
    def is_answer(self) -> bool:
        """Whether the outcome is only the answer to a chat's message, so that the run goes on."""
        if self.chat is None or self.outcome is None or self.phase is Phase.STARTING:
            return False
        error = self.outcome.error
        return self.outcome.status is not RunStatus.ABORTED or (error is not None and error.type == INTERRUPTED)

    @property
    def asks(self) -> tuple[OpenCall, ...]:
        """The calls that are waiting for a person."""
        return tuple(call for call in self.calls.open if call.awaits_person) if self.calls.open else ()

    @property
    def asks_below(self) -> tuple[TreeAsk, ...]:
        """The sub-agents' calls that are waiting for a person."""
        return self.tree.asks if self.tree.children else ()

    @property
    def question(self) -> OpenCall | None:
        """The question that the run is currently asking a person. All earlier calls of the turn are complete."""
        if self.phase is not Phase.ACTING or self.asks:
            return None
        waiting = next((call for call in self.calls.open if call.result is None), None)
        if waiting is None or waiting.stale:
            return None
        return waiting if waiting.call.name == ASK_USER else None


def noticed(state: RunState, notice: Notice) -> RunState:
    """Return the run with this notice added. A notice without a key receives a unique number."""
    return replace(state, notices=state.notices.added(notice))


def with_not_run_told(state: RunState, *, told: bool) -> RunState:
    """Return the run with the notices of calls that don't run pending, or without them if they aren't to be told."""
    calls = state.notices.not_run
    state = replace(state, notices=replace(state.notices, not_run=()))
    return reduce(noticed, calls, state) if told else state


def note(
    state: RunState, action: Action, at: datetime, *, target_agent: str | None = None, **parameters: Any
) -> RunState:
    """Return the run with one more notice for the stream. Empty parameters are omitted."""
    said = {name: value for name, value in parameters.items() if value not in ("", None)}
    return noticed(state, Notice(action=action, key="", at=at, target_agent=target_agent, parameters=said))


def with_calls(state: RunState, change: Callable[[OpenCall], OpenCall]) -> RunState:
    """Return the run with `change` applied to each open call."""
    return replace(state, calls=state.calls.changed(change))


def ended(state: RunState, outcome: Outcome) -> RunState:
    """Return the run with this outcome. If the run already has an outcome, the existing one is kept."""
    return state if state.outcome is not None else replace(state, outcome=outcome)


def question_of(call: OpenCall) -> str:
    """Return the question in a call to `ask_user`."""
    return str(call.call.arguments.get("question", "")).strip()


def status_of(state: RunState) -> RunStatus:
    """Return the run's status in the public contract."""
    if state.outcome is not None and not state.is_answer:
        return state.outcome.status
    if state.hold is not None:
        return RunStatus.PAUSED
    if state.asks or state.asks_below:
        return RunStatus.WAITING_FOR_APPROVAL
    is_waiting = state.question or (state.chat is not None and state.chat.is_waiting)
    return RunStatus.WAITING_FOR_INPUT if is_waiting else RunStatus.RUNNING


def waiting_on(state: RunState) -> str | None:
    """Describe briefly what the run is waiting for, or return None."""
    if state.outcome is not None:
        return _waiting_on_return(state)
    if state.hold is not None:
        return "resume"
    if state.asks or state.asks_below:
        counted = Counter(f"{ask.tool} of sub-agent {ask.agent}" for ask in state.asks_below)
        below = (what if number == 1 else f"{what} ({number} times)" for what, number in counted.items())
        return "approval: " + "; ".join((*(describe(open_call.call) for open_call in state.asks), *below))
    if state.question is not None or (state.chat is not None and state.chat.is_waiting):
        return f"answer: {question_of(state.question)}" if state.question else "message"
    if state.phase is Phase.THINKING:
        return _waiting_on_model(state)
    if state.phase is Phase.EVALUATING:
        return "evaluation"
    if state.tree.children and state.tree.running:
        return "sub-agents: " + "; ".join(f"{child.agent}: {child.description}" for child in state.tree.running)
    running = [describe(open_call.call) for open_call in state.calls.open if open_call.result is None]
    return "tools: " + "; ".join(running) if running else _turn_of_tenant(state)


def _waiting_on_return(state: RunState) -> str | None:
    workspace = state.request.workspace
    if state.returning is None or not isinstance(workspace, Repository):
        return None
    if state.returning.step == "store" or not isinstance(workspace, GitWorkspace):
        return "its change to be stored (`loom abort` ends the wait)"
    return f"its change to be pushed to {workspace.branch(state.run_id)} (`loom abort` ends the wait)"


def _turn_of_tenant(state: RunState) -> str | None:
    return f"other runs of tenant {state.request.tenant}" if state.admission == "waiting" else None


def _waiting_on_model(state: RunState) -> str:
    if state.parked is not None:
        return state.parked.on
    what = "compression" if state.window.due else "model"
    return what if state.retry_at is None else f"{what}, next try at {state.retry_at.isoformat()}"


def expires_at(state: RunState, call: OpenCall) -> datetime | None:
    """Return the time at which an ask counts as denied.

    An ask doesn't expire while the run is paused. Its timeout restarts when the run resumes.
    """
    if call.asked_at is None or state.hold is not None:
        return None
    return call.asked_at + timedelta(seconds=state.agent.approval_timeout)


def result_of(state: RunState, outcome: Outcome) -> RunResult:
    """Return the result of a run that ends with `outcome`."""
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
        error=_with_unread(_with_way_out(outcome, state), state),
        retries=state.retries,
        workspace=workspace_view(state.checkout, state.change),
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


def _with_way_out(outcome: Outcome, state: RunState) -> RunError | None:
    """Return the error. If the run has reached a limit that can be increased, what to do is added to it."""
    error = outcome.error
    if error is None or outcome.status not in (RunStatus.LIMIT_REACHED, RunStatus.BUDGET_EXHAUSTED):
        return error
    match error.context.get("limit"):
        case "max_turns":
            name, option, otherwise = "max_turns", "--max-turns N", ", or split the task"
        case "tokens" | "cost_usd" | "tool_calls" | "seconds" as limit:
            name, option, otherwise = "budget", f"--budget '{{\"{limit}\": N}}'", ""
        case _:
            return error
    is_retryable = state.tree.lineage is None  # a parent has gone on without its child
    retry = f"Continue with `loom retry {shlex.quote(state.run_id)} {option}`"
    way_out = retry if is_retryable else f"Start again with a larger {name}"
    return replace(error, message=f"{error.message} {way_out}{otherwise}.")


def _with_unread(error: RunError | None, state: RunState) -> RunError | None:
    """Return the error. The messages that people sent but the model never received are added to it."""
    unread = [message.text for message in state.inbox if is_from_person(message)]
    if state.chat is not None:
        unread += [message.text for message in state.chat.queue]
    if error is None or not unread:
        return error
    told = f"{error.message} Not read: {len(unread)} message{'s' * (len(unread) != 1)} sent to the run."
    return replace(error, message=told, context={**error.context, "unread": unread})


def with_end_notice(state: RunState, result: RunResult, at: datetime) -> RunState:
    """Return the run with the notice that ends its stream."""
    action = Action.ERROR if result.status is RunStatus.FAILED else Action.COMPLETE
    notice = Notice(action=action, key=result.end_key, at=at, status=result.status, result=asdict(result))
    return replace(state, notices=replace(state.notices, pending=(*state.notices.pending, notice)))


def total_usage(state: RunState) -> Usage:
    """Return the token usage of the run and its descendants."""
    own = state.spending.usage
    return own + state.tree.usage if state.tree.children else own


def total_micros(state: RunState) -> int | None:
    """Return the cost of the run and its descendants in millionths of a US dollar. None if any price is unknown."""
    below = state.tree.cost_micros if state.tree.children else 0
    return None if state.spending.cost_micros is None or below is None else state.spending.cost_micros + below


def total_tool_calls(state: RunState) -> int:
    """Return the number of tool calls of the run and its descendants."""
    return state.spending.tool_calls + sum(child.tool_calls for child in state.tree.children)


def cost_of(state: RunState) -> float | None:
    """Return the cost of the run and its descendants in US dollars."""
    micros = total_micros(state)
    return None if micros is None else micros / 1_000_000
