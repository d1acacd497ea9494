"""Separate a model's thinking from its answer.

Most servers send thinking in fields or blocks of its own. Some send it as `<think>…</think>` at the start of the text.
Tags that follow the start of the answer belong to the answer.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from loom.activities.ports import ModelCall, OnDelta

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


@dataclass(frozen=True, slots=True)
class Said:
    """The text in one chunk of a reply."""

    answer: str = ""
    thinking: str = ""

    def tell(self, call: ModelCall, on_delta: OnDelta) -> None:
        """Stream the text to the listeners."""
        if self.thinking:
            call.on_thinking(self.thinking)
        if self.answer:
            on_delta(self.answer)


@dataclass(slots=True)
class ThinkTags:
    """Splits streamed text at its think tags. A piece that may be a part of a tag is held back."""

    _state: Literal["start", "thinking", "answer"] = "start"
    _held: str = ""
    _has_thought: bool = False
    thinking: list[str] = field(default_factory=list)
    """The thinking between the tags."""
    answer: list[str] = field(default_factory=list)

    def feed(self, piece: str) -> Said:
        """Return the parts of the text that are known after this piece."""
        self._held += piece
        answer, thinking = "", ""
        while True:
            before, said = self._state, self._next()
            answer, thinking = answer + said.answer, thinking + said.thinking
            if self._state == before:
                return self._kept(answer, thinking)

    def flush(self) -> Said:
        """Return the text that was held back. Thinking that the model has not closed remains thinking."""
        rest, self._held = self._held, ""
        if self._state == "thinking":
            return self._kept("", rest)
        return self._kept(rest.lstrip() if self._has_thought else rest, "")

    def _next(self) -> Said:
        match self._state:
            case "start":
                begun = self._held.lstrip()
                if begun.startswith(_OPEN):
                    self._state, self._held, self._has_thought = "thinking", begun.removeprefix(_OPEN), True
                elif not _OPEN.startswith(begun):
                    self._state, self._held = "answer", begun if self._has_thought else self._held
                return Said()
            case "thinking":
                thought, closed, rest = self._held.partition(_CLOSE)
                if closed:
                    self._state, self._held = "start", rest
                    return Said(thinking=thought)
                size = _held_back(thought)
                self._held = thought[len(thought) - size :]
                return Said(thinking=thought[: len(thought) - size])
            case "answer":
                text, self._held = self._held, ""
                return Said(answer=text)

    def _kept(self, answer: str, thinking: str) -> Said:
        self.answer.extend([answer] if answer else ())
        self.thinking.extend([thinking] if thinking else ())
        return Said(answer, thinking)


def _held_back(text: str) -> int:
    """Return the length of the text's end that may be the start of a closing tag."""
    return next((size for size in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:size])), 0)
