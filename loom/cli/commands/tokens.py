"""The `tokens` commands, which manage the bearer tokens of the HTTP API."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, TypeVar

import typer
from rich.table import Table

from loom.activities.adapters.postgres.access import PostgresTokens, StoredToken
from loom.activities.adapters.postgres.database import Database
from loom.activities.ports import StoreUnavailable
from loom.cli.arguments import Json, new_app, user_name
from loom.cli.output import console, print_json, print_notice
from loom.cli.policy_changes import record_change
from loom.composition.load_settings import load_settings
from loom.domain.audit.entries import Act
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.serve.access.roles import Role
from loom.serve.access.tokens import AccessTokens

T = TypeVar("T")

_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

app = new_app("tokens", "Manage the bearer tokens of the HTTP API.")


@app.command()
def add(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The token's user: a person or a program. Loom records this name.")
    ],
    role: Annotated[Role, typer.Option(help="What the token allows. Each role includes the ones before it.")],
    tenant: Annotated[str | None, typer.Option(help="Allow access only to this tenant's runs.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long the token is valid, such as 12h, 30d or 26w.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a token and print it. Loom stores only its hash, so you can't print it again."""
    until = None if expires is None else datetime.now(UTC) + _duration(expires)
    id_, token = _with_store(
        lambda store: AccessTokens(store).add(name, role, tenant=tenant, expires_at=until, created_by=user_name())
    )
    content = {"name": name, "role": role, "tenant": tenant, "expires_at": until}
    record_change(Act.ADD_TOKEN, content, subject=id_, tenant=tenant or "")
    if as_json:
        print_json({"id": id_, "token": token})
        return
    typer.echo(token)
    print_notice(f"token {id_} of {name}: copy it now, it isn't shown again. To revoke it: `loom tokens revoke {id_}`")
    if tenant is None:
        print_notice("the token has no tenant, so it allows access to the runs of all tenants")


@app.command(name="list")
def list_tokens(as_json: Json = False) -> None:
    """List all tokens, oldest first, without the tokens themselves."""
    tokens = _with_store(lambda store: store.all())
    if as_json:
        print_json([{**asdict(each), "state": _state(each)} for each in tokens])
        return
    if not tokens:
        typer.echo("no tokens; `loom tokens add` makes one")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("id", "name", "role", "tenant", "created", "by", "expires", "state"):
        table.add_column(column)
    for each in tokens:
        tenant = "all" if each.tenant is None else each.tenant
        expires = f"{each.expires_at:%Y-%m-%d %H:%M}" if each.expires_at else "never"
        made = f"{each.created_at:%Y-%m-%d}"
        table.add_row(each.id, each.name, each.role, tenant, made, each.created_by, expires, _state(each))
    console(wide=True).print(table)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's ID, as `loom tokens list` shows it.")],
    as_json: Json = False,
) -> None:
    """Revoke a token. Within five seconds, services refuse it and end its event streams."""
    if not _with_store(lambda store: AccessTokens(store).revoke(token_id)):
        raise BadRequest(f"there is no token {token_id!r}; `loom tokens list` shows all", field="ID")
    record_change(Act.REVOKE_TOKEN, {}, subject=token_id)
    if as_json:
        print_json({"revoked": token_id})
    else:
        typer.echo("revoked")


def _state(token: StoredToken) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= datetime.now(UTC) else "valid"


def _duration(text: str) -> timedelta:
    if (match := re.fullmatch(r"(\d{1,5})([mhdw])", text)) is None:
        raise BadRequest(f"--expires: {text!r} is not a duration: write 45m, 12h, 30d or 26w", field="--expires")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _with_store(work: Callable[[PostgresTokens], Awaitable[T]]) -> T:
    url = load_settings().database_url
    if not url:
        raise UnreachableError("tokens are stored in Postgres: start `loom up`, or set LOOM_DATABASE_URL")

    async def connected() -> T:
        async with aclosing(Database(url, max_connections=1, name="loom-tokens")) as database:
            return await work(PostgresTokens(database))

    try:
        return asyncio.run(connected())
    except StoreUnavailable as error:
        raise UnreachableError(str(error)) from error
