"""A run's conversation, the part that workers have cached, and the usage of the model's context window."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loom.domain.core.frozen import replace
from loom.domain.core.messages import Message, Tail, Transcript, TranscriptRef, Usage, tail_of
from loom.domain.core.tokens import is_plausible, learned
from loom.domain.run.retry_policy import Tries


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """The messages so far, and the part that workers have cached, which doesn't have to be sent again."""

    transcript: Transcript = field(default_factory=Transcript)
    known: TranscriptRef = field(default_factory=TranscriptRef)
    """The part of the transcript that workers have cached."""
    produced: frozenset[str] = frozenset()
    """Calls made after `known` was cached. Activities have cached their results on workers."""
    spec_digest: str = ""
    """The digest under which workers have cached the agent's spec."""
    send_spec: bool = False
    """Whether the next model call must contain the spec inline."""

    @property
    def tail(self) -> Tail:
        """Return the transcript for a model call: the cached part by reference, and the rest inline."""
        return tail_of(self.known, self.transcript.messages, self.produced)

    @property
    def is_sent_whole(self) -> bool:
        """Whether the next request is self-contained and doesn't refer to cached values."""
        return self.send_spec and self.known == TranscriptRef()

    def extended(self, messages: Iterable[Message]) -> "Conversation":
        """Return the conversation with more messages. The part that workers have cached is unchanged."""
        return replace(self, transcript=self.transcript.extended(messages))

    def cached_as(self, transcript: Transcript, *, send_spec: bool = False) -> "Conversation":
        """Return the conversation with this transcript. The worker that has just answered has cached it."""
        return replace(self, transcript=transcript, known=transcript.ref, produced=frozenset(), send_spec=send_spec)

    def sent_whole(self, spec_digest: str) -> "Conversation":
        """Return a copy of the conversation whose next request is self-contained."""
        return replace(self, known=TranscriptRef(), produced=frozenset(), send_spec=True, spec_digest=spec_digest)

    def with_spec(self, digest: str) -> "Conversation":
        """Return the conversation with a changed spec, which no worker has cached."""
        return replace(self, spec_digest=digest, send_spec=True)


Trigger: TypeAlias = Literal["window", "provider"]
"""The reason for a compression: Loom's count exceeds the window, or the provider rejected the call as too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TooLong:
    """A model call that was postponed because its conversation must be compressed first."""

    trigger: Trigger
    tokens: int
    limit: int = 0
    """The model's limit as reported by its provider, or 0 if the limit is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DueCompression:
    """A compression that must run before the next model call."""

    trigger: Trigger
    tokens: int
    tries: Tries = field(default_factory=Tries)
    plain: bool = False
    """Whether to compress without a model, because too many attempts with the model have failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The context window of the run's model."""

    tokens: int = 0
    """The number of tokens in the last context and its answer. The provider counts the tokens. If it reports no count,
    Loom estimates the number.
    """
    size: int = 0
    """The limit that the provider reported. 0 means that the agent's setting applies."""
    ratio: float = 1.0
    """The number of tokens that the provider counts for each token in Loom's estimate."""
    collapsed: int = 0
    """The number of messages whose results are shortened for the model, counted from the beginning of the conversation.
    """
    warned: bool = False
    due: DueCompression | None = None
    refused: bool = False
    """Whether the provider rejected this call as too long and the conversation was then compressed."""
    put_off: int = 0
    """The number of attempts at this model call that the provider rejected as too long."""
    attempts: int = 0
    """The number of compression attempts before this model call."""
    compressions: int = 0
    fruitless: int = 0
    """The number of consecutive compressions that saved too little."""

    def measured(self, usage: Usage, *, estimated: int, collapsed: int) -> "Window":
        """Return the window, updated with a model call's usage and the provider's token count."""
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
