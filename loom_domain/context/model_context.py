"""Build the context of a model call: the system prompt, as much of the conversation as fits, and late reminders.

    conversation ──without_ephemeral──collapsed──limited──▶ components ──assemble──▶ system, messages
                                          ▲
             starts when half of the window is used, in batches that preserve a provider's prompt cache in most turns

`build_context` runs in the activity that calls the model. It counts the tokens and chooses a position. Old results
before this position are collapsed. It also decides whether the conversation must be compressed first. These decisions
are returned with the reply and recorded in history. `context_parts` explains the context of any past turn.

Older tool results are shortened in the context. The conversation itself keeps them in full:

    ephemeral   for a tool marked as ephemeral, only the results of its last uses are kept
    collapsed   before a position, results and long arguments are truncated, except skill instructions
    limited     one turn's results never use more than a share of the window
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Final

from loom.domain.agents.spec import AUTONOMY_RULES, AgentSpec, window_size
from loom.domain.context.assembler import (
    Assembled,
    Component,
    ContextPart,
    Placement,
    Priority,
    assemble,
    size_of,
    whole,
)
from loom.domain.context.skill_parts import late_hint, skill_parts
from loom.domain.core.messages import (
    Group,
    Grouping,
    JsonObject,
    Message,
    ToolCall,
    Transcript,
    groups_of,
    is_from_person,
    last_turn,
    left_out,
    unanswered,
)
from loom.domain.core.output_schema import instructions
from loom.domain.core.tokens import MESSAGE, text_tokens, tokens_of, within
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import SEARCH_TOOLS
from loom.domain.skills.active import skill_in
from loom.domain.tools.tool_search import loaded_by

RECENT: Final = 0.1
"""The size of the part at the end of the conversation that is never collapsed, as a share of the window."""
STEP: Final = 0.05
"""Loom collapses further messages only if that saves at least this share of the window. For a smaller saving, it is
cheaper to preserve the prompt cache.
"""
ONE_TURN: Final = 0.4
"""The maximum share of the window for one turn's results."""

KEEP_WHOLE: Final = 4
"""The number of messages at the end that `shortened` never truncates."""
SUMMARY: Final = "conversation_summary"
SHORT: Final = 200
"""The number of characters of an old tool result that `shortened` keeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measures:
    """What a run knows about its context window before a model call."""

    size: int = 0
    """The window size in tokens as reported by the provider, or 0 to use the agent's setting."""
    ratio: float = 1.0
    """The ratio of the provider's token count to Loom's own count."""
    collapsed: int = 0
    """The number of messages with already collapsed results, counted from the beginning of the conversation."""

    def window(self, spec: AgentSpec) -> int:
        """Return the window size."""
        return window_size(self.size, spec)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelContext:
    """The context for the next model call."""

    texts: tuple[Component, ...]
    """The components other than the messages of the conversation."""
    messages: tuple[Message, ...]
    """The conversation as the model sees it."""
    said: tuple[Message, ...]
    """The same without the summaries, which are part of the system prompt."""
    collapsed: int
    """The number of messages whose results are collapsed in this context, counted from the beginning of the
    conversation.
    """
    estimated: int
    """The number of tokens as Loom counts them, including tools."""
    tokens: int
    """The estimated number of tokens as the provider counts them."""
    window: int
    is_full: bool
    """Whether the conversation must be compressed before the model is called."""
    reserved: int
    """The number of tokens that the tool descriptions use."""
    budget: int
    """The maximum number of tokens in the context, as Loom counts them."""

    def assembled(self) -> Assembled:
        """Return the context, reduced to the components that fit within the budget."""
        if self.estimated <= self.budget:  # as in most turns: the components needn't be told apart
            return whole(self.texts, self.said, tokens=self.estimated)
        return self.divided()

    def divided(self) -> Assembled:
        """Return the same with its parts."""
        return assemble(self._components(), budget=self.budget, reserved=self.reserved)

    def _components(self) -> Sequence[Component]:
        late = [text for text in self.texts if text.place is Placement.RECENCY]
        early = [text for text in self.texts if text.place is not Placement.RECENCY and text.name != SUMMARY]
        return *early, *_in_groups(self.messages, groups_of(self.messages)), *late


