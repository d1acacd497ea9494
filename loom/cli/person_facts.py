"""What the `memory` commands do with facts about people: `--user U`, `--tenant T`, or both."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from loom.activities.memory.ports import PersonFactStore
from loom.cli.output import console, counted, one_line, plain, print_json, print_notice
from loom.domain.core.errors import RunNotFoundError
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import Forgotten
from loom.domain.memory.people import ForgottenFacts, PersonFact, checked_content, fact_view


async def edit(store: PersonFactStore, owner: Owner, fact_id: int, text: str) -> None:
    """Replace a fact's text. Raises RunNotFoundError if the owner has no such fact."""
    if not await store.edit(owner, fact_id, checked_content(text)):
        raise no_fact(owner, fact_id)


async def forget(store: PersonFactStore, owner: Owner, fact_id: int | None) -> ForgottenFacts:
    """Delete one fact or all facts. Raises RunNotFoundError if the owner has no fact with this id."""
    gone = await store.forget(owner, fact_id)
    if fact_id is not None and not gone.facts:
        raise no_fact(owner, fact_id)
    return gone


def no_fact(owner: Owner, fact_id: int) -> RunNotFoundError:
    """Return the error for an id that the owner doesn't have. Whether another owner has it isn't told."""
    return RunNotFoundError(f"there is no fact {fact_id} of {owner.named}: `loom memory list` prints ids")


def show(owner: Owner, facts: tuple[PersonFact, ...], *, as_json: bool) -> None:
    """Print facts, newest first."""
    if as_json:
        print_json([fact_view(fact) for fact in facts])
        return
    out = console(wide=True)
    for fact in facts:
        where = f", session {fact.session_id}" if fact.session_id else ""
        where += f", replaced by {fact.superseded_by}" if fact.superseded_by else ""
        out.print(plain(f"{fact.id:>6}  {fact.kind}, {fact.source}, {fact.created_at:%Y-%m-%d %H:%M}{where}"))
        out.print(f"        {one_line(fact.content, 200)}")
    if not facts:
        print_notice(f"Loom remembers nothing about {plain(owner.named)}")


def tell_forgotten(owner: Owner, gone: ForgottenFacts, live: int, left: Sequence[str], *, as_json: bool) -> None:
    """Print which data of a person was deleted, and which wasn't."""
    traces = gone.traces or Forgotten()
    counts = {**trace_counts(traces), "key": live}
    counts.pop("fact")
    if as_json:
        view: dict[str, Any] = {"user_id": owner.user_id or None, "tenant": owner.tenant or None}
        views = {f"{noun}s": count for noun, count in counts.items()}
        print_json({**view, "forgotten": gone.facts, "memories": traces.memories, **views, "left": left})
        return
    memories = [counted(traces.memories, "memory", "memories")] if traces.memories else []
    parts = [counted(gone.facts, "fact"), *memories, *told_counts(counts)]
    typer.echo(f"forgot {', '.join(parts)} of {plain(owner.named)}")
    for reason in left:
        print_notice(reason)


def trace_counts(gone: Forgotten) -> dict[str, int]:
    """Return how much was deleted besides memories, by noun."""
    return {"note": gone.notes, "fact": gone.person_facts, "artifact": gone.artifacts, "effect": gone.effects}


def told_counts(counts: Mapping[str, int]) -> list[str]:
    """Return the counts in words, without zeros."""
    return [f"{counted(n, noun)}{' in Redis' if noun == 'key' else ''}" for noun, n in counts.items() if n]
