"""Instructions of skills in a conversation: they do not grow old, and a compression leaves them where they are."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from loom.domain.agents.spec import AgentSpec
from loom.domain.context.compression import Compressing, KnownFacts, compress
from loom.domain.context.model_context import Measures, build_context, context_parts
from loom.domain.context.summary_sections import tag_of
from loom.domain.core.messages import Message, ToolCall, user
from loom.domain.core.tokens import tokens_of
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.skills.active import active_in, skill_in, told
from loom.domain.skills.catalog import ACTIVE_TOKENS, LOAD_SKILL, PinnedSkill
from tests.unit.domain.conversations import collapsed, conversations, split_calls, talk

LOAD = ToolSpec(name=LOAD_SKILL, description="Load.", parameters={})


def loading(name: str, words: int = 100) -> tuple[Message, Message]:
    """A call that loads a skill, and what it brought."""
    call = ToolCall(id=f"load-{name}", name=LOAD_SKILL, arguments={"name": name})
    content = f'<skill_content name="{name}">\n{"rule " * words}\n</skill_content>'
    return (
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", name=LOAD_SKILL, tool_call_id=call.id, content=content),
    )


def compressed(messages: Sequence[Message], room: int) -> tuple[Message, ...]:
    work = Compressing(
        messages=tuple(messages), tools=(), facts=KnownFacts(), room=room, section_tokens=512, at="2026", turn=9
    )
    return compress(work, {"key_decisions": "alpha"}).transcript.messages


def test_a_result_of_load_skill_brings_a_skill_and_nothing_else_does() -> None:
    brought = loading("pdf")[1]
    assert skill_in(brought) == "pdf"
    assert skill_in(user(brought.text)) == ""
    assert skill_in(Message(role="tool", name="bash", content=brought.text)) == ""
    assert skill_in(Message(role="tool", name=LOAD_SKILL, content=brought.text, is_error=True)) == ""
    assert skill_in(Message(role="tool", name=LOAD_SKILL, content="The skill pdf is active already.")) == ""


def test_a_skill_is_active_where_it_was_loaded_last() -> None:
    messages = (*loading("pdf"), *loading("xlsx"), *loading("pdf"))
    assert active_in(messages) == {"xlsx": 3, "pdf": 5}


def test_instructions_are_not_collapsed_as_other_results_are() -> None:
    messages = (*loading("pdf", 2000), *talk(2, result="x" * 9000)[1:])
    shown = collapsed(messages, len(messages))
    assert shown[1] == messages[1]
    assert len(shown[3].text) < 1000


def test_a_compression_keeps_active_skills_word_for_word() -> None:
    pdf = loading("pdf")
    after = compressed((*talk(30), *pdf, *talk(60)[1:]), room=6000)
    assert all(message in after for message in pdf)
    assert tag_of(after[0].text, "active_skills") == "- pdf: its instructions stand in the conversation"
    again = compressed((*after, *talk(90)[1:]), room=6000)
    assert all(message in again for message in pdf)


def test_of_too_many_skills_the_oldest_go_and_are_named() -> None:
    skills = [loading(f"skill-{n}", 4000) for n in range(8)]
    after = compressed((*talk(30), *(m for pair in skills for m in pair), *talk(60)[1:]), room=120_000)
    kept = active_in(after)
    assert "skill-7" in kept
    assert "skill-0" not in kept
    assert tokens_of(message for message in after if skill_in(message)) <= ACTIVE_TOKENS
    listed = tag_of(after[0].text, "active_skills")
    assert "- skill-7: its instructions stand" in listed
    assert "- skill-0: no longer in the conversation; load it again" in listed


def test_a_skill_that_had_to_go_stays_named_in_later_summaries() -> None:
    gone = told("", loading("pdf"), ())
    assert told("\n".join(gone), loading("xlsx"), loading("xlsx")) == [
        "- pdf: no longer in the conversation; load it again when you need it",
        "- xlsx: its instructions stand in the conversation",
    ]


@given(conversations(), st.integers(0, 3), st.integers(500, 8000))
def test_no_call_is_ever_parted_from_its_result(messages: tuple[Message, ...], skills: int, room: int) -> None:
    brought = [message for n in range(skills) for message in loading(f"skill-{n}", 400)]
    after = compressed((messages[0], *brought, *messages[1:]), room=room)
    assert list(split_calls(after)) == list(split_calls((messages[0], *brought, *messages[1:])))


def spec_with(*skills: PinnedSkill) -> AgentSpec:
    return AgentSpec(name="a", model="m", system_prompt="Be kind.", tools=(LOAD,), skills=skills)


PDF = PinnedSkill(name="pdf", description="About PDF.", root="/s/pdf", digest="d")


def test_the_prompt_has_its_layers_in_order_with_their_sources() -> None:
    brand = PinnedSkill(name="brand", description="Voice.", root="/s/brand", digest="d", body="Write short.")
    spec = spec_with(brand, PDF)
    parts = context_parts(spec, [user("Fill in this PDF.")], tools=spec.tools, measures=Measures())
    assert [(part.component.name, part.component.source) for part in parts] == [
        ("tools", "descriptions of 1 tools"),
        ("instructions", "the agent's prompt"),
        ("active_skills", "skills active from the start: brand"),
        ("skills", "catalog of 1 skill"),
        ("rules", "Loom's rules"),
        ("messages", "message 1: user"),
        ("system-reminder", "skills that fit the task"),
    ]
    assert all(part.tokens for part in parts)


def test_the_hint_is_given_until_the_first_answer() -> None:
    spec = spec_with(PDF)
    first = build_context(spec, [user("Fill in this PDF.")], tools=spec.tools, measures=Measures()).assembled()
    assert "one for: pdf" in first.messages[-1].text
    later = (user("Fill in this PDF."), Message(role="assistant", content="Which one?"), user("That one."))
    assert build_context(spec, later, tools=spec.tools, measures=Measures()).assembled().messages == later


def test_a_model_that_cannot_load_anything_is_shown_no_catalog() -> None:
    spec = spec_with(PDF)
    seen = build_context(spec, [user("Fill in this PDF.")], tools=(), measures=Measures()).assembled()
    assert "pdf" not in seen.system + str(seen.messages)
