"""The layer of every prompt that Loom itself writes."""

from loom.domain.agents.spec import AUTONOMY_RULES, AgentSpec, autonomy_rules
from loom.domain.context.model_context import Measures, build_context, context_parts
from loom.domain.core.messages import user
from loom.domain.core.tokens import text_tokens

OPTIONAL = ("create_plan", "delegate_task", "search_memory", "load_skill")


def test_the_rules_speak_only_of_tools_that_the_agent_has() -> None:
    for tool in OPTIONAL:
        told = autonomy_rules(["read_file", tool])
        assert [name for name in OPTIONAL if name in told] == [tool]
    assert not any(name in autonomy_rules(["bash"]) for name in OPTIONAL)


def test_an_agent_that_can_plan_is_told_when_to_and_when_not() -> None:
    told = autonomy_rules(["create_plan"])
    assert "five or more independent steps" in told
    assert "Inside a step of a plan, do not plan again" in told


def test_the_rules_cost_little() -> None:
    assert text_tokens(autonomy_rules([])) < 150
    assert text_tokens(autonomy_rules(OPTIONAL)) < 260


def test_a_prompt_has_the_agents_layer_and_then_looms() -> None:
    spec = AgentSpec(name="clerk", model="demo", system_prompt="Be kind.", rules=autonomy_rules([]))
    system = build_context(spec, [user("hi")], tools=(), measures=Measures()).assembled().system
    assert system == f"<instructions>\nBe kind.\n</instructions>\n\n<rules>\n{spec.rules}\n</rules>"
    parts = context_parts(spec, [user("hi")], tools=(), measures=Measures())
    assert [part.component.source for part in parts[1:3]] == ["the agent's prompt", "Loom's rules"]


def test_a_run_from_before_rules_were_pinned_goes_on_with_those_it_had() -> None:
    spec = AgentSpec(name="clerk", model="demo")
    assert AUTONOMY_RULES in build_context(spec, [user("hi")], tools=(), measures=Measures()).assembled().system
