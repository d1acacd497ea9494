"""The conversation of a run, what workers know of it by name, and how full the model's window is."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from loom.domain.core.messages import Message, Tail, Transcript, TranscriptRef, Usage, tail_of
from loom.domain.core.tokens import is_plausible, learned
from loom.domain.run.retry_policy import Tries


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """The messages so far, and the part of them that workers keep under a name, so that it is not sent again."""

    transcript: Transcript = field(default_factory=Transcript)
    known: TranscriptRef = field(default_factory=TranscriptRef)
    """The part of the transcript that workers have under its name."""
    produced: frozenset[str] = frozenset()
    """Calls whose results activities have handed to workers since `known`."""
    spec_digest: str = ""
    """The name under which workers have the agent's spec."""
    send_spec: bool = False
    """The next model call carries the spec inline."""

    @property
    def tail(self) -> Tail:
        """The transcript as a model call sends it: the known part by name, the rest whole."""
        return tail_of(self.known, self.transcript.messages, self.produced)

    @property
    def is_sent_whole(self) -> bool:
        """Whether the next request names nothing that a worker would have to know."""
        return self.send_spec and self.known == TranscriptRef()

    def extended(self, messages: Iterable[Message]) -> "Conversation":
        """With more messages; what workers know is as before."""
        return replace(self, transcript=self.transcript.extended(messages))

    def cached_as(self, transcript: Transcript, *, send_spec: bool = False) -> "Conversation":
        """With this transcript, which the worker that has just answered keeps under its name."""
        return replace(self, transcript=transcript, known=transcript.ref, produced=frozenset(), send_spec=send_spec)

    def sent_whole(self, spec_digest: str) -> "Conversation":
        """The next request names nothing that a worker would have to know."""
        return replace(self, known=TranscriptRef(), produced=frozenset(), send_spec=True, spec_digest=spec_digest)

    def with_spec(self, digest: str) -> "Conversation":
        """With a changed spec, which no worker knows yet."""
        return replace(self, spec_digest=digest, send_spec=True)


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
class DueCompression:
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
    due: DueCompression | None = None
    refused: bool = False
    """The provider has refused this call as too long, and the conversation was compressed for it."""
    put_off: int = 0
    """Attempts at this model call that the provider refused as too long."""
    attempts: int = 0
    """Attempts at compressing before this model call."""
    compressions: int = 0
    fruitless: int = 0
    """Compressions in a row that gained too little."""

    def measured(self, usage: Usage, *, estimated: int, collapsed: int) -> "Window":
        """After a model call: how much of the window it took, and how far the provider's count is from ours."""
        counted = usage.input_tokens
        believed = counted if is_plausible(counted, estimated) else round(estimated * self.ratio)
        return replace(
            self,
            tokens=believed + usage.output_tokens,
            ratio=learned(self.ratio, counted=counted, estimated=estimated),
            collapsed=collapsed,
            refused=False,
            put_off=0,
            attempts=0,
        )
