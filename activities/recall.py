"""Add context to a conversation after a person's message: memories of the session, and passages from
knowledge bases. Facts about the person are part of each model call instead, and never of the conversation.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

import structlog

from loom.activities.knowledge.ports import KnowledgeStore
from loom.activities.memory.ports import MemoryStore, PersonFactStore, ScopedMemory
from loom.activities.ports import ContextSource, StoreUnavailable
from loom.activities.toolbox.hooks import answer_of, text_in
from loom.domain.agents.spec import AgentSpec
from loom.domain.context.recall import (
    AWAY,
    KNOWLEDGE_AWAY,
    MOST_TOKENS,
    NO_KNOWLEDGE,
    NOTES_AWAY,
    NOTICE,
    SAID,
    SOURCE_AWAY,
    asked,
    inherited,
    looked_up,
    remembered,
)
from loom.domain.core.errors import HookFailedError
from loom.domain.core.messages import Message, recollection
from loom.domain.core.tasks import Origin
from loom.domain.core.tokens import within
from loom.domain.memory import people
from loom.domain.memory.knowledge import MOST_HITS, KnowledgeQuery
from loom.domain.memory.layers import Layer, MemorySettings, Query, View
from loom.domain.memory.scopes import path_of

_log = structlog.get_logger("loom.recall")

WITHIN: Final = 3.0
"""Maximum number of seconds that a model call waits for recalled context."""


class RecallSource(Protocol):
    """Adds a message to conversations. The message is recorded together with the model's reply."""

    async def recall(self, question: str, origin: Origin, spec: AgentSpec) -> Message | None:
        """Return related context for a person's message, or None. This method never raises an exception. If a source is
        unavailable, the returned message reports it.
        """
        ...


async def recalled(
    sources: Sequence[RecallSource], messages: Sequence[Message], origin: Origin, spec: AgentSpec
) -> tuple[Message, ...]:
    """Return each source's context for the messages since the model's last reply. If there are no new messages, return
    an empty tuple.
    """
    question = asked(messages) if sources else ""
    if not question:
        return ()
    found = await asyncio.gather(*(source.recall(question, origin, spec) for source in sources))
    return tuple(message for message in found if message is not None)


class AppSource:
    """A context source that an app registers."""

    def __init__(self, name: str, source: ContextSource, redact: Callable[[str], str]) -> None:
        self._name = name
        self._source = source
        self._redact = redact

    async def recall(self, question: str, origin: Origin, spec: AgentSpec) -> Message | None:
        """See the port's documentation. The text has at most as many tokens as other sources may use."""
        try:
            found = await answer_of(self._name, self._source.recall, question, origin, patience=WITHIN)
            text = "" if found is None else text_in(found)
        except HookFailedError as error:
            _log.warning("context_source_failed", run_id=origin.run_id, source=self._name, error=error.message)
            return recollection(SOURCE_AWAY.format(name=self._name), self._name)
        told = f"{NOTICE}\n\n{within(self._redact(text), MOST_TOKENS)}"
        return recollection(told, self._name) if text else None


class SessionMemory:
    """Memories from other runs in the same session. A run without a session has a session of its own, which starts
    empty.
    """

    def __init__(self, store: MemoryStore, settings: MemorySettings = MemorySettings()) -> None:  # noqa: B008 - frozen
        self._store = store
        self._settings = settings

    async def recall(self, question: str, origin: Origin, spec: AgentSpec) -> Message | None:
        """See the port's documentation."""
        if not origin.session_id:
            return None
        try:
            async with asyncio.timeout(WITHIN):
                text = await self._remembered(question, origin)
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("not_recalled", run_id=origin.run_id, error=str(error) or "too slow")
            text = AWAY
        return recollection(text, "memory") if text else None

    async def _remembered(self, question: str, origin: Origin) -> str:
        settings = self._settings

        def view(limit: int, *layers: Layer) -> View:
            layered = frozenset(layers)
            return View(
                session_id=origin.session_id,
                owner=origin.owner,
                without_run=origin.run_id,
                layers=layered,
                limit=limit,
            )

        # A sub-agent receives its task and its parent's hints, but not the parent's conversation.
        is_root = origin.root_run_id in ("", origin.run_id)
        recent = view(settings.recall_recent if is_root else 0, Layer.L1)
        # Include only messages and answers. In a run with many tool calls, the newest tasks would contain few of them.
        said = replace(recent, actions=frozenset(SAID), only_roots=True)
        conversation, important, summaries = await asyncio.gather(
            self._store.recent(said),
            self._store.recall(Query(text=question, view=view(settings.recall_important, Layer.L2))),
            self._store.recall(Query(text=question, view=view(settings.recall_summaries, Layer.L3, Layer.L4))),
        )
        others = (0 if is_root else settings.notes_tokens) + (
            settings.person_tokens if people.owners_for(origin) else 0
        )
        return remembered(conversation, important, summaries, settings.recall_tokens - others)


