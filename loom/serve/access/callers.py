"""Tell who sends a request, by a token of Loom's or of an OpenID Connect issuer, or because it comes from here."""

from starlette.datastructures import Headers

from loom.domain.core.errors import NotAuthenticatedError
from loom.serve.access.authentication import bearer_token
from loom.serve.access.local_user import LocalUser
from loom.serve.access.openid import OpenId
from loom.serve.access.roles import Caller
from loom.serve.access.tokens import INVALID, PREFIX, AccessTokens


class Callers:
    """An `Authenticator` that accepts everything that the service is configured for.

    As long as there are no tokens and no issuer, the service is open to `local`. The first token closes it for good.
    """

    def __init__(
        self, *, tokens: AccessTokens | None = None, openid: OpenId | None = None, local: LocalUser | None = None
    ) -> None:
        self._tokens = tokens
        self._openid = openid
        self._local = local

    async def caller(self, headers: Headers) -> Caller:
        """See the protocol."""
        token = bearer_token(headers)
        if token is None:
            if self._local is not None and await self.is_open():
                return await self._local.caller(headers)
            raise NotAuthenticatedError("send a token in the header Authorization: Bearer; `loom tokens add` makes one")
        if token.startswith(PREFIX) and self._tokens is not None:
            return await self._tokens.caller(token)
        if token.count(".") == 2 and self._openid is not None:
            return await self._openid.caller(token)
        raise NotAuthenticatedError(INVALID)

    async def is_open(self) -> bool:
        """Return whether nobody can have a token. Raises StoreUnavailable if that isn't known."""
        return self._openid is None and (self._tokens is None or not await self._tokens.exist())
