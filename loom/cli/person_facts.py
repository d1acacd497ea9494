"""What the `memory` commands do with facts about people: `--user U`, `--tenant T`, or both."""

from datetime import UTC, datetime
from typing import Any

import typer

from loom.activities.memory.ports import PersonFactStore
from loom.cli.output import console, counted, one_line, plain, print_json, print_notice
from loom.domain.core.errors import RunNotFoundError
from loom.domain.memory.people import (
    FactKind,
    FactOwner,
    ForgottenFacts,
    NewFact,
    PersonFact,
    SaidFact,
    checked_content,
    fact_view,
)


async def add(store: PersonFactStore, owner: FactOwner, text: str) -> None:
    """Store a fact that a person has written."""
    said = SaidFact(kind=FactKind.PREFERENCE, content=checked_content(text))
    await store.learn([NewFact(owner=owner, said=said, source="added", at=datetime.now(UTC))])


async def edit(store: PersonFactStore, owner: FactOwner, fact_id: int, text: str) -> None:
    """Replace a fact's text. Raises RunNotFoundError if the owner has no such fact."""
    if not await store.edit(owner, fact_id, checked_content(text)):
        raise no_fact(owner, fact_id)


async def forget(store: PersonFactStore, owner: FactOwner, fact_id: int | None) -> ForgottenFacts:
    """Delete one fact or all facts. Raises RunNotFoundError if the owner has no fact with this id."""
    gone = await store.forget(owner, fact_id)
    if fact_id is not None and not gone.facts:
        raise no_fact(owner, fact_id)
    return gone


def no_fact(owner: FactOwner, fact_id: int) -> RunNotFoundError:
    """Return the error for an id that the owner doesn't have. Whether another owner has it isn't told."""
    return RunNotFoundError(f"there is no fact {fact_id} of {owner.named}: `loom memory list` prints ids")


def show(owner: FactOwner, facts: tuple[PersonFact, ...], *, as_json: bool) -> None:
    """Print facts, newest first."""
    if as_json:
        print_json([fact_view(fact) for fact in facts])
        return
    out = console(wide=True)
    for fact in facts:
        where = f", session {fact.session_id}" if fact.session_id else ""
        out.print(plain(f"{fact.id:>6}  {fact.kind}, {fact.source}, {fact.created_at:%Y-%m-%d %H:%M}{where}"))
        out.print(f"        {one_line(fact.content, 200)}")
    if not facts:
        print_notice(f"nothing is remembered of {plain(owner.named)}")


def tell_forgotten(owner: FactOwner, gone: ForgottenFacts, *, as_json: bool) -> None:
    """Print what was deleted, and which sessions still have the messages that told it."""
    left = [f"not deleted: memories of session {name}; `loom memory forget --session` does" for name in gone.sessions]
    if as_json:
        view: dict[str, Any] = {"user_id": owner.user_id or None, "tenant": owner.tenant or None}
        print_json({**view, "forgotten": gone.facts, "left": left})
        return
    typer.echo(f"forgot {counted(gone.facts, 'fact')} of {plain(owner.named)}")
    for reason in left:
        print_notice(reason)
