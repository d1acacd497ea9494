"""What-ifs: the decisions and calls that differ if a recorded run has other rules, another model or another prompt."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.tool_calls import PreparedCall
from loom.domain.history.diffs import Side, TurnSeen, paired
from loom.domain.history.past_turns import PastTurn

INTERCEPTOR: Final = "recorded-answers"
"""The interceptor that answers the calls of a what-if run from the recorded run."""
NOT_RECORDED: Final = "this call was not made in the recorded run, so its result is unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedDecision:
    """A decision about a tool call, and everything that it was based on."""

    turn: int
    call: ToolCall
    plan: PreparedCall
    spec: AgentSpec
    grants: tuple[str, ...]
    """The allow rules that a person had granted for the run."""


def decisions_of(turns: Iterable[PastTurn]) -> Iterator[RecordedDecision]:
    """Yield the decisions in these turns. There are none about calls that couldn't run for another reason, such as
    wrong arguments, and about the assignments of crews.
    """
    for turn in turns:
        for past in turn.calls:
            reply = past.attempt.reply
            if past.spec is None or past.spec.crew is not None or reply is None or reply.message is None:
                continue
            for call, plan in zip(reply.message.tool_calls, reply.plans, strict=True):
                if not plan.error:
                    grants = past.attempt.request.grants
                    yield RecordedDecision(turn=turn.number, call=call, plan=plan, spec=past.spec, grants=grants)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedAnswer:
    """A tool call of a recorded run, and what the model read as its result."""

    tool: str
    arguments: JsonObject
    content: str


def answers_of(turns: Iterable[PastTurn]) -> Iterator[RecordedAnswer]:
    """Yield the calls that have a result, in the order in which the model made them."""
    for turn in turns:
        known = {child.call_id: child.answer.content for child in turn.children}
        known |= {each.call.id: each.content for each in turn.not_run}
        known |= {
            each.request.call_id: each.result.content for each in turn.tools if each.result and each.result.is_final
        }
        for call in turn.answer.tool_calls if turn.answer else ():
            if call.id in known and call.malformed is None:
                yield RecordedAnswer(tool=call.name, arguments=call.arguments, content=known[call.id])


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """A recorded run beside the same run with another model or prompt."""

    run_id: str
    new_run_id: str
    status: str
    error: str
    parting: tuple[TurnSeen | None, TurnSeen | None] | None
    """The first turn with other calls: the recorded one and the new one. None if all calls are the same."""
    answered: int
    """The number of the new run's calls that recorded results answered."""
    not_recorded: int
    """The number of the new run's calls that aren't in the recorded run. Loom didn't run them."""
    outputs: tuple[str, str]
    """The recorded answer and the new one."""
    costs: tuple[float | None, float | None]


def parting_of(recorded: Sequence[PastTurn], new: Sequence[PastTurn]) -> tuple[TurnSeen | None, TurnSeen | None] | None:
    """Return the first pair of turns with different calls, or None if all calls are the same."""
    pairs = paired(Side(run_id="", turns=recorded), Side(run_id="", turns=new))
    return next(((pair.a, pair.b) for pair in pairs if _calls(pair.a) != _calls(pair.b)), None)


def answered_in(turns: Iterable[PastTurn]) -> tuple[int, int]:
    """Return how many calls of a what-if run were answered from the recorded run, and how many weren't recorded."""
    plans = [each.plan for each in decisions_of(turns) if each.plan.interceptor == INTERCEPTOR]
    return sum(plan.answer is not None for plan in plans), sum(bool(plan.stopped) for plan in plans)


def _calls(turn: TurnSeen | None) -> tuple[str, ...]:
    return () if turn is None else turn.calls
