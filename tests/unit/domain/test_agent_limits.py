"""What one agent says about its own limits: where each value comes from, and what it changes in the domain."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from loom.app.forms.agent import Section, complaints, read_agent
from loom.domain.agents.definitions import AgentDefinition, spec_of
from loom.domain.agents.inheritance import with_inherited
from loom.domain.agents.spec import AgentSpec, KnowledgeLimit
from loom.domain.context.summary_sections import SECTIONS, question
from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeHit, is_relevant

WORKER = AgentSpec(name="default", model="demo", compress_at=0.9, loop_window=5, tool_attempts=2)
FIELDS: dict[str, Any] = {
    "compression": {"threshold": 0.6, "keep_turns": 3, "sections": ["open_issues"]},
    "loop_window": 0,
    "parallel_limit": 2,
    "tool_timeout": 30,
    "tool_timeouts": {"bash": 600, "mcp__time": 5},
    "tool_attempts": 4,
    "model_timeout": 9,
    "knowledge": ["handbook", {"base": "papers", "number": 2, "floor": 0.5}],
    "priority": 1,
}


def agent(name: str = "a", **fields: Any) -> AgentDefinition:
    return read_agent(fields, name=name, origin="test")


def test_the_agent_overrides_the_worker_s_settings() -> None:
    spec = spec_of(agent(**FIELDS), WORKER)
    assert (spec.compress_at, spec.keep_turns, spec.sections) == (0.6, 3, ("open_issues",))
    assert (spec.loop_window, spec.parallel_limit, spec.tool_attempts, spec.priority) == (0, 2, 4, 1)
    assert spec.model_timeout == 9
    assert spec.knowledge == ("handbook", "papers")
    assert spec.knowledge_limits == {"papers": KnowledgeLimit(number=2, floor=0.5)}
    assert [spec.timeout_of(tool) for tool in ("bash", "mcp__time__now", "grep")] == [600, 5, 30]


def test_what_an_agent_leaves_out_comes_from_the_settings() -> None:
    assert spec_of(agent(), WORKER) == replace(WORKER, name="a")


def test_an_agent_inherits_each_limit_by_itself() -> None:
    child = agent("b", extends="a", compression={"threshold": 0.7}, tool_timeouts={"bash": 1}, knowledge=["other"])
    spec = spec_of(with_inherited({"a": agent(**FIELDS), "b": child})["b"], WORKER)
    assert (spec.compress_at, spec.keep_turns, spec.loop_window, spec.priority) == (0.7, 3, 0, 1)
    assert spec.tool_timeouts == {"bash": 1, "mcp__time": 5}
    assert (spec.knowledge, spec.knowledge_limits) == (("other",), {})


def test_specs_without_the_new_fields_keep_their_digest() -> None:
    assert AgentSpec(name="a", model="demo").digest == replace(AgentSpec(name="a", model="demo"), priority=None).digest
    assert AgentSpec(name="a", model="demo").digest != AgentSpec(name="a", model="demo", priority=1).digest


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"parallel_limit": 501}, "parallel_limit 501 must be at most 500"),
        ({"loop_window": 101}, "loop_window 101 must be at most 100"),
        ({"model_timeout": 4000}, "model_timeout 4000 must be at most 3600"),
        ({"tool_timeout": 0}, "tool_timeout 0 must be more than 0"),
        ({"tool_attempts": 21}, "tool_attempts 21 must be at most 20"),
        ({"priority": 6}, "priority 6 must be at most 5"),
        ({"compression": {"threshold": 2}}, "compression.threshold 2 must be at most 1"),
        ({"compression": {"keep_turn": 2}}, "there is no field compression.keep_turn: did you mean keep_turns?"),
        ({"compression": {"sections": ["x"]}}, "compression.sections.0 'x' must be one of background_context"),
        ({"compression": {"threshold": 0.5, "warn_at": 0.6}}, "compression.warn_at 0.6 must be below"),
        ({"knowledge": [{"base": "a", "number": 51}]}, "knowledge.0.number 51 must be at most 50"),
        ({"knowledge": [{"base": "a", "flor": 1}]}, "there is no field knowledge.0.flor: did you mean floor?"),
        ({"knowledge": ["a", {"base": "a"}]}, "knowledge: 'a' occurs twice"),
    ],
)
def test_a_value_that_cannot_be_honoured_is_refused(fields: dict[str, Any], says: str) -> None:
    (problem,) = complaints(fields, where="a.yaml")
    assert problem.startswith("a.yaml: ")
    assert says in problem


def test_the_form_knows_all_sections_of_a_summary() -> None:
    assert get_args(Section) == tuple(SECTIONS)
    asked = question((), earlier="", room=100, section_tokens=50, names=("open_issues",))
    assert ("<open_issues>" in asked, "<future_plans>" in asked) == (True, False)


def test_a_floor_counts_in_the_place_of_the_usual_rules() -> None:
    chunk = Chunk(text="x", headings=(), first_line=1, last_line=1)
    hit = KnowledgeHit(base="b", path="p", chunk=chunk, score=1.0, similarity=0.3, covered=0.6)
    assert [is_relevant(hit, 0.9, floor) for floor in (None, 0.6, 0.7)] == [True, True, False]
