"""A state that an earlier release carried on becomes today's."""

import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import ValidationError

from loom.domain.agents.reflection import Reflection
from loom.domain.core.messages import TranscriptRef, user
from loom.domain.core.requests import RunStatus
from loom.domain.machine.transitions import next_action
from loom.domain.run.actions import BeginTurn
from loom.domain.run.carried_state import upgraded
from loom.domain.run.state import Notices, Phase, RunState
from loom.domain.tree.budget import BudgetRequest, Spend
from loom.domain.tree.tree import TreeSignal
from loom.workflows.payload_converter import data_converter
from loom.workflows.validation import read_state
from tests.unit.domain.story import AT, BEGAN, READS, call, told, wants

HISTORIES: Final = Path(__file__).parents[2] / "replay" / "histories"
CONVERTER: Final = data_converter().payload_converter


def carried(name: str) -> dict[str, Any]:
    """What a recorded execution was started with by the one before it."""
    history = json.loads((HISTORIES / f"{name}.json").read_text())
    started = history["events"][0]["workflowExecutionStartedEventAttributes"]
    state: dict[str, Any] = json.loads(b64decode(started["input"]["payloads"][1]["data"]))
    return state


@pytest.mark.parametrize("release", ["0.1.0", "0.2.0", "0.3.0"])
def test_a_run_of_an_earlier_release_goes_on_where_it_stood(release: str) -> None:
    old = carried(f"{release}-rotated-2")
    state = read_state(old)

    assert (state.run_id, state.phase, state.turn) == (old["run_id"], Phase(old["phase"]), old["turn"])
    assert state.began_at.isoformat() == old["started_at"].replace("Z", "+00:00")
    assert len(state.transcript.messages) == len(old["transcript"]["messages"])
    assert state.transcript.digest == old["transcript"]["digest"]
    assert state.conversation.known == TranscriptRef(**old["known"])
    assert state.conversation.spec_digest == old["spec_digest"]
    assert state.environment.search_attributes == tuple(old["search_attributes"])
    assert state.environment.ledger is old.get("ledger", False)
    assert state.spending.tool_calls == old["tool_calls"]
    assert state.spending.usage.input_tokens == old["usage"]["input_tokens"]
    assert [c.call.id for c in state.calls.open] == [c["call"]["id"] for c in old["calls"]]
    assert type(next_action(state)) is not BeginTurn


FLAT: Final[dict[str, Any]] = {
    "run_id": "run-1",
    "request": {"task": "Do it."},
    "started_at": "2026-01-02T03:04:05Z",
    "phase": "acting",
    "turn": 3,
    "hooks_left": [{"moment": "before", "name": "h"}],
    "tries": {"failed": 1},
    "retry_at": "2026-01-02T03:04:05Z",
    "produced": ["c1"],
    "send_spec": True,
    "window": {"tokens": 7, "due": {"trigger": "window", "tokens": 9}},
    "inbox": [{"role": "user", "content": "Wait."}],
    "grants": ["bash(ls)"],
    "partial": "half",
    "answer": {"status": "completed", "output": "held"},
    "nudges": 1,
    "repairs": 2,
    "repetition": {"turns": 2},
    "reflection": {"stage": "critique", "round": 1},
    "draft": {"status": "completed", "output": "draft"},
    "warned": True,
    "cost_micros": None,
    "todos": {"items": [{"task": "read"}], "turn": 1},
    "artifacts": [{"id": "a"}],
    "tree": {
        "children": [{"run_id": "run-1/d1", "call_id": "c", "agent": "a", "description": "d", "untold": True,
                      "told_end": True, "held": True}],
        "letters": [{"to": "run-1/d1", "signal": "abort", "payload": {"by": "x"}}],
        "kept": {"tokens": 5},
        "wants": [{"run_id": "run-1", "number": 1, "need": {"tokens": 2}}],
        "asking": {"run_id": "run-1", "number": 1, "need": {"tokens": 2}},
        "asked": 1,
        "reported": "abc",
    },
    "hold": {"by": "kim", "at": "2026-01-02T03:04:05Z"},
    "wrap_up": {"outcome": {"status": "budget_exhausted"}, "turn": 3},
    "rules_changed": True,
    "notices": [{"action": "node.paused", "key": "n4", "at": "2026-01-02T03:04:05Z"}],
    "noticed": 4,
}  # fmt: skip
"""Every field that 0.3 carried on and the recorded histories do not have."""


def test_every_field_of_the_flat_state_finds_its_place() -> None:
    state = read_state(FLAT)
    answer, tree = state.answer, state.tree
    assert answer.held is not None
    assert answer.draft is not None
    assert answer.wrap_up is not None
    assert state.window.due is not None
    assert (state.phase, state.turn, state.retry_at, state.began_at) == (Phase.ACTING, 3, AT, AT)
    assert (state.tries.failed, state.window.due.tokens, state.hooks_left[0].name) == (1, 9, "h")
    assert (state.conversation.produced, state.conversation.send_spec) == (frozenset({"c1"}), True)
    assert (state.calls.grants, state.calls.rules_changed) == (("bash(ls)",), True)
    assert (answer.partial, answer.held.output, answer.draft.output) == ("half", "held", "draft")
    assert (answer.nudges, answer.repairs, answer.reflection) == (1, 2, Reflection(stage="critique", round=1))
    assert (answer.wrap_up.turn, answer.wrap_up.outcome.status) == (3, RunStatus.BUDGET_EXHAUSTED)
    assert (state.work.repetition.turns, state.work.todos.items[0].task, state.work.artifacts) == (
        2,
        "read",
        ({"id": "a"},),
    )
    assert (state.spending.warned, state.spending.cost_micros) == (True, None)
    assert state.inbox == (user("Wait."),)
    assert (state.notices.numbered, [notice.key for notice in state.notices.pending]) == (4, ["n4"])
    assert state.hold is not None
    request = BudgetRequest(run_id="run-1", number=1, need=Spend(tokens=2))
    assert (tree.requests, tree.asking, tree.asked, tree.reserve) == ((request,), request, 1, Spend(tokens=5))
    assert tree.unsent == (TreeSignal(to="run-1/d1", signal="abort", payload={"by": "x"}),)
    assert (tree.children[0].spend_unknown, tree.children[0].end_sent, tree.children[0].held) == (True, True, True)
    assert tree.reported == "abc"


def test_what_this_release_writes_is_read_as_it_is() -> None:
    state = told(BEGAN, wants((call("a"), READS)))
    (payload,) = CONVERTER.to_payloads([state])
    written = json.loads(payload.data)
    assert upgraded(written) == written
    assert read_state(written) == state
    assert CONVERTER.from_payloads([payload], [RunState]) == [state]


def test_whoever_decodes_a_history_reads_the_flat_state_too() -> None:
    (payload,) = CONVERTER.to_payloads([FLAT])
    assert CONVERTER.from_payloads([payload], [RunState]) == [read_state(FLAT)]


def test_a_release_never_continues_a_run_from_a_form_that_it_does_not_know() -> None:
    state = replace(told(BEGAN), notices=Notices())
    (payload,) = CONVERTER.to_payloads([state])
    later = {("begun_at" if name == "began_at" else name): value for name, value in json.loads(payload.data).items()}
    with pytest.raises(ValidationError):
        read_state(later)
    assert "started_at" not in json.loads(payload.data), "0.3 requires it, so its workers refuse this form"