class InheritedNotes:
    """What the runs of a sub-agent's tree share with it when it begins. A root run inherits nothing."""

    def __init__(self, store: ScopedMemory, settings: MemorySettings = MemorySettings()) -> None:  # noqa: B008 - frozen
        self._store = store
        self._settings = settings

    async def recall(self, question: str, origin: Origin, spec: AgentSpec) -> Message | None:
        """See the port's documentation."""
        if origin.root_run_id in ("", origin.run_id):
            return None
        try:
            async with asyncio.timeout(WITHIN):
                notes = await self._store.entries(path_of(origin.run_id, origin.root_run_id), origin.owner)
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("notes_not_inherited", run_id=origin.run_id, error=str(error) or "too slow")
            return recollection(NOTES_AWAY, "notes")
        text = inherited(notes, origin.run_id, self._settings.notes_tokens)
        return recollection(text, "notes") if text else None


class PersonMemory:
    """Facts about a run's user, and those for everybody in its tenant.

    Each model call reads them again. They are never stored in a conversation or in a history, so that the next call of
    every run goes without a fact that has been forgotten.
    """

    def __init__(self, store: PersonFactStore, settings: MemorySettings = MemorySettings()) -> None:  # noqa: B008
        self._store = store
        self._settings = settings

    async def about(self, question: str, origin: Origin) -> people.RecalledFacts:
        """Return the facts for a model call. If they don't all fit, those that are related to the person's message come
        first. This method never raises an exception. If the store is unavailable, the text says so.
        """
        owners = people.owners_for(origin)
        if not owners:
            return people.RecalledFacts()
        try:
            async with asyncio.timeout(WITHIN):
                facts = await self._store.about(owners, without_run=origin.run_id)
                most = self._settings.person_tokens
                fitting = people.fitting(facts, most)
                if len(fitting) < len(facts):
                    similar = await self._store.similarities(owners, question) if question else None
                    fitting = people.fitting(people.ranked(facts, question, similar), most)
                return people.told(fitting)
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("person_not_recalled", run_id=origin.run_id, error=str(error) or "too slow")
            return people.RecalledFacts(text=people.AWAY)


class Knowledge:
    """Passages from the agent's knowledge bases: those of the run's tenant, and those of the operator."""

    def __init__(self, store: KnowledgeStore | None) -> None:
        """Without a store, there are no knowledge bases. An agent that refers to one then receives a notice."""
        self._store = store

    async def recall(self, question: str, origin: Origin, spec: AgentSpec) -> Message | None:
        """Return related passages within the agent's limits, and report which knowledge bases are missing."""
        if not spec.knowledge:
            return None
        if self._store is None:
            _log.warning("no_knowledge_bases", run_id=origin.run_id, agent=spec.name, bases=spec.knowledge)
            return recollection(NO_KNOWLEDGE, "knowledge")
        try:
            async with asyncio.timeout(WITHIN):
                missing = await self._store.missing(spec.knowledge, tenant=origin.tenant)
                queries = _queries(question, spec, origin.tenant)
                found = await asyncio.gather(*(self._store.search(query) for query in queries))
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("not_looked_up", run_id=origin.run_id, error=str(error) or "too slow")
            return recollection(KNOWLEDGE_AWAY, "knowledge")
        if missing:
            _log.warning("knowledge_base_missing", run_id=origin.run_id, agent=spec.name, bases=missing)
        text = looked_up([hit for hits in found for hit in hits], missing)
        return recollection(text, "knowledge") if text else None


def _queries(question: str, spec: AgentSpec, tenant: str) -> Iterator[KnowledgeQuery]:
    """Yield a query for each knowledge base with limits of its own, and one for all others together."""
    if others := tuple(base for base in spec.knowledge if base not in spec.knowledge_limits):
        yield KnowledgeQuery(text=question, tenant=tenant, bases=others)
    for base, limit in spec.knowledge_limits.items():
        number = MOST_HITS if limit.number is None else limit.number
        yield KnowledgeQuery(text=question, tenant=tenant, bases=(base,), limit=number, floor=limit.floor)
