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

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import structlog

from loom.activities.ports import LLMProvider, ModelAnswer, ModelCall, OnDelta
from loom.activities.refused_kinds import ATTACHED, KINDS, Kind, attached_bytes
from loom.domain.core.errors import LLMConfigurationError, LLMContextLengthError, LoomError
from loom.domain.core.messages import Message, Usage, left_out, with_left_out

HEAVY: Final = 100_000
"""The number of bytes of images and files from which these may be the reason that a request is too large."""
REMEMBERED: Final = 1_000
"""The number of calls whose refusals a worker remembers until they are answered."""

_log = structlog.get_logger("loom.model")

_CallKey: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """What a provider has said to a call so far."""

    error: LoomError
    """The first error."""
    kinds: tuple[str, ...]
    """The kinds that the next request leaves out."""
    used: Usage
    """What the refused requests have used."""


class RefusalMemory:
    """The refusals of calls that are not answered yet. A call that waits for a permit goes on with the next kind."""

    def __init__(self) -> None:
        self._refusals: OrderedDict[_CallKey, Refusal] = OrderedDict()

    def of(self, call: ModelCall) -> Refusal | None:
        """Return the call's refusal, or None."""
        return self._refusals.get(_key(call))

    def note(self, call: ModelCall, refusal: Refusal | None) -> None:
        """Remember the call's refusal, or forget it."""
        self._refusals.pop(_key(call), None)
        if refusal is not None and call.origin is not None:
            self._refusals[_key(call)] = refusal
            if len(self._refusals) > REMEMBERED:
                self._refusals.popitem(last=False)


def _key(call: ModelCall) -> _CallKey:
    return call.origin.run_id if call.origin else "", call.model, len(call.messages)


class RefusalRetries:
    """An `LLMProvider` that repeats refused calls without what the provider may have refused."""

    def __init__(self, provider: LLMProvider, memory: RefusalMemory) -> None:
        self.provider = provider
        self._memory = memory

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """See the port. If the provider refuses every form of the request, raise its first error."""
        refusal = self._memory.of(call)
        sent = without_refused(call, refusal.kinds if refusal else ())
        said = _Said(on_delta)
        while True:
            try:
                answer = await self.provider.answer(replace(sent, on_thinking=said.thinking(sent)), said.add)
            except LoomError as error:
                if not (_may_be_content(error, sent) or (refusal and type(error) is type(refusal.error))):
                    raise
                refusal, sent = self._next(call, sent, refusal, error)
                said.take_back(call)
            else:
                self._memory.note(call, None)
                return answer if refusal is None else _with_note(answer, call, refusal)

    def _next(
        self, call: ModelCall, sent: ModelCall, before: Refusal | None, error: LoomError
    ) -> tuple[Refusal, ModelCall]:
        """Return the call without one kind more. If there is none, raise the first error."""
        first, kinds, used = (before.error, before.kinds, before.used) if before else (error, (), Usage())
        used = used if error.used is None else used + error.used
        for kind in _order(call, first):
            if kind.name in kinds:
                continue
            changed = without_refused(call, (*kinds, kind.name))
            if _content(changed) == _content(sent):
                continue
            _log.warning("request_refused", model=call.model, message=error.message, left_out=kind.name)
            refusal = Refusal(error=first, kinds=(*kinds, kind.name), used=used)
            self._memory.note(call, refusal)
            return refusal, changed
        self._memory.note(call, None)
        raise first


class _Said:
    """Passes the text of a reply on, and takes it back if the reply ends with a refusal."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._is_anything = False

    def add(self, text: str) -> None:
        self._is_anything = True
        self._on_delta(text)

    def thinking(self, call: ModelCall) -> OnDelta:
        def add(text: str) -> None:
            self._is_anything = True
            call.on_thinking(text)

        return add

    def take_back(self, call: ModelCall) -> None:
        if self._is_anything:
            call.on_taken_back()
        self._is_anything = False


def is_refused(error: LoomError) -> bool:
    """Whether the provider has refused the content of the request."""
    return isinstance(error, LLMConfigurationError) and bool(error.context.get("refused"))


def without_refused(call: ModelCall, now: Sequence[str] = ()) -> ModelCall:
    """Return the call without what its model has refused earlier in the conversation, and without the kinds that it
    refuses `now`.
    """
    refused = [
        (place, kinds)
        for place, message in enumerate(call.messages if call.has_refusals else ())
        if message.metadata and (kinds := _kinds(message, call.model))  # few messages have metadata
    ]
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


def _order(call: ModelCall, error: LoomError) -> Sequence[Kind]:
    """Return the kinds in the order in which they are tried: first those that were refused before, and then those that
    the server's words name.
    """
    named = {kind.name for kind in KINDS if kind.words.search(error.message)}
    before = {name for message in call.messages for name in _kinds(message, call.model)}
    kinds = [kind for kind in KINDS if kind.name in ATTACHED or not isinstance(error, LLMContextLengthError)]
    return sorted(kinds, key=lambda kind: (kind.name not in before, kind.name not in named))


def _content(call: ModelCall) -> Sequence[object]:
    return call.system, [*call.messages], [*call.tools], [*call.deferred]


def _with_note(answer: ModelAnswer, call: ModelCall, refusal: Refusal) -> ModelAnswer:
    """Return the answer with a note about what was left out. A kind that is left out for good is noted only if the
    provider accepted the call without it, because it may have been left out in vain.
    """
    *earlier, last = refusal.kinds
    lasting = {kind.name for kind in KINDS if kind.reach == "always"}
    kinds = [*(name for name in earlier if name not in lasting), last]
    message = with_left_out(answer.message, call.model, kinds, because=refusal.error.message)
    return replace(answer, message=message, usage=answer.usage + refusal.used)
