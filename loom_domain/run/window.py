"""How full a model's window is, and what was done about it: the part of a run's state that is about its context."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loom.domain.run.retry_policy import Tries

Trigger: TypeAlias = Literal["window", "provider"]
"""Why a conversation is compressed: by our count the window is full, or the provider refused it as too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TooLong:
    """A model call that was put off, since its conversation has to be compressed first."""

    trigger: Trigger
    tokens: int
    limit: int = 0
    """What the model takes, as its provider said; 0: unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """A compression that has to come before the next model call."""

    trigger: Trigger
    tokens: int
    tries: Tries = field(default_factory=Tries)
    plain: bool = False
    """Without a model: it has failed at this too often."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The window of the run's model."""

    tokens: int = 0
    """Of the last context and its answer, as the provider counted them or, where it did not, as estimated."""
    size: int = 0
    """What the provider said the model takes; 0: as the agent says."""
    ratio: float = 1.0
    """Tokens that the provider counts for one of Loom's."""
    collapsed: int = 0
    """Messages at the conversation's beginning whose results are shown shortened."""
    warned: bool = False
    due: Due | None = None
    refused: bool = False
    """The provider has refused this call as too long, and the conversation was compressed for it."""
    put_off: int = 0
    """Attempts at this model call that the provider refused as too long."""
    attempts: int = 0
    """Attempts at compressing before this model call."""
    compressions: int = 0
    fruitless: int = 0
    """Compressions in a row that gained too little."""
