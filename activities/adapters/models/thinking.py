"""Separate a model's thinking from its answer.

Most servers send thinking in fields or blocks of its own. Some send it as `<think>…</think>` at the start of the text.
With some chat templates, the opening tag is a part of the prompt, so that the text begins with thinking and contains
only the closing tag. Until this tag arrives, the text looks like the answer. An answer can also talk about the tag,
which is then in code or quotes, or between other words of a sentence. All other tags that follow the start of the
answer belong to the answer.

Some models have other tags. Text between them is thinking only if it is opened at the start and closed: an answer may
begin with such a tag.
"""

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from loom.activities.ports import ModelCall, OnDelta
from loom.domain.core.whole_characters import CharacterPieces

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
_TAGS: Final = {
    _OPEN: _CLOSE,
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
"""The opening tags at the start of a text, and their closing tags."""

_PAIRS: Final = ("''", "()", "[]", "<>", "“”", "‘’", "«»", "「」", "『』")
"""The characters around a tag in quotes. Code spans and straight double quotes are recognized by their number."""

_GOES_ON = re.compile(r"[.,;:!?)\]}、。，；：！？）]|[-/]\w")
"""What follows a tag in the middle or at the end of a sentence."""

_UNDECIDED = re.compile(r"\s*|[-/]")
"""What follows a tag as long as more text is needed to decide."""

_ENDS: Final = ".!?…。！？"
"""The characters that end a sentence."""


@dataclass(frozen=True, slots=True)
class Said:
    """The text in one chunk of a reply."""

    answer: str = ""
    thinking: str = ""
    takes_back: bool = False
    """Whether the answer so far was thinking. If so, `thinking` contains it, too."""

    def tell(self, call: ModelCall, on_delta: OnDelta) -> None:
        """Stream the text to the listeners."""
        if self.takes_back:
            call.on_taken_back()
        if self.thinking:
            call.on_thinking(self.thinking)
        if self.answer:
            on_delta(self.answer)


@dataclass(slots=True)
class ThinkTags:
    """Splits streamed text at its think tags. A piece that may be a part of a tag is held back."""

    begins_in_thinking: bool = False
    """Whether the model's earlier replies had only a closing tag. The text then is thinking until this tag."""
    thinking: list[str] = field(default_factory=list)
    """The thinking between the tags."""
    answer: list[str] = field(default_factory=list)
    _state: Literal["start", "thinking", "answer"] = "start"
    _held: str = ""
    _opened: str = _OPEN
    """The tag that began the thinking."""
    _has_thought: bool = False
    _is_presumed: bool = False
    """Whether the text is taken for thinking although it has no opening tag."""
    _may_be_thinking: bool = True
    """Whether the answer so far may turn out to be thinking."""
    _has_ended: bool = False
    _characters: CharacterPieces = field(default_factory=CharacterPieces)

    @property
    def lacks_opening_tag(self) -> bool | None:
        """Whether the text has begun with thinking without an opening tag. None if it had no thinking in tags."""
        return self._is_presumed if self._has_thought else None

    def feed(self, piece: str) -> Said:
        """Return the parts of the text that are known after this piece."""
        return self._feed(self._characters.feed(piece))

    def _feed(self, text: str) -> Said:
        self._held += text
        answer, thinking, takes_back = "", "", False
        while True:
            before, said = self._state, self._next()
            if said.takes_back:
                thinking += "".join(self.answer) + answer
                self.answer.clear()
                answer, takes_back = "", True
            answer, thinking = answer + said.answer, thinking + said.thinking
            if self._state == before:
                return self._kept(Said(answer, thinking, takes_back))

    def flush(self) -> Said:
        """Return the text that was held back. Thinking that the model has not closed remains thinking, unless it had
        another opening tag than `<think>` or none.
        """
        self._has_ended = True
        said = self._feed(self._characters.flush())
        rest, self._held = self._held, ""
        if self._state == "thinking" and (self._is_presumed or self._opened != _OPEN):
            rest = ("" if self._is_presumed else self._opened) + "".join(self.thinking) + rest
            self.thinking.clear()
            self._has_thought = self._is_presumed = False
            return self._kept(Said(rest))
        if self._state == "thinking":
            last = self._kept(Said(thinking=rest))
        else:
            last = self._kept(Said(rest.lstrip() if self._has_thought else rest))
        return Said(said.answer + last.answer, said.thinking + last.thinking, said.takes_back)

    def _next(self) -> Said:
        match self._state:
            case "start":
                self._begin()
                return Said()
            case "thinking":
                thought, closed, rest = self._held.partition(_TAGS[self._opened])
                if closed:
                    self._state, self._held = "start", rest
                    return Said(thinking=thought)
                return Said(thinking=self._all_but_a_tag())
            case "answer":
                return self._answer()

    def _begin(self) -> None:
        begun = self._held.lstrip()
        if tag := next(filter(begun.startswith, _TAGS), None):
            self._state, self._held, self._has_thought = "thinking", begun.removeprefix(tag), True
            self._opened = tag
        elif any(tag.startswith(begun) for tag in _TAGS):
            return
        elif self.begins_in_thinking and not self._has_thought:
            self._state, self._has_thought, self._is_presumed = "thinking", True, True
        else:
            self._state, self._held = "answer", begun if self._has_thought else self._held
            self._may_be_thinking = not self._has_thought

    def _answer(self) -> Said:
        text = self._held
        self._may_be_thinking &= _OPEN not in text
        before, closed, after = text.partition(_CLOSE)
        if not (self._may_be_thinking and closed):
            if self._may_be_thinking:
                return Said(self._all_but_a_tag())
            self._held = ""
            return Said(text)
        if _UNDECIDED.fullmatch(after) and not self._has_ended:
            self._held = text.removeprefix(before)
            return Said(before)
        if _ends_thinking("".join(self.answer) + before, after):
            self._state, self._held = "start", after
            self._has_thought = self._is_presumed = True
            return Said(thinking=before, takes_back=True)
        self._may_be_thinking, self._held = False, ""
        return Said(text)

    def _all_but_a_tag(self) -> str:
        """Return the held text, and hold back its end if it may be the start of a tag."""
        text = self._held
        size = max(_held_back(text, tag) for tag in (_OPEN, _CLOSE, _TAGS[self._opened]))
        self._held = text[len(text) - size :]
        return text[: len(text) - size]

    def _kept(self, said: Said) -> Said:
        self.answer.extend([said.answer] if said.answer else ())
        self.thinking.extend([said.thinking] if said.thinking else ())
        return said


def _ends_thinking(before: str, after: str) -> bool:
    """Whether a closing tag between these texts ends thinking, and the answer doesn't just talk about it."""
    line, answer = before.rpartition("\n")[2], after.lstrip()
    gap = after.removesuffix(answer).replace("\r", "")
    if _is_quoted(before, line) or f"{before[-1:]}{after[:1]}" in _PAIRS or _GOES_ON.match(after):
        return False
    if "\n\n" in gap:
        return True
    if not line.strip():
        return not answer or not gap or gap.endswith("\n")
    if not line[-1].isspace():
        return True
    # With blanks on both sides, the tag is a word of a sentence, unless a sentence ends before it.
    return bool(answer) and (not gap or (line.rstrip()[-1] in _ENDS and not answer[0].islower()))


def _is_quoted(before: str, line: str) -> bool:
    """Whether a text that ends with this line has an open code block, code span or quotation."""
    fences = sum(each.lstrip().startswith(("```", "~~~")) for each in before.split("\n"))
    return fences % 2 == 1 or line.count("`") % 2 == 1 or line.count('"') % 2 == 1


def _held_back(text: str, tag: str) -> int:
    """Return the length of the text's end that may be the start of a tag."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)
