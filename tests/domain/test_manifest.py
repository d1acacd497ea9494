"""What a run is pinned to, and what of it a worker has otherwise."""

from dataclasses import replace
from typing import Any

import pytest

from loom_domain.agent_config import AgentConfig
from loom_domain.agents import AgentSpec
from loom_domain.lifecycle import HookStep, Moment
from loom_domain.manifest import changed_parts, manifest_of
from loom_domain.permissions import Mode
from loom_domain.tool_calls import ToolSpec

SPEC = AgentSpec(name="a", model="demo", permissions={"bash": "ask"})


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({}, ()),
        ({"system_prompt": "Be kind."}, ("prompt",)),
        ({"model": "openai:x", "temperature": 0.5}, ("model",)),
        ({"permissions": {"bash": "allow"}}, ("permissions",)),
        ({"mode": Mode.BYPASS, "config": AgentConfig(enabled_skills=("x",))}, ("permissions", "skills")),
        ({"hooks": (HookStep(moment=Moment.START, name="h"),)}, ("hooks",)),
        ({"rules": "another release's", "workspace": "/elsewhere", "max_turns": 3}, ()),
    ],
)
def test_each_part_that_differs_is_named(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    assert changed_parts(manifest_of(SPEC), manifest_of(replace(SPEC, **change))) == parts


def test_a_worker_without_the_agent_differs_and_a_run_from_before_there_were_manifests_does_not() -> None:
    assert changed_parts(manifest_of(SPEC), None) == ("agent",)
    assert changed_parts({}, manifest_of(SPEC)) == ()


def test_a_spec_from_before_an_upgrade_keeps_its_name() -> None:
    tool = ToolSpec(name="t", description="d", parameters={})
    spec = AgentSpec(name="a", model="demo", tools=(tool,), permissions={"b": "ask", "a": "deny"})
    assert spec.digest == "76035a8c4df0"  # as 0.2.0 wrote it
    assert replace(spec, config=AgentConfig(enabled_skills=("x",))).digest != spec.digest
    assert replace(spec, permissions={"a": "deny", "b": "ask"}).digest != spec.digest