@dataclass(kw_only=True, slots=True)
class Outline:
    """What each model call needs to know of a conversation. It grows with the conversation, so that a turn doesn't go
    through thousands of messages. The sums have one more element than there are messages: the first one is 0.
    """

    grouping: Grouping = field(default_factory=Grouping)
    whole: list[int] = field(default_factory=lambda: [0])
    """The sums of the messages' tokens."""
    shorter: list[Message] = field(default_factory=list)
    """The messages as they are when they are collapsed."""
    short: list[int] = field(default_factory=lambda: [0])
    """The sums of the collapsed messages' tokens."""
    longest: list[int] = field(default_factory=lambda: [0])
    """The sums of each message's tokens in its longer form."""
    largest: int = 0
    """The maximum number of tokens of a group, whichever of its messages are collapsed."""
    summaries: list[int] = field(default_factory=list)
    """The positions of the summaries of compressed messages."""
    is_text: bool = True
    """Whether all messages are texts, without images, recordings and files."""
    has_refusals: bool = False
    """Whether a reply says what its provider had refused."""
    called: set[str] = field(default_factory=set)
    """The names of the tools that have been called."""

    def add(self, messages: Iterable[Message]) -> "Outline":
        """Add the messages that follow, and return this outline."""
        for message in messages:
            self._add(message)
        return self

    def _add(self, message: Message) -> None:
        if is_summary(message):
            self.summaries.append(self.grouping.count)
        self.is_text = self.is_text and isinstance(message.content, str)
        self.has_refusals = self.has_refusals or left_out(message) is not None
        self.called.update(call.name for call in message.tool_calls)
        shorter = _collapsed(message)
        self.shorter.append(shorter)
        self.whole.append(self.whole[-1] + message.tokens)
        self.short.append(self.short[-1] + shorter.tokens)
        self.longest.append(self.longest[-1] + max(message.tokens, shorter.tokens))
        self.grouping.add(message)
        self.largest = max(self.largest, self.longest[-1] - self.longest[self.grouping.starts[-1]])

    def tokens(self, until: int) -> int:
        """Return the number of tokens if the messages before position `until` are collapsed."""
        until = min(until, self.grouping.count)
        return self.short[until] + self.whole[-1] - self.whole[until]

    def saved(self, start: int, stop: int) -> int:
        """Return the number of tokens that are saved if the messages between two positions are collapsed."""
        return self.tokens(start) - self.tokens(stop)


def outline_of(transcript: Transcript) -> Outline:
    """Return the outline of a conversation. It is kept with the transcript."""
    outline: Outline = transcript.derived.setdefault("outline", Outline())
    return outline.add(transcript.messages[outline.grouping.count :])


def build_context(
    spec: AgentSpec,
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolSpec],
    measures: Measures,
    outline: Outline | None = None,
    fixed: bool = False,
    person: str = "",
) -> ModelContext:
    """Return the context for a model call with this conversation. Pass the conversation's `outline` if you keep it. For
    a past turn, set `fixed` to reuse the recorded collapse position. `person` is what Loom remembers of the person that
    the run works for.
    """
    # A long conversation has thousands of messages, so this code doesn't go through them.
    window = measures.window(spec)
    reserved = tokens_of(tools)
    outline = outline or Outline().add(messages)
    replaced = outline.summaries
    summaries = [messages[place] for place in replaced]
    texts = _texts(spec, tools, messages, summaries, person)
    around = reserved + sum(map(size_of, texts)) - tokens_of(summaries)
    lasting = without_ephemeral(messages, spec.tools)
    lasts = outline if lasting is messages else Outline().add(lasting)
    most = int(ONE_TURN * window / measures.ratio)

    def shown(until: int) -> tuple[tuple[Message, ...], int]:
        seen, tokens = (*lasts.shorter[:until], *lasting[until:]), lasts.tokens(until)
        if tokens > most and lasts.largest > most:
            seen, tokens = limited(seen, outline.grouping.groups, most)
        return seen, around + tokens

    def pays(saved: int) -> bool:
        return saved * measures.ratio >= STEP * window

    until = measures.collapsed
    seen, estimated = shown(until)
    if not fixed and estimated * measures.ratio >= spec.collapse_at * window:
        further = _collapse_point(messages, outline, int(RECENT * window / measures.ratio))
        if further > until and pays(lasts.saved(until, further)):
            fewer, less = shown(further)
            if pays(estimated - less):
                until, seen, estimated = further, fewer, less
    tokens = round(estimated * measures.ratio)
    return ModelContext(
        texts=texts,
        messages=seen,
        said=_without(seen, replaced),
        collapsed=until,
        estimated=estimated,
        tokens=tokens,
        window=window,
        is_full=tokens >= spec.compress_at * window,
        reserved=reserved,
        budget=int(spec.compress_at * window / measures.ratio),
    )


def context_parts(
    spec: AgentSpec,
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolSpec],
    measures: Measures,
) -> tuple[ContextPart, ...]:
    """Return the components of a model call's context. Each component has its source, its size in tokens as Loom counts
    them, and the number of truncated tokens.
    """
    context = build_context(spec, messages, tools=tools, measures=measures, fixed=True)
    names = ", ".join(tool.name for tool in tools)
    described = Component(name="tools", source=f"descriptions of {len(tools)} tools", text=names, tagged=False)
    described = replace(described, priority=Priority.CRITICAL, place=Placement.PRIMACY)
    return (ContextPart(component=described, tokens=context.reserved), *context.divided().parts)


def is_summary(message: Message) -> bool:
    """Whether this message is the summary that replaces compressed messages."""
    return message.role == "system" and bool(message.metadata.get("compressed"))


def shortened(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the conversation with old tool results truncated. Calls and their results are kept together."""
    head = messages[: max(0, len(messages) - KEEP_WHOLE)]
    return tuple(_cut(message) for message in head) + tuple(messages[len(head) :])


def _without(messages: tuple[Message, ...], places: Sequence[int]) -> tuple[Message, ...]:
    if not places:
        return messages
    return tuple(chain(*(messages[before + 1 : after] for before, after in pairwise((-1, *places, len(messages))))))


def _collapse_point(messages: Sequence[Message], outline: Outline, recent: int) -> int:
    """Return the position where the recent messages begin. The recent messages are the last turn and as many earlier
    messages as fit into `recent` tokens with it.
    """
    starts = outline.grouping.starts
    last = next((start for start in reversed(starts) if messages[start].role == "assistant"), len(messages))
    fits = bisect_left(outline.whole, outline.whole[-1] - recent)
    return min(last, starts[place]) if (place := bisect_left(starts, fits)) < len(starts) else last


def _texts(
    spec: AgentSpec, tools: Sequence[ToolSpec], messages: Sequence[Message], summaries: Sequence[Message], person: str
) -> tuple[Component, ...]:
    prompts = _prompts(spec, skill_parts(spec.skills, tools) if spec.skills else ())
    hint = late_hint(spec.skills, tools, messages) if spec.skills else ()
    about = (person_part(person),) if person else ()
    return (*prompts, *about, *map(_summary, summaries), *hint)


def _prompts(spec: AgentSpec, about_skills: Sequence[Component]) -> Iterator[Component]:
    if spec.system_prompt.strip():
        yield _prompt("instructions", "the agent's prompt", spec.system_prompt.strip())
    yield from about_skills
    yield _prompt("rules", "Loom's rules", spec.rules or AUTONOMY_RULES)
    if spec.output_schema is not None:
        form = instructions(spec.output_schema, through_done=spec.require_done_tool)
        yield _prompt("answer_format", "the output schema", form)


def _in_groups(messages: Sequence[Message], groups: Sequence[Group]) -> Iterator[Component]:
    first_said = next((place for place, message in enumerate(messages) if is_from_person(message)), -1)
    last_said = max((place for place, message in enumerate(messages) if is_from_person(message)), default=-1)
    answered = last_turn(messages, groups)
    for start, stop in groups:
        if is_summary(messages[start]):
            yield _summary(messages[start])
        else:
            last = stop == len(messages) or start in (last_said, answered)
            priority = Priority.CRITICAL if last else _priority(messages[start:stop], is_task=start == first_said)
            yield _group(messages[start:stop], start, priority)


def _prompt(name: str, source: str, text: str) -> Component:
    return Component(name=name, source=source, text=text, priority=Priority.CRITICAL, place=Placement.PRIMACY)


def person_part(text: str, source: str = "the person's memory") -> Component:
    """Return the component with facts about the person."""
    return Component(
        name="person", source=source, text=text, priority=Priority.HIGH, place=Placement.PRIMACY, truncatable=True
    )


def _summary(message: Message) -> Component:
    return Component(
        name=SUMMARY,
        source="what was compressed",
        text=message.text,
        priority=Priority.ESSENTIAL,
        place=Placement.PRIMACY,
        truncatable=True,
    )


def _group(messages: Sequence[Message], place: int, priority: Priority) -> Component:
    first = messages[0]
    source = f"message {place + 1}: {_who(first)}"
    if len(messages) > 1:
        source += f" and {len(messages) - 1} result{'s' * (len(messages) > 2)}"
    return Component(name="messages", source=source, messages=tuple(messages), priority=priority)


def _who(message: Message) -> str:
    if message.role == "user" and not is_from_person(message):
        return str(message.metadata.get("by") or "reminder")
    if message.role == "assistant" and message.tool_calls:
        return f"assistant, calling {', '.join(call.name for call in message.tool_calls)}"
    return str(message.metadata.get("by") or message.role)


def _priority(messages: Sequence[Message], *, is_task: bool) -> Priority:
    if unanswered(messages):
        return Priority.CRITICAL
    if messages[0].role != "user":
        return Priority.HIGH if any(map(stays_whole, messages)) else Priority.MEDIUM
    if not is_from_person(messages[0]):
        return Priority.LOW
    return Priority.ESSENTIAL if is_task else Priority.HIGH


def _cut(message: Message) -> Message:
    if message.role != "tool" or len(message.text) <= 2 * SHORT:  # text that was already truncated remains unchanged
        return message
    dropped = len(message.text) - SHORT
    beginning = "\n".join((message.text[:SHORT], *_parts_told(message)))
    return replace(message, content=f"{beginning}\n[{dropped} characters dropped to fit the model's window]")


SHORT_ENOUGH: Final = 400
"""Results and arguments up to this length, in characters, are not collapsed. The note that would replace them is hardly
shorter.
"""
BEGINNING: Final = 200
"""The number of characters that are kept when a text is collapsed."""


def without_ephemeral(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
    """Return the messages without older, large results from ephemeral tools."""
    stay = {tool.name: tool.ephemeral for tool in tools if tool.ephemeral}
    if not stay:
        return tuple(messages)
    uses: Counter[str] = Counter()
    shown = list(messages)
    for place in reversed(range(len(shown))):
        message = shown[place]
        if message.role == "tool" and message.name in stay:
            uses[message.name] += 1
            if uses[message.name] > stay[message.name] and _is_large(message):
                why = f"only the results of its last {stay[message.name]} uses are shown"
                shown[place] = replace(message, content=f"[{message.name}: left out, {why}{_pointer(message)}]")
    return tuple(shown)


def limited(messages: Sequence[Message], groups: Sequence[Group], most: int) -> tuple[tuple[Message, ...], int]:
    """Return the messages and their number of tokens. In each group that exceeds `most` tokens, the results are
    truncated evenly.
    """
    sizes = [message.tokens for message in messages]
    total = sum(sizes)
    if total <= most:
        return tuple(messages), total
    shown = list(messages)
    for start, stop in groups:
        if sum(sizes[start:stop]) <= most:
            continue
        results = [place for place in range(start, stop) if messages[place].role == "tool"]
        if results:
            around = tokens_of(m for m in messages[start:stop] if m.role != "tool")
            share = max(50, (most - around) // len(results) - MESSAGE)
            for place in results:
                shown[place] = _limited(messages[place], share)
                total += shown[place].tokens - sizes[place]
    return tuple(shown), total


def _is_large(message: Message) -> bool:
    return len(message.text) > SHORT_ENOUGH or not isinstance(message.content, str)


def _pointer(message: Message) -> str:
    """Return the note that tells the model how to read the full text."""
    artifact = message.metadata.get("artifact")
    return f"; read_artifact shows it: artifact {artifact}" if artifact else "; call it again if you need it"


def _collapsed(message: Message) -> Message:
    if "collapsed" not in message.derived:
        message.derived["collapsed"] = _short_form(message)
    found: Message | None = message.derived["collapsed"]
    return message if found is None else found


def _short_form(message: Message) -> Message | None:
    """Return the message with shortened texts, or None if it is short."""
    if message.role == "tool":
        return _short_result(message) if _is_large(message) and not stays_whole(message) else None
    calls = tuple(map(_short_call, message.tool_calls))
    return None if calls == message.tool_calls else replace(message, tool_calls=calls)


def stays_whole(message: Message) -> bool:
    """Whether the message contains instructions of a skill or descriptions of tools, which don't become outdated."""
    return bool(skill_in(message)) or (message.name == SEARCH_TOOLS and bool(loaded_by(message)))


def _short_result(message: Message) -> Message:
    dropped = max(0, len(message.text) - BEGINNING)
    beginning = "\n".join((message.text[:BEGINNING].rstrip(), *_parts_told(message)))
    return replace(message, content=f"{beginning}\n[{dropped} characters left out as it is old{_pointer(message)}]")


def _parts_told(message: Message) -> tuple[str, ...]:
    """Return a line for each image, recording and file that is left out with a long result."""
    return () if isinstance(message.content, str) else tuple(p.told for p in message.content if p.type != "text")


def _short_call(call: ToolCall) -> ToolCall:
    if not any(isinstance(value, str) and len(value) > SHORT_ENOUGH for value in call.arguments.values()):
        return call
    return replace(call, arguments=_short_arguments(call.arguments))


def _short_arguments(arguments: JsonObject) -> JsonObject:
    return {
        name: f"{value[:BEGINNING]} [{len(value) - BEGINNING} characters left out]"
        if isinstance(value, str) and len(value) > SHORT_ENOUGH
        else value
        for name, value in arguments.items()
    }


def _limited(message: Message, most: int) -> Message:
    if text_tokens(message.text) <= most and isinstance(message.content, str):
        return message
    shorter = within(message.text, most, f"\n[cut to fit the window{_pointer(message)}]")
    return replace(message, content="\n".join((shorter, *_parts_told(message))))
