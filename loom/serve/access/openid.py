"""Callers who sign in elsewhere: JSON Web Tokens of an OpenID Connect issuer, verified with its public keys."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import httpx2
import jwt
import structlog

from loom.domain.core.errors import AccessDeniedError, NotAuthenticatedError, UnreachableError
from loom.domain.core.messages import JsonObject
from loom.domain.core.tenants import TENANT_NAME
from loom.serve.access.people import LONGEST_NAME, is_valid_name
from loom.serve.access.roles import Caller, Role

_log = structlog.get_logger("loom.serve")

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a private key that only the issuer has."""
_KEY_TYPES: Final = frozenset({"RSA", "EC", "OKP"})
LEEWAY: Final = 30
"""Seconds by which the issuer's clock may differ."""
ANSWER_WITHIN: Final = 5.0
"""Seconds that the issuer has to return its keys."""
LARGEST_ANSWER: Final = 1_000_000
KEYS_KEPT: Final = 3600.0
"""Seconds after which keys are read again, so that withdrawn keys stop working."""
LOOK: Final = 30.0
"""Seconds between two attempts to find a key that isn't known."""
ALL_TENANTS: Final = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Issuer:
    """An issuer of tokens, and the claims that say who the caller is."""

    url: str
    audience: str
    keys_url: str | None = None
    """The address of the issuer's keys. None: the issuer's configuration names it."""
    name_claim: str = "sub"
    role_claim: str = "loom_role"
    tenant_claim: str | None = None
    """None: callers see the runs of all tenants. Otherwise, the claim is required; `*` stands for all tenants."""


class OpenId:
    """Verifies the tokens of one issuer."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._keys: Mapping[str, JsonObject] = {}
        self._read_at = self._tried_at = -KEYS_KEPT
        self._reading = asyncio.Lock()

    async def caller(self, token: str) -> Caller:
        """Return who has this token.

        Raises NotAuthenticatedError if it isn't valid, AccessDeniedError if its claims name no role or no tenant, and
        UnreachableError if the issuer's keys can't be read.
        """
        try:
            header = jwt.get_unverified_header(token)
            if (algorithm := header.get("alg")) not in ALGORITHMS:
                raise NotAuthenticatedError(
                    f"the token isn't valid: it must be signed by one of {', '.join(ALGORITHMS)}"
                )
            known = await self._key(str(header.get("kid", "")))
            claims = jwt.decode(
                token,
                jwt.PyJWK(dict(known), None if "alg" in known else algorithm),
                algorithms=list(ALGORITHMS),
                audience=self._issuer.audience,
                issuer=self._issuer.url,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise NotAuthenticatedError(f"the token isn't valid: {error}") from None
        return self._caller(claims)

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        issuer = self._issuer
        name = claims.get(issuer.name_claim)
        if not isinstance(name, str) or not name.strip():
            raise AccessDeniedError(f"the token has no claim {issuer.name_claim!r}, which names the caller")
        if not is_valid_name(name):
            raise AccessDeniedError(
                f"the token's claim {issuer.name_claim!r} is not a caller's name: it must have 1 to {LONGEST_NAME}"
                " visible characters, no space at its ends, and no comma, which separates the names of several"
                " approvers. Set LOOM_OIDC_NAME_CLAIM to another claim"
            )
        return Caller(name=name, role=self._role(claims.get(issuer.role_claim)), tenant=self._tenant(claims))

    def _role(self, claim: object) -> Role:
        """Return the highest role that the claim names: a role, or a list with roles among other things."""
        named = claim if isinstance(claim, list) else [claim]
        roles = [role for role in Role if role.value in named]
        if not roles:
            raise AccessDeniedError(
                f"the token's claim {self._issuer.role_claim!r} names no role: it must be one of {', '.join(Role)}"
            )
        return roles[-1]

    def _tenant(self, claims: Mapping[str, Any]) -> str | None:
        if (name := self._issuer.tenant_claim) is None:
            return None
        tenant = claims.get(name)
        if not isinstance(tenant, str) or not tenant:
            raise AccessDeniedError(f"the token has no claim {name!r}, which names the caller's tenant")
        if tenant == ALL_TENANTS:
            return None
        # Tenants' names begin the names of their sessions and runs, so that `a/b` could be taken for a part of `a`.
        if not re.fullmatch(TENANT_NAME, tenant):
            raise AccessDeniedError(
                f"the token's claim {name!r} is not a tenant's name: it must have 1 to 63 letters, digits, dots,"
                " hyphens and underscores, and begin with a letter or a digit"
            )
        return tenant

    async def _key(self, id_: str) -> JsonObject:
        if self._reading.locked() and (known := self._keys.get(id_)) is not None:
            return known  # an issuer that doesn't respond must not keep its callers waiting
        async with self._reading:
            now = monotonic()
            is_old = now - self._read_at >= KEYS_KEPT
            if (is_old or id_ not in self._keys) and now - self._tried_at >= LOOK:
                self._tried_at = now
                try:
                    self._keys = await self._read_keys()
                    self._read_at = now
                except UnreachableError as error:
                    if id_ not in self._keys:
                        raise
                    _log.warning("keys_not_read", reason=error.message)
        if (key := self._keys.get(id_)) is None:
            raise NotAuthenticatedError("the token isn't valid: it isn't signed with a key of the issuer")
        return key

    async def _read_keys(self) -> Mapping[str, JsonObject]:
        try:
            async with asyncio.timeout(ANSWER_WITHIN), httpx2.AsyncClient(timeout=ANSWER_WITHIN) as http:
                url = self._issuer.keys_url or await self._keys_url(http)
                found = await _object_at(http, url)
            keys = [key for key in found["keys"] if key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig"]
            return {str(key.get("kid", "")): key for key in keys}
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ValueError, LookupError, TypeError, AttributeError,
            RecursionError) as error:  # fmt: skip
            why = str(error) or type(error).__name__
            raise UnreachableError(f"the keys of {self._issuer.url} can't be read: {why}") from error

    async def _keys_url(self, http: httpx2.AsyncClient) -> str:
        found = await _object_at(http, f"{self._issuer.url.rstrip('/')}/.well-known/openid-configuration")
        if found["issuer"] != self._issuer.url:
            raise ValueError(f"its configuration is that of {found['issuer']}")
        url = str(found["jwks_uri"])
        if self._issuer.url.startswith("https:") and not url.startswith("https:"):
            raise ValueError(f"its configuration names keys at {url}, which isn't an https:// address")
        return url


async def _object_at(http: httpx2.AsyncClient, url: str) -> JsonObject:
    async with http.stream("GET", url, follow_redirects=False) as answer:
        answer.raise_for_status()
        body = bytearray()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > LARGEST_ANSWER:
                raise ValueError(f"{url} returns more than {LARGEST_ANSWER:,} bytes")
    found: JsonObject = json.loads(body)
    return found
