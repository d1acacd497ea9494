"""`loom tokens`, and which addresses a service without tokens serves."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from loom.activities.adapters.postgres.access import PostgresTokens, StoredToken
from loom.activities.adapters.postgres.database import Database
from loom.domain.core.errors import BadRequest, NotAuthenticatedError
from loom.serve.access.roles import Role
from loom.serve.access.tokens import AccessTokens
from loom.serve.server import serve
from loom.testing.harness import Addresses
from loom.testing.model_server import script, text
from tests.commands import commands_in
from tests.databases import rows
from tests.integration.serve.conftest import Serving


def test_a_token_is_shown_once_and_only_its_hash_is_stored(
    url: str, addresses: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"LOOM_DATABASE_URL": url, "TEMPORAL_ADDRESS": addresses.temporal}
    with commands_in(tmp_path, monkeypatch, **env) as loom:
        assert "no tokens" in loom("tokens", "list").out
        added = loom("tokens", "add", "ann", "--role", "approver", "--tenant", "acme", "--expires", "30d", "--json")
        made = json.loads(added.out)
        assert made["token"].startswith("loom_")
        assert len(made["token"]) == len("loom_") + 43  # 256 bits in base64
        (listed,) = json.loads(loom("tokens", "list", "--json").out)
        told = {name: listed[name] for name in ("id", "name", "role", "tenant", "state")}
        assert told == {"id": made["id"], "name": "ann", "role": "approver", "tenant": "acme", "state": "valid"}
        assert made["token"] not in json.dumps(listed)
        assert loom("tokens", "revoke", made["id"]).out == "revoked\n"
        assert json.loads(loom("tokens", "list", "--json").out)[0]["state"] == "revoked"
        wrong = loom("tokens", "revoke", "never")
        assert (wrong.code, wrong.err) == (2, "there is no token 'never'; `loom tokens list` shows all")
        for words, why in (
            *(((name, "--role", "viewer"), "is not a valid name") for name in ("two words", "a,b", "an\u200bn")),
            (("ann", "--role", "viewer", "--tenant", "a b"), "is not a valid name for a tenant"),
            (("ann", "--role", "viewer", "--expires", "soon"), "is not a duration"),
        ):
            refused = loom("tokens", "add", *words)
            assert refused.code == 2
            assert why in refused.err


async def test_requests_that_arrive_at_once_read_their_token_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database has few connections. Without one for 2 s, a request would be answered with 503."""
    reads: list[bytes] = []
    read = PostgresTokens.with_hash

    async def counted(store: PostgresTokens, hash_: bytes) -> StoredToken | None:
        reads.append(hash_)
        return await read(store, hash_)

    monkeypatch.setattr(PostgresTokens, "with_hash", counted)
    async with aclosing(Database(url)) as database:
        tokens = AccessTokens(PostgresTokens(database))
        _, token = await tokens.add("ann", Role.VIEWER, tenant=None, expires_at=None, created_by="a test")
        callers = await asyncio.gather(*(tokens.caller(token) for _ in range(500)))
        refused = await asyncio.gather(*(tokens.caller("loom_other") for _ in range(500)), return_exceptions=True)
    assert {caller.name for caller in callers} == {"ann"}
    assert {type(each) for each in refused} == {NotAuthenticatedError}
    assert len(reads) == 2


async def test_nothing_of_a_token_is_stored(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    token = api.http.headers["authorization"].removeprefix("Bearer ")
    stored = await rows(str(api.loom.settings.database_url), "SELECT t::text FROM loom_access_tokens t")
    assert stored
    assert not any(token[5:] in row or token.encode().hex() in row for (row,) in stored)


async def test_without_tokens_only_this_machine_is_served(serving: Serving) -> None:
    api = await serving(script([text("done")]), has_tokens=False)
    with pytest.raises(
        BadRequest, match="there are no tokens, so everyone who can reach this address would have full access"
    ):
        await serve(api.loom.settings, host="0.0.0.0", port=0, insecure=False)


async def test_a_revoked_token_ends(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    id_, token = await api.tokens.add("ann", Role.VIEWER, tenant=None, expires_at=None, created_by="a test")
    await api.tokens.revoke(id_)
    answer = await api.anonymous.get("/v1/runs", headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()["title"]) == (401, "NotAuthenticatedError")
    for wrong in ("Basic YTpi", "Bearer", "Bearer loom_", "Bearer a.b.c", "Bearer \u00e9"):
        answer = await api.anonymous.get("/v1/runs", headers={"Authorization": wrong.encode()})
        assert answer.status_code == 401, wrong
    twice = [("Authorization", api.http.headers["authorization"]), ("Authorization", f"Bearer {token}")]
    assert (await api.anonymous.get("/v1/runs", headers=twice)).status_code == 401
    assert (await api.anonymous.get("/v1/runs", headers=twice[:1])).status_code == 200
