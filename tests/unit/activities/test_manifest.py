"""What a run is pinned to, and what of it a worker has otherwise."""

from dataclasses import replace
from typing import Any

import pytest

from loom.activities.manifest import agent_digest, changes, manifest_of, met_by, own_parts
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.hook_steps import HookPoint, Moment
from loom.domain.agents.spec import AgentConfig, AgentSpec
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.permissions.judge import Mode

SPEC = AgentSpec(name="a", model="demo", permissions={"bash": "ask"})


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({}, ()),
        ({"system_prompt": "Be kind."}, ("prompt",)),
        ({"model": "openai:x", "temperature": 0.5}, ("model",)),
        ({"permissions": {"bash": "allow"}}, ("permissions",)),
        ({"mode": Mode.BYPASS, "config": AgentConfig(enabled_skills=("x",))}, ("permissions", "skills")),
        ({"hooks": (HookPoint(moment=Moment.START, name="h"),)}, ("hooks",)),
        ({"rules": "another release's", "workspace": "/elsewhere", "max_turns": 3}, ()),
    ],
)
def test_each_part_that_differs_is_named(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    found = changes(manifest_of(SPEC), manifest_of(replace(SPEC, **change)), {})

    assert tuple((each.kind, each.name) for each in found) == tuple(("part", part) for part in parts)


def test_a_worker_without_the_agent_differs_and_a_run_from_before_there_were_manifests_does_not() -> None:
    assert [each.told("a") for each in changes(manifest_of(SPEC), None, {})] == ["agent of agent a"]
    assert changes({}, manifest_of(SPEC), {}) == ()
    assert changes({}, None, {}) == ()


def test_of_code_and_sub_agents_a_run_is_pinned_to_those_that_it_meets() -> None:
    before = own_parts(tools={"greet": "1", "other": "2"}, hooks={"gate": "3"}, agents={"clerk": "4", "cook": "5"})
    pinned = met_by(before, tools=["greet"], hooks=["gate"], agents=["clerk"])
    now = own_parts(tools={"greet": "x", "other": "x"}, hooks={"gate": "x"}, agents={"clerk": "x", "cook": "x"})

    assert changes(pinned, None, before) == ()
    found = changes(pinned, None, now)
    assert [(each.kind, each.told("a")) for each in found] == [
        ("own", "code of tool greet"),
        ("own", "code of hook gate"),
        ("own", "sub-agent clerk"),
    ]
    assert [[each.is_about(name) for each in found] for name in ("greet", "gate")] == [
        [True, False, False],
        [False, True, False],
    ]
    assert [each.name for each in changes(pinned, None, {})] == [each.name for each in found]


def test_a_tool_with_another_schema_is_named_once_whatever_its_code() -> None:
    pinned = own_parts(tools={"greet": "1"}, hooks={}, agents={})

    (found,) = changes(pinned, None, {}, ["greet"])
    assert (found.kind, found.name, found.is_about("greet")) == ("tool", "greet", True)


def test_a_sub_agent_is_another_one_when_anything_but_its_place_is() -> None:
    clerk = AgentDefinition(name="clerk", origin="/one/clerk.yaml")
    digest = agent_digest(clerk, {"prompt": "1"})

    assert agent_digest(replace(clerk, origin="/other"), {"prompt": "1"}) == digest
    assert agent_digest(replace(clerk, tools=("bash",)), {"prompt": "1"}) != digest
    assert agent_digest(clerk, {"prompt": "2"}) != digest


def test_a_spec_from_before_an_upgrade_keeps_its_name() -> None:
    tool = ToolSpec(name="t", description="d", parameters={})
    spec = AgentSpec(name="a", model="demo", tools=(tool,), permissions={"b": "ask", "a": "deny"})
    assert spec.digest == "76035a8c4df0"  # as 0.2.0 wrote it
    assert replace(spec, config=AgentConfig(enabled_skills=("x",))).digest != spec.digest
    assert replace(spec, permissions={"a": "deny", "b": "ask"}).digest != spec.digest
