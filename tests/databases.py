"""Databases of a test's own on the session's Postgres, and a look into them past Loom."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier


@asynccontextmanager
async def fresh_database(server: str) -> AsyncIterator[str]:
    """The URL of an empty database, beside the one of `server`, that is gone afterwards."""
    name = f"test_{uuid4().hex}"
    await rows(server, SQL("CREATE DATABASE {}").format(Identifier(name)))
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        await rows(server, SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


async def rows(url: str, statement: Any, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """What a statement gives, on a connection of its own."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []
