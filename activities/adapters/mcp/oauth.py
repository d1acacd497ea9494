"""Authorize Loom at an MCP server over HTTP with OAuth 2.1.

    client credentials    the worker gets its own tokens with a client id and a secret
    sign-in of a person   `loom mcp login NAME` stores tokens in `LOOM_HOME/mcp/`, and the worker renews them

The library discovers the authorization server and follows the MCP specification. It sends a token only to the server
that the token is for.
"""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from time import time
from typing import Any, Final

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel, ConfigDict, ValidationError

from loom.domain.core.errors import ToolUnavailableError
from loom.domain.core.messages import short_digest
from loom.domain.tools.mcp_servers import McpServer, expand

EARLY: Final = 60.0
"""Seconds before its end at which a token is renewed, but at most a third of its life. If a server rejects a token, the
library starts over with a sign-in, and doesn't renew the token.
"""

_NO_REDIRECT: Final = "http://127.0.0.1/callback"
"""The redirect address of a worker, which never signs in."""


class _Stored(BaseModel):
    """The content of a file with a sign-in."""

    model_config = ConfigDict(extra="forbid")

    address: str
    """Digest of the server's address. The tokens belong to no other server."""
    tokens: OAuthToken | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = None
    metadata: OAuthMetadata | None = None


class SignInFile:
    """Keeps a person's sign-in at one server in a file that only its owner can read. See the library's TokenStorage."""

    def __init__(self, home: Path, server: McpServer) -> None:
        self._path = home / "mcp" / f"{server.name}.oauth.json"
        self._address = short_digest(server.address)
        self.metadata: Callable[[], OAuthMetadata | None] = lambda: None
        self.on_renewal: Callable[[float | None], None] = lambda _: None
        """Called with the time at which new tokens must be renewed."""

    @property
    def stored(self) -> _Stored:
        """The stored sign-in. It is empty if there is none for this address. Raises ToolUnavailableError if the file
        can't be read.
        """
        try:
            stored = _Stored.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return _Stored(address=self._address)
        except (OSError, ValidationError) as error:
            reason = type(error).__name__
            raise ToolUnavailableError(f"the sign-in in {self._path} can't be read ({reason}): remove it") from None
        return stored if stored.address == self._address else _Stored(address=self._address)

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens."""
        return self.stored.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens."""
        life = tokens.expires_in
        expires_at = None if life is None else time() + life - min(EARLY, life / 3)
        self._store(tokens=tokens, expires_at=expires_at, metadata=self.metadata())
        self.on_renewal(expires_at)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the stored registration of Loom as a client."""
        return self.stored.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the registration of Loom as a client."""
        self._store(client=client_info)

    def clear(self) -> None:
        """Forget the sign-in."""
        self._path.unlink(missing_ok=True)

    def _store(self, **changes: Any) -> None:
        stored = self.stored.model_copy(update=changes).model_dump(mode="json", exclude_none=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(stored))
        new.replace(self._path)


class _SignIn(OAuthClientProvider):
    """Uses a stored sign-in. The library doesn't store when tokens expire, and where to renew them."""

    def __init__(self, server: McpServer, file: SignInFile, **given: Any) -> None:
        super().__init__(server.url, storage=file, **given)
        self._file = file
        file.metadata = lambda: self.context.oauth_metadata
        file.on_renewal = self._renew_at

    def _renew_at(self, time: float | None) -> None:
        self.context.token_expiry_time = time

    async def _initialize(self) -> None:
        await super()._initialize()
        stored = self._file.stored
        self.context.token_expiry_time = stored.expires_at
        self.context.oauth_metadata = stored.metadata


class _NoStorage:
    """Keeps tokens in memory only."""

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        del tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        del client_info


def oauth_of(server: McpServer, environment: Mapping[str, str], home: Path | None) -> httpx2.Auth | None:
    """Return the authorization of a worker's requests, or None if the server needs none.

    Requests raise ToolUnavailableError if a person must sign in first.
    """
    oauth = server.oauth
    if oauth is None:
        return None
    if oauth.client_secret:
        secret = expand({"client_secret": oauth.client_secret}, environment)["client_secret"]
        return ClientCredentialsOAuthProvider(
            server.url,
            _NoStorage(),
            client_id=oauth.client_id,
            client_secret=secret,
            scope=oauth.scope or None,
            issuer=oauth.issuer,
        )
    if home is None:
        raise ToolUnavailableError("a sign-in needs LOOM_HOME")

    async def refused(_address: str) -> None:
        raise ToolUnavailableError(f"a person must sign in: run `loom mcp login {server.name}`")

    async def never() -> AuthorizationCodeResult:
        raise ToolUnavailableError(f"a person must sign in: run `loom mcp login {server.name}`")

    return _signing_in(server, SignInFile(home, server), _NO_REDIRECT, refused, never)


def signing_in(
    server: McpServer,
    home: Path,
    redirect: str,
    *,
    opened: Callable[[str], Awaitable[None]],
    came_back: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> httpx2.Auth:
    """Return the authorization of a person who signs in. `opened` receives the address to open in a browser, and
    `came_back` returns what the browser brings to the address `redirect`.
    """
    return _signing_in(server, SignInFile(home, server), redirect, opened, came_back)


def _signing_in(
    server: McpServer,
    file: SignInFile,
    redirect: str,
    opened: Callable[[str], Awaitable[None]],
    came_back: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> httpx2.Auth:
    scope = server.oauth.scope if server.oauth else ""
    metadata = OAuthClientMetadata(client_name="Loom", redirect_uris=[AnyUrl(redirect)], scope=scope or None)
    return _SignIn(server, file, client_metadata=metadata, redirect_handler=opened, callback_handler=came_back)
