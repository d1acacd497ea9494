"""Who is let in while the database is away: nobody whose token isn't known."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from loom.activities.adapters.postgres.access import StoredToken
from loom.activities.ports import StoreUnavailable
from loom.serve.access import tokens
from loom.serve.access.authentication import Authentication
from loom.serve.access.callers import Callers
from loom.serve.access.local_user import LocalUser
from loom.serve.access.tokens import AccessTokens

STORED = StoredToken(
    id="1",
    name="ann",
    role="viewer",
    tenant=None,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    created_by="",
    expires_at=None,
    revoked_at=None,
)


class Away:
    """A database that doesn't respond."""

    def __getattr__(self, name: str) -> Any:
        async def fail(*_: object) -> None:
            raise StoreUnavailable(f"{name}: the database doesn't respond")

        return fail


class There:
    """A database that knows every token."""

    async def with_hash(self, hash_: bytes) -> StoredToken:
        del hash_
        return STORED

    async def exist(self) -> bool:
        return True


async def status_of(callers: Callers, *headers: tuple[bytes, bytes]) -> int:
    """The status of the answer to a request that the service itself would answer with 200."""
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})

    service: Any = SimpleNamespace(runs_for=lambda *_: None, audit=SimpleNamespace(refused=lambda *_, **__: None))
    app = Authentication(answer, service=service, authenticator=callers, public=())
    scope = {"type": "http", "method": "GET", "path": "/v1/runs", "headers": [(b"host", b"localhost"), *headers]}
    await app(scope, None, send)  # type: ignore[arg-type]  # nothing is received
    status: int = said[0]["status"]
    return status


async def test_while_the_database_is_away_nobody_is_let_in_whose_token_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store: Any = Away()
    known = AccessTokens(store)
    callers = Callers(tokens=known, local=LocalUser("me"))
    token = (b"authorization", b"Bearer loom_abc")
    assert (await status_of(callers), await status_of(callers, token)) == (503, 503)
    there: Any = There()
    monkeypatch.setattr(known, "_store", there)
    assert (await status_of(callers), await status_of(callers, token)) == (401, 200)
    monkeypatch.setattr(known, "_store", store)
    assert await status_of(callers, token) == 200, "it was read a moment ago"
    monkeypatch.setattr(tokens, "KEPT", 0.0)
    assert await status_of(callers, token) == 503
