"""Tokens of an OpenID Connect issuer."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from loom.domain.core.errors import AccessDeniedError, NotAuthenticatedError, UnreachableError
from loom.serve.access.openid import Issuer, OpenId
from loom.serve.access.roles import Caller, Role
from tests.web_site import WebSite, page

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SECRET = {"kty": "oct", "kid": "secret", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"}


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    """An issuer with two keys, and a shared secret that must never count."""
    keys = [
        {**RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "rsa"},
        {**ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True), "kid": "ec"},
        SECRET,
    ]
    pages: dict[str, Any] = {"/keys": page(json.dumps({"keys": keys}), "application/json")}
    async with WebSite(pages) as site:
        url = site.url("", "127.0.0.1")
        configuration = {"issuer": url, "jwks_uri": site.url("/keys", "127.0.0.1")}
        pages["/.well-known/openid-configuration"] = page(json.dumps(configuration), "application/json")
        yield Issuer(url=url, audience="loom", tenant_claim="org")


def claims(issuer: Issuer, **changed: Any) -> dict[str, Any]:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    told = {"iss": issuer.url, "aud": "loom", "sub": "ann", "exp": soon, "loom_role": "approver", "org": "acme"}
    return {name: value for name, value in {**told, **changed}.items() if value is not None}


def signed(issuer: Issuer, key: Any = KEY, algorithm: str = "RS256", kid: str = "rsa", **changed: Any) -> str:
    return jwt.encode(claims(issuer, **changed), key, algorithm, headers={"kid": kid})


async def test_claims_say_who_calls(issuer: Issuer) -> None:
    openid = OpenId(issuer)
    ann = Caller(name="ann", role=Role.APPROVER, tenant="acme")
    assert await openid.caller(signed(issuer)) == ann
    assert await openid.caller(signed(issuer, algorithm="PS384")) == ann
    assert await openid.caller(signed(issuer, CURVE, "ES256", "ec")) == ann
    admin = await openid.caller(signed(issuer, loom_role=["staff", "viewer", "admin"], org="*"))
    assert admin == Caller(name="ann", role=Role.ADMIN, tenant=None)


async def test_what_the_issuer_has_not_signed_for_this_service_is_refused(issuer: Issuer) -> None:
    openid = OpenId(issuer)
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    wrong = [
        signed(issuer, STRANGER),
        signed(issuer, kid="unknown"),
        signed(issuer, aud="another service"),
        signed(issuer, iss="https://another.example"),
        signed(issuer, exp=long_ago),
        signed(issuer, exp=None),
        signed(issuer, sub=None),
        jwt.encode(claims(issuer), "", "none", headers={"kid": "rsa"}),
        signed(issuer, "secret-secret-secret-secret-secret", "HS256", "secret"),
        signed(issuer)[:-8] + "AAAAAAAA",
        "a.b.c",
    ]
    for token in wrong:
        with pytest.raises(NotAuthenticatedError):
            await openid.caller(token)


@pytest.mark.parametrize("changed", [{"loom_role": "king"}, {"loom_role": None}, {"org": None}, {"org": ""}])
async def test_a_caller_without_a_role_or_a_tenant_may_do_nothing(issuer: Issuer, changed: dict[str, Any]) -> None:
    with pytest.raises(AccessDeniedError):
        await OpenId(issuer).caller(signed(issuer, **changed))


@pytest.mark.parametrize("changed", [{"org": "acme/b"}, {"org": "acme:b"}, {"org": "acme\n"}, {"sub": "ann, ben"}])
async def test_a_caller_whose_names_could_be_taken_for_others_may_do_nothing(
    issuer: Issuer, changed: dict[str, Any]
) -> None:
    with pytest.raises(AccessDeniedError):
        await OpenId(issuer).caller(signed(issuer, **changed))


async def test_an_issuer_that_does_not_respond_is_no_reason_to_let_anybody_in() -> None:
    away = Issuer(url="http://127.0.0.1:9", audience="loom")
    with pytest.raises(UnreachableError):
        await OpenId(away).caller(signed(away))
