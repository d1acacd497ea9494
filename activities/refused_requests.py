"""Repeat a model call that the provider has refused, without what it may have refused.

A provider that doesn't accept one part of a conversation, such as a picture or the name of a call, would refuse every
later request, too, and the run could never go on. So the call is repeated with one kind of content after the other
left out or mended, until the provider accepts it. What the model would otherwise miss is replaced with words.

The reply's metadata records what was left out (`left_out`), so that no later call, on whichever worker, sends it again
to the same model.

    answer ──400, 413, 422──▶ the next kind that changes the request ──accepted──▶ reply with `left_out`
                                   ▲                          │
                                   └────────────refused───────┘   after the last kind: the first error
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import structlog

from loom.activities.ports import LLMProvider, ModelAnswer, ModelCall, OnDelta
from loom.activities.refused_kinds import ATTACHED, KINDS, attached_bytes
from loom.domain.core.errors import LLMConfigurationError, LLMContextLengthError, LoomError
from loom.domain.core.messages import Message, left_out, with_left_out

HEAVY: Final = 100_000
"""The number of bytes of images and files from which these may be the reason that a request is too large."""

_log = structlog.get_logger("loom.model")


class ForgivingProvider:
    """An `LLMProvider` that repeats refused calls without what the provider may have refused."""

    def __init__(self, provider: LLMProvider) -> None:
        self.provider = provider

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """See the port. If the provider refuses every form of the request, raise its first error."""
        sent = without_refused(call)
        try:
            return await self.provider.answer(sent, on_delta)
        except LoomError as error:
            if not _may_be_content(error, sent):
                raise
            first = error
        for kinds, changed in _ever_less(call, sent, first):
            _log.warning("request_refused", model=call.model, message=first.message, left_out=kinds[-1])
            try:
                answer = await self.provider.answer(changed, on_delta)
            except LoomError as error:
                if not (_may_be_content(error, changed) or type(error) is type(first)):
                    raise
                continue
            return replace(answer, message=with_left_out(answer.message, call.model, kinds, because=first.message))
        raise first


def is_refused(error: LoomError) -> bool:
    """Whether the provider has refused the content of the request."""
    return isinstance(error, LLMConfigurationError) and bool(error.context.get("refused"))


def without_refused(call: ModelCall, now: Sequence[str] = ()) -> ModelCall:
    """Return the call without what its model has refused earlier in the conversation, and without the kinds that it
    refuses `now`.
    """
    refused = [(place, kinds) for place, message in enumerate(call.messages) if (kinds := _kinds(message, call.model))]
    if now:
        refused.append((len(call.messages), now))
    if not refused:
        return call
    for position, kinds in refused:
        for kind in (kind for kind in KINDS if kind.reach in ("newest", "earlier") and kind.name in kinds):
            start = _before(call.messages, position) if kind.reach == "newest" else 0
            call = kind.change(call, start, position)
    for kind in (kind for kind in KINDS if kind.reach == "always" and any(kind.name in kinds for _, kinds in refused)):
        call = kind.change(call, 0, len(call.messages))
    removed = 0
    for kind in (kind for kind in reversed(KINDS) if kind.reach == "shorter"):
        if stop := max((position for position, kinds in refused if kind.name in kinds), default=0):
            before = len(call.messages)
            call = kind.change(call, 0, max(0, stop - removed))
            removed += before - len(call.messages)
    return call


def _kinds(message: Message, model: str) -> Sequence[str]:
    """Return the names of the kinds that the model's provider had refused before it gave this reply."""
    note = left_out(message)
    return note["kinds"] if note is not None and note.get("model") == model else ()


def _before(messages: Sequence[Message], position: int) -> int:
    """Return the position of the last reply before this one. What follows it was new to the provider."""
    return next((place for place in range(position - 1, -1, -1) if messages[place].role == "assistant"), 0)


def _may_be_content(error: LoomError, call: ModelCall) -> bool:
    if not isinstance(error, LLMContextLengthError):
        return is_refused(error)
    # The limit may be one of bytes rather than of tokens. A compression doesn't make images smaller.
    attached = attached_bytes(call.messages)
    return attached > 0 if call.is_shortened else attached > HEAVY and "limit" not in error.context


def _ever_less(call: ModelCall, sent: ModelCall, error: LoomError) -> Iterator[tuple[Sequence[str], ModelCall]]:
    """Yield the call with one more kind left out each time. The kinds that were refused before come first, and then
    those that the server's words name.
    """
    named = {kind.name for kind in KINDS if kind.words.search(error.message)}
    before = {name for message in call.messages for name in _kinds(message, call.model)}
    kinds = [kind for kind in KINDS if kind.name in ATTACHED or not isinstance(error, LLMContextLengthError)]
    tried: list[str] = []
    for kind in sorted(kinds, key=lambda kind: (kind.name not in before, kind.name not in named)):
        changed = without_refused(call, [*tried, kind.name])
        if _content(changed) == _content(sent):
            continue
        sent = changed
        tried.append(kind.name)
        yield [*tried], sent


def _content(call: ModelCall) -> Sequence[object]:
    return call.system, [*call.messages], [*call.tools], [*call.deferred]
