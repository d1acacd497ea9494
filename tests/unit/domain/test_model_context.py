"""What a model call sees of a long conversation: ephemeral results, collapsed ones, and how full the window is."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loom.domain.agents.spec import AgentSpec
from loom.domain.context.assembler import size_of
from loom.domain.context.model_context import (
    BEGINNING,
    ONE_TURN,
    RECENT,
    STEP,
    Measures,
    ModelContext,
    Outline,
    build_context,
    context_parts,
    is_summary,
    limited,
    outline_of,
    without_ephemeral,
)
from loom.domain.core.messages import (
    Message,
    ToolCall,
    Transcript,
    groups_of,
    last_turn,
    recollection,
    transcript_of,
    user,
    with_left_out,
)
from loom.domain.core.tokens import tokens_of
from loom.domain.core.tool_calls import ToolSpec
from tests.unit.domain.conversations import collapsed, conversations, split_calls, talk, turn

LOOK = ToolSpec(name="look", description="Look.", parameters={}, ephemeral=3)
READ = ToolSpec(name="read_file", description="Read.", parameters={})
SPEC = AgentSpec(name="default", model="demo", system_prompt="Be brief.", tools=(LOOK, READ), context_window=10_000)


def seen(messages: tuple[Message, ...], **given: int) -> tuple[Message, ...]:
    """What a model call sees of the conversation."""
    return build_context(SPEC, messages, tools=SPEC.tools, measures=Measures(**given)).assembled().messages


def test_of_an_ephemeral_tool_only_the_last_three_large_results_stay() -> None:
    messages = tuple(m for n in range(5) for m in turn(n, f"{n}" * 1000, tool="look"))
    results = [m.text[:6] for m in without_ephemeral(messages, [LOOK, READ]) if m.role == "tool"]
    assert results == ["[look:", "[look:", "222222", "333333", "444444"]


def test_small_results_of_an_ephemeral_tool_stay_and_count_as_uses() -> None:
    messages = tuple(m for n in range(5) for m in turn(n, "ok", tool="look"))
    assert without_ephemeral(messages, [LOOK]) == messages


def test_results_of_other_tools_stay_however_many() -> None:
    assert without_ephemeral(talk(20), [LOOK, READ]) == talk(20)


def test_a_note_names_the_artifact_that_has_the_whole() -> None:
    call, result = turn(1, tool="look")
    kept = replace(result, metadata={"artifact": "t1-c"})
    notes = [m.text for m in without_ephemeral((call, kept) * 4, [LOOK]) if m.role == "tool"]
    assert notes[0] == (
        "[look: left out, only the results of its last 3 uses are shown; read_artifact shows it: artifact t1-c]"
    )


def test_collapsing_keeps_the_beginning_of_results_and_long_arguments() -> None:
    call = ToolCall(id="w", name="write_file", arguments={"path": "a.py", "content": "y" * 900})
    messages = (
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", tool_call_id="w", content="z" * 900),
    )
    (answer, result), untouched = collapsed(messages, 2), collapsed(messages, 0)
    assert answer.tool_calls[0].arguments == {"path": "a.py", "content": "y" * BEGINNING + " [700 characters left out]"}
    assert result.text == "z" * BEGINNING + "\n[700 characters left out as it is old; call it again if you need it]"
    assert untouched == messages
    assert collapsed((answer, result), 2) == (answer, result)


def test_one_turn_never_fills_the_window() -> None:
    messages = turn(1, "x" * 10_000, calls=4)
    shown, tokens = limited(messages, groups_of(messages), 4000)
    assert tokens == tokens_of(shown) <= 4000
    assert all("cut to fit the window" in m.text for m in shown if m.role == "tool")


def test_from_half_of_the_window_on_old_results_are_collapsed() -> None:
    below, above = talk(16), talk(19)
    assert seen(below) == below
    sight = build_context(SPEC, above, tools=SPEC.tools, measures=Measures())
    assert sight.tokens < 0.5 * SPEC.context_window
    assert sight.assembled().messages[-3:] == above[-3:]
    assert sight.collapsed > 0


def test_collapsing_goes_on_in_steps_so_that_most_turns_keep_their_prefix() -> None:
    measures, points = Measures(), []
    for turns in range(10, 60):
        sight = build_context(SPEC, talk(turns), tools=SPEC.tools, measures=measures)
        measures = replace(measures, collapsed=sight.collapsed)
        points.append(sight.collapsed)
    assert points == sorted(points)
    assert len(set(points)) < 20


def test_at_92_per_cent_the_conversation_has_to_be_compressed() -> None:
    spec = replace(SPEC, collapse_at=1.0)
    tokens = {n: build_context(spec, talk(n), tools=spec.tools, measures=Measures()) for n in range(25, 40)}
    assert {sight.is_full for sight in tokens.values()} == {True, False}
    assert all(sight.is_full == (sight.tokens >= 9_200) for sight in tokens.values())


def test_what_the_provider_counts_decides_how_full_the_window_is() -> None:
    half, double = (
        build_context(SPEC, talk(5), tools=(), measures=Measures(ratio=ratio)).tokens for ratio in (0.5, 2.0)
    )
    assert abs(double - 4 * half) < 4


def test_the_window_that_a_provider_named_holds() -> None:
    assert Measures(size=8192).window(replace(SPEC, context_window=200_000)) == 8192
    assert Measures().window(SPEC) == 10_000


def test_each_part_of_a_context_is_explained_with_its_source_and_tokens() -> None:
    found = recollection("ann likes blue", "memory")
    summary = Message(role="system", content="so far", metadata={"compressed": True})
    parts = context_parts(SPEC, (summary, *talk(1), found), tools=SPEC.tools, measures=Measures())
    assert [part.component.source for part in parts] == [
        "descriptions of 2 tools",
        "the agent's prompt",
        "Loom's rules",
        "what was compressed",
        "message 2: ann",
        "message 3: assistant, calling read_file and 1 result",
        "message 5: memory",
    ]
    assert all(part.tokens > 0 for part in parts)


def test_a_summary_stands_in_the_system_prompt_and_nowhere_else() -> None:
    summary = Message(role="system", content="so far", metadata={"compressed": True})
    context = build_context(SPEC, (summary, user("go on")), tools=(), measures=Measures()).assembled()
    assert "so far" in context.system
    assert [message.text for message in context.messages] == ["go on"]


@given(conversations(longest=3000), st.sampled_from([300, 1000, 3000]), st.sampled_from([0.5, 1.0, 2.5]))
def test_no_conversation_exceeds_the_window_or_loses_half_of_a_call(
    messages: tuple[Message, ...], window: int, ratio: float
) -> None:
    spec = replace(SPEC, context_window=window)
    sight = build_context(spec, messages, tools=(), measures=Measures(ratio=ratio))
    context = sight.assembled()
    critical = sum(part.tokens for part in sight.divided().parts if part.component.priority == 4)
    assert context.tokens <= max(sight.budget, critical)
    assert not list(split_calls(context.messages))
    assert build_context(spec, messages, tools=(), measures=Measures(ratio=ratio)).assembled() == context


def shown_by(context: ModelContext) -> tuple[object, ...]:
    return context.messages, context.said, groups_of(context.messages), context.collapsed, context.estimated


def by_going_through(messages: tuple[Message, ...], context: ModelContext, before: int) -> tuple[object, ...]:
    """The same figures without an outline: each one is computed from all messages."""
    summaries = [message for message in messages if is_summary(message)]
    around = context.reserved + sum(map(size_of, context.texts)) - tokens_of(summaries)
    groups, window = groups_of(messages), context.window
    lasting = without_ephemeral(messages, SPEC.tools)

    def shown(until: int) -> tuple[tuple[Message, ...], int]:
        seen, tokens = limited(collapsed(lasting, until), groups, int(ONE_TURN * window))
        return seen, around + tokens

    seen, estimated = shown(before)
    until = before
    if estimated >= SPEC.collapse_at * window:
        point = last_turn(messages, groups)
        left = int(RECENT * window) - tokens_of(messages[point:])
        for start, stop in reversed(groups):
            if stop <= point and (left := left - tokens_of(messages[start:stop])) >= 0:
                point = start
        fewer, less = shown(point)
        between = lasting[before:point]
        saved = tokens_of(between) - tokens_of(collapsed(between, len(between)))
        if min(saved, estimated - less) >= STEP * window:
            until, seen, estimated = point, fewer, less
    return seen, tuple(message for message in seen if not is_summary(message)), groups, until, estimated


@given(conversations(longest=3000), st.sampled_from([300, 1000, 3000, 10_000]), st.booleans(), st.data())
def test_an_outline_that_grows_with_the_conversation_changes_nothing(
    messages: tuple[Message, ...], window: int, is_compressed: bool, data: st.DataObject
) -> None:
    spec = replace(SPEC, context_window=window)
    if is_compressed:
        summary = Message(role="system", content="It began well.", metadata={"compressed": 9})
        messages = (messages[0], summary, *messages[1:])
    transcript, until = Transcript(), 0
    while transcript.messages != messages:
        step = data.draw(st.integers(1, 3))
        transcript = transcript.extended(messages[len(transcript.messages) :][:step])
        context = build_context(
            spec,
            transcript.messages,
            tools=SPEC.tools,
            measures=Measures(collapsed=until),
            outline=outline_of(transcript),
        )
        assert shown_by(context) == by_going_through(transcript.messages, context, until)
        until = context.collapsed


def test_each_of_two_conversations_with_the_same_beginning_has_its_own_outline() -> None:
    beginning = transcript_of(talk(3))
    outline_of(beginning)
    one, other = (beginning.extended(turn(number, "y" * number)) for number in (8, 90))

    assert outline_of(one) == Outline().add(one.messages)
    assert outline_of(other) == Outline().add(other.messages)
    assert outline_of(beginning) == Outline().add(beginning.messages)


def test_an_outline_remembers_that_a_provider_has_refused_something() -> None:
    beginning = transcript_of(talk(3))
    refused = beginning.extended(
        [with_left_out(Message(role="assistant", content="fine"), "m", ["pictures"], because="")]
    )
    assert not outline_of(beginning).has_refusals
    assert outline_of(refused).has_refusals
    assert outline_of(refused.extended(turn(8, "y"))).has_refusals


@given(conversations())
def test_groups_are_the_whole_conversation_in_order(messages: tuple[Message, ...]) -> None:
    groups = groups_of(messages)
    assert [place for start, stop in groups for place in range(start, stop)] == list(range(len(messages)))
    assert all(not list(split_calls((*messages[a:b], user("x")))) for a, b in groups)
    assert last_turn(messages, groups) in {len(messages), *(start for start, _ in groups)}


@given(conversations(), st.integers(min_value=100, max_value=20_000))
def test_a_context_that_fits_is_the_same_whether_or_not_its_parts_are_told_apart(
    messages: tuple[Message, ...], window: int
) -> None:
    spec = replace(SPEC, context_window=window)
    context = build_context(spec, messages, tools=spec.tools, measures=Measures())
    whole, divided = context.assembled(), context.divided()

    assert (whole.system, whole.messages, whole.tokens) == (divided.system, divided.messages, divided.tokens)
    assert sum(part.tokens for part in divided.parts) + context.reserved <= divided.tokens
