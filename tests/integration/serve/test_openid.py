"""Tokens of an OpenID Connect issuer."""

import asyncio
import gzip
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.utils import base64url_encode

from loom.domain.core.errors import AccessDeniedError, NotAuthenticatedError, UnreachableError
from loom.serve.access import openid
from loom.serve.access.openid import ALGORITHMS, Issuer, OpenId
from loom.serve.access.roles import Caller, Role
from tests.web_site import Talk, WebSite, moved, page

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SECRET = {"kty": "oct", "kid": "secret", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"}


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    """An issuer with two keys, and a shared secret that must never count."""
    keys = [
        {**key_of(KEY), "kid": "rsa"},
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


def key_of(key: rsa.RSAPrivateKey) -> dict[str, Any]:
    return RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)


def with_header(issuer: Issuer, **header: Any) -> str:
    """A token whose algorithm and key don't belong together, signed with the text of the public key."""
    told = base64url_encode(json.dumps(header).encode()), signed(issuer).split(".")[1].encode()
    made = hmac.digest(
        KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), b".".join(told), "sha256"
    )
    return b".".join((*told, base64url_encode(made))).decode()


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
        signed(issuer, nbf=datetime.now(UTC) + timedelta(hours=1)),
        signed(issuer, iat=datetime.now(UTC) + timedelta(hours=1)),
        signed(issuer, exp=None),
        signed(issuer, sub=None),
        jwt.encode(claims(issuer), "", "none", headers={"kid": "rsa"}),
        *(
            jwt.encode(claims(issuer), STRANGER, "RS256", headers={"kid": "stranger", **told})
            for told in ({"jku": f"{issuer.url}/strange"}, {"x5u": f"{issuer.url}/strange"}, {"jwk": key_of(STRANGER)})
        ),
        *(with_header(issuer, alg=alg, kid=kid) for alg in (*ALGORITHMS, "HS256", "none") for kid in ("rsa", "ec", 5)),
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


@pytest.mark.parametrize(
    "changed",
    [
        {"org": "acme/b"},
        {"org": "acme:b"},
        {"org": "acme\n"},
        {"sub": "ann, ben"},
        {"sub": " ann"},
        {"sub": "an\u200bn"},
        {"sub": "ann\u202e"},
        {"sub": "a\nn"},
        {"sub": "a" * 256},
        {"org": ["acme"]},
        {"org": "\u0430cme"},
    ],
)
async def test_a_caller_whose_names_could_be_taken_for_others_may_do_nothing(
    issuer: Issuer, changed: dict[str, Any]
) -> None:
    with pytest.raises(AccessDeniedError):
        await OpenId(issuer).caller(signed(issuer, **changed))


async def test_an_issuer_that_does_not_respond_is_no_reason_to_let_anybody_in() -> None:
    away = Issuer(url="http://127.0.0.1:9", audience="loom")
    with pytest.raises(UnreachableError):
        await OpenId(away).caller(signed(away))


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (page(b" " * 1_000_001, "application/json"), "more than 1,000,000 bytes"),
        (page(gzip.compress(b" " * 50_000_000), "application/json", Content_Encoding="gzip"), "more than"),
        (drip, "TimeoutError"),
        (moved("/strange"), "Redirect"),
        (page("[" * 100_000, "application/json"), "RecursionError|recursion"),
        (page('{"keys": [5]}', "application/json"), "can't be read"),
        (page("nothing", "text/plain", 500), "500"),
    ],
)
async def test_whatever_the_address_of_the_keys_returns_it_takes_little_and_lets_nobody_in(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | Talk, why: str
) -> None:
    monkeypatch.setattr(openid, "ANSWER_WITHIN", 0.5)
    strange = page(json.dumps({"keys": [{**key_of(KEY), "kid": "rsa"}]}), "application/json")
    async with WebSite({"/keys": answer, "/strange": strange}) as site:
        issuer = Issuer(url="https://issuer.example", audience="loom", keys_url=site.url("/keys", "127.0.0.1"))
        with pytest.raises(UnreachableError, match=why):
            await OpenId(issuer).caller(signed(issuer))
    assert site.paths == ["/keys"]


async def test_a_new_key_of_the_issuer_counts_and_a_withdrawn_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openid, "LOOK", 0.0)
    pages: dict[str, bytes | Talk] = {}

    def publish(*keys: tuple[str, rsa.RSAPrivateKey]) -> None:
        listed = [{**key_of(key), "kid": kid} for kid, key in keys]
        pages["/keys"] = page(json.dumps({"keys": listed}), "application/json")

    async with WebSite(pages) as site:
        issuer = Issuer(url="https://issuer.example", audience="loom", keys_url=site.url("/keys", "127.0.0.1"))
        verifying = OpenId(issuer)
        publish(("old", KEY))
        old, new = signed(issuer, kid="old"), signed(issuer, STRANGER, kid="new")
        await verifying.caller(old)
        publish(("old", KEY), ("new", STRANGER))
        await verifying.caller(new)
        publish(("new", STRANGER))
        await verifying.caller(old)
        monkeypatch.setattr(openid, "KEYS_KEPT", 0.0)
        with pytest.raises(NotAuthenticatedError):
            await verifying.caller(old)
        del pages["/keys"]
        assert (await verifying.caller(new)).name == "ann", "the issuer is away, and its keys are still known"


async def test_an_issuer_whose_address_is_protected_names_no_keys_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def configuration(*_: object) -> dict[str, str]:
        return {"issuer": "https://issuer.example", "jwks_uri": "http://issuer.example/keys"}

    monkeypatch.setattr(openid, "_object_at", configuration)
    issuer = Issuer(url="https://issuer.example", audience="loom")
    with pytest.raises(UnreachableError, match="isn't an https:// address"):
        await OpenId(issuer).caller(signed(issuer))
