"""Databases of a test's own on the session's Postgres, and a look into them past Loom."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier

from loom.stack.postgres import admin_address
from loom.testing.waiting import eventually

TEMPLATE = "template_of_tests"
"""A database with the extension `vector`, which only a superuser creates. The session makes it."""
ANEW = b"DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION pg_database_owner; CREATE EXTENSION vector"
"""Removes all that a database contains."""


def allow_databases(admin: str) -> None:
    """Let tests create databases of their own, which have the extension that only a superuser creates."""
    with psycopg.connect(f"{admin}/postgres", autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (TEMPLATE,)).fetchone():
            return
        connection.execute("ALTER ROLE loom CREATEDB")
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(TEMPLATE)))
    with psycopg.connect(f"{admin}/{TEMPLATE}", autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute(SQL("ALTER DATABASE {} OWNER TO loom").format(Identifier(TEMPLATE)))


@asynccontextmanager
async def fresh_database(server: str, template: str = TEMPLATE) -> AsyncIterator[str]:
    """The URL of an empty database, beside the one of `server`, that is gone afterwards."""
    name = f"test_{uuid4().hex}"
    await rows(server, SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template)))
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        await eventually(partial(_is_dropped, server, name))


async def _is_dropped(server: str, name: str) -> bool:
    try:
        await rows(server, SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))
    except psycopg.errors.InsufficientPrivilege:  # a process of the server itself, such as autovacuum, is at work there
        return False
    return True


def as_superuser(home: Path, url: str) -> str:
    """The same database, for the superuser of this home's Postgres."""
    parts = urlsplit(url)
    admin = urlsplit(admin_address(home, parts.port or 0))
    return parts._replace(netloc=admin.netloc).geturl()


async def rows(url: str, statement: Any, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """What a statement gives, on a connection of its own."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []
