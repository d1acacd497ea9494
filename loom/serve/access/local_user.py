"""The only caller of a service that has no tokens: whoever can connect to it."""

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from loom.domain.core.errors import AccessDeniedError
from loom.serve.access.roles import Caller, Role

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

OWN_SITES: Final = frozenset({"same-origin", "none"})
"""What browsers say in `Sec-Fetch-Site` about requests of the page itself, and about addresses that a person enters."""


class LocalUser:
    """An `Authenticator` that knows one person, who may do everything.

    A browser on this machine may be told by any site to send requests here. They name the site as their origin, or, if
    its name leads here, as their host. Requests for images and scripts name no origin, but say that they come from
    another site. All of these are refused.
    """

    def __init__(self, name: str, *, hosts: Collection[str] = LOOPBACK, origins: Collection[str] = ()) -> None:
        """`hosts` are the names of this service; an empty collection allows all. `origins` are other sites that may
        send requests.
        """
        self.person = Caller(name=name, role=Role.ADMIN)
        self._hosts = hosts
        self._origins = origins

    async def caller(self, headers: Headers) -> Caller:
        """See the protocol."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts and _host_in(f"//{host}") not in self._hosts:
            raise AccessDeniedError(f"this service has no tokens, so it doesn't answer to the host {host!r}")
        if origin is not None and origin not in self._origins and origin.partition("//")[2] != host:
            raise AccessDeniedError(f"this service has no tokens, so it doesn't answer to pages of {origin}")
        if origin is None and headers.get("sec-fetch-site", "none") not in OWN_SITES:
            raise AccessDeniedError("this service has no tokens, so it doesn't answer to pages of other sites")
        return self.person


def _host_in(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
