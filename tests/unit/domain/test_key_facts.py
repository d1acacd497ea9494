"""What a compressed conversation keeps: planted facts of people, tools and the model, after several compressions."""

from collections.abc import Mapping

import pytest

from loom.domain.context import summary_sections as sections
from loom.domain.context.compression import Compressing, KnownFacts, compress
from loom.domain.context.key_facts import key_facts, statements_of
from loom.domain.core.messages import Message, ToolCall, user
from loom.domain.core.tokens import text_tokens, tokens_of
from tests.planted_facts import missing, planted_facts, planted_turns

TURNS = 120
EMPTY_SUMMARY = dict.fromkeys(sections.SECTIONS, "what matters, in words. " * 20)


def told(seed: int, limit: int, written: Mapping[str, str] | None) -> tuple[str, int]:
    """The last prompt of a run of `TURNS` turns with planted facts, and the number of compressions."""
    messages = [user("Read everything and report what you find.")]
    compressions = 0
    for number, turn in enumerate(planted_turns(planted_facts(seed), TURNS, seed), 1):
        call = ToolCall(id=f"c{number}", name="read_file", arguments={"path": f"{number % 7}.txt"})
        messages += [
            Message(role="assistant", content=turn.model, tool_calls=(call,)),
            Message(role="tool", name="read_file", tool_call_id=call.id, content=turn.tool),
            *([user(turn.person)] if turn.person else []),
        ]
        if tokens_of(messages) > limit or number == TURNS:
            work = Compressing(
                messages=tuple(messages),
                tools=(),
                facts=KnownFacts(),
                room=int(0.75 * tokens_of(messages)),
                section_tokens=512,
                at="2026-11-24T10:00:00",
                turn=number,
            )
            shorter = compress(work, written or sections.without_model(work.spoken, work.earlier))
            assert shorter.tokens <= work.room
            messages = list(shorter.transcript.messages)
            compressions += 1
    return "\n".join(message.text for message in messages), compressions


@pytest.mark.parametrize("written", [None, EMPTY_SUMMARY], ids=["without a model", "a summary that says nothing"])
@pytest.mark.parametrize("seed", [11, 12])
def test_nine_of_ten_planted_facts_are_in_the_prompt_after_several_compressions(
    seed: int, written: Mapping[str, str] | None
) -> None:
    facts = planted_facts(seed)

    text, compressions = told(seed, 16_000, written)

    lost = list(missing(facts, text))
    assert compressions >= 4
    assert len(lost) <= 0.1 * len(facts), lost
    for by in ("person", "model", "tool"):
        assert sum(fact.by == by for fact in lost) <= 0.2 * sum(fact.by == by for fact in facts), (by, lost)


def test_what_the_rest_of_the_prompt_says_is_not_repeated() -> None:
    said = statements_of([user("The broker listens on port 6432. The mailer uses acct_991.")])

    assert key_facts(said, known="port 6432 is where the broker listens", room=100) == (
        "- user: The mailer uses acct_991.",
    )


def test_lines_of_one_form_are_bulk_data() -> None:
    log = "\n".join(f"10:{n:02} worker={n} took {n * 37} ms" for n in range(30))
    said = Message(role="tool", name="bash", content=f"{log}\nFATAL shard 77-A is corrupt\n{log}", tool_call_id="c")

    assert key_facts(statements_of([said]), known="", room=60) == ("- bash: FATAL shard 77-A is corrupt",)


def test_an_earlier_selection_and_an_earlier_summary_count_as_said() -> None:
    said = statements_of([], selected="- ann: Use Zulip, not Slack.", summary="- The archive moved to vault/9.tar.")

    assert [(each.by, each.text) for each in said] == [
        ("ann", "Use Zulip, not Slack."),
        ("summary", "The archive moved to vault/9.tar."),
    ]


def test_a_selection_never_exceeds_its_room() -> None:
    long = ", ".join(f"item{n} costs {n}99 dollars" for n in range(400))
    lines = key_facts(statements_of([user(long)]), known="", room=200)

    assert lines
    assert sum(text_tokens(line) + 1 for line in lines) <= 200
