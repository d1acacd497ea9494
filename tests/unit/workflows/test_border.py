"""Whatever callers send is read whole or refused with the field's name. No server, no workflow."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import Budget, RunRequest
from loom.domain.permissions.judge import Mode
from loom.domain.run.events import (
    AbortRequested,
    Approved,
    Denied,
    MessageReceived,
    PauseRequested,
    PermissionsSet,
    ResumeRequested,
    SteeringEvent,
)
from loom.workflows.payload_converter import Undecodable
from loom.workflows.validation import STEERING, STOPS, read_request, read_steering, read_stop
from tests.unit.domain.story import AT


def refused(payload: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read_request(payload)
    return caught.value


# ---- the input of a run ----------------------------------------------------------------------------------------


def test_a_task_is_all_that_a_run_needs() -> None:
    assert read_request({"task": " Do it.\n"}) == RunRequest(task="Do it.")


def test_every_field_of_the_contract_is_read() -> None:
    payload = {
        "task": "Do it.",
        "agent": "coder",
        "session_id": "s-1",
        "model": "openai:gpt",
        "workspace": "/tmp",
        "permissions": {"bash": "ask", "bash(git diff:*)": "allow", "default": "deny"},
        "mode": "read-only",
        "max_turns": 7,
        "budget": {"tokens": 1000, "cost_usd": 0.5, "tool_calls": 9, "seconds": 60},
        "require_done_tool": True,
        "output_schema": {"type": "object"},
        "metadata": {"ticket": [1, None]},
    }
    assert read_request(payload) == RunRequest(
        task="Do it.",
        agent="coder",
        session_id="s-1",
        model="openai:gpt",
        workspace="/tmp",
        permissions={"bash": "ask", "bash(git diff:*)": "allow", "default": "deny"},
        mode=Mode.READ_ONLY,
        max_turns=7,
        budget=Budget(tokens=1000, cost_usd=0.5, tool_calls=9, seconds=60),
        require_done_tool=True,
        output_schema={"type": "object"},
        metadata={"ticket": [1, None]},
    )


def test_null_means_left_out() -> None:
    fields = ("agent", "session_id", "model", "workspace", "permissions", "max_turns", "budget", "metadata")
    assert read_request({"task": "Do it.", **dict.fromkeys(fields)}) == RunRequest(task="Do it.")


@pytest.mark.parametrize(
    "budget",
    [
        {"tokens": 5, "cost_usd": 0.5, "tool_calls": 6, "seconds": 7},
        {"max_tokens": 5, "max_cost_usd": 0.5, "max_tool_calls": 6, "max_seconds": 7},
        {"tokens": 5, "cost": 0.5, "tool_calls": 6, "wall_time": 7},
        {"tokens": 5, "max_cost": 0.5, "tool_calls": 6, "wall_time": 7.0},
    ],
)
def test_a_budget_may_use_the_names_that_people_try_first(budget: dict[str, float]) -> None:
    expected = Budget(tokens=5, cost_usd=0.5, tool_calls=6, seconds=7)
    assert read_request({"task": "Do it.", "budget": budget}).budget == expected


@pytest.mark.parametrize("payload", [["Do it."], "Do it.", 7, 1.5, True, b"x"])
def test_an_input_that_is_no_object_is_refused(payload: object) -> None:
    assert refused(payload).message == f"the run's input must be a JSON object, not {type(payload).__name__}"


def test_no_input_says_what_is_needed() -> None:
    error = refused(None)
    assert (error.message, error.context) == ('no input: a run needs at least {"task": "…"}', {"field": "task"})


@pytest.mark.parametrize(
    ("given_fields", "field", "says"),
    [
        ({}, "task", "task is missing"),
        ({"task": None}, "task", "task is missing"),
        ({"task": "  "}, "task", "task must not be empty"),
        ({"task": 5}, "task", "task must be text"),
        ({"task": "x", "z" * 3000: 5}, "z" * 200 + "…", f"unknown field '{'z' * 200}…'; known: agent, "),
        ({"task": "x", "max_turn": 5}, "max_turn", "unknown field 'max_turn', did you mean 'max_turns'?"),
        ({"task": "x", "taks": None}, "taks", "unknown field 'taks', did you mean 'task'?"),
        ({"task": "x", "zzz": 5}, "zzz", "unknown field 'zzz'; known: agent, budget, chat, forked_from, max_turns, "),
        ({"task": "x", "max_turns": 0}, "max_turns", "max_turns must be at least 1"),
        ({"task": "x", "max_turns": "many"}, "max_turns", "max_turns must be a whole number"),
        ({"task": "x", "max_turns": 1.5}, "max_turns", "max_turns must be a whole number"),
        ({"task": "x", "permissions": ["bash"]}, "permissions", "permissions must be an object"),
        ({"task": "x", "permissions": {"bash": True}}, "permissions.bash", "permissions.bash must be text"),
        ({"task": "x", "permissions": {"bash": "maybe"}}, "permissions", "it must be allow, ask or deny"),
        ({"task": "x", "permissions": {"bash(": "ask"}}, "permissions", "'bash(' is not `tool` or `tool(pattern)`"),
        ({"task": "x", "mode": "yolo"}, "mode", "mode must be one of default, read-only, "),
        ({"task": "x", "budget": 5}, "budget", "budget must be an object"),
        ({"task": "x", "budget": {"tokens": 0}}, "budget.tokens", "budget.tokens must be more than 0"),
        ({"task": "x", "budget": {"seconds": float("inf")}}, "budget.seconds", "must be a finite number"),
        ({"task": "x", "budget": {"tokns": 5}}, "budget.tokns", "'budget.tokns', did you mean 'budget.tokens'?"),
        ({"task": "x", "workspace": 5}, "workspace", "workspace must be a path, or an object with `git` or `archive`"),
        ({"task": "x", "workspace": {"archive": {}}}, "workspace.archive", "set exactly one of `data` (base64)"),
        (
            {"task": "x", "workspace": {"archive": {"data": "x", "digest": "0" * 64}}},
            "workspace.archive",
            "set exactly one of `data` (base64) and `digest`",
        ),
        ({"task": "x", "workspace": {"archive": {"digest": "x"}}}, "workspace.archive.digest", "archive.digest"),
        (
            {"task": "x", "workspace": {"archive": {"dat": "x"}}},
            "workspace.archive.dat",
            "did you mean 'workspace.archive.data'",
        ),
        (
            {"task": "x", "workspace": {"archive": {"data": "x"}, "push": "fix"}},
            "workspace.push",
            "unknown field 'workspace.push'; known: archive",
        ),
        (
            {"task": "x", "workspace": {"archive": {"data": "x"}, "git": "https://git.example/app"}},
            "workspace.git",
            "unknown field 'workspace.git'; known: archive",
        ),
        ({"task": "x", "workspace": {}}, "workspace.git", "workspace.git is missing"),
        ({"task": "x", "output_schema": "text"}, "output_schema", "output_schema must be an object"),
        ({"task": "x", "forked_from": {"run_id": "r"}}, "forked_from.turn", "forked_from.turn is missing"),
        ({"task": "x", "forked_from": {"run_id": "r", "turn": -1}}, "forked_from.turn", "must be at least 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_explained(given_fields: dict[str, Any], field: str, says: str) -> None:
    error = refused(given_fields)
    assert error.context == {"field": field}
    assert says in error.message


def test_everything_that_is_wrong_is_said_at_once() -> None:
    assert refused({"max_turns": 0, "agnt": "x"}).message == (
        "the run's input is wrong: task is missing; max_turns must be at least 1;"
        " unknown field 'agnt', did you mean 'agent'?"
    )


# ---- signals and updates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "payload", "event"),
    [
        ("abort", None, AbortRequested(at=AT)),
        ("abort", {"reason": "enough", "by": "ann"}, AbortRequested(reason="enough", by="ann", at=AT)),
        ("pause", {}, PauseRequested(at=AT)),
        ("resume", {"by": "ann"}, ResumeRequested(by="ann", at=AT)),
        ("approve", None, Approved(at=AT)),
        (
            "approve",
            {"call_id": "a", "scope": "run", "arguments": {"x": [1]}, "digest": "d", "by": "ann"},
            Approved(call_id="a", scope="run", arguments={"x": [1]}, digest="d", by="ann", at=AT),
        ),
        ("approve", {"call_id": None, "scope": None, "by": None}, Approved(at=AT)),
        ("deny", {"call_id": "a", "reason": "no", "by": "ann"}, Denied(call_id="a", reason="no", by="ann", at=AT)),
        ("send_message", {"text": " use blue "}, MessageReceived(text="use blue", at=AT)),
        ("set_permissions", {"rules": {"bash": "deny"}}, PermissionsSet(rules={"bash": "deny"}, at=AT)),
    ],
)
def test_a_payload_becomes_its_event(name: str, payload: object, event: object) -> None:
    assert read_steering(name, payload, AT) == event


@pytest.mark.parametrize(
    ("name", "payload", "says"),
    [
        ("approve", "a", "the payload of `approve` must be a JSON object, not str"),
        ("approve", ["a"], "must be a JSON object, not list"),
        ("approve", 7, "must be a JSON object, not int"),
        ("approve", {"call": "a"}, "unknown field 'call', did you mean 'call_id'?"),
        ("approve", {"call_id": 5}, "call_id must be text"),
        ("approve", {"scope": "forever"}, "scope must be one of once, run"),
        ("approve", {"arguments": ["ls"]}, "arguments must be an object"),
        ("deny", {"why": "no"}, "unknown field 'why'"),
        ("send_message", None, "text is missing"),
        ("send_message", {"text": " "}, "text must not be empty"),
        ("set_permissions", {"rules": {}}, "rules must not be empty"),
        ("set_permissions", {"rules": "bash"}, "rules must be an object"),
    ],
)
def test_a_malformed_payload_is_refused_with_its_field(name: str, payload: object, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_steering(name, payload, AT)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("payload", "reason", "by"),
    [
        ({"reason": 5}, "5", ""),
        ({"reason": "enough", "x": 1, "by": ["ann", None]}, "enough", '["ann",null]'),
        ({"reason": {"why": "ä"}}, '{"why":"ä"}', ""),
        ("enough", "enough", ""),
        (["now", 1], '["now",1]', ""),
        (True, "true", ""),
        (b"\xff", "\"b'\\\\xff'\"", ""),
        (Undecodable(reason="no JSON"), "", ""),
        (["x" * 1000], f'["{"x" * 498}', ""),
    ],
)
def test_an_order_to_stop_is_read_as_far_as_it_can_be(payload: object, reason: str, by: str) -> None:
    assert read_stop("abort", payload, AT) == AbortRequested(reason=reason, by=by, at=AT)
    assert read_stop("pause", payload, AT) == PauseRequested(by=by, at=AT)


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS: Final = st.sampled_from(
    ["task", "agent", "permissions", "budget", "max_turns", "metadata", "mode", "call_id", "text", "rules", "arguments"]
)


@given(JSON | st.dictionaries(FIELDS, JSON, max_size=4))
def test_whatever_comes_is_read_or_refused_with_a_reason(payload: object) -> None:
    assert isinstance(_read(lambda: read_request(payload)), RunRequest | str)
    for name in STOPS:
        assert isinstance(read_stop(name, payload, AT), AbortRequested | PauseRequested)
    for name in STEERING:
        assert isinstance(_read(partial(read_steering, name, payload, AT)), SteeringEvent | str)


def _read(read: Callable[[], object]) -> object:
    """What was read, or the reason why not."""
    try:
        return read()
    except BadRequest as error:
        return error.message or None  # a refusal without a reason is none
